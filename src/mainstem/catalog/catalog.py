"""The catalog: namespaces and Iceberg tables, and the commits that change them.

A commit reads the current document, checks the requirements, applies the updates, writes a new metadata file, and
then swaps the table's pointer in the store. Only the swap makes it visible, and it happens after the file is durable.
Every method blocks and may be called from any thread; doors call it off the event loop.
"""

import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from mainstem.catalog import requirements as requirement_rules
from mainstem.catalog import updates as update_rules
from mainstem.catalog.access import Access
from mainstem.catalog.boundaries import check_document, check_properties, check_updates
from mainstem.catalog.documents import CACHE_BYTES_MAX, Documents, Stored, next_location
from mainstem.catalog.errors import AlreadyExists, CommitFailed, NoSuchTable, NoSuchWarehouse
from mainstem.catalog.fence import Marks, check_fence, covered_marks
from mainstem.catalog.files import Files, RoutedFiles
from mainstem.catalog.generic import GenericTables
from mainstem.catalog.inventory import Inventories, OtherInventory
from mainstem.catalog.locations import Locations
from mainstem.catalog.locks import TableLocks
from mainstem.catalog.metadata import current_snapshot_id, new_document
from mainstem.catalog.names import Namespace, TableIdent, check_ident, check_namespace, ident_of
from mainstem.catalog.planning import Planner, Scan, ScanRequest
from mainstem.catalog.purging import Purger, check_purge
from mainstem.catalog.reports import Reports
from mainstem.catalog.schemas import Document
from mainstem.catalog.store import Kind, Mark, Pointer, Store, Swap, Watch
from mainstem.catalog.tokens import Tokens
from mainstem.catalog.views import Views, refuse_taken
from mainstem.model import (
    Corrupt,
    Invalid,
    MainstemError,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    TableName,
)
from mainstem.runtime.clock import Clock, SystemClock
from mainstem.tables.places import is_inside

WAREHOUSE = "lake"
ATTEMPTS_MAX = 5
DELETE_OLD_METADATA_PROPERTY = "write.metadata.delete-after-commit.enabled"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Committed:
    """What listeners learn of a commit, after it is durable."""

    table: TableName
    snapshot_id: int | None
    marks: Marks
    metadata_location: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A table as a client gets it. `metadata_location` is None while a create is only staged."""

    metadata_location: str | None
    stored: Stored


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """A table's metadata file as it stands, for whoever passes it on unread."""

    metadata_location: str | None
    # The table's folder.
    location: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class TableState:
    """A table in the status of the product."""

    table: TableName
    snapshot_id: int | None
    marks: Marks


