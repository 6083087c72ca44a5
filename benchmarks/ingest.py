"""Acknowledged changes per second and the ack's latency, beside a bare append of the same bytes."""

import os
import time
from pathlib import Path
from statistics import median

from benchmarks.generators import send
from benchmarks.load import Plan, frames
from benchmarks.report import Figure, Report, percentile
from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.wire.cdc import decode_whole_batch

SECTION = "ingest"
CONNECTIONS = 8
BATCH = 500
STEADY = 20_000
ROUNDS = 5
BAR = 0.5
# Both cores of a small machine are busy already; what Spark takes is measured by the other sections.
CONFIG = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Floor and the real thing by turns on the same batches, since a machine's speed changes; then the latency."""
    batches = 400 if small else 2400
    floors, rates, nacks = [], [], 0
    for turn in range(ROUNDS):
        floors.append(bare_append(folder / "floor.wal", batches))
        async with ServerProcess(folder / f"ingest-{turn}", CONFIG) as server:
            await send([Plan(url=server.ws_url, source="warm", connections=CONNECTIONS, batches=80)])
            result = await send([Plan(url=server.ws_url, source="load", connections=CONNECTIONS, batches=batches)])
        rates.append(result.changes / (result.ended_s - result.began_s))
        nacks += result.nacks
    floor, rate = median(floors), median(rates)
    each = ", ".join(f"{ours / bare:.2f}" for ours, bare in zip(rates, floors, strict=True))
    report.add(
        SECTION,
        Figure(
            f"acknowledged changes, {CONNECTIONS} connections, batches of {BATCH}",
            rate,
            "changes/s",
            floor,
            "decode + append + fdatasync",
            f">= {BAR} of it",
            rate >= BAR * floor,
            f"{rate / floor:.2f} of it (medians; by turns {each}); {nacks} nacks",
        ),
    )
    async with ServerProcess(folder / "steady", CONFIG) as server:
        seconds = 5 if small else 20
        steady = Plan(
            url=server.ws_url,
            source="steady",
            connections=CONNECTIONS,
            batches=STEADY // BATCH * seconds,
            rate=STEADY / BATCH,
        )
        result = await send([steady])
        note = f"{len(result.ack_ms)} batches, {result.nacks} nacks"
        for percent in (50, 99):
            name = f"ack latency p{percent} at {STEADY:,} changes/s"
            report.add(SECTION, Figure(name, percentile(result.ack_ms, percent), "ms", note=note))


def bare_append(path: Path, batches: int) -> float:
    """The floor: the same decode, one write and one fdatasync for a batch of each connection, nothing else."""
    plan = Plan(url="", source="floor", connections=CONNECTIONS)
    messages = [message for _, message in frames(plan, 0, 64)]
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        began_s = time.perf_counter()
        for start in range(0, batches, CONNECTIONS):
            group = []
            for index in range(start, start + CONNECTIONS):
                decoded = decode_whole_batch(messages[index % len(messages)])
                assert decoded is not None
                group.append(decoded[1])
            os.writev(file, group)
            os.fdatasync(file)
        return batches * BATCH / (time.perf_counter() - began_s)
    finally:
        os.close(file)
        path.unlink()
