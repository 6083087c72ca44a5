"""Queries go to the large engine where the plan says so, and look the same from there."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from mainstem.model import Denied, Invalid, NotFound, TableName
from mainstem.query.binding import BoundTable, Freshness
from mainstem.query.dispatch import Dispatcher
from mainstem.query.engine import QueryEngine, QueryRequest
from mainstem.query.plan import Plan, Planner
from mainstem.query.ports import PinnedTable
from mainstem.query.route import EngineName, RouteSettings
from mainstem.query.statements.statement import Statement
from tests.unit.query.folder_lake import FolderCatalog

NOTHING = RouteSettings(bytes_max=0, rows_max=0)


class FakeSpark:
    """Answers everything with the same two batches, or never."""

    name = "spark"

    def __init__(self, *, hangs: bool = False) -> None:
        self.asked: list[str] = []
        self.closed = False
        self._hangs = hangs

    async def query(
        self, sql: str, views: Mapping[str, PinnedTable], *, limit: int, timeout_s: float, stages: str = ""
    ) -> AsyncIterator[pa.RecordBatch]:
        assert [table.name for table in views.values()] == [TableName("default", "orders")]
        self.asked.append(sql)
        try:
            if self._hangs:
                await asyncio.Event().wait()
            yield pa.record_batch({"n": [1, 2]})
            yield pa.record_batch({"n": [3]})
        finally:
            self.closed = True


def dispatcher(engine: QueryEngine, spark: FakeSpark, settings: RouteSettings) -> Dispatcher:
    return Dispatcher(engine, Planner(engine.binder, engine.statements), settings, big=spark)


@pytest.mark.parametrize(("limit", "count", "truncated"), [(10, 3, False), (3, 3, False), (2, 2, True), (1, 1, True)])
async def test_a_large_query_runs_elsewhere(engine: QueryEngine, limit: int, count: int, truncated: bool) -> None:
    spark = FakeSpark()
    request = QueryRequest(sql="SELECT id FROM orders", limit=limit)
    async with dispatcher(engine, spark, NOTHING).open(request) as running:
        assert [column.name for column in running.columns] == ["n"]
        assert sum([batch.num_rows async for batch in running.batches()]) == count
        assert running.truncated is truncated
        stats = running.stats()
    assert (stats.engine, stats.rows) == ("spark", count)
    assert [use.table for use in stats.snapshots] == ["default.orders"]
    assert spark.closed


@pytest.mark.parametrize(
    ("sql", "settings", "freshness"),
    [
        ("SELECT count(*) FROM orders", RouteSettings(), Freshness.SNAPSHOT),
        # Large as a table, small once pruned.
        ("SELECT id FROM orders WHERE id = 3", RouteSettings(rows_max=300), Freshness.SNAPSHOT),
        ("SELECT id FROM orders", NOTHING, Freshness.LATEST),
        ("SHOW TABLES", NOTHING, Freshness.SNAPSHOT),
        ("EXPLAIN SELECT * FROM orders", NOTHING, Freshness.SNAPSHOT),
        ("SELECT 1", NOTHING, Freshness.SNAPSHOT),
    ],
)
async def test_the_rest_stays(engine: QueryEngine, sql: str, settings: RouteSettings, freshness: Freshness) -> None:
    spark = FakeSpark()
    async with dispatcher(engine, spark, settings).open(QueryRequest(sql=sql, freshness=freshness)) as running:
        assert sum([batch.num_rows async for batch in running.batches()]) > 0
        assert running.stats().engine == "duckdb"
    assert spark.asked == []


async def test_time_and_checks_hold_there_too(engine: QueryEngine) -> None:
    spark = FakeSpark(hangs=True)
    with pytest.raises(Invalid) as caught:
        async with dispatcher(engine, spark, NOTHING).open(QueryRequest(sql="FROM orders", timeout_ms=50)):
            pass
    assert caught.value.reason == "query_timeout"
    assert spark.closed
    with pytest.raises(NotFound):
        async with dispatcher(engine, spark, NOTHING).open(QueryRequest(sql="FROM nope")):
            pass


async def test_no_engine_reads_files_beyond_the_table(catalog: FolderCatalog, engine: QueryEngine) -> None:
    """A writer of one namespace lists a file of another's in a manifest of its own."""
    secret = catalog.load_table(("other", "secrets"))
    (stolen,) = [task.file.file_path for task in secret.scan().plan_files()]
    thief = catalog.create_table(("default", "thief"), schema=pa.schema([("word", pa.string())]))
    thief.add_files([stolen])
    try:
        for engine_name in (EngineName.SPARK, EngineName.DUCKDB, None):
            spark = FakeSpark()
            with pytest.raises(Denied):
                request = QueryRequest(sql="SELECT word FROM thief", engine=engine_name)
                async with dispatcher(engine, spark, NOTHING).open(request, _own_only) as running:
                    [batch async for batch in running.batches()]
            assert spark.asked == []
    finally:
        # Other tests share the lake, and list its tables.
        del catalog.locations["default", "thief"]


def _own_only(name: TableName) -> bool:
    return name.namespace == "default"


class CommitsMeanwhile(Planner):
    """A planner whose table gets two more rows while it plans."""

    def __init__(self, engine: QueryEngine, table: Table) -> None:
        super().__init__(engine.binder, engine.statements)
        self._table = table

    async def plan_bound(self, statement: Statement, tables: Iterable[BoundTable]) -> Plan:
        plan = await super().plan_bound(statement, tables)
        self._table.append(pa.table({"n": pa.array([2, 3], pa.int64())}))
        return plan


async def test_what_was_planned_is_what_runs(catalog: FolderCatalog, engine: QueryEngine) -> None:
    moving = catalog.create_table(("default", "moving"), schema=pa.schema([("n", pa.int64())]))
    moving.append(pa.table({"n": pa.array([1], pa.int64())}))
    planned = moving.current_snapshot()
    assert planned is not None
    # Too large as a table, so that it is planned; small enough to stay once it is pruned.
    settings = RouteSettings(rows_max=0)
    try:
        meanwhile = Dispatcher(engine, CommitsMeanwhile(engine, moving), settings, big=FakeSpark())
        async with meanwhile.open(QueryRequest(sql="SELECT n FROM moving WHERE n > 5")) as running:
            assert [use.snapshot_id for use in running.stats().snapshots] == [str(planned.snapshot_id)]
        assert moving.refresh().current_snapshot() != planned
    finally:
        del catalog.locations["default", "moving"]
