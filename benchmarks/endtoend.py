"""From the first byte sent to the state table's commit, beside Spark merely appending the same rows to Iceberg."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from benchmarks.generators import Generators, send
from benchmarks.load import Plan, Result
from benchmarks.report import Figure, Report
from benchmarks.sparkjob import run_spark_job
from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import connect_duckdb

SECTION = "end to end"
KEYS = 300_000
BAR = 3.5
ROUNDS = 3


class CpuSeconds:
    """What a server and its children take of the processor from now on, by what each of them is."""

    def __init__(self, pid: int) -> None:
        self._server = psutil.Process(pid)
        self._before = self._by_name()

    def spent(self) -> dict[str, float]:
        """Seconds since the start."""
        return {name: taken - self._before.get(name, 0.0) for name, taken in self._by_name().items()}

    def _by_name(self) -> dict[str, float]:
        taken = {"gateway": self._taken(self._server)}
        for child in self._server.children(recursive=True):
            # The JVM starts some that live only for a moment.
            with suppress(psutil.Error):
                line = " ".join(child.cmdline())
                name = "sealers" if "sealer" in line else "jvm" if "java" in child.name() else "python"
                taken[name] = taken.get(name, 0.0) + self._taken(child)
        return taken

    @staticmethod
    def _taken(process: psutil.Process) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)


async def until_running(server: ServerProcess) -> None:
    """Wait for Spark, so that its start is not counted: that is a figure of its own."""
    async with asyncio.timeout(180):
        while (await server.status())["pipeline"]["state"] != "running":
            await asyncio.sleep(0.2)


def _judge(url: str, table: str, changes: int) -> None:
    """A time is worth nothing if a row is missing."""
    with connect_duckdb(url) as duck:
        counts = "count(*), count(DISTINCT _position), count(DISTINCT _key)"
        history = duck.execute(f"SELECT {counts} FROM lake.default.{table}_history").fetchone()
        state = duck.execute(f"SELECT {counts} FROM lake.default.{table}").fetchone()
        stale = duck.execute(
            f"SELECT count(*) FROM lake.default.{table} s JOIN (SELECT _key, max(_position) AS last"
            f" FROM lake.default.{table}_history GROUP BY _key) h USING (_key) WHERE s._position <> h.last"
        ).fetchone()
    assert history is not None and state is not None and stale == (0,), stale
    assert history[:2] == (changes, changes) and state == (history[2],) * 3, (history, state)


async def carry(server: ServerProcess, changes: int) -> tuple[float, Result, dict[str, float]]:
    """Send changes to a warm server and wait for the tables: how long that took, what was sent, and CPU seconds.

    The median of so many rounds as the floor has, each into a table of its own.
    """
    await until_running(server)
    # The floor is measured on a warm session, so this one is warmed up too, on a table of its own.
    warm_up = Plan(url=server.ws_url, source="warm", connections=8, batches=changes // 2000, tables=("warm",))
    for source in ("warm1", "warm2"):
        await send([msgspec.structs.replace(warm_up, source=source)])
        await server.flush(timeout_s=600)
    rounds = []
    for number in range(ROUNDS):
        table = f"events{number}"
        plan = Plan(url=server.ws_url, source=table, connections=8, batches=changes // 500, keys=KEYS, tables=(table,))
        generators = Generators([plan])
        await generators.prepare()
        cpu = CpuSeconds(server.pid)
        result = await generators.run()
        flushed = await server.flush(timeout_s=600)
        seconds = time.time() - result.began_s
        rounds.append((seconds, result, cpu.spent()))
        assert flushed["complete"], flushed
        await asyncio.to_thread(_judge, server.url, table, changes)
    return sorted(rounds, key=lambda each: each[0])[ROUNDS // 2]


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """2 M changes over 300,000 keys into one table."""
    changes = 200_000 if small else 2_000_000
    async with ServerProcess(folder / "endtoend", Config(server=ServerConfig(port=0))) as server:
        seconds, result, spent = await carry(server, changes)
    floor_config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
    async with ServerProcess(folder / "floor", floor_config) as server:
        floor = await run_spark_job("append", {"uri": server.url, "rows": changes, "folder": str(folder / "rows")})
    report.add(
        SECTION,
        Figure(
            f"{changes:,} changes over {KEYS:,} keys, sent to committed",
            seconds,
            "s",
            floor["append_s"],
            "Spark appends the same rows",
            f"<= {BAR} times it",
            seconds <= BAR * floor["append_s"],
            f"{seconds / floor['append_s']:.2f} times; sent and durable after {result.ended_s - result.began_s:.1f} s; "
            f"CPU seconds: {', '.join(f'{name} {taken:.1f}' for name, taken in spent.items())}; "
            f"the floor's {floor['append_cpu_s']:.1f}",
        ),
    )
