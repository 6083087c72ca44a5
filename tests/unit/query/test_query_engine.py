"""Queries over real tables: rows, limits, time, cancellation and the bound on how many run."""

import asyncio
from typing import Any

import pytest

from mainstem.model import Denied, Invalid, NotFound, Overloaded, TableName
from mainstem.query.engine import EngineSettings, QueryEngine, QueryRequest
from mainstem.query.ports import Readable, everything
from mainstem.query.sandbox.session import SandboxSettings
from tests.unit.query.folder_lake import FolderCatalog, FolderLake

ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE (a.range * b.range) % 7 = 3"


async def rows(
    engine: QueryEngine, sql: str, readable: Readable = everything, **settings: Any
) -> list[tuple[Any, ...]]:
    async with engine.open(QueryRequest(sql=sql, **settings), readable) as running:
        found = [batch async for batch in running.batches()]
    return [tuple(row.values()) for batch in found for row in batch.to_pylist()]


async def until_inside(engine: QueryEngine, count: int) -> None:
    async with asyncio.timeout(60):
        while engine.inside < count:
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT count(*), sum(id) FROM orders", [(999, 499_500 - 7)]),
        ("SELECT count(*) FROM default.orders WHERE id = 7", [(0,)]),
        ("SELECT name FROM lake.default.ORDERS WHERE ID = 8", [("n0008",)]),
        ("SELECT count(*) FROM orders a JOIN orders b ON a.id = b.id + 1", [(997,)]),
        ("SELECT count(*), max(id) FROM empty", [(0, None)]),
        ("WITH orders AS (SELECT 1 AS one) SELECT one FROM orders", [(1,)]),
        ("SELECT x FROM (WITH orders AS (SELECT 5 AS x) SELECT * FROM orders), orders WHERE id = 1", [(5,)]),
        ("SHOW TABLES", [("default", "empty"), ("default", "orders"), ("other", "secrets")]),
        ("SELECT 1 -- the end", [(1,)]),
    ],
)
async def test_answers(engine: QueryEngine, sql: str, expected: list[tuple[Any, ...]]) -> None:
    # Twice: the second time in a session that has been used.
    assert await rows(engine, sql) == expected
    assert await rows(engine, sql) == expected


async def test_a_warm_engine_answers_alike(engine: QueryEngine) -> None:
    await engine.warm()
    assert await rows(engine, "SELECT count(*) FROM orders") == [(999,)]


async def test_describe_and_explain(engine: QueryEngine) -> None:
    described = await rows(engine, "DESCRIBE orders")
    assert [(row[0], row[1]) for row in described][:2] == [("id", "BIGINT"), ("name", "VARCHAR")]
    explained = await rows(engine, "EXPLAIN SELECT * FROM orders WHERE id > 3")
    assert "id>3" in explained[0][1]


async def test_the_result_says_what_was_read(engine: QueryEngine, catalog: FolderCatalog) -> None:
    async with engine.open(QueryRequest(sql="SELECT id, price FROM orders")) as running:
        assert [(column.name, column.type) for column in running.columns] == [("id", "BIGINT"), ("price", "DOUBLE")]
        assert sum([batch.num_rows async for batch in running.batches()]) == 999
        stats = running.stats()
    current = catalog.load_table(("default", "orders")).current_snapshot()
    assert current is not None
    assert stats.rows == 999
    assert stats.engine == "duckdb"
    # The delete carries no position: the newest snapshot that has one counts.
    assert [(use.table, use.snapshot_id, use.position) for use in stats.snapshots] == [
        ("default.orders", str(current.snapshot_id), 5)
    ]


@pytest.mark.parametrize(
    ("limit", "count", "truncated"),
    [(998, 998, True), (999, 999, False), (1000, 999, False), (0, 0, True), (1, 1, True)],
)
async def test_the_row_limit_is_exact(engine: QueryEngine, limit: int, count: int, truncated: bool) -> None:
    async with engine.open(QueryRequest(sql="SELECT * FROM orders", limit=limit)) as running:
        assert sum([batch.num_rows async for batch in running.batches()]) == count
        assert running.truncated is truncated


async def test_an_endless_result_is_cut_without_being_computed(engine: QueryEngine) -> None:
    assert len(await rows(engine, "SELECT * FROM range(100000000000)", limit=10)) == 10


