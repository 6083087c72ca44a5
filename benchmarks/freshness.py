"""From the ack to the commit in the state table, at a steady rate over several tables of two sizes."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.endtoend import until_running
from benchmarks.generators import Generators, send
from benchmarks.load import Plan, Result
from benchmarks.report import Figure, Report, percentile
from benchmarks.sparkjob import run_spark_job
from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess

SECTION = "freshness"
TABLES = tuple(f"t{i}" for i in range(5))
RATE = 5_000
BATCH = 100
FLUSH_INTERVAL_S = 0.5
# What a generator process prepares at once: bounds its memory.
PRELOAD_CHANGES = 500_000


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Fill tables, then measure while they are written to: five of two sizes, and fifty small ones."""
    sizes = (10_000, 50_000) if small else (100_000, 2_000_000)
    seconds = 15 if small else 60
    floor = await _floor(folder / "floor-few", TABLES, sizes[0], seconds)
    for rows in sizes:
        await _measure(report, folder / f"fresh-{rows}", TABLES, rows, {50: 1.5, 95: 2.5}, seconds, floor)
    many = tuple(f"t{i}" for i in range(10 if small else 50))
    floor = await _floor(folder / "floor-many", many, 10_000, seconds)
    await _measure(report, folder / "fresh-many", many, 10_000, {95: 6.0}, seconds, floor)


async def _floor(folder: Path, tables: Sequence[str], keys: int, seconds: int) -> list[float]:
    """The textbook's stream at the same rate: seconds from each segment's fall to its commits (see `textbook`)."""
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
    async with ServerProcess(folder, config) as server:
        rows = RATE // len(tables)
        place = str(folder / "textbook")
        wanted = {"uri": server.url, "folder": place, "tables": tables, "rows": rows, "keys": keys, "seconds": seconds}
        found: list[float] = (await run_spark_job("textbook", wanted))["seconds"]
    return found


async def _measure(
    report: Report,
    folder: Path,
    tables: Sequence[str],
    rows: int,
    bars: Mapping[int, float],
    seconds: int,
    floor: Sequence[float],
) -> None:
    config = Config(server=ServerConfig(port=0), log=LogConfig(flush_interval_s=FLUSH_INTERVAL_S))
    async with ServerProcess(folder, config) as server:
        await until_running(server)
        began_s = time.perf_counter()
        await fill(server, tables, rows)
        filled_s = time.perf_counter() - began_s
        result = await send_steadily(server, tables, rows, seconds)
        passes = (await server.status())["pipeline"].get("passes", [])
    cycle_s = sum(each["jobS"] + each["commitS"] for each in passes) / max(1, len(passes))
    note = (
        f"flush interval {FLUSH_INTERVAL_S} s, {seconds} s, {result.nacks} nacks, filled in {filled_s:.0f} s; "
        f"a pass takes {cycle_s:.2f} s"
    )
    for percent in (50, 95):
        name = f"ack to committed p{percent}, {RATE:,} changes/s over {len(tables)} tables of {rows:,} rows"
        value, bar = percentile(result.persisted_ms, percent) / 1000, bars.get(percent)
        text, met = (None, None) if bar is None else (f"<= {bar} s", value <= bar)
        beside = percentile(floor, percent)
        report.add(SECTION, Figure(name, value, "s", beside, "textbook stream, appends only", text, met, note))


async def send_steadily(server: ServerProcess, tables: Sequence[str], rows: int, seconds: int) -> Result:
    """Updates to all tables at the rate; the answer knows when each of them was in its table."""
    plan = Plan(
        url=server.ws_url,
        source="steady",
        connections=5,
        batches=RATE // BATCH * seconds,
        batch_size=BATCH,
        tables=tuple(tables),
        keys=rows,
        rate=RATE / BATCH,
        window=64,
        persisted=True,
    )
    return await send([plan])


async def fill(server: ServerProcess, tables: Sequence[str], rows: int) -> None:
    """Give every table so many rows."""
    total = rows * len(tables)
    made: Generators | None = None
    for number, start in enumerate(range(0, total, PRELOAD_CHANGES)):
        changes = min(PRELOAD_CHANGES, total - start)
        plan = Plan(
            url=server.ws_url,
            source=f"fill{number}",
            connections=5,
            batches=changes // 500,
            tables=tuple(tables),
            first_key=start // len(tables),
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
