"""Queries, wired: the catalog as the query package's lake, the log as what is pending, and the door before it all."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from litestar import Router

from mainstem.catalog import Catalog, TableIdent
from mainstem.doors.analyst import analyst_router
from mainstem.doors.query import Scope, query_router, unbounded
from mainstem.log import Log
from mainstem.model import Invalid, NotFound, TableName
from mainstem.query.dispatch import Dispatcher
from mainstem.query.engine import EngineSettings, QueryEngine
from mainstem.query.pending import LogPending
from mainstem.query.plan import Planner
from mainstem.query.ports import BigQueryEngine, LoadedTable
from mainstem.query.route import Router as EngineRouter
from mainstem.query.route import RouteSettings
from mainstem.query.spark_sql import spark_statement


class CatalogLake:
    """The catalog as the query package asks for it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def tables(self) -> Sequence[TableName]:
        """Every table there is."""
        return sorted(each.table for each in await asyncio.to_thread(self._catalog.tables))

    async def load(self, name: TableName) -> LoadedTable:
        """The table's newest committed metadata."""
        try:
            loaded = await asyncio.to_thread(self._catalog.load_table, TableIdent(name.levels, name.table))
        except NotFound:
            raise NotFound(f"table does not exist. got={name}") from None
        if loaded.metadata_location is None:
            raise NotFound(f"table does not exist. got={name}")
        return LoadedTable(name=name, metadata_location=loaded.metadata_location, metadata=loaded.stored.document)


class Queries(NamedTuple):
    """What the gateway mounts, and what it closes."""

    engine: QueryEngine
    router: Router
    analyst: Router


def open_queries(
    catalog: Catalog,
    settings: EngineSettings,
    *,
    log: Log | None = None,
    route: RouteSettings | None = None,
    big: BigQueryEngine | None = None,
    scope: Scope = unbounded,
) -> Queries:
    """Build everything behind `/v1/query`. Without a log, `latest` reads what is committed."""
    route = route or RouteSettings()
    pending = LogPending(log, catalog.covered) if log is not None else None
    engine = QueryEngine(CatalogLake(catalog), settings, pending=pending)
    planner = Planner(engine.binder, engine.parser)
    dispatcher = Dispatcher(engine, planner, route, big=big)

    def fits_spark(sql: str) -> None:
        if big is None:
            raise Invalid("there is no Spark here")
        spark_statement(engine.parser, engine.parser.check(sql))

    router = query_router(dispatcher, planner, EngineRouter(planner, route, fits_spark), scope=scope)
    return Queries(engine, router, analyst_router(engine, scope=scope))
