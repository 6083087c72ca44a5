"""Python workers, drivers and the gateway with all of them are killed in passes, while a reader looks: it never sees a
batch in part.

Every batch has an order and its lines, and raises the version of both. So an order of some version without lines of at
least that version, a line without its order, or a row without its history is a micro-batch that was seen in part.
DuckDB reads; which tables it reads first changes from look to look. What is there in the end is judged by DuckDB and by
a Spark of the test's own.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pyiceberg.catalog.rest import RestCatalog

from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, Receipt
from tests.harness.judge import BySpark, Lake, read
from tests.harness.reader import Read, Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = Config(server=ServerConfig(port=0), log=LogConfig(flush_events=400, flush_interval_s=0.3, flush_age_s=0.3))
ORDERS, LINES = 40, 3
PAUSE_S = 0.03
POLL_S = 0.002


class Orders:
    """Makes batches: some orders with their lines, each with its next version."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.versions: dict[str, int] = {}
        self.sequence = 0

    def batch(self) -> list[dict[str, Any]]:
        events = []
        for number in self._draw.sample(range(ORDERS), 4):
            order = f"o{number}"
            version = self.versions[order] = self.versions.get(order, 0) + 1
            events.append(self._event("orders", order, {"id": order, "version": version}))
            events += [
                self._event("lines", f"{order}-{line}", {"id": f"{order}-{line}", "order": order, "version": version})
                for line in range(LINES)
            ]
        self._draw.shuffle(events)
        for event in events:
            self.sequence += 1
            event["sequence"] = self.sequence
        return events

    def _event(self, table: str, key: str, row: dict[str, Any]) -> dict[str, Any]:
        return {"timestamp": 1_767_225_600_000, "operation": "UPDATE", "table": table, "rowId": key, "after": row}


class Producer:
    """Sends until it is told to stop."""

    def __init__(self, url: str, orders: Orders) -> None:
        self._url = url
        self._orders = orders
        self._stop = asyncio.Event()
        self.unsettled = 0

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        async with CdcClient(self._url, source="shop") as client, asyncio.TaskGroup() as tasks:
            while not self._stop.is_set():
                self.unsettled += 1
                tasks.create_task(self._settle(await client.send(self._orders.batch())))
                await asyncio.sleep(PAUSE_S)

    async def _settle(self, receipt: Receipt) -> None:
        await receipt.durable()
        self.unsettled -= 1


def orders_first(read: Read) -> Iterator[str]:
    orders = read("id, version", "orders")
    lines: dict[str, int] = dict(read("id, version", "lines"))
    for order, version in orders:
        for line in range(LINES):
            if lines.get(f"{order}-{line}", 0) < version:
                yield f"order {order} at {version}, its line {line} not"


def lines_first(read: Read) -> Iterator[str]:
    lines = read('id, "order", version', "lines")
    orders: dict[str, int] = dict(read("id, version", "orders"))
    for line, order, version in lines:
        if orders.get(order, 0) < version:
            yield f"line {line} at {version}, its order not"


def states_first(read: Read) -> Iterator[str]:
    for table in ("orders", "lines"):
        rows = read("_key, _position", table)
        known = set(read("_key, _position", f"{table}_history"))
        for row in rows:
            if row not in known:
                yield f"{table} {row} without its history"


def histories_first(read: Read) -> Iterator[str]:
    for table in ("orders", "lines"):
        known = read("_key, max(_position)", f"{table}_history GROUP BY _key")
        rows: dict[str, int] = dict(read("_key, _position", table))
        for key, position in known:
            if rows.get(key, 0) < position:
                yield f"{table} {key}: its history is at {position}, its row is not"


LOOKS = (orders_first, lines_first, states_first, histories_first)


def assert_all_is_there_once(lake: Lake, orders: Orders) -> None:
    found, lines = [read(lake, "id, version", table)[1] for table in ("orders", "lines")]
    seen = [sequence for table in ("orders", "lines") for (sequence,) in read(lake, "_sequence", f"{table}_history")[1]]
    assert len(found) == len(dict(found)) and dict(found) == orders.versions
    assert len(lines) == len(dict(lines))
    assert dict(lines) == {f"{key}-{line}": at for key, at in orders.versions.items() for line in range(LINES)}
    assert sorted(seen) == list(range(1, orders.sequence + 1)), f"{len(seen)} of {orders.sequence}"


async def _pipeline(server: ServerProcess) -> int | None:
    pid: int | None = (await server.status())["pipeline"]["pid"]
    return pid


async def _covered(server: ServerProcess) -> int:
    return sum(table["covered"] for table in (await server.status())["tables"].values())


async def _until_it_commits(server: ServerProcess) -> None:
    before = await _covered(server)
    async with asyncio.timeout(240):
        while await _covered(server) <= before:
            await asyncio.sleep(0.05)


def _python_workers(pipeline: int) -> list[psutil.Process]:
    """The executors' Python processes: children of the daemon that Spark's Java process has started.

    A process that ends while this looks, or a killed worker that its daemon has not reaped yet, is passed over by
    itself: it must not hide the others.
    """
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(pipeline).children(recursive=True)
        daemons = {process.pid for process in below if _is_daemon(process)}
        return [process for process in below if process.pid in daemons and _parent(process) in daemons]
    return []


def _is_daemon(process: psutil.Process) -> bool:
    """Whether it is Spark's Python daemon, or one of its forks, and alive."""
    with suppress(psutil.NoSuchProcess):  # a zombie is one of these
        return "pyspark.daemon" in " ".join(process.cmdline())
    return False


