"""Loads and commits per second of the catalog, beside Iceberg's own reference server in the same run.

Both servers get the same requests from the same clients, in turns: one connection per client, kept open. Ours makes
every commit durable before it answers (two fsyncs for the metadata file, and one for the pointer, which those share who
commit at the same time); the reference server leaves its metadata files to the operating system.
"""

import asyncio
import json
import sqlite3
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.http_load import Calls, Connection, Measured, load_run, request
from benchmarks.report import Figure, Report, percentile
from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from tests.harness.reference_catalog import ReferenceCatalog

SECTION = "catalog"
CLIENTS = (1, 16)
BAR = 3.0
START_S_MAX = 60.0
WARM_S = 10.0
# How many slices a measurement is cut into.
ROUNDS = 3
MAKERS = 4
# No divisor of any number of tables here: a walk with this step comes to each of them.
STRIDE = 7919
SCHEMA = {
    "type": "struct",
    "fields": [{"id": n, "name": f"column_{n}", "type": "string", "required": False} for n in range(1, 11)],
}


class Client:
    """For what is not measured: a request that must succeed."""

    def __init__(self, port: int) -> None:
        self._connection = Connection(port)

    def ok(self, method: str, path: str, body: Any = None) -> None:
        """Ask, and wait for the answer."""
        self._connection.send(request(method, path, None if body is None else json.dumps(body).encode()))
        status = None
        while status is None:
            status = self._connection.receive()
        if status not in (200, 204):
            raise RuntimeError(f"{method} {path} answered {status}")


def _load(table: str) -> bytes:
    return request("GET", f"namespaces/bench/tables/{table}")


def _commit(table: str) -> bytes:
    update = {"action": "set-properties", "updates": {"time": str(time.perf_counter_ns())}}
    body = {"identifier": {"namespace": ["bench"], "name": table}, "requirements": [], "updates": [update]}
    return request("POST", f"namespaces/bench/tables/{table}", json.dumps(body).encode())


KINDS: dict[str, Callable[[str], bytes]] = {"loads": _load, "commits": _commit}


def own_table(kind: str) -> Calls:
    """Each client has a table of its own."""
    make = KINDS[kind]
    return lambda number: lambda: make(f"t{number}")


