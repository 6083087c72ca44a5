"""Loads and commits per second of the catalog, beside Iceberg's own reference server in the same run.

Both servers get the same requests from the same clients: one connection per client, kept open. Ours makes every commit
durable (two fsyncs for the metadata file, one for the pointer) before it answers; the reference server leaves its
metadata files to the operating system.
"""

import asyncio
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import Figure, Report, percentile
from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from tests.compat.rck.kit import class_path, ensure_kit

SECTION = "catalog"
CLIENTS = (1, 16)
BAR = 3.0
START_S_MAX = 60.0
WARM_S = 10.0
SCHEMA = {
    "type": "struct",
    "fields": [{"id": n, "name": f"column_{n}", "type": "string", "required": False} for n in range(1, 11)],
}


@dataclass
class Measured:
    """Answers of one run: how long each took, how many failed, how long it all took."""

    took_ms: list[float] = field(default_factory=list)
    failed: int = 0
    elapsed_s: float = 0.0

    @property
    def rate(self) -> float:
        """Successes per second."""
        return len(self.took_ms) / self.elapsed_s


class Client:
    """One connection, kept open. By hand: the standard client would take as long as the server that is measured."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb", 1 << 20)
        self._host = f"127.0.0.1:{port}"

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """One request and its answer."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} /v1/{path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        self._socket.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        status_line = self._file.readline()
        if not status_line:
            raise ConnectionError("the server closed the connection")
        length, is_chunked = 0, False
        while (line := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
            elif name.lower() == b"transfer-encoding":
                is_chunked = b"chunked" in value
        return int(status_line.split()[1]), self._chunks() if is_chunked else self._file.read(length)

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self._file.readline(), 16):
            parts.append(self._file.read(size))
            self._file.readline()
        self._file.readline()
        return b"".join(parts)

    def ok(self, method: str, path: str, body: Any = None) -> bytes:
        """One request that must succeed."""
        status, answer = self.send(method, path, body)
        if status not in (200, 204):
            raise RuntimeError(f"{method} {path} answered {status}: {answer[:300]!r}")
        return answer


def load_run(port: int, clients: int, seconds: float, call: Callable[[Client, int], int]) -> Measured:
    """Let clients call as fast as they can for a while. `call` gets the client's number and returns a status."""
    measured, lock = Measured(), threading.Lock()
    began_s = time.perf_counter()
    until_s = began_s + seconds

    def work(number: int) -> None:
        client, took_ms, failed = Client(port), [], 0
        while time.perf_counter() < until_s:
            start_s = time.perf_counter()
            if call(client, number) in (200, 204):
                took_ms.append((time.perf_counter() - start_s) * 1000)
            else:
                failed += 1
        with lock:
            measured.took_ms += took_ms
            measured.failed += failed

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    measured.elapsed_s = time.perf_counter() - began_s
    return measured


def load_table(client: Client, number: int) -> int:
    return client.send("GET", f"namespaces/bench/tables/t{number}")[0]


def commit_table(client: Client, number: int) -> int:
    update = {"action": "set-properties", "updates": {"time": str(time.perf_counter_ns())}}
    body = {"identifier": {"namespace": ["bench"], "name": f"t{number}"}, "requirements": [], "updates": [update]}
    return client.send("POST", f"namespaces/bench/tables/t{number}", body)[0]


def make_tables(port: int, first: int, end: int) -> None:
    client = Client(port)
    if first == 0:
        client.ok("POST", "namespaces", {"namespace": ["bench"]})
    for number in range(first, end):
        client.ok("POST", "namespaces/bench/tables", {"name": f"t{number}", "schema": SCHEMA})


def add_snapshots(port: int, table: str, count: int, chunk: int = 1000) -> None:
    """Give a table a history, in a few large commits."""
    client = Client(port)
    client.ok("POST", "namespaces/bench/tables", {"name": table, "schema": SCHEMA})
    for first in range(1, count + 1, chunk):
        updates: list[dict[str, Any]] = []
        for number in range(first, min(first + chunk, count + 1)):
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
    kit = ensure_kit()
    folder.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {
        "CATALOG_URI": f"jdbc:sqlite:file:{folder / 'catalog.db'}",
        "CATALOG_WAREHOUSE": str(folder / "warehouse"),
        "CATALOG_REST_PORT": str(port),
        # With more than one connection it answers "database is locked" to clients that write at the same time.
        "CATALOG_CLIENTS": "1",
    }
    command = ["java", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", class_path(kit)]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "org.apache.iceberg.rest.RESTCatalogServer"], env=environment, stdout=log, stderr=log
        )
    try:
        _wait_until_up(port)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def _wait_until_up(port: int) -> None:
    until_s = time.perf_counter() + START_S_MAX
    while True:
        try:
            Client(port).ok("GET", "config")
            return
        except (OSError, ValueError, RuntimeError):
            if time.perf_counter() > until_s:
                raise
            time.sleep(0.1)


def measure(port: int, seconds: float, tables: tuple[int, ...], snapshots: tuple[int, ...]) -> dict[str, Measured]:
    """Everything of one server, by name."""
    found: dict[str, Measured] = {}
    make_tables(port, 0, max(CLIENTS))
    # Long, for the peer's sake: a JVM answers several times as fast once its compiler has seen the requests.
    for warm in (load_table, commit_table):
        load_run(port, max(CLIENTS), WARM_S, warm)
    for clients in CLIENTS:
        found[f"loads, {clients} clients"] = load_run(port, clients, seconds, load_table)
        found[f"commits, {clients} clients"] = load_run(port, clients, seconds, commit_table)
    made = max(CLIENTS)
    for count in tables:
        make_tables(port, made, count)
        made = max(made, count)
        found[f"loads, 1 client, {count:,} tables"] = load_run(port, 1, seconds / 2, load_table)
        found[f"commits, 1 client, {count:,} tables"] = load_run(port, 1, seconds / 2, commit_table)
    for count in snapshots:
        add_snapshots(port, f"t{10**6 + count}", count)

        def shifted(call: Callable[[Client, int], int], number: int = 10**6 + count) -> Callable[[Client, int], int]:
            return lambda client, _: call(client, number)

        found[f"loads, 1 client, {count:,} snapshots"] = load_run(port, 1, seconds / 2, shifted(load_table))
        found[f"commits, 1 client, {count:,} snapshots"] = load_run(port, 1, seconds / 2, shifted(commit_table))
    return found


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """The reference server, then ours."""
    seconds = 2.0 if small else 6.0
    tables = (1_000,) if small else (1_000, 10_000)
    snapshots = (10, 1_000) if small else (10, 10_000)

    def peer() -> dict[str, Measured]:
        server: AbstractContextManager[int] = reference_server(folder / "reference")
        with server as port:
            return measure(port, seconds, tables, snapshots)

    theirs = await asyncio.to_thread(peer)
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
    async with ServerProcess(folder / "ours", config) as server:
        port = int(server.url.rsplit(":", 1)[1])
        ours = await asyncio.to_thread(measure, port, seconds, tables, snapshots)
    for name, mine in ours.items():
        other = theirs[name]
        is_barred = name.endswith("clients")
        report.add(
            SECTION,
            Figure(
                name,
                mine.rate,
                "per s",
                other.rate,
                "reference server",
                f">= {BAR:g} times" if is_barred else None,
                mine.rate >= BAR * other.rate if is_barred else None,
                f"{mine.rate / other.rate:.1f} times; p99 {percentile(mine.took_ms, 99):.1f} ms, "
                f"reference {percentile(other.took_ms, 99):.1f} ms; failed {mine.failed} and {other.failed}",
            ),
        )
