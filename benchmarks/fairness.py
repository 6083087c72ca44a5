"""Fairness: one source floods the server, and twenty polite ones want their acks as before.

Measured on the same server: the polite ones alone (the floor), then beside the flood. The flood comes from loopback,
where no limit of rate holds; what protects the others is how connections are read and how batches are written.
"""

import asyncio
import json
import sys
from pathlib import Path

from benchmarks.generators import send
from benchmarks.load import Plan, Result
from benchmarks.report import Figure, Report, percentile
from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess

SECTION = "fairness"
POLITE = 20
# Batches of each polite source per second, and changes in each.
RATE = 5
BATCH = 20
FLOOD_CONNECTIONS = 2
P99_MS_MAX = 250.0
CONFIG = Config(
    server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False), log=LogConfig(flush_interval_s=1000)
)


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Alone, then beside the flood."""
    seconds = 5 if small else 15
    async with ServerProcess(folder / "fairness", CONFIG) as server:
        alone = await polite(server.ws_url, "alone", seconds)
        answers, beside = await flooded(server.ws_url, seconds)
    note = f"{len(beside.ack_ms)} batches, {beside.nacks} nacks; the flood: {sum(answers.values())} answers"
    for percent, bar in ((50, None), (99, P99_MS_MAX)):
        value = percentile(beside.ack_ms, percent)
        report.add(
            SECTION,
            Figure(
                f"ack latency p{percent} of {POLITE} polite sources beside a flood",
                value,
                "ms",
                percentile(alone.ack_ms, percent),
                "without the flood",
                None if bar is None else f"<= {bar:g} ms, no nack",
                None if bar is None else value <= bar and not beside.nacks,
                note,
            ),
        )
    taken = answers.get("ok", 0) + answers.get("buffered", 0)
    report.add(SECTION, Figure("changes of the flood acknowledged meanwhile", taken * 500 / seconds, "changes/s"))


async def polite(url: str, source: str, seconds: float) -> Result:
    """Twenty sources on a timetable."""
    batches = round(POLITE * RATE * seconds)
    plan = Plan(
        url=url, source=source, connections=POLITE, batches=batches, batch_size=BATCH, rate=POLITE * RATE, window=8
    )
    return await send([plan])


async def flooded(url: str, seconds: float) -> tuple[dict[str, int], Result]:
    """The flood's answers, and what the polite ones measured in its midst."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.flood",
        url,
        # It begins before the others, and ends after them.
        str(seconds + 6),
        str(FLOOD_CONNECTIONS),
        stdout=asyncio.subprocess.PIPE,
    )
    await asyncio.sleep(2)
    result = await polite(url, "beside", seconds)
    assert process.stdout is not None
    answers: dict[str, int] = json.loads(await process.stdout.readline())
    await process.wait()
    return answers, result
