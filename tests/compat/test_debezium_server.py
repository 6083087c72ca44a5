"""PostgreSQL → Debezium Server, unmodified → Mainstem → DuckDB: a snapshot, changes of every kind, a kill of each part.

`ROWS=1000000 make soak ARGS=tests/compat/test_debezium_server.py` has the snapshot of a large table.
"""

import asyncio
import datetime as dt
import os
import signal
import time
from pathlib import Path
from typing import Any

import duckdb
import httpx
import psycopg
import pytest

from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import connect_duckdb
from tests.contract.auth_tokens import SECURED, bearer, token
from tests.harness.debezium import (
    GUIDE,
    DebeziumServer,
    GuideType,
    Postgres,
    guide_properties,
    guide_types,
    postgres_in,
)
from tests.harness.guides import guide_block
from tests.harness.guides import guide_properties as guide_block_properties

ROWS = int(os.environ.get("ROWS", "100000"))
NAMES = 'id, price, quantity, "at", seen, "day", ref, raw, note, is_new, ratio, big'
SELECTS = {
    "orders": f"{NAMES}, channel",
    "lines": "order_id, line_no, item",
    "gone": "id",
}
SUMS = {
    "orders": 'count(*), sum(id), sum(price), sum(quantity), min("at"), max("day"), count(DISTINCT ref), max(note), '
    "sum(length(big)), count(channel)",
    "lines": "count(*), sum(order_id), sum(line_no), max(item)",
    "gone": "count(*), sum(id)",
    "types": "count(*), sum(id)",
}
# `big` is so large that PostgreSQL does not send it with an update of other columns.
TABLES = """
CREATE TABLE orders (
  id bigint PRIMARY KEY, price numeric(12,2), quantity int, "at" timestamp, seen timestamptz, "day" date,
  ref uuid, raw bytea, note text, is_new boolean, ratio double precision, big text
);
ALTER TABLE orders ALTER big SET STORAGE EXTERNAL;
CREATE TABLE lines (order_id bigint, line_no int, item text, PRIMARY KEY (order_id, line_no));
CREATE TABLE gone (id int PRIMARY KEY);
INSERT INTO lines SELECT i, 1, 'x' || i FROM generate_series(1, 50) AS i;
INSERT INTO gone SELECT generate_series(1, 5);
"""


def fill(first: int, count: int) -> str:
    return f"""
    INSERT INTO orders ({NAMES}) SELECT i, i * 1.25, i % 7, timestamp '2026-01-01' + i * interval '1 second',
      timestamptz '2026-01-01 00:00:00+02' + i * interval '1 second', date '2026-01-01' + (i % 100)::int,
      gen_random_uuid(), '\\x0102', 'note ' || i, i % 2 = 0, i / 3.0,
      CASE WHEN i % 500 = 0 THEN repeat('toast', 2000) END
    FROM generate_series({first}, {first + count - 1}) AS i
    """


class Chain:
    """The parts, and how they are compared."""

    def __init__(self, server: ServerProcess, postgres: Postgres, debezium: DebeziumServer, wait_s: float) -> None:
        self.server = server
        self.postgres = postgres
        self.debezium = debezium
        self._wait_s = wait_s

    async def agree(self) -> None:
        """Wait until DuckDB's sums are PostgreSQL's, then compare every row of every table."""
        deadline_s = time.monotonic() + self._wait_s
        for table, named in SUMS.items():
            sums = self._there(named, ", count(channel)")
            wanted = self.postgres.rows(f"SELECT {sums} FROM {table}")
            while (found := await self._found(f"SELECT {sums} FROM lake.shop.{table}")) != wanted:
                assert time.monotonic() < deadline_s, f"{table} expected={wanted} got={found}\n{self.debezium.said()}"
                if not self.debezium.is_running:
                    # As what looks after services would: it gives up on a database that is gone.
                    self.debezium.start()
        for table, named in SELECTS.items():
            select = f"SELECT {self._there(named, ', channel')} FROM {{}} ORDER BY 1"
            ours = await self._found(select.format(f"lake.shop.{table}"))
            theirs = self.postgres.rows(select.format(table))
            assert [plain(row) for row in ours] == [plain(row) for row in theirs], table

    async def _found(self, sql: str) -> Any:
        await self.server.flush()
        try:
            return await asyncio.to_thread(lambda: connect_duckdb(self.server.url).sql(sql).fetchall())
        except duckdb.Error as error:
            # The table is not there yet, or a column of it.
            return str(error)

    def _there(self, columns: str, added: str) -> str:
        """The columns without the one that is added in the middle of the story, as long as it is not there."""
        sql = "SELECT 1 FROM information_schema.columns WHERE table_name = 'orders' AND column_name = 'channel'"
        return columns if self.postgres.rows(sql) else columns.removesuffix(added)

    async def kill_pipeline(self) -> None:
        """The Spark driver dies; the gateway starts another one."""
        os.kill((await self.server.status())["pipeline"]["pid"], signal.SIGKILL)


