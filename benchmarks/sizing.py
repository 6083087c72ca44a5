"""What a change, a table and an idle second cost in every stage, and whether these figures foretell other sizes.

The whole of it on this machine: Kafka, PostgreSQL, an S3 store, one gateway and its pipeline. Two runs give the costs,
one with much in few tables, one with little in many. Three others are foretold by them, and measured.
"""

import asyncio
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from benchmarks.endtoend import CpuSeconds, until_running
from benchmarks.generators import send
from benchmarks.load import Plan
from benchmarks.report import Figure, Report
from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.catalog.settings import CatalogSettings
from tests.contract.catalog_client import new_database
from tests.harness.apachekafka import ApacheKafka
from tests.harness.seaweed import S3Server

SECTION = "sizing"
FLUSH_INTERVAL_S = 5.0
BATCH = 100
KEYS = 10_000
TIMES_MAX = 1.5


class Size(NamedTuple):
    """So many tables, and so many changes a second over all of them."""

    tables: int
    rate: int


WARM, FEW, MANY = Size(20, 4_000), Size(4, 8_000), Size(40, 1_000)
CHECKED = (Size(10, 2_000), Size(20, 4_000), Size(40, 8_000))
NAMES = {
    "gateway": "gateway: decode, admit, append",
    "sealers": "sealing",
    "python": "Spark's Python workers, driver and queries' processes",
    "jvm": "Spark's JVM, driver and executors",
    "broker": "Kafka's broker",
    "requests": "S3 requests",
}


class Spent(NamedTuple):
    """Of one run: CPU seconds by stage and the number of requests, its changes, passes over tables, and seconds."""

    by_stage: dict[str, float]
    changes: int
    table_passes: float
    seconds: float


class Costs(NamedTuple):
    """Of one stage: per second of being there, per change, and per table in a pass."""

    idle: float
    change: float
    table_pass: float

    def of(self, run: Spent) -> float:
        """What a run of so many changes, tables and seconds takes."""
        return self.idle * run.seconds + self.change * run.changes + self.table_pass * run.table_passes


class _Lake:
    """The servers, and what they have spent."""

    def __init__(self, server: ServerProcess, kafka: ApacheKafka, store: S3Server) -> None:
        self._server = server
        self._kafka = psutil.Process(kafka.pid)
        self._store = store
        self._runs = 0

    async def spend(self, size: Size, seconds: int) -> Spent:
        """Send steadily for so long, carry all of it into the tables, and see what that took."""
        self._runs += 1
        cpu, before = CpuSeconds(self._server.pid), self._beside()
        clock = asyncio.get_running_loop().time
        began_s = clock()
        changes = 0
        if size.rate:
            plan = Plan(
                url=self._server.ws_url,
                source=f"run{self._runs}",
                connections=5,
                batches=size.rate * seconds // BATCH,
                batch_size=BATCH,
                tables=tuple(f"t{number}" for number in range(size.tables)),
                keys=KEYS,
                rate=size.rate / BATCH,
                window=64,
            )
            changes = (await send([plan])).changes
            flushed = await self._server.flush(timeout_s=300)
            assert flushed["complete"], flushed
        else:
            await asyncio.sleep(seconds)
        beside = {name: value - before[name] for name, value in self._beside().items()}
        took_s = clock() - began_s
        passes = size.tables * (seconds / FLUSH_INTERVAL_S + 1)
        return Spent(cpu.spent() | beside, changes, passes, took_s)

    def _beside(self) -> dict[str, float]:
        times = self._kafka.cpu_times()
        return {"broker": times.user + times.system, "requests": float(self._store.requests())}


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Warm up, idle, the two that give the costs, and the three that are foretold."""
    seconds = 10 if small else 20
    with ApacheKafka(folder / "kafka") as kafka, S3Server(folder / "s3", has_metrics=True) as store:
        log = LogConfig(
            kind="kafka", bootstrap_servers=kafka.bootstrap, topic_prefix="sizing", flush_interval_s=FLUSH_INTERVAL_S
        )
        # Only time seals, as in a lake whose tables are many.
        log = msgspec.structs.replace(log, flush_events=10**9, flush_bytes=1 << 32)
        catalog = CatalogSettings(
            postgres=new_database(), warehouse=store.make_bucket("sizing") + "/tables", io=store.io()
        )
        config = Config(server=ServerConfig(port=0), log=log, catalog=catalog)
        async with ServerProcess(folder / "data", config) as server:
            await until_running(server)
            lake = _Lake(server, kafka, store)
            for size in (MANY, WARM):
                await lake.spend(size, seconds)
            idle = await lake.spend(Size(0, 0), seconds)
            few, many = await lake.spend(FEW, seconds), await lake.spend(MANY, seconds)
            costs = {name: _costs(name, idle, few, many) for name in NAMES}
            for name, what in NAMES.items():
                _tell(report, name, what, costs[name])
            for size in CHECKED:
                spent = await lake.spend(size, seconds)
                for unit, names in (
                    ("CPU s", [name for name in NAMES if name != "requests"]),
                    ("requests", ["requests"]),
                ):
                    measured = sum(spent.by_stage.get(name, 0.0) for name in names)
                    foretold = sum(costs[name].of(spent) for name in names)
                    _check(report, size, unit, measured, foretold, spent)
            kept = sum(file.stat().st_size for file in (folder / "kafka" / "log" / "sizing.log-0").glob("*.log"))
            durable = (await server.status())["log"]["durable"]
    report.add(SECTION, Figure("bytes in Kafka per change, one copy", kept / durable, "bytes"))


def _costs(name: str, idle: Spent, few: Spent, many: Spent) -> Costs:
    """What both runs took beyond being there, by their changes and by their tables: two equations."""
    resting = idle.by_stage.get(name, 0.0) / idle.seconds
    first, second = (each.by_stage.get(name, 0.0) - resting * each.seconds for each in (few, many))
    determinant = few.changes * many.table_passes - many.changes * few.table_passes
    change = (first * many.table_passes - second * few.table_passes) / determinant
    table_pass = (second * few.changes - first * many.changes) / determinant
    return Costs(resting, max(0.0, change), max(0.0, table_pass))


def _tell(report: Report, name: str, what: str, costs: Costs) -> None:
    if name == "requests":
        report.add(SECTION, Figure(f"{what} per minute at rest", costs.idle * 60, "requests"))
        report.add(SECTION, Figure(f"{what} per table in a pass", costs.table_pass, "requests"))
        report.add(SECTION, Figure(f"{what} per million changes", costs.change * 1e6, "requests"))
        return
    report.add(SECTION, Figure(f"{what}: at rest", costs.idle, "cores"))
    report.add(SECTION, Figure(f"{what}: per million changes", costs.change * 1e6, "CPU s"))
    report.add(SECTION, Figure(f"{what}: per table in a pass", costs.table_pass * 1e3, "CPU ms"))


def _check(report: Report, size: Size, unit: str, measured: float, foretold: float, spent: Spent) -> None:
    times = max(measured, foretold) / min(measured, foretold)
    name = f"{size.tables} tables, {size.rate:,} changes/s: all of it"
    note = f"{times:.2f} times apart; {spent.changes:,} changes in {spent.seconds:.0f} s"
    bar = f"<= {TIMES_MAX:g} times apart"
    report.add(SECTION, Figure(name, measured, unit, foretold, "foretold", bar, times <= TIMES_MAX, note))