async def test_a_query_stops_at_its_time_limit_and_leaves_its_place(engine: QueryEngine) -> None:
    with pytest.raises(Invalid) as caught:
        await rows(engine, ENDLESS, timeout_ms=100)
    assert caught.value.reason == "query_timeout"
    assert engine.inside == 0
    assert await rows(engine, "SELECT 1") == [(1,)]


async def test_a_query_is_cancelled_with_its_task(engine: QueryEngine) -> None:
    task = asyncio.ensure_future(rows(engine, ENDLESS))
    await until_inside(engine, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.inside == 0
    assert await rows(engine, "SELECT 1") == [(1,)]


async def test_leaving_early_frees_the_place(engine: QueryEngine) -> None:
    async with engine.open(QueryRequest(sql="SELECT * FROM range(100000000000)", limit=1_000_000)) as running:
        async for _ in running.batches():
            break
    assert engine.inside == 0
    assert await rows(engine, "SELECT 1") == [(1,)]


async def test_one_more_than_the_bound_is_told_when_to_come_back(engine: QueryEngine) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(rows(engine, ENDLESS)) for _ in range(4)]
        await until_inside(engine, 4)
        with pytest.raises(Overloaded) as caught:
            await rows(engine, "SELECT 1")
        assert caught.value.retry_after_s > 0
        for task in tasks:
            task.cancel()
    assert engine.inside == 0
    assert await rows(engine, "SELECT 1") == [(1,)]


async def test_waiting_for_a_place_counts_against_the_time(engine: QueryEngine) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(rows(engine, ENDLESS)) for _ in range(2)]
        await until_inside(engine, 2)
        with pytest.raises(Overloaded):
            await rows(engine, "SELECT 1", timeout_ms=50)
        for task in tasks:
            task.cancel()


async def test_a_caller_with_bounds_sees_nothing_of_others(engine: QueryEngine) -> None:
    def own(name: TableName) -> bool:
        return name.namespace == "default"

    assert await rows(engine, "SHOW TABLES", own) == [("default", "empty"), ("default", "orders")]
    assert await rows(engine, "SELECT count(*) FROM orders", own) == [(999,)]
    for sql in ("SELECT * FROM other.secrets", "SELECT * FROM Other.Secrets", "DESCRIBE other.secrets"):
        with pytest.raises(NotFound):
            await rows(engine, sql, own)
    # Somebody else's query before must leave nothing behind.
    assert await rows(engine, "SELECT word FROM other.secrets") == [("hidden",)]
    with pytest.raises(NotFound):
        await rows(engine, "SELECT word FROM other.secrets", own)
    with pytest.raises((NotFound, Invalid)):
        await rows(engine, "SELECT * FROM secrets, (WITH secrets AS (SELECT 1) SELECT * FROM secrets)", own)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM nope",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM temp.x",
    ],
)
async def test_what_is_no_table_does_not_exist(engine: QueryEngine, sql: str) -> None:
    with pytest.raises(NotFound):
        await rows(engine, sql)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT nope FROM orders", "sql_error"),
        ("SELECT CAST(name AS INT) FROM orders", "sql_error"),
        ("SELECT error('x')", "sql_error"),
        ("SELECT list(range) FROM range(100000000)", "query_memory"),
        ("SELECT", "sql_syntax"),
    ],
)
async def test_errors_have_a_reason_and_no_paths(
    engine: QueryEngine, catalog: FolderCatalog, sql: str, reason: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await rows(engine, sql)
    assert caught.value.reason == reason
    assert str(catalog.folder) not in str(caught.value)
    assert await rows(engine, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("field", [{"limit": -1}, {"limit": 1_000_001}, {"timeout_ms": 0}, {"timeout_ms": 300_001}])
def test_limits_are_checked(field: dict[str, int]) -> None:
    with pytest.raises(Invalid):
        QueryRequest(sql="SELECT 1", **field)  # type: ignore[arg-type]


def test_limits_are_inclusive() -> None:
    assert QueryRequest(sql="SELECT 1", limit=1_000_000, timeout_ms=300_000).limit == 1_000_000


async def test_a_write_is_denied(engine: QueryEngine) -> None:
    with pytest.raises(Denied):
        await rows(engine, "DROP VIEW orders")


async def test_tables_beyond_the_warehouse_folder_get_a_session_of_their_own(catalog: FolderCatalog) -> None:
    settings = EngineSettings(folder="/nowhere/", sandbox=SandboxSettings(threads=1))
    engine = QueryEngine(FolderLake(catalog), settings)
    assert await rows(engine, "SELECT count(*) FROM orders") == [(999,)]
    await engine.close()