def plain(row: Any) -> tuple[Any, ...]:
    """Instants in one zone."""
    return tuple(
        value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value for value in row
    )


async def run(tmp_path: Path, rows: int) -> None:
    postgres = postgres_in(tmp_path)
    config = Config(server=ServerConfig(port=0), log=LogConfig(flush_interval_s=1.0))
    async with ServerProcess(tmp_path / "data", config) as server:
        postgres.start()
        url = f"{server.url}/v1/debezium?namespace=shop&key=id&key=lines:order_id,line_no"
        debezium = DebeziumServer(tmp_path, guide_properties(postgres, url, "orders,lines,gone,types"))
        try:
            await story(Chain(server, postgres, debezium, 150 + rows / 250), rows)
        finally:
            debezium.kill()
            postgres.stop("immediate")


def types_of(postgres: Postgres) -> list[GuideType]:
    """The guide's types that this build of PostgreSQL has: the wheel's may be made without libxml."""
    try:
        postgres.rows("SELECT '<a/>'::xml")
        return guide_types()
    except psycopg.errors.FeatureNotSupported:
        return [each for each in guide_types() if each.postgres != "xml"]


def types_table(types: list[GuideType]) -> tuple[str, ...]:
    """A table with a column of each type: one row of its examples, and one of nulls."""
    columns = ", ".join(f"t{number} {each.postgres}" for number, each in enumerate(types))
    values = ", ".join(f"'{each.example}'::{each.postgres}" for each in types)
    return (
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        f"CREATE TABLE types (id int PRIMARY KEY, {columns})",
        f"INSERT INTO types VALUES (1, {values})",
        "INSERT INTO types VALUES (2)",
    )


def check_types(server: ServerProcess, types: list[GuideType]) -> None:
    """What the guide says becomes of each type."""
    lake = connect_duckdb(server.url)
    lake.sql("SET TimeZone = 'UTC'")
    columns = {name: kind for name, kind, *_ in lake.sql("DESCRIBE lake.shop.types").fetchall()}
    shown = ", ".join(f"t{number}::VARCHAR" for number in range(len(types)))
    examples, nulls = lake.sql(f"SELECT {shown} FROM lake.shop.types ORDER BY id").fetchall()
    wanted = {each.postgres: (each.column, each.shown) for each in types}
    found = {each.postgres: (columns[f"t{number}"], examples[number]) for number, each in enumerate(types)}
    assert found == wanted and len(types) > 35
    assert nulls == (None,) * len(types)


async def story(chain: Chain, rows: int) -> None:
    server, postgres, debezium = chain.server, chain.postgres, chain.debezium
    postgres.run(TABLES, fill(1, rows), *types_table(types_of(postgres)))
    debezium.start()
    await chain.agree()
    # Every kind of change, while parts are killed.
    postgres.run(
        "UPDATE orders SET price = price + 1, note = 'changed' WHERE id % 10 = 0",
        "DELETE FROM orders WHERE id % 25 = 0",
    )
    debezium.kill()
    await chain.kill_pipeline()
    postgres.run(
        "ALTER TABLE orders ADD COLUMN channel text DEFAULT 'web'",
        # Without a value, older rows have the default in PostgreSQL alone: it sends no event for them.
        "UPDATE orders SET channel = 'shop'",
        fill(rows + 1, 50),
        "UPDATE lines SET item = 'y' WHERE order_id < 10",
        "UPDATE lines SET line_no = 2 WHERE order_id = 11",
        "DELETE FROM lines WHERE order_id = 12",
        "TRUNCATE gone",
        "INSERT INTO gone VALUES (7)",
    )
    debezium.start()
    server.kill()
    postgres.stop("immediate")
    postgres.start()
    await server.start()
    postgres.run("UPDATE orders SET quantity = 100 WHERE id % 3 = 0", "INSERT INTO gone VALUES (8)")
    await chain.agree()
    check_history(server)
    check_types(server, types_of(postgres))


def check_history(server: ServerProcess) -> None:
    lake = connect_duckdb(server.url)
    history = "lake.shop.orders_history"
    ((doubled,),) = lake.sql(
        f"SELECT count(*) FROM (SELECT _key, _metadata, _op FROM {history} WHERE _op <> 'read' "
        "GROUP BY ALL HAVING count(*) > 1)"
    ).fetchall()
    assert doubled == 0
    assert lake.sql(guide_block("debezium.md", "sql")).fetchone() is not None
    told = lake.sql(f"SELECT _metadata FROM {history} WHERE _op = 'update' LIMIT 1").fetchall()[0][0]
    assert '"lsn":' in told and '"txId":' in told and '"snapshot":' in told
    ((key,),) = lake.sql("SELECT _key FROM lake.shop.lines WHERE order_id = 11").fetchall()
    assert key == '{"line_no":2,"order_id":11}'
    # The truncate, in its table's history: a delete of each row, once.
    deletes = lake.sql(
        "SELECT _key, _metadata->>'$.truncate', _metadata->>'$.source.lsn' IS NOT NULL "
        "FROM lake.shop.gone_history WHERE _op = 'delete' ORDER BY _key"
    ).fetchall()
    assert deletes == [(str(key), "true", True) for key in range(1, 6)]


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_database_arrives_row_for_row_whatever_is_killed(tmp_path: Path) -> None:
    asyncio.run(run(tmp_path, 1_500))


