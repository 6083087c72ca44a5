"""The whole product on a cluster: a standalone Spark master and two workers, segments and tables on a real S3 server,
the catalog in PostgreSQL, and the demo's load through them. An executor is killed in the middle of a pass, and then a
worker, and its shuffle files go with it. A reader looks all the while, and sees no micro-batch in part. DuckDB and a
Spark of the test's own judge what is left: nothing lost, nothing twice.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.demo.sample import Shop
from mainstem.app.process import ServerProcess
from mainstem.catalog.settings import CatalogSettings
from mainstem.client import CdcClient
from mainstem.pipeline.job import SPREAD_ROWS_MIN
from tests.contract.catalog_client import new_database
from tests.harness.judge import BySpark, assert_tables_hold
from tests.harness.reader import Read, Reader
from tests.harness.seaweed import SECRET_KEY, S3Server
from tests.harness.sparkcluster import EventLog, SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 500
# So many in one pass that the rows of one table are spread over all tasks. Smaller ones are one task's.
CHANGES = 2 * SPREAD_ROWS_MIN
# So many workers are killed until one of them dies with a task in its hands, or with shuffle files that others need.
KILLS_MAX = 3
WAIT_S_MAX = 120.0
POLL_S = 0.01


async def send(url: str, shop: Shop, changes: int, source: str) -> None:
    async with CdcClient(url, source=source) as client:
        for receipt in [await client.send(events) for events in shop.batches(changes, BATCH)]:
            await receipt.durable()


async def until_shuffled(events: EventLog) -> None:
    """Until a pass has written its shuffle files: its second half, which reads them, begins."""
    events.read()
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            for event in events.read():
                if event["Event"] == "SparkListenerStageCompleted" and _shuffled_rows(event) >= CHANGES:
                    return
            await asyncio.sleep(POLL_S)


def _shuffled_rows(event: dict[str, object]) -> int:
    stage = event["Stage Info"]
    assert isinstance(stage, dict)
    name = "internal.metrics.shuffle.write.recordsWritten"
    return sum(int(each["Value"]) for each in stage["Accumulables"] if each["Name"] == name)


async def kill_in_a_pass(
    server: ServerProcess, shop: Shop, events: EventLog, what: str, kill: Callable[[int], None]
) -> None:
    """Kill the first of them, the second and so on, each in a pass of its own, until a task was lost with one."""
    before = len(events.failures())
    for number in range(KILLS_MAX):
        await send(server.ws_url, shop, CHANGES, f"{what}-{number}")
        flushing = asyncio.create_task(server.flush(timeout_s=WAIT_S_MAX))
        await until_shuffled(events)
        kill(number)
        flushed = await flushing
        assert flushed["complete"], (flushed, (await server.status())["pipeline"])
        events.read()
        if failures := events.failures()[before:]:
            print(f"tasks that failed with the {what}: {failures}")
            return
    pytest.fail(f"none was killed with a task in its hands. what={what} kills={KILLS_MAX}")


def whole_micro_batches(read: Read) -> Iterator[str]:
    """Every flush is one micro-batch over all tables: up to the end of one of them, all others have all that came."""
    tables = Shop().tables
    for first in tables:
        ((last,),) = read("coalesce(max(_position), 0)", f"{first}_history")
        found = sum(read(f"count(*) FILTER (_position <= {last})", f"{each}_history")[0][0] for each in tables)
        if found != last:
            yield f"{first} is at {last}, and the tables have {found} changes up to there"
        ((row,),) = read("coalesce(max(_position), 0)", first)
        ((known,),) = read(f"count(*) FILTER (_position = {row})", f"{first}_history")
        if row and not known:
            yield f"a row of {first} at {row} without its history"


def command_lines() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return found


@pytest.mark.spark
@pytest.mark.timeout(600)
async def test_an_executor_and_a_worker_with_its_shuffle_files_die_in_the_middle_of_a_pass(
    tmp_path: Path, s3_server: S3Server, spark: "SparkSession"
) -> None:
    catalog = CatalogSettings(
        postgres=new_database(),
        warehouse=s3_server.make_bucket("cluster") + "/tables",
        io=s3_server.io(),
        vend_credentials=True,
    )
    shop = Shop()
    with SparkCluster(tmp_path / "spark") as cluster:
        config = Config(
            server=ServerConfig(port=0),
            # Sealed by the flushes alone: what was sent before one is one pass.
            log=LogConfig(flush_events=10**9, flush_bytes=1 << 32, flush_interval_s=10**6, flush_age_s=10**6),
            pipeline=PipelineConfig(master=cluster.url, driver_memory="1g", spark=cluster.settings()),
            catalog=catalog,
        )
        async with ServerProcess(tmp_path / "data", config) as server:
            await send(server.ws_url, shop, CHANGES, "first")
            flushed = await server.flush(timeout_s=WAIT_S_MAX)
            assert flushed["complete"], (flushed, (await server.status())["pipeline"])
            events = EventLog(cluster.events)
            events.read()
            rows = events.shuffled()
            assert len(rows) == 2 and all(rows.values()), f"rows by executor: {rows}"
            assert sum(rows.values()) >= CHANGES
            written = events.shuffled(in_arrow=True)
            assert len(written) == 2 and all(written.values()), f"rows written by executor: {written}"
            assert not [line for line in command_lines() if SECRET_KEY.encode() in line]

            def replace_worker(number: int) -> None:
                cluster.kill_worker(number)
                cluster.add_worker()

            with Reader(server.url, (whole_micro_batches,)) as reader:
                await kill_in_a_pass(server, shop, events, "executor", cluster.kill_executor)
                await kill_in_a_pass(server, shop, events, "worker", replace_worker)
            reader.assert_saw_all(2)
            for lake in (server.url, BySpark(spark, server.url, s3_server.io())):
                assert_tables_hold(lake, shop)
            assert (await server.status())["pipeline"]["restarts"] == 0
