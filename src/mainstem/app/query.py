"""Queries, wired: the catalog as the query package's lake, the log as what is pending, and the door before it all."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from litestar import Router

from mainstem.catalog import Catalog, GenericTable, TableIdent
from mainstem.doors.query.analyst import analyst_router
from mainstem.doors.query.door import Scope, query_router, unbounded
from mainstem.log import Log
from mainstem.model import Invalid, LogId, LogPosition, NotFound, TableName
from mainstem.query.dispatch import Dispatcher
from mainstem.query.engine import EngineSettings, QueryEngine
from mainstem.query.pending import LogPending
from mainstem.query.plan import Planner
from mainstem.query.ports import BigQueryEngine, LoadedTable
from mainstem.query.route import Router as EngineRouter
from mainstem.query.route import RouteSettings

if TYPE_CHECKING:
    from mainstem.catalog.scan.inventory import OtherInventory
    from mainstem.query.delta import DeltaTables

# The Delta tables, opened when they are first asked for.
OpenDelta = Callable[[], "DeltaTables"]


class CatalogLake:
    """The catalog as the query package asks for it."""

    def __init__(self, catalog: Catalog, delta: OpenDelta | None = None) -> None:
        self._catalog = catalog
        self._delta = delta

    async def tables(self) -> Sequence[TableName]:
        """Every table that can be read here: of those in other formats, our own in Delta."""
        return await asyncio.to_thread(self._tables)

    def _tables(self) -> list[TableName]:
        others = {ident.table_name for ident, table in self._catalog.generic.every() if not self._is_ours(ident, table)}
        return sorted(each.table for each in self._catalog.tables() if each.table not in others)

    async def load(self, name: TableName) -> LoadedTable:
        """The table's newest committed metadata."""
        try:
            loaded = await asyncio.to_thread(self._catalog.load_table, TableIdent(name.levels, name.table))
        except NotFound:
            return await asyncio.to_thread(self._load_delta, name)
        if loaded.metadata_location is None:
            raise NotFound(f"table does not exist. got={name}")
        return LoadedTable(name=name, metadata_location=loaded.metadata_location, metadata=loaded.stored.document)

    def marks(self, name: TableName) -> Mapping[LogId, LogPosition]:
        """How much of each log a table covers, of whatever format it is."""
        found = self._catalog.marks(name)
        if found or self._delta is None or not self._is_listed(name):
            return found
        return self._delta().marks(name)

    def delta(self, name: TableName) -> LoadedTable | None:
        """A Delta table of ours at its newest version, None where it is none. Blocks."""
        return self._delta().load(name) if self._delta is not None and self._is_listed(name) else None

    def _load_delta(self, name: TableName) -> LoadedTable:
        found = self.delta(name)
        if found is None:
            raise NotFound(f"table does not exist. got={name}")
        return found

    def _is_listed(self, name: TableName) -> bool:
        """Whether the catalog has it as one of the Delta tables that our own pipeline keeps."""
        ident = TableIdent(name.levels, name.table)
        try:
            return self._is_ours(ident, self._catalog.generic.load(ident))
        except NotFound:
            return False

    def _is_ours(self, ident: TableIdent, table: GenericTable) -> bool:
        if self._delta is None or table.format != "delta":
            return False
        return self._delta().is_at(ident.table_name, table.base_location)


def inventory_reader(delta: OpenDelta) -> "Callable[[TableName, GenericTable], OtherInventory | None]":
    """For the catalog: what one of our own Delta tables consists of, partition by partition. Blocks."""

    def read(name: TableName, table: GenericTable) -> "OtherInventory | None":
        if table.format != "delta" or not delta().is_at(name, table.base_location):
            return None
        found = delta().load(name).delta
        if found is None:
            return None
        from mainstem.maintenance.delta_inventory import other_inventory

        return other_inventory(found)

    return read


class Queries(NamedTuple):
    """What the gateway mounts, and what it closes."""

    engine: QueryEngine
    dispatcher: Dispatcher
    router: Router
    analyst: Router


def open_queries(
    lake: CatalogLake,
    settings: EngineSettings,
    *,
    log: Log | None = None,
    route: RouteSettings | None = None,
    big: BigQueryEngine | None = None,
    scope: Scope = unbounded,
    io: Mapping[str, str] | None = None,
) -> Queries:
    """Build everything behind `/v1/query`. Without a log, `latest` reads what is committed.

    `io` has the properties by which manifests are read where they are not on this machine.
    """
    route = route or RouteSettings()
    pending = LogPending(log, lake.marks) if log is not None else None
    engine = QueryEngine(lake, settings, pending=pending)
    planner = Planner(engine.binder, engine.statements, io_properties=io)
    dispatcher = Dispatcher(engine, planner, route, big=big)

    async def fits_spark(sql: str) -> None:
        if big is None:
            raise Invalid("there is no Spark here")
        await engine.statements.for_spark(await engine.statements.check(sql))

    router = query_router(dispatcher, planner, EngineRouter(planner, route, fits_spark), scope=scope)
    return Queries(engine, dispatcher, router, analyst_router(engine, scope=scope))
