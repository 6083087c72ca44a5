"""How long a new client takes until it has everything: 100,000 rows, into SQLite in Python and into Chromium.

The best published figure for a mobile client is 13.5 s. Beside ours, in the same run, the floor: storing the same rows
in the same kind of store, without a sync.
"""

import asyncio
import sqlite3
import time
from pathlib import Path

import httpx

from benchmarks.endtoend import until_running
from benchmarks.report import Figure, Report
from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import HttpTransport, LocalDB, SyncCoordinator, Table
from mainstem.model.hlc import pack
from mainstem.runtime.clock import SystemClock
from mainstem.wire.sync import ColumnDelta, Op, RowDelta, SyncPush, delta_id, encode_push

SECTION = "first sync"
GATEWAY = "bench"
PEOPLE = Table(
    "people", {"name": "text", "email": "text", "age": "integer", "active": "boolean", "note": "text"}
)
PUSH_DELTAS = 5_000
PULL_DELTAS = 5_000
PUBLISHED_S = 13.5
PROTOBUF = {"content-type": "application/x-protobuf", "accept": "application/x-protobuf"}


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """A server with its pipeline, filled; then clients that have nothing yet."""
    rows = 10_000 if small else 100_000
    config = Config(server=ServerConfig(port=0), log=LogConfig(flush_interval_s=1.0))
    async with ServerProcess(folder / "server", config) as server:
        await until_running(server)
        async with httpx.AsyncClient(base_url=server.url, headers=PROTOBUF, timeout=300) as http:
            await _fill(http, rows)
            floor_s = await asyncio.to_thread(_floor_s, folder / "floor.db", rows)
            pulled_s = await _first_sync_s(server.url, folder / "pulled.db", rows)
            made = await http.post(f"/admin/checkpoint/{GATEWAY}")
            made.raise_for_status()
        synced_s = await _first_sync_s(server.url, folder / "synced.db", rows)
    bar, floor_name = f"far under {PUBLISHED_S} s", "SQLite alone"
    for name, taken_s in (("by checkpoint", synced_s), ("by deltas, without a checkpoint", pulled_s)):
        report.add(
            SECTION,
            Figure(
                f"{rows:,} rows into Python, {name}",
                taken_s,
                "s",
                floor=floor_s,
                floor_name=floor_name,
                bar=bar,
                met=taken_s < PUBLISHED_S / 2,
                note="typed table in a file, over HTTP from a server on the same machine",
            ),
        )


async def _fill(http: httpx.AsyncClient, rows: int) -> None:
    hlc = pack(SystemClock().now_ms() - 3_600_000, 0)
    for start in range(0, rows, PUSH_DELTAS):
        deltas = [_person(number, hlc + number) for number in range(start, min(rows, start + PUSH_DELTAS))]
        answer = await http.post(
            f"/sync/{GATEWAY}/push", content=encode_push(SyncPush(client_id="writer", deltas=deltas))
        )
        answer.raise_for_status()


def _person(number: int, hlc: int) -> RowDelta:
    values = {
        "name": f'"Person {number}"',
        "email": f'"person.{number}@example.org"',
        "age": str(number % 90),
        "active": "true" if number % 3 == 0 else "false",
        "note": '"The quick brown fox jumps over the lazy dog."',
    }
    columns = tuple(ColumnDelta(name, value.encode()) for name, value in values.items())
    row_id = f"person-{number}"
    id_ = delta_id(table="people", row_id=row_id, columns=columns, hlc=hlc, client_id="writer")
    return RowDelta(
        op=Op.INSERT, table="people", row_id=row_id, columns=columns, hlc=hlc, client_id="writer", delta_id=id_
    )


async def _first_sync_s(url: str, path: Path, rows: int) -> float:
    with LocalDB.open(path, tables=[PEOPLE]) as db:
        sync = SyncCoordinator(db, HttpTransport(url, GATEWAY, timeout_s=300.0), pull_max=PULL_DELTAS)
        began_s = time.perf_counter()
        await sync.sync_once()
        taken_s = time.perf_counter() - began_s
        await sync.close()
        (found,) = db.query("SELECT count(*) AS n, sum(age) AS ages FROM people")
    assert found == {"n": rows, "ages": sum(number % 90 for number in range(rows))}, found
    return taken_s


def _floor_s(path: Path, rows: int) -> float:
    """The same rows, made beforehand, into the same kind of table in as many transactions."""
    people = [
        (f"person-{n}", f"Person {n}", f"person.{n}@example.org", n % 90, n % 3 == 0, "The quick brown fox jumps over")
        for n in range(rows)
    ]
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(
        "CREATE TABLE people (_key TEXT PRIMARY KEY, name TEXT, email TEXT, age INTEGER, active BOOLEAN, note TEXT)"
        " WITHOUT ROWID"
    )
    began_s = time.perf_counter()
    for start in range(0, rows, 1_000):
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?, ?, ?)", people[start : start + 1_000])
        connection.execute("COMMIT")
    taken_s = time.perf_counter() - began_s
    connection.close()
    return taken_s
