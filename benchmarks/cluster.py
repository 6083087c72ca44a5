"""From the first byte sent to the commit on a Spark cluster of two workers with one core each, beside `local[2]`."""

from pathlib import Path

from benchmarks.endtoend import KEYS, carry
from benchmarks.report import Figure, Report
from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from tests.harness.sparkcluster import SparkCluster

SECTION = "cluster"
SHARE_MIN = 0.7


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """The same load through both, one after the other."""
    changes = 200_000 if small else 2_000_000
    local = await _seconds(folder / "local", PipelineConfig(master="local[2]"), changes)
    with SparkCluster(folder / "spark", workers=2, memory="2g") as cluster:
        settings = {"spark.executor.memory": "1g", "spark.driver.host": "127.0.0.1"}
        pipeline = PipelineConfig(master=cluster.url, spark=settings)
        seconds = await _seconds(folder / "cluster", pipeline, changes)
    share = local / seconds
    report.add(
        SECTION,
        Figure(
            f"{changes:,} changes over {KEYS:,} keys, two workers with one core each: speed",
            changes / seconds,
            "changes/s",
            changes / local,
            "local[2]",
            f">= {SHARE_MIN} of it",
            share >= SHARE_MIN,
            f"{share:.2f} of it: {seconds:.1f} s beside {local:.1f} s",
        ),
    )


async def _seconds(folder: Path, pipeline: PipelineConfig, changes: int) -> float:
    async with ServerProcess(folder, Config(server=ServerConfig(port=0), pipeline=pipeline)) as server:
        seconds, _, _ = await carry(server, changes)
    return seconds
