"""PostgreSQL → Debezium Server, unmodified → Mainstem → DuckDB: a snapshot, changes, a new column, a kill of each part.

On demand (`make soak ARGS=tests/compat/test_debezium_server.py`; ROWS=1000000: the long form). It has not passed yet.
"""

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess, reserve_port
from mainstem.client import connect_duckdb
from tests.harness.debezium import DebeziumServer, Postgres

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "debezium.md"
ROWS = int(os.environ.get("ROWS", "2000"))
WAIT_S = 300 + ROWS / 300
COLUMNS = 'count(*), sum(id), sum(price), sum(quantity), min("at"), max("day"), count(DISTINCT ref), max(note)'
TABLES = """
CREATE TABLE orders (
  id bigint PRIMARY KEY, price numeric(12,2), quantity int, "at" timestamp, seen timestamptz, "day" date,
  ref uuid, flags bit(3), raw bytea, doc jsonb, note text, is_new boolean, ratio double precision, clock time
);
CREATE TABLE lines (order_id bigint, line_no int, item text, PRIMARY KEY (order_id, line_no));
CREATE TABLE gone (id int PRIMARY KEY);
INSERT INTO gone SELECT generate_series(1, 5);
"""


def fill(first: int, count: int) -> str:
    return f"""
    INSERT INTO orders SELECT i, i * 1.25, i % 7, timestamp '2026-01-01' + i * interval '1 second',
      timestamptz '2026-01-01 00:00:00+02' + i * interval '1 second', date '2026-01-01' + (i % 100)::int,
      gen_random_uuid(), B'101', '\\x0102', '{{"a": [1]}}', 'note ' || i, i % 2 = 0, i / 3.0, time '10:00:00.5'
    FROM generate_series({first}, {first + count - 1}) AS i
    """


