"""SIGKILL the pipeline while it compacts tables that are being written. DuckDB judges what is left.

`make soak KILLS=50 SEED=5` runs the same for longer. A failure prints its seed.
"""

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.app.sample import Shop
from mainstem.client import CdcClient, Receipt
from mainstem.tables.maintenance import MaintenanceSettings
from tests.harness.judge import assert_tables_hold

BATCH = 50
PAUSE_S = 0.05
CONFIG = Config(
    server=ServerConfig(port=0),
    log=LogConfig(flush_events=1_000, flush_interval_s=0.3, flush_age_s=0.3),
    compaction=MaintenanceSettings(auto=False, min_files=2, snapshots_max=5, snapshot_age_min_s=0),
)
TABLES = ("orders", "orders_history", "customers", "shipments")


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


async def _compact_for_ever(server: ServerProcess, jobs: list[dict[str, Any]]) -> None:
    """Keep every table's maintenance going, expiry included, and collect what became of it."""
    async with httpx.AsyncClient(timeout=120, base_url=server.url) as http:
        while True:
            for table in TABLES:
                body = {"table": table, "waitS": 30}
                answer = await http.post("/v1/compaction/run", json=body)
                if answer.status_code == 200:
                    jobs += answer.json()["jobs"]
            await asyncio.sleep(0.1)


async def _until_compacting(server: ServerProcess) -> int:
    """The pipeline's process, at a moment when it has a job in hand."""
    async with asyncio.timeout(300), httpx.AsyncClient(timeout=30, base_url=server.url) as http:
        while True:
            running = [job for job in (await http.get("/v1/compaction/jobs")).json() if job["state"] == "running"]
            pid: int | None = (await server.status())["pipeline"]["pid"]
            if running and pid is not None:
                return pid
            await asyncio.sleep(0.02)


async def _run(folder: Path, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    shop, stop, jobs = Shop(seed), asyncio.Event(), list[dict[str, Any]]()
    async with ServerProcess(folder, CONFIG) as server, asyncio.TaskGroup() as tasks:
        producing = tasks.create_task(_produce(server, shop, stop))
        compacting = tasks.create_task(_compact_for_ever(server, jobs))
        for _ in range(kills):
            pid = await _until_compacting(server)
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            os.kill(pid, signal.SIGKILL)
        # Undisturbed, a job comes to its end while changes keep coming in: it is not starved.
        async with asyncio.timeout(300):
            while not any(job["state"] == "done" and job["attempts"] for job in jobs[-len(TABLES) :]):
                await asyncio.sleep(0.1)
        stop.set()
        await producing
        compacting.cancel()
        flushed = await server.flush(timeout_s=240)
        assert flushed["complete"], flushed
        status = await server.status()
        assert not [table["error"] for table in status["tables"].values() if table["error"]], status["tables"]
        assert_tables_hold(server.url, shop)
    failed = [job for job in jobs if job["state"] == "failed" and "died" not in (job["error"] or "")]
    assert not failed, failed
    assert sum(job["progress"].get("compact", {}).get("groups", 0) for job in jobs) >= 1


@pytest.mark.timeout(900)
async def test_kills_during_compaction_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    seed = 20_261_117
    print(f"seed {seed}")
    await _run(tmp_path, seed, kills=2)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_any_number_of_kills_during_compaction(tmp_path: Path) -> None:
    seed, kills = int(os.environ.get("SEED", "1")), int(os.environ.get("KILLS", "200")) // 10 + 1
    print(f"seed {seed}, {kills} kills")
    await _run(tmp_path, seed, kills)
