"""Views: saved queries that live beside the tables, in the same namespaces and under names of the same kind.

A view changes as a table does: a new metadata file, then a swap of the pointer.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from mainstem.catalog.errors import AlreadyExists, CommitFailed, NoSuchView
from mainstem.catalog.files import Files
from mainstem.catalog.locations import Locations
from mainstem.catalog.locks import TableLocks
from mainstem.catalog.metadata import view as view_metadata
from mainstem.catalog.metadata.boundaries import check_document, check_properties, check_updates
from mainstem.catalog.metadata.documents import Documents, Stored, next_location
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.names import Namespace, TableIdent, check_ident
from mainstem.catalog.stores.store import Kind, Pointer, Store, Swap
from mainstem.model import Corrupt, Invalid, NotFound, OutcomeUnknown, Overloaded
from mainstem.runtime.clock import Clock

CACHE_BYTES_MAX = 4 * 1024 * 1024
ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class NewView:
    """What a client asks for when it creates a view."""

    schema: Document
    version: Document
    location: str | None = None
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadedView:
    """A view as a client gets it."""

    metadata_location: str
    stored: Stored


class Views:
    """All views of one warehouse. Every method blocks and may be called from any thread."""

    def __init__(
        self,
        *,
        store: Store,
        files: Files,
        locations: Locations,
        locks: TableLocks,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._store = store
        self._files = files
        self._locations = locations
        self._locks = locks
        self._clock = clock
        self._new_id = new_id
        self._documents = Documents(files, CACHE_BYTES_MAX, prepare=view_metadata.check_view)

    def list(self, namespace: Namespace) -> list[TableIdent]:
        """The views of a namespace."""
        return [ident for ident, _ in self._store.entries(namespace, Kind.VIEW)]

    def exists(self, ident: TableIdent) -> bool:
        """Whether there is such a view."""
        return self._find(ident) is not None

    def load(self, ident: TableIdent) -> LoadedView:
        """The current metadata of a view."""
        pointer = self._existing(ident)
        return LoadedView(pointer.metadata_location, self._current(pointer))

    def create(self, namespace: Namespace, name: str, new: NewView) -> LoadedView:
        """Create a view."""
        ident = check_ident(namespace, name)
        with self._locks.hold([ident]):
            self._store.namespace_properties(ident.namespace)
            refuse_taken(self._store, ident, Kind.VIEW)
            location = self._locations.check(new.location, ident) if new.location else self._locations.claim(ident)
            check_properties(location, new.properties)
            document = view_metadata.new_view(
                schema=new.schema,
                version=new.version,
                location=location,
                properties=new.properties,
                uuid=self._new_id(),
                now_ms=self._clock.now_ms(),
            )
            done = self._swap(ident, None, document)
        if done is None:
            refuse_taken(self._store, ident, Kind.VIEW)
            raise CommitFailed(f"View was created and dropped meanwhile: {ident}")
        return done

    def register(self, namespace: Namespace, name: str, metadata_location: str) -> LoadedView:
        """Take up a view whose metadata file exists already."""
        ident = check_ident(namespace, name)
        self._store.namespace_properties(ident.namespace)
        with self._locks.hold([ident]):
            refuse_taken(self._store, ident, Kind.VIEW)
            try:
                stored = self._documents.read(metadata_location)
            except NotFound as error:
                raise Invalid(f"metadata file is missing. expected=a file got=none at {metadata_location}") from error
            check_document(stored.document, metadata_location)
            self._locations.check(stored.document["location"], ident)
            pointer = _pointer(stored.document, metadata_location)
            if not self._store.swap([Swap(ident, None, pointer, takes_location=True)]):
                raise AlreadyExists(f"View already exists: {ident}")
        return LoadedView(metadata_location, stored)

    def commit(self, ident: TableIdent, requirements: Sequence[Document], updates: Sequence[Document]) -> LoadedView:
        """Change a view."""
        with self._locks.hold([ident]):
            for _ in range(ATTEMPTS_MAX):
                base = self._existing(ident)
                stored = self._current(base)
                view_metadata.check_requirements(requirements, stored.document)
                after = view_metadata.apply(stored.document, updates, now_ms=self._clock.now_ms())
                if after is stored.document:
                    return LoadedView(base.metadata_location, stored)
                if after["location"] != stored.document["location"]:
                    self._locations.check(after["location"], ident)
                check_updates(after["location"], updates, after)
                done = self._swap(ident, base, after)
                if done is not None:
                    return done
        raise CommitFailed(f"Commit failed: lost the race {ATTEMPTS_MAX} times: {ident}")

    def rename(self, source: TableIdent, destination: TableIdent) -> None:
        """Give a view another name."""
        target = check_ident(destination.namespace, destination.name)
        with self._locks.hold([source, target]):
            self._store.rename(source, target, Kind.VIEW)

    def drop(self, ident: TableIdent) -> None:
        """Forget a view. Its metadata stays, so that it can be registered again."""
        with self._locks.hold([ident]):
            self._store.drop(ident, Kind.VIEW)

    def _find(self, ident: TableIdent) -> Pointer | None:
        pointer = self._store.entry(ident)
        return pointer if pointer is not None and pointer.kind is Kind.VIEW else None

    def _existing(self, ident: TableIdent) -> Pointer:
        pointer = self._find(ident)
        if pointer is None:
            raise NoSuchView(ident)
        return pointer

    def _current(self, pointer: Pointer) -> Stored:
        try:
            return self._documents.read(pointer.metadata_location)
        except Invalid as error:
            raise Corrupt(f"view metadata cannot be read. got={error}", place=pointer.metadata_location) from error

    def _swap(self, ident: TableIdent, base: Pointer | None, document: Document) -> LoadedView | None:
        previous = None if base is None else base.metadata_location
        location = next_location(document, previous, self._new_id())
        is_done = False
        try:
            stored = self._documents.write(location, document)
            pointer = _pointer(document, location)
            is_placed = base is not None and base.location == pointer.location
            is_done = self._store.swap([Swap(ident, previous, pointer, takes_location=not is_placed)])
        except OutcomeUnknown:
            # The swap may have happened, so the file must stay.
            is_done = True
            raise
        except OSError as error:
            raise Overloaded(f"metadata file cannot be written. got={error}", retry_after_s=1.0) from error
        finally:
            if not is_done:
                with suppress(OSError):
                    self._files.remove(location)
        if not is_done:
            return None
        self._documents.keep(location, stored)
        return LoadedView(location, stored)


def refuse_taken(store: Store, ident: TableIdent, wanted: Kind) -> None:
    """Refuse a name that is in use, and say by what."""
    pointer = store.entry(ident)
    if pointer is None:
        return
    name = {Kind.TABLE: "Table", Kind.VIEW: "View", Kind.GENERIC: "Generic table"}[pointer.kind]
    same = " with same name" if pointer.kind is not wanted else ""
    raise AlreadyExists(f"{name}{same} already exists: {ident}")


def _pointer(document: Document, location: str) -> Pointer:
    return Pointer(location, document["location"].rstrip("/"), None, {}, Kind.VIEW)
