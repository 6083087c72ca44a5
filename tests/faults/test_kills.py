"""SIGKILL the gateway, the pipeline or both, at seeded random moments under load. DuckDB judges what is left.

`make soak KILLS=200 SEED=5` runs the same for longer. A failure prints its seed.
"""

import asyncio
import os
import random
import signal
from pathlib import Path

import msgspec
import pytest

from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.app.sample import Shop
from mainstem.client import CdcClient, Receipt
from tests.harness.judge import assert_tables_hold

BATCH = 20
# About 1,000 changes a second: enough that every kill meets work in flight.
PAUSE_S = 0.02
CONFIG = Config(server=ServerConfig(port=0), log=LogConfig(flush_events=2_000, flush_interval_s=0.5, flush_age_s=0.5))
IN_DELTA = msgspec.structs.replace(CONFIG, tables={f"default.{name}": {"format": "delta"} for name in Shop().tables})
TARGETS = ("gateway", "pipeline", "both")


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
    """Wait until the pipeline has committed something since now: a kill then meets warm work."""
    before = sum(table["covered"] for table in (await server.status())["tables"].values())
    async with asyncio.timeout(240):
        while sum(table["covered"] for table in (await server.status())["tables"].values()) <= before:
            await asyncio.sleep(0.1)


async def _kill_once(server: ServerProcess, target: str) -> None:
    if target in ("pipeline", "both") and (pid := await _pipeline_pid(server)) is not None:
        os.kill(pid, signal.SIGKILL)
    if target in ("gateway", "both"):
        server.kill()
        await server.start()


async def _run_kills(
    folder: Path, seed: int, kills: int, *, config: Config = CONFIG, targets: tuple[str, ...] = TARGETS
) -> None:
    rng = random.Random(seed)
    shop = Shop(seed)
    async with ServerProcess(folder, config) as server, asyncio.TaskGroup() as tasks:
        producer = Producer(server.ws_url, shop)
        tasks.create_task(producer.run())
        for index in range(kills):
            if index % 4 == 0:
                await _until_it_commits(server)
            await asyncio.sleep(rng.uniform(0.0, 1.5))
            await _kill_once(server, rng.choice(targets))
        producer.stop()
        async with asyncio.timeout(120):
            while producer.durable * BATCH < shop.events:
                await asyncio.sleep(0.05)
        flushed = await server.flush(timeout_s=240)
        assert flushed["complete"], flushed
        assert_tables_hold(folder / "delta" if config is IN_DELTA else server.url, shop)


@pytest.mark.timeout(900)
async def test_twenty_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    seed = 20_261_116
    print(f"seed {seed}")
    await _run_kills(tmp_path, seed, kills=20)


@pytest.mark.timeout(900)
async def test_kills_between_the_commits_of_delta_tables(tmp_path: Path) -> None:
    await _run_kills(tmp_path, 20_261_117, kills=4, config=IN_DELTA, targets=("pipeline", "both"))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("config", [CONFIG, IN_DELTA], ids=["iceberg", "delta"])
async def test_any_number_of_kills(tmp_path: Path, config: Config) -> None:
    seed, kills = int(os.environ.get("SEED", "1")), int(os.environ.get("KILLS", "200"))
    print(f"seed {seed}, {kills} kills")
    await _run_kills(tmp_path, seed, kills, config=config)
