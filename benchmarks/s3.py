"""Tables and segments on S3 (SeaweedFS on loopback) beside the same in a folder: freshness, and single upserts."""

import random
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks.endtoend import until_running
from benchmarks.freshness import FLUSH_INTERVAL_S, RATE, TABLES, fill, send_steadily
from benchmarks.generators import send
from benchmarks.load import Plan, make_events
from benchmarks.report import Figure, Report, percentile
from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.catalog.settings import CatalogSettings
from mainstem.client import CdcClient
from tests.harness.seaweed import S3Server

SECTION = "S3"
TIMES_MAX = 2.0
BATCH = 10_000
REPEATS = 7
FILL_CHANGES = 500_000
HERE, THERE = "folder", "S3"


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Each place by itself, one after the other: they share the machine."""
    rows, many = (20_000, 50_000) if small else (100_000, 1_000_000)
    fresh: dict[str, dict[int, float]] = {}
    upserts: dict[str, float] = {}
    with ExitStack() as stack:
        for place in (HERE, THERE):
            catalog = CatalogSettings()
            if place == THERE:
                store = stack.enter_context(S3Server(folder / "s3"))
                catalog = CatalogSettings(warehouse=store.make_bucket("bench") + "/tables", io=store.io())
            log = LogConfig(flush_interval_s=FLUSH_INTERVAL_S)
            config = Config(server=ServerConfig(port=0), log=log, catalog=catalog)
            async with ServerProcess(folder / f"fresh-{place}", config) as server:
                await until_running(server)
                await fill(server, TABLES, rows)
                result = await send_steadily(server, TABLES, rows, 5 if small else 60)
            fresh[place] = {percent: percentile(result.persisted_ms, percent) / 1000 for percent in (50, 95)}
            upserts[place] = await _upserts(folder / f"upserts-{place}", config, many, 2 if small else REPEATS)
    for percent in (50, 95):
        name = f"ack to committed p{percent}, {RATE:,} changes/s over 5 tables of {rows:,} rows"
        _add(report, name, fresh[THERE][percent], fresh[HERE][percent])
    _add(report, f"flush of {BATCH:,} updates into {many:,} rows, durable to committed", upserts[THERE], upserts[HERE])


async def _upserts(folder: Path, config: Config, rows: int, repeats: int) -> float:
    """The median time of a flush that carries one batch of updates into a table, and nothing else."""
    never = LogConfig(flush_events=10**9, flush_bytes=1 << 32, flush_interval_s=10**6, flush_age_s=10**6)
    rng = random.Random(5)
    taken = []
    async with ServerProcess(folder, msgspec.structs.replace(config, log=never)) as server:
        await until_running(server)
        for number, start in enumerate(range(0, rows, FILL_CHANGES)):
            batches = min(FILL_CHANGES, rows - start) // 500
            await send([Plan(url=server.ws_url, source=f"fill{number}", batches=batches, first_key=start)])
            assert (await server.flush(timeout_s=600))["complete"]
        async with CdcClient(server.ws_url, source="batches") as client:
            for _ in range(repeats + 1):
                parts = [make_events(rng, 1000, rows, "events") for _ in range(0, BATCH, 1000)]
                for receipt in [await client.send(part) for part in parts]:
                    await receipt.durable()
                began_s = time.perf_counter()
                flushed = await server.flush(timeout_s=300)
                taken.append(time.perf_counter() - began_s)
                assert flushed["complete"], flushed
    # The first one compiles what the others use.
    return statistics.median(taken[1:])


def _add(report: Report, name: str, there: float, here: float) -> None:
    note = f"{there / here:.2f} times"
    bar = f"<= {TIMES_MAX:g} times it"
    report.add(SECTION, Figure(name, there, "s", here, "in a folder", bar, there <= TIMES_MAX * here, note))
