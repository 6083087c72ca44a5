"""Commits: read what is current, check, apply, write new metadata files, swap the pointers.

Only the swap makes a commit visible, and it happens after the files are durable.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mainstem.catalog.current import Current
from mainstem.catalog.errors import CommitFailed
from mainstem.catalog.files import Files
from mainstem.catalog.locations import Locations
from mainstem.catalog.locks import TableLocks
from mainstem.catalog.metadata import requirements as requirement_rules
from mainstem.catalog.metadata import updates as update_rules
from mainstem.catalog.metadata.boundaries import check_properties, check_updates
from mainstem.catalog.metadata.documents import Documents, Stored, next_location
from mainstem.catalog.metadata.fence import check_fence, covered_marks
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.metadata.table import new_document
from mainstem.catalog.names import Namespace, TableIdent, check_ident
from mainstem.catalog.stores.store import Kind, Pointer, Store, Swap
from mainstem.catalog.values import Commit, Loaded, NewTable
from mainstem.catalog.views import refuse_taken
from mainstem.formats.iceberg.snapshots import current_snapshot_id
from mainstem.model import OutcomeUnknown, Overloaded
from mainstem.runtime.clock import Clock
from mainstem.tables.places import is_inside

ATTEMPTS_MAX = 5
DELETE_OLD_METADATA_PROPERTY = "write.metadata.delete-after-commit.enabled"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A commit applied to what is current now. `pointer` is None where nothing changes."""

    ident: TableIdent
    base: Pointer | None
    base_stored: Stored | None
    document: Document
    pointer: Pointer | None