@dataclass(frozen=True, slots=True)
class NewTable:
    """What a client asks for when it creates a table."""

    schema: Document
    spec: Document | None = None
    order: Document | None = None
    location: str | None = None
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Commit:
    """One table's part of a commit."""

    ident: TableIdent
    requirements: Sequence[Document]
    updates: Sequence[Document]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A commit applied to what is current now. `pointer` is None where nothing changes."""

    ident: TableIdent
    base: Pointer | None
    base_stored: Stored | None
    document: Document
    pointer: Pointer | None


def _random_id() -> str:
    return str(uuid.uuid4())


class Catalog:
    """All tables of one warehouse.

    `on_commit` is called after each commit is durable, in commit order per table, in the thread of the commit: it must
    be quick and must not call back into the catalog for the same table.
    """

    def __init__(
        self,
        *,
        store: Store,
        warehouse: str,
        files: Files | None = None,
        clock: Clock | None = None,
        on_commit: Callable[[Committed], None] | None = None,
        new_id: Callable[[], str] = _random_id,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        access: Access | None = None,
        tokens: Tokens | None = None,
    ) -> None:
        self._store = store
        self._files = files or RoutedFiles()
        self._locations = Locations(self._files, store, warehouse, new_id)
        self._documents = Documents(self._files, cache_bytes_max)
        self._purger = Purger(self._files, self._documents, store)
        self._clock = clock or SystemClock()
        self._on_commit = on_commit
        self._new_id = new_id
        self._locks = TableLocks()
        self.access = access or Access()
        self.tokens = tokens or Tokens({}, "", 3600, self._clock)
        self.reports = Reports()
        self._planner = Planner(self._files.file_io)
        self.inventories = Inventories(self._files.file_io)
        # Set by whoever can read tables of other formats; None for a table that it cannot.
        self.other_inventory: Callable[[TableName], OtherInventory | None] = lambda _: None
        self.views = Views(
            store=store,
            files=self._files,
            locations=self._locations,
            locks=self._locks,
            clock=self._clock,
            new_id=new_id,
        )

        self.generic = GenericTables(
            store=store, locations=self._locations, locks=self._locks, new_id=new_id, announce=self._announce
        )

    def close(self) -> None:
        """Release the store."""
        self._store.close()

    @property
    def warehouse(self) -> str:
        """The folder of all tables that the catalog itself placed."""
        return self._locations.warehouse

    def is_in_warehouse(self, location: object) -> bool:
        """Whether a location lies below the warehouse."""
        return self._locations.is_inside(location)

    def is_place_of(self, ident: TableIdent, location: object) -> bool:
        """Whether a location is the table's own: where it is, or a folder that only a table of its name is given."""
        pointer = self._store.entry(ident)
        return (pointer is not None and pointer.location == location) or self._locations.is_of(ident, location)

    @property
    def cached_bytes(self) -> int:
        """Of metadata documents, at hand."""
        return self._documents.cached_bytes

    def check_warehouse(self, name: str | None) -> None:
        """Refuse a client that asks for a warehouse that is not this one."""
        if name and name != WAREHOUSE and name.rstrip("/") != self._locations.warehouse:
            raise NoSuchWarehouse(name)

    # --- what the gateway asks ---

    def marks(self, name: TableName) -> Marks:
        """How much of each log a table covers: nothing for one that does not exist."""
        pointer = self._find(ident_of(name))
        return {} if pointer is None else pointer.marks

    def tables(self) -> list[TableState]:
        """Every table, of whatever format, with its snapshot and what it covers."""
        return [
            TableState(ident.table_name, pointer.snapshot_id, pointer.marks)
            for kind in (Kind.TABLE, Kind.GENERIC)
            for ident, pointer in self._store.entries(None, kind)
        ]

    def follow(self, watch: Watch, timeout_s: float) -> None:
        """Tell `on_commit` of what others commit to the store; blocks until there is something, or the time is over."""
        names = watch.wait(timeout_s)
        try:
            if names is None:
                names = [ident for kind in Kind for ident, _ in self._store.entries(None, kind)]
            for ident in names:
                # Under the lock, so that it cannot be told after a later commit of our own.
                with self._locks.hold([ident]):
                    pointer = self._store.entry(ident)
                    if pointer is not None and pointer.kind is not Kind.VIEW:
                        self._announce(ident, pointer)
        except MainstemError:
            # What the watch told is lost: let it begin anew, and tell everything.
            watch.close()
            raise

    @property
    def is_shared(self) -> bool:
        """Whether others may write to the store."""
        return not self._store.is_embedded

    def watch(self) -> Watch | None:
        """For `follow`: None where nobody else writes to the store."""
        return self._store.watch()

    # --- namespaces ---

    def list_namespaces(self, parent: Namespace = ()) -> list[Namespace]:
        """The namespaces right below `parent`."""
        return self._store.namespaces(parent)

    def create_namespace(self, namespace: Sequence[str], properties: dict[str, str]) -> None:
        """Create a namespace, and the ones above it that are missing."""
        self._store.create_namespace(check_namespace(namespace), properties)

    def create_namespace_if_missing(self, namespace: Sequence[str]) -> None:
        """Make sure that there is such a namespace."""
        with suppress(AlreadyExists):
            self.create_namespace(namespace, {})

    def namespace_properties(self, namespace: Namespace) -> dict[str, str]:
        """The properties of a namespace; raises where there is none.

        Where its tables are put is told with them: Trino chooses the places of its tables by that.
        """
        return {"location": self._locations.of_namespace(namespace)} | self._store.namespace_properties(namespace)

    def update_namespace(
        self, namespace: Namespace, removals: Sequence[str], updates: dict[str, str]
    ) -> tuple[list[str], list[str]]:
        """Set and remove properties. Returns the removed keys and the missing ones."""
        return self._store.update_namespace(namespace, removals, updates)

    def drop_namespace(self, namespace: Namespace) -> None:
        """Drop an empty namespace."""
        self._store.drop_namespace(namespace)

    # --- tables ---

    def list_tables(self, namespace: Namespace) -> list[TableIdent]:
        """The tables of a namespace."""
        return [ident for ident, _ in self._store.entries(namespace, Kind.TABLE)]

    def table_exists(self, ident: TableIdent) -> bool:
        """Whether there is such a table."""
        return self._find(ident) is not None

    def load_table(self, ident: TableIdent) -> Loaded:
        """The current metadata of a table."""
        pointer = self._existing(ident)
        return Loaded(pointer.metadata_location, self._current(pointer))

    def load_file(self, ident: TableIdent) -> LoadedFile:
        """The current metadata of a table, as bytes."""
        pointer = self._existing(ident)
        try:
            raw = self._documents.read_raw(pointer.metadata_location)
        except Invalid as error:
            raise _corrupt(pointer, error) from error
        return LoadedFile(pointer.metadata_location, pointer.location, raw)

    @property
    def is_embedded(self) -> bool:
        """Whether the store says what is current at once, without a network."""
        return self._store.is_embedded

    def find_metadata(self, ident: TableIdent) -> str | None:
        """Where a table's current metadata is; None where there is no such table."""
        pointer = self._find(ident)
        return None if pointer is None else pointer.metadata_location

    def check_present(self, location: str) -> None:
        """Raise `NotFound` where it costs next to nothing to see that a metadata file went away."""
        self._files.check_present(location)

    def metadata_location(self, ident: TableIdent) -> str:
        """Where a table's current metadata is: changes with every commit, and costs no read of it."""
        pointer = self._existing(ident)
        return pointer.metadata_location

    def stage_table(self, namespace: Namespace, name: str, new: NewTable) -> Loaded:
        """What a table would look like. It comes into being with the commit that ends the client's transaction."""
        ident = check_ident(namespace, name)
        document = self._first_document(ident, new)
        return Loaded(None, self._documents.encoded(document))

    def create_table(self, namespace: Namespace, name: str, new: NewTable) -> Loaded:
        """Create a table."""
        ident = check_ident(namespace, name)
        with self._locks.hold([ident]):
            document = self._first_document(ident, new)
            pointer = _pointer(document, next_location(document, None, self._new_id()))
            done = self._swap([_Prepared(ident, None, None, document, pointer)])
        if done is None:
            refuse_taken(self._store, ident, Kind.TABLE)
            raise CommitFailed(f"Table was created and dropped meanwhile: {ident}")
        return done[0]

    def register_table(self, namespace: Namespace, name: str, metadata_location: str, *, overwrite: bool) -> Loaded:
        """Take up a table whose metadata file exists already."""
        ident = check_ident(namespace, name)
        self._store.namespace_properties(ident.namespace)
        try:
            stored = self._documents.read(metadata_location)
        except NotFound as error:
            raise Invalid(f"metadata file is missing. expected=a file got=none at {metadata_location}") from error
        with self._locks.hold([ident]):
            base = self._find(ident) if overwrite else None
            if base is None:
                refuse_taken(self._store, ident, Kind.TABLE)
            check_document(stored.document, metadata_location)
            self._locations.check(stored.document["location"], ident)
            pointer = _pointer(stored.document, metadata_location)
            check_fence({} if base is None else base.marks, pointer.marks, ())
            expected = None if base is None else base.metadata_location
            if not self._store.swap([Swap(ident, expected, pointer, takes_location=True)]):
                raise AlreadyExists(f"Table already exists: {ident}")
            self._announce(ident, pointer)
            self._hint(pointer)
        return Loaded(metadata_location, stored)

    def rename_table(self, source: TableIdent, destination: TableIdent) -> None:
        """Give a table another name. Its files stay where they are."""
        target = check_ident(destination.namespace, destination.name)
        with self._locks.hold([source, target]):
            self._store.rename(source, target, Kind.TABLE)

    def drop_table(self, ident: TableIdent, *, purge: bool) -> None:
        """Forget a table; with `purge`, remove its files as well, once it is forgotten."""
        with self._locks.hold([ident]):
            known = self._purgeable(ident) if purge else None
            pointer = self._store.drop(ident, Kind.TABLE)
        if known is not None:
            self._purger.purge(ident, known, pointer.metadata_location)

    def unregister_table(self, ident: TableIdent) -> Loaded:
        """Forget a table and leave its files, so that another catalog can take it up."""
        with self._locks.hold([ident]):
            loaded = self.load_table(ident)
            self._store.drop(ident, Kind.TABLE)
        return loaded

    # --- access to files, and requests that are sent twice ---

    def location(self, ident: TableIdent) -> str:
        """The folder of a table."""
        return self._existing(ident).location

    def sign(
        self,
        ident: TableIdent,
        *,
        method: str,
        uri: str,
        region: str,
        headers: dict[str, list[str]],
        body: str | None,
    ) -> dict[str, list[str]]:
        """Sign a request to the files of a table."""
        return self.access.sign(
            self.location(ident),
            method=method,
            uri=uri,
            region=region,
            headers=headers,
            body=body,
            now_ms=self._clock.now_ms(),
        )

    def mark(self, key: str) -> Mark | None:
        """What became of the request with an idempotency key."""
        return self._store.mark(key)

    def remember(self, mark: Mark) -> None:
        """Keep what became of a request that wrote nothing."""
        self._store.remember(mark)

    def now_ms(self) -> int:
        """The time by the catalog's clock."""
        return self._clock.now_ms()

    # --- scans ---

    def plan_scan(self, ident: TableIdent, request: ScanRequest) -> tuple[str, Scan]:
        """Plan a scan: an id of the plan, and its tasks."""
        return self._planner.plan(str(ident), self.load_table(ident).stored.document, request)

    def planned_scan(self, ident: TableIdent, plan_id: str) -> Scan:
        """A plan that was made before."""
        return self._planner.result(str(ident), self.load_table(ident).stored.document, plan_id)

    def cancel_scan(self, ident: TableIdent, plan_id: str) -> None:
        """Forget a plan."""
        self._existing(ident)
        self._planner.cancel(str(ident), plan_id)

    def scan_tasks(self, ident: TableIdent, plan_task: str) -> Scan:
        """The file tasks of a plan task."""
        return self._planner.fetch(self.load_table(ident).stored.document, plan_task)

    # --- commits ---

    def commit_table(self, commit: Commit) -> Loaded:
        """Commit to one table, or complete its creation."""
        return self._commit([commit])[0]

    def commit_transaction(self, commits: Sequence[Commit]) -> None:
        """Commit to several tables: all of it happens, or nothing."""
        idents = [commit.ident for commit in commits]
        if len(set(idents)) != len(idents):
            raise Invalid(f"a transaction names a table twice. expected=one change per table got={sorted(idents)}")
        self._commit(commits)

    def _commit(self, commits: Sequence[Commit]) -> list[Loaded]:
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
        base = self._existing(ident)
        stored = self._current(base)
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
        pointer = _pointer(after, next_location(after, base.metadata_location, self._new_id()))
        check_fence(base.marks, pointer.marks, commit.updates)
        return _Prepared(ident, base, stored, after, pointer)

    def _prepare_create(self, commit: Commit) -> _Prepared:
        ident = check_ident(commit.ident.namespace, commit.ident.name)
        self._store.namespace_properties(ident.namespace)
        base = self._find(ident)
        if base is None:
            refuse_taken(self._store, ident, Kind.TABLE)
        requirement_rules.check(commit.requirements, None if base is None else self._current(base).document)
        updates = list(commit.updates)
        if not any(update.get("action") == "set-location" for update in updates):
            updates.append({"action": "set-location", "location": self._locations.claim(ident)})
        document = update_rules.create(updates, uuid=self._new_id(), now_ms=self._clock.now_ms())
        self._locations.check(document["location"], ident)
        check_updates(document["location"], updates, document)
        self._files.claim_table(document["location"])
        pointer = _pointer(document, next_location(document, None, self._new_id()))
        return _Prepared(ident, None, None, document, pointer)

    def _swap(self, prepared: Sequence[_Prepared]) -> list[Loaded] | None:
        """Write the metadata files and swap the pointers. None: the race is lost and nothing is left behind."""
        changed = [(p, p.pointer) for p in prepared if p.pointer is not None]
        written: dict[TableIdent, Stored] = {}
        keep_files = False
        try:
            for p, pointer in changed:
                written[p.ident] = self._write(pointer.metadata_location, p.document, p.base_stored)
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
            self._announce(p.ident, pointer)
            self._hint(pointer)
            self._remove_old_metadata(p)
        return [self._loaded(p, written.get(p.ident)) for p in prepared]

    def _loaded(self, prepared: _Prepared, written: Stored | None) -> Loaded:
        if prepared.pointer is not None and written is not None:
            return Loaded(prepared.pointer.metadata_location, written)
        assert prepared.base is not None, "only a table that exists can be left unchanged"
        return Loaded(prepared.base.metadata_location, self._current(prepared.base))

    def _write(self, location: str, document: Document, base: Stored | None) -> Stored:
        try:
            return self._documents.write(location, document, base)
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

    def _hint(self, pointer: Pointer) -> None:
        try:
            self._files.write_hint(pointer.location, pointer.metadata_location)
        except (OSError, Invalid) as error:
            # The commit is durable; whoever reads the folder alone sees an older version until the next one.
            _logger.warning("the hint of a table's version was not written: %s", error)

    def _announce(self, ident: TableIdent, pointer: Pointer) -> None:
        if self._on_commit is None:
            return
        committed = Committed(ident.table_name, pointer.snapshot_id, pointer.marks, pointer.metadata_location)
        try:
            self._on_commit(committed)
        except Exception:
            # The commit is durable; a listener's trouble must not tell the client otherwise.
            _logger.exception("a listener failed after a commit", extra={"table": str(ident)})

    # --- files ---

    def _find(self, ident: TableIdent) -> Pointer | None:
        pointer = self._store.entry(ident)
        return pointer if pointer is not None and pointer.kind is Kind.TABLE else None

    def _existing(self, ident: TableIdent) -> Pointer:
        pointer = self._find(ident)
        if pointer is None:
            raise self._no_such_table(ident)
        return pointer

    def _no_such_table(self, ident: TableIdent) -> NoSuchTable:
        """Says so where there is a table after all, which this protocol cannot show."""
        other = self._store.entry(ident)
        if other is None or other.kind is not Kind.GENERIC:
            return NoSuchTable(ident)
        known = self.generic.load(ident)
        return NoSuchTable(ident, f". There is a {known.format} table of that name, at {known.base_location}")

    def _current(self, pointer: Pointer) -> Stored:
        try:
            return self._documents.read(pointer.metadata_location)
        except Invalid as error:
            raise _corrupt(pointer, error) from error

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

    def _purgeable(self, ident: TableIdent) -> Document | None:
        """What a purge goes by: the table's metadata. None where that cannot be read: its files stay."""
        pointer = self._existing(ident)
        try:
            document = self._current(pointer).document
        except (NotFound, Corrupt) as error:
            _logger.warning("a dropped table keeps its files: %s", error, extra={"table": str(ident)})
            return None
        check_purge(ident, document)
        return document

    def _remove_quietly(self, location: str) -> None:
        # A file that is left over costs space and nothing else.
        with suppress(OSError):
            self._files.remove(location)


def _swap_of(prepared: _Prepared, pointer: Pointer) -> Swap:
    base = prepared.base
    expected = None if base is None else base.metadata_location
    return Swap(prepared.ident, expected, pointer, takes_location=base is None or base.location != pointer.location)


def _pointer(document: Document, location: str) -> Pointer:
    folder = document["location"].rstrip("/")
    return Pointer(location, folder, current_snapshot_id(document), covered_marks(document))


def _corrupt(pointer: Pointer, error: Invalid) -> Corrupt:
    return Corrupt(f"table metadata cannot be read. got={error}", place=pointer.metadata_location)
