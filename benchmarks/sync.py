"""The sync door: pushes and pulls, many clients at once, first syncs, and bytes on the wire.

Everything runs against `mainstem serve` in a process of its own, over loopback. Only the first syncs need the pipeline:
their checkpoint is made by Spark.
"""

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec

from benchmarks.report import Figure, Report, percentile
from benchmarks.sync_relay import Relay
from benchmarks.sync_sockets import Crowd, Plan, Seen
from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.demo.todo import page_server
from mainstem.app.process import ServerProcess
from mainstem.client import HttpTransport, LocalDB, SyncCoordinator, Table
from mainstem.model.hlc import pack
from mainstem.runtime.clock import SystemClock
from mainstem.wire import sync

SECTION = "sync"
PROTOBUF = {"content-type": "application/x-protobuf", "accept": "application/x-protobuf"}
DIST = Path(__file__).parents[1] / "clients" / "typescript" / "dist"
NOTE = b'"The quick brown fox jumps over the lazy dog."'
# The best published figure of a mobile client for 100,000 rows, and what the best published server adds.
FIRST_SYNC_S = 13.5
SERVER_ADDS_MS = 6.0
RELAY = "a relay without disk or check"
# About so many of a crowd look into what they are sent.
SAMPLED = 50
PIPELINE_S_MAX = 120.0
# How often each writer of a crowd writes. Every edit goes to all others: of a thousand, these make 10,000 and 50,000
# deliveries a second, of which two cores have to make and to take each.
EDITS_PER_S = (0.1, 0.5)


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Measure everything."""
    count = 20_000 if small else 200_000
    async with served(folder / "plain", pipeline=False) as server:
        await _pushes_and_pulls(report, server, count)
        _bytes_on_the_wire(report)
    async with served(folder / "many", pipeline=False) as server:
        for connections in (2, 20) if small else (2, 100, 1_000):
            await _the_servers_way(report, server, connections=connections, seconds=2 if small else 6)
    # One that has not had a crowd before: what its clients cost must not be memory that others have left.
    async with served(folder / "crowd", pipeline=False) as server:
        await _many_clients(report, server, connections=200 if small else 1_000, seconds=3 if small else 10)
    async with served(folder / "first", pipeline=True) as server:
        await _first_syncs(report, server, 10_000 if small else 100_000)


@asynccontextmanager
async def served(data: Path, *, pipeline: bool) -> AsyncIterator[ServerProcess]:
    """A server on a port of its own."""
    config = Config(
        server=ServerConfig(port=0), log=LogConfig(flush_interval_s=2.0), pipeline=PipelineConfig(enabled=pipeline)
    )
    async with ServerProcess(data, config) as server:
        yield server


def people(client: str, start: int, count: int) -> list[sync.RowDelta]:
    """Rows with five columns."""
    now_ms = SystemClock().now_ms()
    deltas = []
    for number in range(start, start + count):
        columns = (
            sync.ColumnDelta("name", b'"Person %d"' % number),
            sync.ColumnDelta("email", b'"person.%d@example.org"' % number),
            sync.ColumnDelta("age", b"%d" % (number % 90)),
            sync.ColumnDelta("active", b"true" if number % 3 == 0 else b"false"),
            sync.ColumnDelta("note", NOTE),
        )
        row, hlc = f"person-{number}", pack(now_ms, number)
        name = sync.delta_id(table="people", row_id=row, columns=columns, hlc=hlc, client_id=client)
        deltas.append(
            sync.RowDelta(
                op=sync.Op.INSERT,
                table="people",
                row_id=row,
                columns=columns,
                hlc=hlc,
                client_id=client,
                delta_id=name,
            )
        )
    return deltas


async def _pushes_and_pulls(report: Report, server: ServerProcess, count: int) -> None:
    clients, size = 4, 1_000
    share = count // clients
    bodies = {
        f"client-{index}": [
            sync.encode_push(sync.SyncPush(client_id=f"client-{index}", deltas=deltas))
            for at in range(0, share, size)
            for deltas in [people(f"client-{index}", index * share + at, size)]
        ]
        for index in range(clients)
    }
    floor = _check_rate(next(iter(bodies.values()))[0])
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=server.url, headers=PROTOBUF, timeout=120, limits=limits) as http:

        async def push(parts: list[bytes]) -> None:
            for part in parts:
                answer = await http.post("/sync/bench/push", content=part)
                assert answer.status_code == 200, answer.text

        # The feed is followed from its first use on.
        await http.get("/sync/bench/pull")
        began_s = time.perf_counter()
        await asyncio.gather(*map(push, bodies.values()))
        pushed_s = time.perf_counter() - began_s
        report.add(
            SECTION,
            Figure(
                f"push, {clients} clients, {size:,} deltas of 5 columns each",
                count / pushed_s,
                "deltas/s",
                floor,
                "decode and check alone, one core",
                note="durable before each answer",
            ),
        )
        pulled_s, pulled = await _pull_all(http)
        assert pulled == count, pulled
        report.add(SECTION, Figure("pull from memory, 10,000 a page", count / pulled_s, "deltas/s"))
    await server.stop()
    await server.start()
    async with httpx.AsyncClient(base_url=server.url, headers=PROTOBUF, timeout=120) as http:
        pulled_s, pulled = await _pull_all(http)
        assert pulled == count, pulled
        report.add(SECTION, Figure("pull after a restart, from the log on disk", count / pulled_s, "deltas/s"))


def _check_rate(body: bytes) -> float:
    began_s = time.perf_counter()
    rounds = 5
    for _ in range(rounds):
        push = sync.decode_push(body)
        sync.check_push(push, "bench", SystemClock().now_ms())
    return rounds * len(push.deltas) / (time.perf_counter() - began_s)


async def _pull_all(http: httpx.AsyncClient) -> tuple[float, int]:
    began_s = time.perf_counter()
    cursor = count = 0
    while True:
        answer = await http.get("/sync/bench/pull", params={"since": cursor, "limit": 10_000})
        # Reading the answer is the client's part; only its end is looked at for the cursor.
        response = sync.decode_response(answer.content)
        count += len(response.deltas)
        cursor = response.server_hlc
        if not response.has_more:
            return time.perf_counter() - began_s, count


def _bytes_on_the_wire(report: Report) -> None:
    delta = people("client-1", 1, 1)[0]
    changed = sync.RowDelta(
        op=sync.Op.UPDATE,
        table=delta.table,
        row_id=delta.row_id,
        columns=(sync.ColumnDelta("active", b"true"),),
        hlc=delta.hlc,
        client_id=delta.client_id,
        delta_id=delta.delta_id,
    )
    row = {each.column: json.loads(each.value) for each in delta.columns}
    whole = msgspec.json.encode({"table": delta.table, "id": delta.row_id, "row": row, "updatedAt": str(delta.hlc)})
    note = "a delta has its id of 64 characters, its clock and its writer in it"
    for name, columns in (("one changed column of 5", changed), ("all 5 columns", delta)):
        size = float(len(sync.encode_delta(columns)))
        title = f"bytes on the wire, {name}"
        report.add(SECTION, Figure(title, size, "bytes", float(len(whole)), "row as JSON", note=note))
    large = {**row, **{f"column{number}": "twenty characters  " for number in range(20)}}
    whole = msgspec.json.encode({"table": delta.table, "id": delta.row_id, "row": large, "updatedAt": str(delta.hlc)})
    size = float(len(sync.encode_delta(changed)))
    report.add(SECTION, Figure("bytes on the wire, one of 25 columns", size, "bytes", float(len(whole)), "row as JSON"))


async def _the_servers_way(report: Report, server: ServerProcess, *, connections: int, seconds: float) -> None:
    """From an edit to the sockets of everyone else: the check, the disk, the way out. Only a few of the clients read
    while this is measured, so the load takes nothing of the machine; the relay stands for what the sockets cost."""
    writers = max(1, connections // 10)
    plan = Plan(
        url=server.url,
        gateway=f"way-{connections}",
        connections=connections,
        writers=writers,
        edits_per_s=10 / writers,
        seconds=seconds,
        sampled=max(1, connections // SAMPLED),
        all_read=False,
    )
    async with Crowd(plan) as crowd:
        seen = await crowd.edit()
    floor = await _relayed(plan)
    title = f"{connections:,} clients, 10 edits/s: edit to another's socket, durable before, p50"
    first, last = percentile(seen.first_ms, 50), percentile(seen.last_ms, 50)
    note = f"to the first {first:.1f} ms, to the last {last:.1f} ms; p99 {percentile(seen.latencies_ms, 99):.1f} ms"
    found, least = percentile(seen.latencies_ms, 50), percentile(floor.latencies_ms, 50)
    report.add(SECTION, Figure(title, found, "ms", least, RELAY, note=note))
    report.add(
        SECTION,
        Figure(
            f"{connections:,} clients: what the server adds, p50",
            found - least,
            "ms",
            SERVER_ADDS_MS,
            "best published server adds",
            f"< {SERVER_ADDS_MS:g} ms",
            found - least < SERVER_ADDS_MS,
        ),
    )


async def _many_clients(report: Report, server: ServerProcess, *, connections: int, seconds: float) -> None:
    """The whole way: everyone reads everything, on the same machine."""
    writers = connections // 10
    for edits_per_s in EDITS_PER_S:
        plan = Plan(
            url=server.url,
            gateway=f"crowd-{edits_per_s:g}",
            connections=connections,
            writers=writers,
            edits_per_s=edits_per_s,
            seconds=seconds,
        )
        before = (await server.status())["gateway"]["rssBytes"]
        async with Crowd(plan) as crowd:
            after = (await server.status())["gateway"]["rssBytes"]
            seen = await crowd.edit()
        floor = await _relayed(plan)
        rate = edits_per_s * writers
        title = f"{connections:,} clients, {writers} writing, {rate:g} edits/s: edit to another's screen"
        note = f"{rate * connections:,.0f} deliveries/s; the load shares the machine, {seen.busy_share:.0%} of a core"
        for percent in (50, 99):
            found, least = percentile(seen.latencies_ms, percent), percentile(floor.latencies_ms, percent)
            report.add(SECTION, Figure(f"{title}, p{percent}", found, "ms", least, RELAY, note=note))
        if edits_per_s == EDITS_PER_S[0]:
            report.add(SECTION, Figure("memory per connected client", (after - before) / connections / 1024, "KiB"))


async def _relayed(plan: Plan) -> Seen:
    """What the same crowd sees of a process that only passes everything on."""
    async with Relay() as relay, Crowd(msgspec.structs.replace(plan, url=relay)) as crowd:
        return await crowd.edit()


async def _first_syncs(report: Report, server: ServerProcess, count: int) -> None:
    async with httpx.AsyncClient(base_url=server.url, headers=PROTOBUF, timeout=PIPELINE_S_MAX) as http:
        for at in range(0, count, 5_000):
            body = sync.encode_push(sync.SyncPush(client_id="writer", deltas=people("writer", at, 5_000)))
            assert (await http.post("/sync/first/push", content=body)).status_code == 200
        began_s = time.perf_counter()
        while (made := await http.post("/admin/checkpoint/first")).status_code == 503:
            assert time.perf_counter() - began_s < PIPELINE_S_MAX, made.text
        assert made.status_code == 200, made.text
        began_s = time.perf_counter()
        body = (await http.get("/sync/first/checkpoint")).content
        served_s = time.perf_counter() - began_s
    assert made.json()["rows"] == count
    with tempfile.TemporaryDirectory() as folder:
        python_s = await _python_first_sync(server, Path(folder), count)
    rows = f"{count:,} rows"
    bar = f"< {FIRST_SYNC_S} s for 100,000 (best published mobile client)"
    report.add(SECTION, Figure(f"checkpoint of {rows}, as bytes", served_s, "s", note=f"{len(body) / 1e6:.1f} MB"))
    report.add(
        SECTION,
        Figure(
            f"first sync of {rows} into Python",
            python_s,
            "s",
            served_s,
            "its bytes alone",
            bar,
            python_s < FIRST_SYNC_S,
        ),
    )
    chromium = shutil.which("chromium")
    if chromium is None or not DIST.exists():
        print("  sync: first sync into Chromium left out: needs chromium, and `npm run build` in clients/typescript")
        return
    chromium_s, floor_s = await _chromium_first_sync(server, chromium, count)
    report.add(
        SECTION,
        Figure(
            f"first sync of {rows} into Chromium",
            chromium_s,
            "s",
            floor_s,
            "IndexedDB alone",
            bar,
            chromium_s < FIRST_SYNC_S,
        ),
    )


async def _python_first_sync(server: ServerProcess, folder: Path, count: int) -> float:
    tables = [Table("people", {"name": "text", "email": "text", "age": "integer", "active": "boolean", "note": "text"})]
    db = LocalDB.open(folder / "first.db", tables=tables, client_id="python")
    coordinator = SyncCoordinator(db, HttpTransport(server.url, "first"))
    began_s = time.perf_counter()
    await coordinator.sync_once()
    took_s = time.perf_counter() - began_s
    (found,) = db.query("SELECT count(*) AS n FROM people")
    assert found["n"] == count, found
    await coordinator.close()
    db.close()
    return took_s


_SYNC = """async ([server, count]) => {
  const { LocalDB, SyncCoordinator, HttpTransport } = await import(location.origin + "/index.js");
  const db = await LocalDB.open({ name: "first", backend: "idb" });
  const sync = new SyncCoordinator(db, new HttpTransport({ baseUrl: server, gatewayId: "first" }));
  const start = performance.now();
  await sync.syncOnce();
  return { seconds: (performance.now() - start) / 1000, count: (await db.all("people")).length };
}"""
_FLOOR = """async (count) => {
  const open = indexedDB.open("floor", 1);
  open.onupgradeneeded = () => open.result.createObjectStore("rows");
  await new Promise((resolve) => (open.onsuccess = resolve));
  const start = performance.now();
  for (let at = 0; at < count; at += 1000) {
    const transaction = open.result.transaction("rows", "readwrite", { durability: "relaxed" });
    for (let i = at; i < at + 1000; i++) {
      const row = { name: "Person " + i, email: "person." + i + "@example.org", age: i % 90, active: i % 3 === 0,
        note: "The quick brown fox jumps over the lazy dog." };
      transaction.objectStore("rows").put(row, ["people", "person-" + i]);
    }
    await new Promise((resolve) => (transaction.oncomplete = resolve));
  }
  return (performance.now() - start) / 1000;
}"""


async def _chromium_first_sync(server: ServerProcess, chromium: str, count: int) -> tuple[float, float]:
    from playwright.async_api import async_playwright

    with page_server(DIST) as page_url:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            page = await browser.new_page()
            page.set_default_timeout(300_000)
            await page.goto(f"{page_url}/index.js")
            found = await page.evaluate(_SYNC, [server.url, count])
            floor_s = await page.evaluate(_FLOOR, count)
            await browser.close()
    assert found["count"] == count, found
    return float(found["seconds"]), float(floor_s)
