"""SIGKILL the gateway, the pipeline or both, at seeded random moments under load. DuckDB judges what is left.

One table is in Delta, the others in Iceberg, so that every kill may meet the commits of both. What takes long is
Spark's start: only every fifth kill waits for it, the others meet it on the way.

`make soak KILLS=200 SEED=5` runs the same for longer. A failure prints its seed.
"""

import asyncio
import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.demo.sample import Shop
from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, Receipt
from tests.harness.judge import Lake, assert_tables_hold

BATCH = 20
# About 1,000 changes a second: enough that every kill meets work in flight.
PAUSE_S = 0.02
IN_DELTA = "customers"
CONFIG = Config(
    server=ServerConfig(port=0),
    log=LogConfig(flush_events=2_000, flush_interval_s=0.5, flush_age_s=0.5),
    tables={f"default.{IN_DELTA}": {"format": "delta"}},
)
TARGETS = ("gateway", "pipeline", "both")
# Of so many kills, one meets a pipeline that has just committed.
WARM_EVERY = 5


class Producer:
    """Sends until it is told to stop, and keeps every receipt until it is durable."""

    def __init__(self, url: str, shop: Shop) -> None:
        self._url = url
        self._shop = shop
        self._stop = asyncio.Event()
        self.durable = 0

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        async with CdcClient(self._url, source="shop") as client, asyncio.TaskGroup() as tasks:
            for events in self._shop.batches(10**9, BATCH):
                tasks.create_task(self._settle(await client.send(events)))
                if self._stop.is_set():
                    return
                await asyncio.sleep(PAUSE_S)

    async def _settle(self, receipt: Receipt) -> None:
        await receipt.durable()
        self.durable += 1


async def _pipeline_pid(server: ServerProcess) -> int | None:
    pid: int | None = (await server.status())["pipeline"]["pid"]
    return pid


async def _until_it_commits(server: ServerProcess) -> None:
    """Wait until the pipeline has committed to both formats since now: a kill then meets warm work."""
    before = await _covered(server)
    async with asyncio.timeout(240):
        while any(now <= then for now, then in zip(await _covered(server), before, strict=True)):
            await asyncio.sleep(0.1)


async def _covered(server: ServerProcess) -> tuple[int, int]:
    """Of the table in Delta, and of the others."""
    covered = {name: table["covered"] for name, table in (await server.status())["tables"].items()}
    in_delta = covered.pop(f"default.{IN_DELTA}", 0)
    return in_delta, sum(covered.values())


async def _kill_once(server: ServerProcess, target: str) -> None:
    if target in ("pipeline", "both") and (pid := await _pipeline_pid(server)) is not None:
        # It may have ended since, by an earlier kill.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if target in ("gateway", "both"):
        server.kill()
        await server.start()


async def _run_kills(folder: Path, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    shop = Shop(seed)
    async with ServerProcess(folder, CONFIG) as server, asyncio.TaskGroup() as tasks:
        producer = Producer(server.ws_url, shop)
        tasks.create_task(producer.run())
        for index in range(kills):
            if index % WARM_EVERY == 0:
                await _until_it_commits(server)
            await asyncio.sleep(rng.uniform(0.0, 1.5))
            await _kill_once(server, rng.choice(TARGETS))
        producer.stop()
        async with asyncio.timeout(120):
            while producer.durable * BATCH < shop.events:
                await asyncio.sleep(0.05)
        flushed = await server.flush(timeout_s=240)
        assert flushed["complete"], flushed
        places: dict[str, Lake] = {**dict.fromkeys(shop.tables, server.url), IN_DELTA: folder / "delta"}
        assert_tables_hold(places, shop)


@pytest.mark.timeout(900)
async def test_twenty_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    seed = 20_261_116
    print(f"seed {seed}")
    await _run_kills(tmp_path, seed, kills=20)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_any_number_of_kills(tmp_path: Path) -> None:
    seed, kills = int(os.environ.get("SEED", "1")), int(os.environ.get("KILLS", "200"))
    print(f"seed {seed}, {kills} kills")
    await _run_kills(tmp_path, seed, kills)
