"""Compaction's gain: the same queries before and after it, on a table of many small batches; and what it costs."""

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from benchmarks.endtoend import until_running
from benchmarks.load import make_events
from benchmarks.report import Figure, Report
from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, connect_duckdb, insert
from mainstem.tables.maintenance import MaintenanceSettings

SECTION = "compaction"
REPEATS = 5
# In one message.
EVENTS = 500
SCAN = "SELECT count(*), sum(qty) FROM lake.default.events"
CONFIG = Config(
    server=ServerConfig(port=0),
    log=LogConfig(flush_events=10**9, flush_bytes=1 << 31, flush_interval_s=10**6, flush_age_s=10**6),
    compaction=MaintenanceSettings(auto=False),
)


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Many batches that update each other's rows, one commit each; then one compaction."""
    batches, size, keys = (20, 1_000, 10_000) if small else (80, 5_000, 200_000)
    async with ServerProcess(folder, CONFIG) as server, httpx.AsyncClient(base_url=server.url, timeout=600) as http:
        await until_running(server)
        await _fill(server, batches, size, keys)
        before = await _look(http, server)
        began_s = time.perf_counter()
        body = {"table": "events", "steps": ["compact", "deletes", "manifests"], "waitS": 600}
        (job,) = (await http.post("/v1/compaction/run", json=body)).json()["jobs"]
        taken_s = time.perf_counter() - began_s
        assert job["state"] == "done", job
        after = await _look(http, server)
    assert after["rows"] == before["rows"], (before, after)
    note = f"{batches} batches of {size:,} over {keys:,} keys"
    report.add(
        SECTION,
        Figure("files of the table, after", after["files"], "files", before["files"], "before", "fewer",
               after["files"] < before["files"], note),
    )  # fmt: skip
    for name, key in (("full scan, DuckDB through the catalog", "attached"), ("full scan, POST /v1/query", "http")):
        met = after[key] < before[key]
        report.add(SECTION, Figure(f"{name}, after", after[key], "ms", before[key], "before", "faster", met))
    report.add(SECTION, Figure("the compaction itself", taken_s, "s", note=f"{job['progress']['compact']}"))


async def _fill(server: ServerProcess, batches: int, size: int, keys: int) -> None:
    """Each batch a commit of its own: a file of new rows, and one of deletes for those that they replace."""
    rng = random.Random(1)
    async with CdcClient(server.ws_url, source="bench") as client:
        for _ in range(batches):
            for _ in range(size // EVENTS):
                rows = make_events(rng, EVENTS, keys, "events")
                await client.send([insert(row["table"], row["rowId"], row["after"]) for row in rows])
            await client.flush()


async def _look(http: httpx.AsyncClient, server: ServerProcess) -> dict[str, Any]:
    answer = await http.get("/v1/compaction/candidates", params={"table": "events"})
    (table,) = answer.json()["candidates"]
    with connect_duckdb(server.url) as duck, httpx.Client(base_url=server.url, timeout=120) as plain:
        rows = duck.execute(SCAN).fetchall()
        return {
            "files": table["dataFiles"] + table["deleteFiles"],
            "rows": rows,
            "attached": _median_ms(lambda: duck.execute(SCAN).fetchall()),
            "http": _median_ms(lambda: plain.post("/v1/query", json={"sql": SCAN}).raise_for_status()),
        }


def _median_ms(call: Callable[[], Any]) -> float:
    call()
    taken = []
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        call()
        taken.append((time.perf_counter() - began_s) * 1000)
    return statistics.median(taken)
