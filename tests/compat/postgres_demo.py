"""`make demo-postgres`: a PostgreSQL that is being written to, Debezium Server, Mainstem, and both sides compared.

Rows change for a minute, or with --stay until ^C. Ends with 1 where DuckDB's counts and sums are not PostgreSQL's.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import psycopg

from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import connect_duckdb
from tests.harness.debezium import DebeziumServer, Postgres, distribution, guide_properties, postgres_in

TABLES = (
    "CREATE TABLE customers (id int PRIMARY KEY, name text, since date)",
    "CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric(10,2), paid boolean, at timestamptz)",
    "CREATE TABLE carts (id int PRIMARY KEY, items int)",
    "INSERT INTO customers SELECT i, 'customer ' || i, date '2026-01-01' + i % 300 FROM generate_series(1, 500) AS i",
    "INSERT INTO orders SELECT i, 1 + i % 500, i * 0.25, false, now() FROM generate_series(1, 2000) AS i",
)
SUMS = {
    "customers": "count(*), sum(id)",
    "orders": "count(*), sum(id), sum(amount), count(CASE WHEN paid THEN 1 END)",
    "carts": "count(*), sum(items)",
}
CHANGES_PER_S = 60
REPORT_S = 5.0
SETTLE_S = 90.0


class Writer:
    """An application's writes, until it is told to stop."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.changes = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pick = random.Random(1)
        order = 2_000
        with psycopg.connect(self._postgres.address, autocommit=True) as connection:
            while not self._stop.wait(1 / CHANGES_PER_S):
                order += 1
                some = pick.randint(1, order)
                statements: tuple[tuple[str, tuple[Any, ...]], ...] = (
                    ("INSERT INTO orders VALUES (%s, %s, %s, false, now())", (order, some % 500 + 1, some)),
                    ("UPDATE orders SET paid = true, amount = amount + 1 WHERE id = %s", (some,)),
                    ("DELETE FROM orders WHERE id = %s", (some // 2,)),
                    ("INSERT INTO carts VALUES (%s, %s)", (order, some % 9)),
                )
                connection.execute(*statements[order % 4])
                if order % 1_000 == 0:
                    connection.execute("TRUNCATE carts")
                self.changes += 1


def say(text: str) -> None:
    print(text, flush=True)


def ours(url: str) -> dict[str, Any]:
    """What DuckDB says of each table; None of one that is not there yet."""
    lake, found = connect_duckdb(url), dict[str, Any]()
    for table, sums in SUMS.items():
        try:
            found[table] = lake.sql(f"SELECT {sums} FROM lake.shop.{table}").fetchone()
        except duckdb.Error:
            found[table] = None
    return found


def theirs(postgres: Postgres) -> dict[str, Any]:
    return {table: postgres.rows(f"SELECT {sums} FROM {table}")[0] for table, sums in SUMS.items()}


def shown(found: dict[str, Any]) -> str:
    return "  ".join(f"{table} {'-' if row is None else ', '.join(map(str, row))}" for table, row in found.items())


async def settle(server: ServerProcess, postgres: Postgres, is_up: Callable[[], bool]) -> bool:
    """Wait until both sides say the same. Whether they do."""
    wanted, deadline_s = theirs(postgres), time.monotonic() + SETTLE_S
    found: dict[str, Any] = {}
    while time.monotonic() < deadline_s and is_up():
        await server.flush()
        found = await asyncio.to_thread(ours, server.url)
        if found == wanted:
            break
    say(f"  PostgreSQL        {shown(wanted)}\n  DuckDB, the lake  {shown(found)}")
    return found == wanted


async def demo(folder: Path, seconds: float, *, stay: bool) -> int:
    postgres = postgres_in(folder)
    config = Config(server=ServerConfig(port=0), log=LogConfig(flush_interval_s=1.0))
    say("starting PostgreSQL (with logical decoding) and Mainstem")
    async with ServerProcess(folder / "data", config, is_apart=True) as server:
        await asyncio.to_thread(postgres.start)
        postgres.run(*TABLES)
        url = f"{server.url}/v1/debezium?namespace=shop&key=id"
        debezium = DebeziumServer(folder, guide_properties(postgres, url, ",".join(SUMS)))
        writer = Writer(postgres)
        try:
            say("starting Debezium Server: it posts a snapshot of the rows, then every change")
            debezium.start()
            if not await settle_snapshot(server, debezium):
                return failed("the snapshot did not arrive", debezium)
            say(f"the snapshot is in the lake. An application changes rows for {'ever' if stay else f'{seconds:g} s'}:")
            writer.start()
            end_s = time.monotonic() + seconds
            while stay or time.monotonic() < end_s:
                await asyncio.sleep(REPORT_S)
                say(f"  {writer.changes:>6} changes   {shown(await asyncio.to_thread(ours, server.url))}")
        except (KeyboardInterrupt, asyncio.CancelledError):
            say("stopping")
        finally:
            if writer.changes:
                writer.stop()
        try:
            say("the application has stopped. What each side has now:")
            same = await settle(server, postgres, lambda: debezium.is_running)
            if not same:
                return failed("the two sides differ", debezium)
            say(f"the same on both sides after {writer.changes} changes, truncates of a table among them.")
            say(f"query them: {server.url}/console (while `make demo-postgres ARGS=--stay` runs)")
            return 0
        finally:
            debezium.kill()
            await asyncio.to_thread(postgres.stop, "immediate")


async def settle_snapshot(server: ServerProcess, debezium: DebeziumServer) -> bool:
    deadline_s = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline_s and debezium.is_running:
        await server.flush()
        found = await asyncio.to_thread(ours, server.url)
        if found["orders"] and found["orders"][0] == 2_000 and found["customers"]:
            return True
    return False


def failed(why: str, debezium: DebeziumServer) -> int:
    say(f"FAILED: {why}\n{debezium.said()}")
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo-postgres", description=__doc__)
    parser.add_argument("--stay", action="store_true", help="go on until ^C")
    parser.add_argument("--seconds", type=float, default=60.0)
    words = parser.parse_args()
    # Before anything is up: 400 MB the first time.
    distribution()
    with tempfile.TemporaryDirectory(prefix="mainstem-demo-", ignore_cleanup_errors=True) as folder:
        return asyncio.run(demo(Path(folder), words.seconds, stay=words.stay))


if __name__ == "__main__":
    sys.exit(main())
