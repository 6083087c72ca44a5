"""The catalog: namespaces and Iceberg tables, and the commits that change them.

A commit reads the current document, checks the requirements, applies the updates, writes a new metadata file, and
then swaps the table's pointer in the store. Only the swap makes it visible, and it happens after the file is durable.
Every method blocks and may be called from any thread; doors call it off the event loop.
"""

import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress

from mainstem.catalog.access.clients import Access
from mainstem.catalog.access.tokens import Tokens
from mainstem.catalog.commits import Commits, pointer_to
from mainstem.catalog.current import Current, corrupt
from mainstem.catalog.errors import AlreadyExists, NoSuchWarehouse
from mainstem.catalog.files import Files, RoutedFiles
from mainstem.catalog.generic import GenericTable, GenericTables
from mainstem.catalog.locations import Locations
from mainstem.catalog.locks import TableLocks
from mainstem.catalog.metadata.boundaries import check_document
from mainstem.catalog.metadata.documents import CACHE_BYTES_MAX, Documents
from mainstem.catalog.metadata.fence import check_fence
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.names import Namespace, TableIdent, check_ident, check_namespace, ident_of
from mainstem.catalog.purging import Purger, check_purge
from mainstem.catalog.reports import Reports
from mainstem.catalog.scan.inventory import Inventories, OtherInventory
from mainstem.catalog.scan.planning import Scan, ScanPlanner, ScanRequest
from mainstem.catalog.stores.store import Kind, Mark, Store, Swap, Watch
from mainstem.catalog.values import Commit, Committed, Loaded, LoadedFile, NewTable, TableState
from mainstem.catalog.views import Views, refuse_taken
from mainstem.model import (
    Corrupt,
    Invalid,
    MainstemError,
    NotFound,
    TableName,
)
from mainstem.runtime.clock import Clock, SystemClock
from mainstem.tables.marks import Marks

WAREHOUSE = "lake"

_logger = logging.getLogger(__name__)


# Reads what a table of another format than Iceberg consists of: None where it cannot.
ReadOther = Callable[[TableName, GenericTable], OtherInventory | None]


def nothing_read(_: TableName, __: GenericTable) -> None:
    """A catalog that only knows Iceberg."""


def _random_id() -> str:
    return str(uuid.uuid4())