def properties(postgres: Postgres, server: ServerProcess) -> str:
    """The guide's own file, with the places of this test."""
    text = re.search(r"```properties\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert text is not None
    places = {
        "debezium.source.database.port": str(postgres.port),
        "debezium.source.database.hostname": "127.0.0.1",
        "debezium.sink.http.url": f"{server.url}/v1/debezium?namespace=shop&key=id&key=lines:order_id,line_no",
        "debezium.source.table.include.list": "public.orders,public.lines,public.gone",
        "debezium.source.database.user": "postgres",
        "debezium.source.database.password": "postgres",
        "debezium.source.database.dbname": "postgres",
    }
    lines = [line for line in text[1].splitlines() if line.partition("=")[0] not in places]
    return "\n".join([*lines, *(f"{name}={value}" for name, value in places.items()), "quarkus.http.port=0"])


async def agreed(server: ServerProcess, postgres: Postgres, debezium: DebeziumServer, select: str, table: str) -> Any:
    """Wait until DuckDB's answer is PostgreSQL's."""
    wanted = postgres.rows(f"SELECT {select} FROM {table}")
    deadline = time.monotonic() + WAIT_S
    found: Any = None
    while time.monotonic() < deadline:
        assert debezium.is_running, debezium.said()
        await server.flush()
        try:
            found = connect_duckdb(server.url).sql(f"SELECT {select} FROM lake.shop.{table}").fetchall()
        except Exception as error:  # the table, or a column of it, is not there yet
            found = str(error)
        if found == wanted:
            return found
        await asyncio.sleep(0.5)
    raise AssertionError(f"expected={wanted} got={found}\n{debezium.said()}")


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_database_arrives_whole_whatever_is_killed(tmp_path: Path) -> None:
    asyncio.run(_run(tmp_path))


async def _run(tmp_path: Path) -> None:
    with reserve_port("127.0.0.1") as place:
        postgres = Postgres(tmp_path, place.getsockname()[1])
    config = Config(server=ServerConfig(port=0), log=LogConfig(flush_interval_s=1.0))
    async with ServerProcess(tmp_path / "data", config) as server:
        postgres.start()
        debezium = DebeziumServer(tmp_path, properties(postgres, server))
        try:
            await _story(server, postgres, debezium)
        finally:
            debezium.kill()
            postgres.stop("immediate")


async def _story(server: ServerProcess, postgres: Postgres, debezium: DebeziumServer) -> None:
    postgres.run(TABLES, fill(1, ROWS), "INSERT INTO lines SELECT i, 1, 'x' || i FROM generate_series(1, 50) AS i")
    debezium.start()
    await agreed(server, postgres, debezium, COLUMNS, "orders")
    await agreed(server, postgres, debezium, "count(*), sum(order_id), max(item)", "lines")
    # Changes of every kind, a new column, and each part killed while they are under way.
    postgres.run(
        "UPDATE orders SET price = price + 1, note = 'changed' WHERE id % 10 = 0",
        "DELETE FROM orders WHERE id % 25 = 0",
        "ALTER TABLE orders ADD COLUMN channel text DEFAULT 'web'",
        fill(ROWS + 1, 50).replace("INSERT INTO orders", f"INSERT INTO orders ({NAMES})"),
        "UPDATE lines SET item = 'y' WHERE order_id < 10",
        "UPDATE lines SET line_no = 2 WHERE order_id = 11",
        "DELETE FROM lines WHERE order_id = 12",
        "TRUNCATE gone",
        "INSERT INTO gone VALUES (7)",
    )
    debezium.kill()
    debezium.start()
    server.kill()
    await server.start()
    await agreed(server, postgres, debezium, COLUMNS + ", count(channel)", "orders")
    postgres.run("UPDATE orders SET quantity = 100 WHERE id % 3 = 0")
    await agreed(server, postgres, debezium, COLUMNS + ", count(channel)", "orders")
    await agreed(server, postgres, debezium, "count(*), sum(order_id), sum(line_no), max(item)", "lines")
    await agreed(server, postgres, debezium, "count(*), sum(id)", "gone")
    _check_values(server, postgres)


NAMES = 'id, price, quantity, "at", seen, "day", ref, flags, raw, doc, note, is_new, ratio, clock'


def _check_values(server: ServerProcess, postgres: Postgres) -> None:
    lake = connect_duckdb(server.url)
    select = 'id, price, "at", "day", ref, note, is_new, ratio'
    where = f"WHERE id IN (1, 2, 10, {ROWS + 1}) ORDER BY id"
    ours = lake.sql(f"SELECT {select} FROM lake.shop.orders {where}").fetchall()
    assert ours == postgres.rows(f"SELECT {select} FROM orders {where}")
    odd = lake.sql("SELECT flags, raw, doc, clock, epoch_us(seen) FROM lake.shop.orders WHERE id = 1").fetchall()
    seen = postgres.rows("SELECT (extract(epoch FROM seen) * 1000000)::bigint FROM orders WHERE id = 1")
    assert odd == [("101", b"\x01\x02", '{"a":[1]}', "10:00:00.500000", seen[0][0])]
    types = {name: kind for name, kind, *_ in lake.sql("DESCRIBE lake.shop.orders").fetchall()}
    wanted = {"price": "DECIMAL(12,2)", "at": "TIMESTAMP", "seen": "TIMESTAMP WITH TIME ZONE", "day": "DATE"}
    assert {name: types[name] for name in wanted} == wanted and types["ref"] == "UUID" and types["raw"] == "BLOB"
    # Every change is there once, with its place in PostgreSQL's log.
    history = "lake.shop.orders_history"
    ((doubled,),) = lake.sql(
        f"SELECT count(*) FROM (SELECT _key, _metadata, _op FROM {history} WHERE _op <> 'read' "
        "GROUP BY ALL HAVING count(*) > 1)"
    ).fetchall()
    assert doubled == 0
    told = lake.sql(f"SELECT _metadata FROM {history} WHERE _op = 'update' LIMIT 1").fetchall()[0][0]
    assert '"lsn":' in told and '"txId":' in told and '"snapshot":' in told
    ((key,),) = lake.sql("SELECT _key FROM lake.shop.lines WHERE order_id = 11").fetchall()
    assert key == '{"line_no":2,"order_id":11}'
