"""Runs a query where it belongs: in the gateway, or on the large engine where one is wired and the plan asks for it.

Small tables are not planned first: what their snapshots say of their size is enough to know. A query for `latest`
stays in the gateway, since only the gateway has the log.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import pyarrow as pa

from mainstem.model import Invalid, TableName
from mainstem.query.binding import BoundTable, Freshness
from mainstem.query.engine import BoundQuery, Column, QueryEngine, QueryRequest, Running, Stats
from mainstem.query.plan import Planner
from mainstem.query.ports import BigQueryEngine, PinnedTable, Readable, everything
from mainstem.query.route import EngineName, Reason, RouteSettings, decide
from mainstem.query.statements.spark_sql import NOT_PORTABLE, SparkStatement
from mainstem.query.statements.statement import Kind
from mainstem.query.tables import current_snapshot
from mainstem.runtime.clock import Clock, SystemClock


class RunningElsewhere:
    """A query on the large engine; to its reader the same as one in the gateway."""

    def __init__(
        self,
        batches: AsyncIterator[pa.RecordBatch],
        first: pa.RecordBatch,
        limit: int,
        measure: Callable[[int, int], Stats],
    ) -> None:
        self._first = first
        self._rest = batches
        self._limit = limit
        self._measure = measure
        self._rows = 0
        self._bytes = 0
        self.truncated = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """Names, and types as Arrow calls them."""
        return tuple(Column(field.name, str(field.type).upper()) for field in self.schema)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        return self._first.schema

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows, at most as many as asked for."""
        batch: pa.RecordBatch | None = self._first
        while batch is not None:
            kept = batch.slice(0, self._limit - self._rows)
            self.truncated = kept.num_rows < batch.num_rows
            self._rows += kept.num_rows
            self._bytes += kept.nbytes
            if kept.num_rows:
                yield kept
            if self.truncated:
                return
            batch = await anext(self._rest, None)

    def stats(self) -> Stats:
        """What it took so far."""
        return self._measure(self._rows, self._bytes)


class Dispatcher:
    """The one way to run a query."""

    def __init__(
        self,
        engine: QueryEngine,
        planner: Planner,
        settings: RouteSettings,
        *,
        big: BigQueryEngine | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self._planner = planner
        self._settings = settings
        self._big = big
        self._clock: Clock = clock or SystemClock()

    @asynccontextmanager
    async def open(
        self, request: QueryRequest, readable: Readable = everything
    ) -> AsyncIterator[Running | RunningElsewhere]:
        """Start a query on the engine that it belongs on. Leaving the block stops it if it is not over."""
        if self._big is None or request.freshness is Freshness.LATEST:
            if request.engine is EngineName.SPARK or request.stages:
                what = "the latest" if self._big else "this server"
                raise Invalid(f"Spark does not answer for {what}. expected=engine duckdb", reason="unsupported")
            async with self._engine.open(request, readable) as running:
                yield running
            return
        # Bound once: what is planned, checked and run are the same snapshots.
        bound = await self._engine.bind(request, readable)
        translated = await self._for_spark(bound, request.engine)
        if translated is not None:
            loaded = [table.loaded for table in bound.tables if table.loaded is not None]
            await asyncio.to_thread(self._planner.check_own, loaded)
            async with self._elsewhere(self._big, translated, bound.tables, request) as big:
                yield big
        elif request.stages:
            raise Invalid("stages run on Spark, where a query is large. got=a small one", reason="unsupported")
        else:
            async with self._engine.open(request, readable, bound) as running:
                yield running

    async def is_for_spark(self, request: QueryRequest, readable: Readable = everything) -> bool:
        """Whether a query belongs on Spark, and there is one."""
        if self._big is None or request.freshness is Freshness.LATEST:
            return False
        return await self._for_spark(await self._engine.bind(request, readable), request.engine) is not None

    async def _for_spark(self, bound: BoundQuery, asked: EngineName | None) -> SparkStatement | None:
        """The statement in Spark's words, where it is to run there."""
        statement, tables = bound
        names = {table.name for table in tables}
        if asked is EngineName.SPARK:
            return await self._engine.statements.for_spark(statement, names)
        if asked is EngineName.DUCKDB or statement.kind is not Kind.SELECT or is_small(tables, self._settings):
            return None
        plan = await self._planner.plan_bound(statement, tables)
        route = decide(plan, self._settings)
        if route.engine is not EngineName.SPARK:
            return None
        try:
            return await self._engine.statements.for_spark(statement, names)
        except Invalid as error:
            if error.reason != NOT_PORTABLE:
                raise
            if route.reason is Reason.DELETION_VECTORS:
                # Rather no answer than a wrong one.
                raise
            return None

    @asynccontextmanager
    async def _elsewhere(
        self, big: BigQueryEngine, statement: SparkStatement, tables: Sequence[BoundTable], request: QueryRequest
    ) -> AsyncIterator[RunningElsewhere]:
        started_s = self._clock.monotonic_s()
        snapshots = tuple(table.use() for table in tables)
        views = {view: _pinned(name, tables) for view, name in statement.views.items()}

        def measure(rows: int, size: int) -> Stats:
            elapsed_ms = round((self._clock.monotonic_s() - started_s) * 1000, 3)
            return Stats(elapsed_ms=elapsed_ms, engine=big.name, rows=rows, bytes=size, snapshots=snapshots)

        # One row more than asked for tells whether there are more.
        limit = request.limit + 1
        batches = big.query(
            statement.sql, views, limit=limit, timeout_s=request.timeout_ms / 1000, stages=request.stages
        )
        try:
            async with asyncio.timeout(request.timeout_ms / 1000):
                yield RunningElsewhere(batches, await anext(batches), request.limit, measure)
        except TimeoutError:
            message = f"the query took too long. expected=at most {request.timeout_ms} ms"
            raise Invalid(message, reason="query_timeout") from None
        finally:
            # An async generator is cancelled by closing it; a plain iterator has nothing to close.
            if closing := getattr(batches, "aclose", None):
                await closing()


def _pinned(name: TableName, tables: Iterable[BoundTable]) -> PinnedTable:
    """The snapshot that was bound. SQL names have no case, the catalog's do."""
    (table,) = (each for each in tables if _folded(each.name) == _folded(name))
    snapshot = current_snapshot(table.loaded.metadata) if table.loaded else None
    location = table.loaded.metadata_location if table.loaded and table.loaded.delta is not None else None
    if location is not None and not location.startswith("/"):
        raise Invalid(f"Spark reads Delta tables of a folder only. expected=engine duckdb got={table.name}")
    return PinnedTable(table.name, int(snapshot["snapshot-id"]) if snapshot else None, location)


def _folded(name: TableName) -> tuple[str, str]:
    return name.namespace.lower(), name.table.lower()


def is_small(tables: Iterable[BoundTable], settings: RouteSettings) -> bool:
    """Whether whole tables, unpruned, stay below the bounds and can be read right, by their snapshots' own totals."""
    size = rows = 0
    for table in tables:
        snapshot = current_snapshot(table.loaded.metadata) if table.loaded else None
        if snapshot is None:
            continue
        summary = snapshot.get("summary") or {}
        bytes_text, rows_text = summary.get("total-files-size"), summary.get("total-records")
        has_deletes = summary.get("total-delete-files", "1") != "0"
        assert table.loaded is not None
        may_be_misread = has_deletes and int(table.loaded.metadata.get("format-version", 1)) >= 3
        if bytes_text is None or rows_text is None or may_be_misread:
            return False
        size += int(bytes_text)
        rows += int(rows_text)
    return size <= settings.bytes_max and rows <= settings.rows_max
