"""Tables in a catalog of somebody else's, while the pipeline, the gateway and that catalog are killed: exactly once.

On Iceberg's own reference server, and on Nessie with tables on S3. DuckDB judges what is left, through the gateway, and
through the reference server itself.
"""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.demo.sample import Shop
from mainstem.app.process import ServerProcess
from mainstem.catalog.settings import CatalogSettings
from tests.faults.test_kills import Producer
from tests.harness.judge import assert_tables_hold
from tests.harness.nessie import Nessie
from tests.harness.reference_catalog import ReferenceCatalog
from tests.harness.seaweed import S3Server

LOG = LogConfig(flush_events=2_000, flush_interval_s=0.5, flush_age_s=0.5)
Kill = Callable[[ServerProcess], Awaitable[None]]


async def until_carried(server: ServerProcess, after: int) -> int:
    """Wait until the tables have more of the log than that, by what the gateway sees in the catalog."""
    async with asyncio.timeout(400):
        while True:
            tables = (await server.status())["tables"].values()
            covered: int = min((table["covered"] for table in tables), default=0)
            if covered > after:
                return covered
            await asyncio.sleep(0.1)


async def run(folder: Path, settings: CatalogSettings, seed: int, kills: Sequence[Kill]) -> None:
    """Each kill meets a pipeline that has carried something since the last one."""
    rng, shop = random.Random(seed), Shop(seed)
    config = Config(server=ServerConfig(port=0), log=LOG, catalog=settings)
    async with ServerProcess(folder / "ours", config) as server, asyncio.TaskGroup() as tasks:
        producer = Producer(server.ws_url, shop)
        producing = tasks.create_task(producer.run())
        covered = 0
        for kill in kills:
            covered = await until_carried(server, covered)
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            await kill(server)
        await until_carried(server, covered)
        producer.stop()
        await producing
        flushed = await server.flush(timeout_s=200)
        assert flushed["complete"], flushed
        await asyncio.to_thread(assert_tables_hold, server.url, shop)
        if not settings.warehouse.startswith("s3:"):
            await asyncio.to_thread(assert_tables_hold, settings.uri, shop)
        status = await server.status()
        assert not [table["error"] for table in status["tables"].values() if table["error"]], status["tables"]


async def kill_pipeline(server: ServerProcess) -> None:
    with suppress(ProcessLookupError):
        os.kill((await server.status())["pipeline"]["pid"], signal.SIGKILL)


async def kill_gateway(server: ServerProcess) -> None:
    server.kill()
    await server.start()


async def on_the_reference(folder: Path, seed: int, rounds: int) -> None:
    with ReferenceCatalog(folder / "theirs") as catalog:

        async def kill_catalog(_: ServerProcess) -> None:
            catalog.kill()
            catalog.start()

        settings = CatalogSettings(
            uri=catalog.url, warehouse=catalog.warehouse, credential="mainstem:secret", poll_s=0.2
        )
        await run(folder, settings, seed, [kill_pipeline, kill_catalog, kill_gateway] * rounds)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_each_part_is_killed_once(tmp_path: Path) -> None:
    await on_the_reference(tmp_path, seed=1, rounds=1)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_any_number_of_kills(tmp_path: Path) -> None:
    seed, rounds = int(os.environ.get("SEED", "1")), int(os.environ.get("KILLS", "200")) // 50 + 1
    print(f"seed {seed}, {rounds} rounds")
    await on_the_reference(tmp_path, seed, rounds)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_tables_in_nessie_on_s3(tmp_path: Path) -> None:
    """Fetches 290 MB the first time. What Nessie knows is in its memory: the other parts are killed."""
    with S3Server(tmp_path / "s3") as s3:
        warehouse = s3.make_bucket("lake")
        with Nessie(tmp_path / "nessie", s3, warehouse) as nessie:
            settings = CatalogSettings(
                uri=nessie.url, uri_warehouse="lake", warehouse=warehouse, io=s3.io(), poll_s=0.2
            )
            await run(tmp_path, settings, 1, [kill_pipeline, kill_gateway])