@pytest.mark.spark
@pytest.mark.timeout(200)
@pytest.mark.parametrize("with_schemas", ["true", "false"])
async def test_cloud_events_arrive_as_envelopes_do(tmp_path: Path, with_schemas: str) -> None:
    """Debezium's other form: a snapshot, then changes of every kind, as `latest` sees them."""
    postgres = postgres_in(tmp_path)
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
    async with ServerProcess(tmp_path / "data", config) as server:
        postgres.start()
        postgres.run("CREATE TABLE pens (id int PRIMARY KEY, price numeric(12,2), day date, note text)")
        postgres.run(
            "INSERT INTO pens SELECT i, i * 1.25, date '2026-01-01' + i, 'pen' FROM generate_series(1, 20) AS i"
        )
        url = f"{server.url}/v1/debezium?namespace=shop&key=id"
        form = {"debezium.format.value": "cloudevents", "debezium.format.value.json.schemas.enable": with_schemas}
        debezium = DebeziumServer(tmp_path, guide_properties(postgres, url, "pens", **form))
        debezium.start()
        try:
            columns = "id, note, price::text, day::text" if with_schemas == "true" else "id, note"
            await agreed(server, debezium, postgres, columns)
            postgres.run(
                "UPDATE pens SET price = 99, note = NULL WHERE id % 3 = 0",
                "DELETE FROM pens WHERE id = 4",
                "TRUNCATE pens",
                "INSERT INTO pens VALUES (7, 0.10, '2026-02-01', 'seven'), (8, 1, NULL, 'eight')",
                "UPDATE pens SET id = 9 WHERE id = 8",
            )
            await agreed(server, debezium, postgres, columns)
        finally:
            debezium.kill()
            postgres.stop("immediate")


@pytest.mark.spark
@pytest.mark.timeout(200)
async def test_a_server_with_logins_is_posted_to_with_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lines of the guide, which has the token in the environment; without them nothing is taken."""
    monkeypatch.setenv("MAINSTEM_TOKEN", token("writer", "shop"))
    postgres = postgres_in(tmp_path)
    async with ServerProcess(tmp_path / "data", SECURED, token=token()) as server:
        postgres.start()
        postgres.run("CREATE TABLE pens (id int PRIMARY KEY, note text)")
        postgres.run("INSERT INTO pens SELECT i, 'pen' FROM generate_series(1, 20) AS i")
        url = f"{server.url}/v1/debezium?namespace=shop&key=id"
        without = guide_properties(postgres, url, "pens")
        login = {"debezium.sink.http.authentication.jwt.url": f"{server.url}/v1/debezium/"}
        debezium = DebeziumServer(tmp_path, f"{without}\n{guide_block_properties(GUIDE.name, 1, login)}")
        debezium.start()
        try:
            await agreed(server, debezium, postgres, "id, note")
            postgres.run("UPDATE pens SET note = 'changed' WHERE id % 3 = 0", "DELETE FROM pens WHERE id = 4")
            await agreed(server, debezium, postgres, "id, note")
            debezium.kill()
            postgres.run("INSERT INTO pens VALUES (21, 'refused')")
            before = (await server.status())["log"]["durable"]
            refused = DebeziumServer(tmp_path, without)
            refused.start()
            try:
                async with asyncio.timeout(100):
                    while "token_missing" not in refused.said():
                        await asyncio.sleep(0.2)
            finally:
                refused.kill()
            assert (await server.status())["log"]["durable"] == before
        finally:
            debezium.kill()
            postgres.stop("immediate")


async def agreed(server: ServerProcess, debezium: DebeziumServer, postgres: Postgres, columns: str) -> None:
    """Wait until `latest` says what PostgreSQL says."""
    wanted = [list(row) for row in postgres.rows(f"SELECT {columns} FROM pens ORDER BY id")]
    found: Any = None
    deadline_s = time.monotonic() + 100
    while found != wanted:
        assert time.monotonic() < deadline_s and debezium.is_running, f"{wanted} {found}\n{debezium.said()}"
        found = await selected(server, f"SELECT {columns} FROM shop.pens ORDER BY id")
        await asyncio.sleep(0.2)


async def selected(server: ServerProcess, sql: str) -> Any:
    async with httpx.AsyncClient(timeout=60) as http:
        body = {"sql": sql, "freshness": "latest"}
        answer = await http.post(f"{server.url}/v1/query", json=body, headers=bearer(token()))
    return answer.json().get("rows")


@pytest.mark.soak
@pytest.mark.timeout(9_000)
def test_a_large_database_arrives_row_for_row_whatever_is_killed(tmp_path: Path) -> None:
    asyncio.run(run(tmp_path, ROWS))