def any_table(kind: str, tables: int) -> Calls:
    """Each call goes to another table, until all had their turn."""
    make = KINDS[kind]

    def of_client(number: int) -> Callable[[], bytes]:
        turns = count(number * tables // max(CLIENTS))
        return lambda: make(f"t{next(turns) * STRIDE % tables}")

    return of_client


def one_table(kind: str, table: str) -> Calls:
    """Every client has the same table."""
    make = KINDS[kind]
    return lambda _: lambda: make(table)


def make_tables(port: int, first: int, end: int) -> None:
    """Tables t0, t1, …, by a few clients at once: ten thousand of them take a while."""
    if first == 0:
        Client(port).ok("POST", "namespaces", {"namespace": ["bench"]})

    def make(numbers: range) -> None:
        client = Client(port)
        for number in numbers:
            client.ok("POST", "namespaces/bench/tables", {"name": f"t{number}", "schema": SCHEMA})

    with ThreadPoolExecutor(MAKERS) as threads:
        list(threads.map(make, [range(first + maker, end, MAKERS) for maker in range(MAKERS)]))


def copy_tables(folder: Path, first: int, end: int) -> None:
    """The same for the reference server, by its own database: its creates would take most of the benchmark's time."""
    home = folder / "warehouse" / "bench"
    original = min((home / "t0" / "metadata").glob("00000-*.json")).read_text()
    rows = []
    for number in range(first, end):
        place = home / f"t{number}" / "metadata" / f"00000-{uuid.uuid4()}.metadata.json"
        place.parent.mkdir(parents=True)
        document = json.loads(original) | {"table-uuid": str(uuid.uuid4()), "location": str(home / f"t{number}")}
        place.write_text(json.dumps(document, separators=(",", ":")))
        rows.append((f"t{number}", str(place)))
    with sqlite3.connect(folder / "catalog.db", timeout=60) as database:
        database.executemany(
            "INSERT INTO iceberg_tables SELECT catalog_name, table_namespace, ?, ?, NULL, iceberg_type"
            " FROM iceberg_tables WHERE table_name = 't0'",
            rows,
        )
    database.close()


def add_snapshots(port: int, table: str, size: int, chunk: int = 1000) -> None:
    """Give a table a history, in a few large commits."""
    client = Client(port)
    client.ok("POST", "namespaces/bench/tables", {"name": table, "schema": SCHEMA})
    for first in range(1, size + 1, chunk):
        updates: list[dict[str, Any]] = []
        for number in range(first, min(first + chunk, size + 1)):
            snapshot = {
                "snapshot-id": number,
                "sequence-number": number,
                "timestamp-ms": int(time.time() * 1000) + number,
                "manifest-list": f"/nowhere/metadata/snap-{number}.avro",
                "summary": {"operation": "append", "added-records": "100", "total-records": str(number * 100)},
                "schema-id": 0,
            }
            if number > 1:
                snapshot["parent-snapshot-id"] = number - 1
            updates.append({"action": "add-snapshot", "snapshot": snapshot})
        last = updates[-1]["snapshot"]["snapshot-id"]
        updates.append({"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": last})
        path = f"namespaces/bench/tables/{table}"
        identifier = {"namespace": ["bench"], "name": table}
        client.ok("POST", path, {"identifier": identifier, "requirements": [], "updates": updates})


@contextmanager
def reference_server(folder: Path) -> Any:
    """Iceberg's own server on a SQLite file. Yields its port."""
    with ReferenceCatalog(folder) as server:
        yield server.port


@dataclass(frozen=True)
class Pair:
    """Both servers, up at the same time: they are measured in turns, so that a busy machine is as busy for either."""

    ours: int
    theirs: int
    # Where the reference server keeps what it has.
    folder: Path

    def make_tables(self, first: int, end: int) -> None:
        """As many tables on both."""
        make_tables(self.ours, first, end)
        if first == 0:
            make_tables(self.theirs, first, end)
        else:
            copy_tables(self.folder, first, end)

    def each(self, run: Callable[[int], None]) -> None:
        """Do the same on both."""
        for port in (self.theirs, self.ours):
            run(port)

    def measure(self, clients: int, seconds: float, calls: Calls) -> tuple[Measured, Measured]:
        """Ours and theirs, in slices that take turns."""
        mine, other = Measured(), Measured()
        for _ in range(ROUNDS):
            for port, measured in ((self.theirs, other), (self.ours, mine)):
                measured.add(load_run(port, clients, seconds / ROUNDS, calls))
        return mine, other


def measure(pair: Pair, report: Report, *, small: bool) -> None:
    """Everything, of both servers."""
    seconds = 3.0 if small else 9.0
    tables = (10, 1_000) if small else (10, 1_000, 10_000)
    snapshots = (10, 1_000) if small else (10, 10_000)
    made = 0
    for size in tables:
        pair.make_tables(made, size)
        if not made:
            # Long, for the peer's sake: a JVM answers several times as fast once its compiler has seen the requests.
            for kind in KINDS:
                pair.each(lambda port, kind=kind: _warm(port, kind))  # type: ignore[misc]
        made = size
        for kind in KINDS:
            _add(report, f"{kind}, 1 client, {size:,} tables", pair.measure(1, seconds / 2, any_table(kind, size)))
    for clients in CLIENTS:
        for kind in KINDS:
            found = pair.measure(clients, seconds, own_table(kind))
            _add(report, f"{kind}, {clients} client{'s' * (clients > 1)}", found, BAR)
    for size in snapshots:
        table = f"snapshots{size}"
        pair.each(lambda port, table=table, size=size: add_snapshots(port, table, size))  # type: ignore[misc]
        for kind in KINDS:
            _add(report, f"{kind}, 1 client, {size:,} snapshots", pair.measure(1, seconds / 2, one_table(kind, table)))


def _warm(port: int, kind: str) -> None:
    load_run(port, max(CLIENTS), WARM_S, any_table(kind, 10))


def _add(report: Report, name: str, found: tuple[Measured, Measured], bar: float | None = None) -> None:
    mine, other = found
    times = mine.rate / other.rate
    figure = Figure(
        name,
        mine.rate,
        "per s",
        other.rate,
        "reference server",
        None if bar is None else f">= {bar:g} times",
        None if bar is None else times >= bar,
        f"{times:.1f} times; p99 {percentile(mine.took_ms, 99):.1f} ms, "
        f"reference {percentile(other.took_ms, 99):.1f} ms; failed {mine.failed} and {other.failed}",
    )
    report.add(SECTION, figure)


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Both servers, in turns."""
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
    peer = reference_server(folder / "reference")
    theirs = await asyncio.to_thread(peer.__enter__)
    try:
        async with ServerProcess(folder / "ours", config) as server:
            ours = int(server.url.rsplit(":", 1)[1])
            await asyncio.to_thread(measure, Pair(ours, theirs, folder / "reference"), report, small=small)
    finally:
        await asyncio.to_thread(peer.__exit__, None, None, None)