class Commits:
    """Creates tables and changes them. Every method blocks and may be called from any thread."""

    def __init__(
        self,
        current: Current,
        *,
        store: Store,
        files: Files,
        documents: Documents,
        locations: Locations,
        locks: TableLocks,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._current = current
        self._store = store
        self._files = files
        self._documents = documents
        self._locations = locations
        self._locks = locks
        self._clock = clock
        self._new_id = new_id

    def stage(self, namespace: Namespace, name: str, new: NewTable) -> Loaded:
        """What a table would look like. It comes into being with the commit that ends the client's transaction."""
        ident = check_ident(namespace, name)
        document = self._first_document(ident, new)
        return Loaded(None, self._documents.encoded(document))

    def create(self, namespace: Namespace, name: str, new: NewTable) -> Loaded:
        """Create a table."""
        ident = check_ident(namespace, name)
        with self._locks.hold([ident]):
            document = self._first_document(ident, new)
            pointer = pointer_to(document, next_location(document, None, self._new_id()))
            done = self._swap([_Prepared(ident, None, None, document, pointer)])
        if done is None:
            refuse_taken(self._store, ident, Kind.TABLE)
            raise CommitFailed(f"Table was created and dropped meanwhile: {ident}")
        return done[0]

    def commit(self, commits: Sequence[Commit]) -> list[Loaded]:
        """Commit to all of these tables, or to none."""
        with self._locks.hold(commit.ident for commit in commits):
            for _ in range(ATTEMPTS_MAX):
                done = self._swap([self._prepare(commit) for commit in commits])
                if done is not None:
                    return done
        tables = ", ".join(str(commit.ident) for commit in commits)
        raise CommitFailed(f"Commit failed: lost the race {ATTEMPTS_MAX} times: {tables}")

    def _prepare(self, commit: Commit) -> _Prepared:
        ident = commit.ident
        if requirement_rules.is_create(commit.requirements):
            return self._prepare_create(commit)
        base = self._current.existing(ident)
        stored = self._current.stored(base)
        before = stored.document
        requirement_rules.check(commit.requirements, before)
        after = update_rules.apply(
            before, commit.updates, base_location=base.metadata_location, now_ms=self._clock.now_ms()
        )
        if after is before:
            return _Prepared(ident, base, stored, before, None)
        if after["location"] != before["location"]:
            self._locations.check(after["location"], ident)
        check_updates(after["location"], commit.updates, after)
        pointer = pointer_to(after, next_location(after, base.metadata_location, self._new_id()))
        check_fence(base.marks, pointer.marks, commit.updates)
        return _Prepared(ident, base, stored, after, pointer)

    def _prepare_create(self, commit: Commit) -> _Prepared:
        ident = check_ident(commit.ident.namespace, commit.ident.name)
        self._store.namespace_properties(ident.namespace)
        base = self._current.find(ident)
        if base is None:
            refuse_taken(self._store, ident, Kind.TABLE)
        requirement_rules.check(commit.requirements, None if base is None else self._current.stored(base).document)
        updates = list(commit.updates)
        if not any(update.get("action") == "set-location" for update in updates):
            updates.append({"action": "set-location", "location": self._locations.claim(ident)})
        document = update_rules.create(updates, uuid=self._new_id(), now_ms=self._clock.now_ms())
        self._locations.check(document["location"], ident)
        check_updates(document["location"], updates, document)
        self._files.claim_table(document["location"])
        pointer = pointer_to(document, next_location(document, None, self._new_id()))
        return _Prepared(ident, None, None, document, pointer)

    def _swap(self, prepared: Sequence[_Prepared]) -> list[Loaded] | None:
        """Write the metadata files and swap the pointers. None: the race is lost and nothing is left behind."""
        changed = [(p, p.pointer) for p in prepared if p.pointer is not None]
        keep_files = False
        try:
            written = self._write(changed)
            swaps = [_swap_of(p, pointer) for p, pointer in changed]
            keep_files = not swaps or self._store.swap(swaps)
        except OutcomeUnknown:
            # The swap may have happened, so the files must stay.
            keep_files = True
            raise
        finally:
            if not keep_files:
                for _, pointer in changed:
                    self._remove_quietly(pointer.metadata_location)
        if not keep_files:
            return None
        for p, pointer in changed:
            self._documents.keep(pointer.metadata_location, written[p.ident])
            self._current.announce(p.ident, pointer)
            self._current.hint(pointer)
            self._remove_old_metadata(p)
        return [self._loaded(p, written.get(p.ident)) for p in prepared]

    def _loaded(self, prepared: _Prepared, written: Stored | None) -> Loaded:
        if prepared.pointer is not None and written is not None:
            return Loaded(prepared.pointer.metadata_location, written)
        assert prepared.base is not None, "only a table that exists can be left unchanged"
        return Loaded(prepared.base.metadata_location, self._current.stored(prepared.base))

    def _write(self, changed: Sequence[tuple[_Prepared, Pointer]]) -> dict[TableIdent, Stored]:
        try:
            return self._documents.write_all(
                {p.ident: (pointer.metadata_location, p.document, p.base_stored) for p, pointer in changed}
            )
        except OSError as error:
            raise Overloaded(f"metadata file cannot be written. got={error}", retry_after_s=1.0) from error

    def _remove_old_metadata(self, prepared: _Prepared) -> None:
        """Remove the files that fell out of the metadata log, where the table asks for that."""
        wanted = str(prepared.document["properties"].get(DELETE_OLD_METADATA_PROPERTY, ""))
        if prepared.base_stored is None or wanted.lower() != "true":
            return
        kept = {entry["metadata-file"] for entry in prepared.document["metadata-log"]}
        for entry in prepared.base_stored.document["metadata-log"]:
            path = entry["metadata-file"]
            if path not in kept and is_inside(path, prepared.document["location"]):
                self._remove_quietly(path)

    def _first_document(self, ident: TableIdent, new: NewTable) -> Document:
        self._store.namespace_properties(ident.namespace)
        refuse_taken(self._store, ident, Kind.TABLE)
        location = self._locations.check(new.location, ident) if new.location else self._locations.claim(ident)
        check_properties(location, new.properties)
        document = new_document(
            schema=new.schema,
            spec=new.spec,
            order=new.order,
            location=location,
            properties=new.properties,
            uuid=self._new_id(),
            now_ms=self._clock.now_ms(),
        )
        if new.location:
            self._files.claim_table(location)
        return document

    def _remove_quietly(self, location: str) -> None:
        # A file that is left over costs space and nothing else.
        with suppress(OSError):
            self._files.remove(location)


def _swap_of(prepared: _Prepared, pointer: Pointer) -> Swap:
    base = prepared.base
    expected = None if base is None else base.metadata_location
    return Swap(prepared.ident, expected, pointer, takes_location=base is None or base.location != pointer.location)


def pointer_to(document: Document, location: str) -> Pointer:
    """What the store keeps of a metadata file."""
    folder = document["location"].rstrip("/")
    return Pointer(location, folder, current_snapshot_id(document), covered_marks(document))
