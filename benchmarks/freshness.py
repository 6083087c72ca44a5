"""From the ack to the commit in the state table, at a steady rate over several tables of two sizes."""

import asyncio
import time
from pathlib import Path

from benchmarks.endtoend import until_running
from benchmarks.generators import Generators, send
from benchmarks.load import Plan
from benchmarks.report import Figure, Report, percentile
from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess

SECTION = "freshness"
TABLES = tuple(f"t{i}" for i in range(5))
RATE = 5_000
BATCH = 100
FLUSH_INTERVAL_S = 0.5
# What a generator process prepares at once: bounds its memory.
PRELOAD_CHANGES = 500_000


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Fill five tables, then measure while they are written to."""
    for rows in (10_000, 50_000) if small else (100_000, 2_000_000):
        config = Config(server=ServerConfig(port=0), log=LogConfig(flush_interval_s=FLUSH_INTERVAL_S))
        async with ServerProcess(folder / f"fresh-{rows}", config) as server:
            await until_running(server)
            began_s = time.perf_counter()
            await _fill(server, rows)
            filled_s = time.perf_counter() - began_s
            seconds = 15 if small else 60
            plan = Plan(
                url=server.ws_url,
                source="steady",
                connections=5,
                batches=RATE // BATCH * seconds,
                batch_size=BATCH,
                tables=TABLES,
                keys=rows,
                rate=RATE / BATCH,
                window=64,
                persisted=True,
            )
            result = await send([plan])
        note = f"flush interval {FLUSH_INTERVAL_S} s, {seconds} s, {result.nacks} nacks, filled in {filled_s:.0f} s"
        for percent in (50, 95):
            name = f"ack to committed p{percent}, {RATE:,} changes/s over 5 tables of {rows:,} rows"
            report.add(SECTION, Figure(name, percentile(result.persisted_ms, percent) / 1000, "s", note=note))


async def _fill(server: ServerProcess, rows: int) -> None:
    total = rows * len(TABLES)
    made: Generators | None = None
    for number, start in enumerate(range(0, total, PRELOAD_CHANGES)):
        changes = min(PRELOAD_CHANGES, total - start)
        plan = Plan(
            url=server.ws_url,
            source=f"fill{number}",
            connections=5,
            batches=changes // 500,
            tables=TABLES,
            first_key=start // len(TABLES),
            keys=rows,
        )
        following = Generators([plan])
        # The next part is made while this one is sent.
        await asyncio.gather(following.prepare(), *([made.run()] if made is not None else []))
        made = following
    assert made is not None
    await made.run()
    flushed = await server.flush(timeout_s=600)
    assert flushed["complete"], flushed
