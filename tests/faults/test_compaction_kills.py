"""SIGKILL the pipeline while it compacts tables that are being written. DuckDB judges what is left.

On demand (`make soak KILLS=50 SEED=5`): every kill costs a start of Spark. A failure prints its seed.
"""

import asyncio
import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.demo.sample import Shop
from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, Receipt
from mainstem.runtime.clock import SystemClock
from mainstem.tables.maintenance import MaintenanceSettings
from tests.harness.judge import assert_tables_hold

BATCH = 50
PAUSE_S = 0.2
CONFIG = Config(
    server=ServerConfig(port=0),
    log=LogConfig(flush_events=1_000, flush_interval_s=0.5, flush_age_s=0.5),
    compaction=MaintenanceSettings(auto=False, min_files=2, snapshots_max=5, snapshot_age_min_s=0),
)
TABLES = ("orders",)


async def _produce(server: ServerProcess, shop: Shop, stop: asyncio.Event) -> None:
    receipts: list[Receipt] = []
    async with CdcClient(server.ws_url, source="shop") as client:
        for events in shop.batches(10**9, BATCH):
            receipts.append(await client.send(events))
            if stop.is_set():
                break
            await asyncio.sleep(PAUSE_S)
        for receipt in receipts:
            await receipt.durable()


async def _compact_for_ever(server: ServerProcess) -> None:
    """Keep every table's maintenance going, expiry included."""
    async with httpx.AsyncClient(timeout=120, base_url=server.url) as http:
        while True:
            for table in TABLES:
                # 404 until the table is there.
                await http.post("/v1/compaction/run", json={"table": table, "waitS": 60})
            await asyncio.sleep(0.1)


async def _jobs(server: ServerProcess) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(timeout=30, base_url=server.url) as http:
        jobs: list[dict[str, Any]] = (await http.get("/v1/compaction/jobs")).json()
    return jobs


async def _until_compacting(server: ServerProcess) -> int:
    """The pipeline's process, at a moment when it has a job in hand."""
    async with asyncio.timeout(300):
        while True:
            running = [job for job in await _jobs(server) if job["state"] == "running"]
            pid: int | None = (await server.status())["pipeline"]["pid"]
            if running and pid is not None:
                return pid
            await asyncio.sleep(0.02)


async def _until_compacted(server: ServerProcess, after_ms: int) -> None:
    """Undisturbed, a rewrite comes to its end while changes keep coming in: it is not starved."""
    async with asyncio.timeout(500):
        while not any(
            job["state"] == "done"
            and job["startedMs"] > after_ms
            and job["table"] == "default.orders"
            and job["progress"]["compact"]["groups"] > 0
            for job in await _jobs(server)
        ):
            await asyncio.sleep(0.2)


async def _run(folder: Path, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    shop, stop = Shop(seed), asyncio.Event()
    async with ServerProcess(folder, CONFIG) as server, asyncio.TaskGroup() as tasks:
        producing = tasks.create_task(_produce(server, shop, stop))
        compacting = tasks.create_task(_compact_for_ever(server))
        for _ in range(kills):
            pid = await _until_compacting(server)
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await _until_compacted(server, SystemClock().now_ms())
        stop.set()
        await producing
        compacting.cancel()
        flushed = await server.flush(timeout_s=240)
        assert flushed["complete"], flushed
        status = await server.status()
        assert not [table["error"] for table in status["tables"].values() if table["error"]], status["tables"]
        assert_tables_hold(server.url, shop)
        failed = [job for job in await _jobs(server) if job["state"] == "failed" and "died" not in job["error"]]
        assert not failed, failed


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_any_number_of_kills_during_compaction(tmp_path: Path) -> None:
    seed, kills = int(os.environ.get("SEED", "1")), int(os.environ.get("KILLS", "200")) // 10 + 1
    print(f"seed {seed}, {kills} kills")
    await _run(tmp_path, seed, kills)