class Catalog:
    """All tables of one warehouse.

    Listeners are called after each commit is durable, in commit order per table, in the thread of the commit: they must
    be quick and must not call back into the catalog for the same table.
    """

    def __init__(
        self,
        *,
        store: Store,
        warehouse: str,
        files: Files | None = None,
        clock: Clock | None = None,
        new_id: Callable[[], str] = _random_id,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        access: Access | None = None,
        tokens: Tokens | None = None,
        read_other: ReadOther = nothing_read,
    ) -> None:
        self._store = store
        self._files = files or RoutedFiles()
        self._locations = Locations(self._files, store, warehouse, new_id)
        self._documents = Documents(self._files, cache_bytes_max)
        self._current = Current(store, self._files, self._documents)
        self._purger = Purger(self._files, self._documents, store)
        self._clock = clock or SystemClock()
        self._locks = TableLocks()
        self.access = access or Access()
        self.tokens = tokens or Tokens({}, "", 3600, self._clock)
        self.reports = Reports()
        self._commits = Commits(
            self._current,
            store=store,
            files=self._files,
            documents=self._documents,
            locations=self._locations,
            locks=self._locks,
            clock=self._clock,
            new_id=new_id,
        )
        self._planner = ScanPlanner(self._files.file_io)
        self.inventories = Inventories(self._files.file_io)
        self._read_other = read_other
        self.views = Views(
            store=store,
            files=self._files,
            locations=self._locations,
            locks=self._locks,
            clock=self._clock,
            new_id=new_id,
        )

        self.generic = GenericTables(
            store=store, locations=self._locations, locks=self._locks, new_id=new_id, announce=self._current.announce
        )

    def on_commit(self, listener: Callable[[Committed], None]) -> None:
        """Call `listener` after each commit, our own or another gateway's."""
        self._current.on_commit(listener)

    def other_inventory(self, name: TableName) -> OtherInventory | None:
        """What a table of another format consists of; None where there is none, or none that can be read here."""
        try:
            return self._read_other(name, self.generic.load(ident_of(name)))
        except NotFound:
            return None

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
        pointer = self._current.find(ident_of(name))
        return {} if pointer is None else pointer.marks

    def tables(self) -> list[TableState]:
        """Every table, of whatever format, with its snapshot and what it covers."""
        return [
            TableState(ident.table_name, pointer.snapshot_id, pointer.marks)
            for kind in (Kind.TABLE, Kind.GENERIC)
            for ident, pointer in self._store.entries(None, kind)
        ]

    def follow(self, watch: Watch, timeout_s: float) -> None:
        """Tell the listeners what others commit to the store. Blocks until there is something, or the time is over."""
        names = watch.wait(timeout_s)
        try:
            if names is None:
                names = [ident for kind in Kind for ident, _ in self._store.entries(None, kind)]
            for ident in names:
                # Under the lock, so that it cannot be told after a later commit of our own.
                with self._locks.hold([ident]):
                    pointer = self._store.entry(ident)
                    if pointer is not None and pointer.kind is not Kind.VIEW:
                        self._current.announce(ident, pointer)
        except MainstemError:
            # What the watch told is lost: let it begin anew, and tell everything.
            watch.close()
            raise

    @property
    def is_shared(self) -> bool:
        """Whether others may write to the store."""
        return not self._store.is_embedded

    def watch(self) -> Watch | None:
        """For `follow`: None where no other gateway writes to the store."""
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
        return self._current.find(ident) is not None

    def load_table(self, ident: TableIdent) -> Loaded:
        """The current metadata of a table."""
        pointer = self._current.existing(ident)
        return Loaded(pointer.metadata_location, self._current.stored(pointer))

    def load_file(self, ident: TableIdent) -> LoadedFile:
        """The current metadata of a table, as bytes."""
        pointer = self._current.existing(ident)
        try:
            raw = self._documents.read_raw(pointer.metadata_location)
        except Invalid as error:
            raise corrupt(pointer, error) from error
        return LoadedFile(pointer.metadata_location, pointer.location, raw)

    @property
    def is_embedded(self) -> bool:
        """Whether the store says what is current at once, without a network."""
        return self._store.is_embedded

    def find_metadata(self, ident: TableIdent) -> str | None:
        """Where a table's current metadata is; None where there is no such table."""
        pointer = self._current.find(ident)
        return None if pointer is None else pointer.metadata_location

    def check_present(self, location: str) -> None:
        """Raise `NotFound` where it costs next to nothing to see that a metadata file went away."""
        self._files.check_present(location)

    def metadata_location(self, ident: TableIdent) -> str:
        """Where a table's current metadata is: changes with every commit, and costs no read of it."""
        pointer = self._current.existing(ident)
        return pointer.metadata_location

    def stage_table(self, namespace: Namespace, name: str, new: NewTable) -> Loaded:
        """What a table would look like. It comes into being with the commit that ends the client's transaction."""
        return self._commits.stage(namespace, name, new)

    def create_table(self, namespace: Namespace, name: str, new: NewTable) -> Loaded:
        """Create a table."""
        return self._commits.create(namespace, name, new)

    def register_table(self, namespace: Namespace, name: str, metadata_location: str, *, overwrite: bool) -> Loaded:
        """Take up a table whose metadata file exists already."""
        ident = check_ident(namespace, name)
        self._store.namespace_properties(ident.namespace)
        try:
            stored = self._documents.read(metadata_location)
        except NotFound as error:
            raise Invalid(f"metadata file is missing. expected=a file got=none at {metadata_location}") from error
        with self._locks.hold([ident]):
            base = self._current.find(ident) if overwrite else None
            if base is None:
                refuse_taken(self._store, ident, Kind.TABLE)
            check_document(stored.document, metadata_location)
            self._locations.check(stored.document["location"], ident)
            pointer = pointer_to(stored.document, metadata_location)
            check_fence({} if base is None else base.marks, pointer.marks, ())
            expected = None if base is None else base.metadata_location
            if not self._store.swap([Swap(ident, expected, pointer, takes_location=True)]):
                raise AlreadyExists(f"Table already exists: {ident}")
            self._current.announce(ident, pointer)
            self._current.hint(pointer)
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
        return self._current.existing(ident).location

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
        self._current.existing(ident)
        self._planner.cancel(str(ident), plan_id)

    def scan_tasks(self, ident: TableIdent, plan_task: str) -> Scan:
        """The file tasks of a plan task."""
        return self._planner.fetch(self.load_table(ident).stored.document, plan_task)

    # --- commits ---

    def commit_table(self, commit: Commit) -> Loaded:
        """Commit to one table, or complete its creation."""
        return self._commits.commit([commit])[0]

    def commit_transaction(self, commits: Sequence[Commit]) -> None:
        """Commit to several tables: all of it happens, or nothing."""
        idents = [commit.ident for commit in commits]
        if len(set(idents)) != len(idents):
            raise Invalid(f"a transaction names a table twice. expected=one change per table got={sorted(idents)}")
        self._commits.commit(commits)

    def _purgeable(self, ident: TableIdent) -> Document | None:
        """What a purge goes by: the table's metadata. None where that cannot be read: its files stay."""
        pointer = self._current.existing(ident)
        try:
            document = self._current.stored(pointer).document
        except (NotFound, Corrupt) as error:
            _logger.warning("a dropped table keeps its files: %s", error, extra={"table": str(ident)})
            return None
        check_purge(ident, document)
        return document