def _parent(process: psutil.Process) -> int | None:
    with suppress(psutil.NoSuchProcess):
        return process.ppid()
    return None


async def _run(
    folder: Path,
    spark: "SparkSession",
    seed: int,
    kill: Callable[[ServerProcess, random.Random], Any],
    *,
    may_be_away: bool = False,
) -> None:
    orders, draw = Orders(seed), random.Random(seed)
    async with ServerProcess(folder, CONFIG) as server, asyncio.TaskGroup() as tasks:
        producer = Producer(server.ws_url, orders)
        sending = tasks.create_task(producer.run())
        # From then on there is something to be seen, and nothing may keep a reader from it.
        await _until_it_commits(server)
        with Reader(server.url, LOOKS, may_be_away=may_be_away) as reader:
            await kill(server, draw)
            producer.stop()
            await sending
            assert producer.unsettled == 0
            flushed = await server.flush(timeout_s=240)
            assert flushed["complete"], flushed
        reader.assert_saw_all(8)
        for lake in (server.url, BySpark(spark, server.url)):
            assert_all_is_there_once(lake, orders)


async def _kill_workers(server: ServerProcess, draw: random.Random, kills: int) -> None:
    """SIGKILL Python workers, one or all of them, while passes go on."""
    killed = 0
    for number in range(kills):
        pipeline = await _pipeline(server)
        async with asyncio.timeout(240):
            while pipeline is None or not (workers := _python_workers(pipeline)):
                await asyncio.sleep(0.01)
                pipeline = await _pipeline(server)
        for process in workers if number % 2 else workers[:1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
                killed += 1
        await asyncio.sleep(draw.uniform(0.0, 1.0))
    assert killed >= kills
    # It was the workers that died, not the pipeline.
    assert await _pipeline(server) == pipeline
    await _until_it_commits(server)


@pytest.mark.timeout(900)
async def test_python_workers_killed_in_passes(tmp_path: Path, spark: "SparkSession") -> None:
    await _run(tmp_path, spark, 1, lambda server, draw: _kill_workers(server, draw, 8))


class FileWatch:
    """Kills a process as soon as a new data file of some table stands there, in a thread: a pass has written."""

    def __init__(self, folder: Path, pid: int) -> None:
        self._folder = folder
        self._pid = pid
        self._before = self._files()
        self.new: set[Path] = set()

    def _files(self) -> set[Path]:
        return {path for path in self._folder.rglob("*.parquet") if path.parent.name == "data"}

    def kill(self, seconds_max: float) -> None:
        """Wait for a file, then kill."""
        ends = time.monotonic() + seconds_max
        while time.monotonic() < ends:
            self.new = self._files() - self._before
            if self.new:
                with suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)
                return
            time.sleep(POLL_S)
        raise AssertionError("no pass wrote anything")


def _listed(url: str) -> set[str]:
    """The data files that any snapshot of any table has."""
    catalog = RestCatalog("judge", uri=url)
    tables = [catalog.load_table(name) for name in catalog.list_tables("default")]
    return {Path(path).name for table in tables for path in table.inspect.all_data_files()["file_path"].to_pylist()}


async def _kill_drivers(server: ServerProcess, draw: random.Random, wanted: int) -> None:
    """SIGKILL the driver when files are there and no commit names them, so many times."""
    between = 0
    for _ in range(wanted * 4):
        await _until_it_commits(server)
        await asyncio.sleep(draw.uniform(0.0, 0.5))
        pipeline = await _pipeline(server)
        assert pipeline is not None
        watch = await asyncio.to_thread(FileWatch, server.data, pipeline)
        await asyncio.to_thread(watch.kill, 60.0)
        listed = await asyncio.to_thread(_listed, server.url)
        between += any(path.name not in listed for path in watch.new)
        if between >= wanted:
            return
    raise AssertionError(f"too few kills between a task and its commit. expected={wanted} got={between}")


@pytest.mark.timeout(900)
async def test_driver_killed_between_the_tasks_and_the_commit(tmp_path: Path, spark: "SparkSession") -> None:
    await _run(tmp_path, spark, 2, lambda server, draw: _kill_drivers(server, draw, 2))


async def _kill_everything(server: ServerProcess, draw: random.Random, kills: int) -> None:
    """SIGKILL the gateway, and with it its catalog, the driver and the executors, while micro-batches are committed."""
    for _ in range(kills):
        await _until_it_commits(server)
        await asyncio.sleep(draw.uniform(0.0, 0.8))
        server.kill()
        await server.start()
    await _until_it_commits(server)


@pytest.mark.timeout(900)
async def test_the_gateway_is_killed_with_its_catalog_and_spark(tmp_path: Path, spark: "SparkSession") -> None:
    await _run(tmp_path, spark, 3, lambda server, draw: _kill_everything(server, draw, 2), may_be_away=True)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_any_number_of_kills_of_workers_and_drivers(tmp_path: Path, spark: "SparkSession") -> None:
    seed, kills = int(os.environ.get("SEED", "1")), int(os.environ.get("KILLS", "40"))

    async def both(server: ServerProcess, draw: random.Random) -> None:
        for _ in range(max(1, kills // 10)):
            await _kill_workers(server, draw, 8)
            await _kill_drivers(server, draw, 2)
            await _kill_everything(server, draw, 1)

    print(f"seed {seed}, {kills} kills")
    await _run(tmp_path, spark, seed, both, may_be_away=True)
