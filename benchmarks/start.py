"""Time from the start to the first accepted change and to the first commit; memory at rest and under load."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.endtoend import until_running
from benchmarks.generators import Generators
from benchmarks.load import Plan
from benchmarks.report import Figure, Report
from mainstem.app.config import Config, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, insert

SECTION = "start and memory"
ACCEPT_S_MAX = 2.0
COMMIT_S_MAX = 15.0
PIPELINE_MIB_MAX = 2048
MIB = 1 << 20


def memory_mib(server: ServerProcess) -> dict[str, float]:
    """Resident memory of the pipeline (driver, JVM, Python workers), and of the gateway with all its other children."""
    gateway = psutil.Process(server.pid)
    sums = {"gateway": gateway.memory_info().rss / MIB, "pipeline": 0.0}
    drivers = [each for each in gateway.children() if "app.spark.pipeline" in " ".join(each.cmdline())]
    of_pipeline = {process.pid for driver in drivers for process in (driver, *driver.children(recursive=True))}
    for child in gateway.children(recursive=True):
        # Some live only for a moment, as the shell that starts the JVM does.
        with suppress(psutil.Error):
            if not _is_half_born(child):
                sums["pipeline" if child.pid in of_pipeline else "gateway"] += child.memory_info().rss / MIB
    return sums


def _is_half_born(process: psutil.Process) -> bool:
    """Whether a JVM is just starting it: until it runs its own program it is seen with all of the JVM's memory."""
    parent = process.parent()
    return parent is not None and parent.name() == "java" and process.exe() == parent.exe()


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """One fresh server, from nothing to loaded."""
    began_s = time.perf_counter()
    async with ServerProcess(folder / "start", Config(server=ServerConfig(port=0))) as server:
        async with CdcClient(server.ws_url, source="first") as client:
            await (await client.send([insert("first", "1", {"a": 1})])).durable()
            accepted_s = time.perf_counter() - began_s
            await client.flush()
            committed_s = time.perf_counter() - began_s
        report.add(
            SECTION,
            Figure(
                "start to the first accepted change",
                accepted_s,
                "s",
                bar=f"<= {ACCEPT_S_MAX} s",
                met=accepted_s <= ACCEPT_S_MAX,
            ),
        )
        report.add(
            SECTION,
            Figure(
                "start to the first commit",
                committed_s,
                "s",
                bar=f"<= {COMMIT_S_MAX} s",
                met=committed_s <= COMMIT_S_MAX,
                note="Spark's start included",
            ),
        )
        await until_running(server)
        for part, mib in memory_mib(server).items():
            report.add(SECTION, Figure(f"{part} at rest", mib, "MiB"))
        loaded = await _under_load(server, small)
        report.add(SECTION, Figure("gateway under load, highest", loaded["gateway"], "MiB"))
        report.add(
            SECTION,
            Figure(
                "driver, JVM and Python workers under load, highest",
                loaded["pipeline"],
                "MiB",
                bar=f"<= {PIPELINE_MIB_MAX} MiB",
                met=loaded["pipeline"] <= PIPELINE_MIB_MAX,
            ),
        )


async def _under_load(server: ServerProcess, small: bool) -> dict[str, float]:
    plan = Plan(url=server.ws_url, source="load", connections=8, batches=200 if small else 4000, keys=300_000)
    generators = Generators([plan])
    await generators.prepare()
    running = asyncio.create_task(generators.run())
    highest = memory_mib(server)
    flushing: asyncio.Task[object] | None = None
    while flushing is None or not flushing.done():
        if running.done() and flushing is None:
            flushing = asyncio.create_task(server.flush(timeout_s=600))
        highest = {part: max(mib, highest[part]) for part, mib in memory_mib(server).items()}
        await asyncio.sleep(0.1)
    return highest
