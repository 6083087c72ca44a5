"""Tables that fall behind: producers that obey are slowed down, refused for a while, and lose nothing; then it is over.

The log and the gate are real, and so are the commits: the test stands in for the pipeline, and commits through the
catalog as any engine does, when it pleases.
"""

import asyncio
import random
from collections import Counter
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog

from mainstem.admission import RateSettings
from mainstem.app.config import LogConfig
from mainstem.app.gateway import Gateway
from mainstem.client import Backoff, CdcClient, insert
from mainstem.model import LogId
from mainstem.tables.marks import position_mark
from tests.harness.cdcwire import Wire
from tests.harness.inprocess import CONFIG, gateway_on_socket

BUFFER_BYTES = 120_000
SMALL = msgspec.structs.replace(
    CONFIG, log=LogConfig(buffer_bytes_max=BUFFER_BYTES, flush_bytes=10_000, flush_interval_s=0.2)
)
PRODUCERS = 3
BATCHES = 60
ROW_BYTES = 1_500


class Engine:
    """Commits what the log holds, both the state and the history, as one that is slow and sometimes away."""

    def __init__(self, url: str, log: LogId) -> None:
        self._mark = position_mark(log)
        catalog = RestCatalog("lake", uri=url)
        catalog.create_namespace_if_not_exists("default")
        self._rows = pa.table({"a": [1]})
        self._tables = [
            catalog.create_table(f"default.{name}", schema=self._rows.schema) for name in ("slow", "slow_history")
        ]

    def commit(self, position: int) -> None:
        for table in self._tables:
            table.refresh()
            table.append(self._rows, snapshot_properties={self._mark: str(position)})


async def until(gateway: Gateway, low: float, high: float) -> None:
    async with asyncio.timeout(60):
        while not low <= gateway.carried.utilization() <= high:
            await asyncio.sleep(0.02)


async def produce(url: str, number: int) -> None:
    """Obeys, and ends when everything is durable."""
    backoff, rng = Backoff(wait_s_min=0.01, wait_s_max=0.1), random.Random(number)
    async with CdcClient(url, f"slow-{number}", window_batches_max=4, backoff=backoff) as client:
        receipts = []
        for batch in range(BATCHES):
            # Nothing that a segment could make smaller.
            row = {"n": batch, "text": rng.randbytes(ROW_BYTES // 2).hex()}
            receipts.append(await client.send([insert("slow", f"{number}/{batch}", row, sequence=batch)]))
        for receipt in receipts:
            await receipt.durable()


async def test_a_producer_that_obeys_loses_nothing_and_it_ends_by_itself(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path, gateway_config=SMALL) as (gateway, url):
        http = url.replace("ws", "http", 1).removesuffix("/ws")
        engine = await asyncio.to_thread(Engine, http, gateway.lineage.log)
        async with asyncio.TaskGroup() as tasks:
            producers = [tasks.create_task(produce(url, number)) for number in range(PRODUCERS)]
            # Nobody commits: the producers are slowed down, and stopped before the room is full.
            await until(gateway, 0.85, 1.5)
            async with Wire(url) as wire:
                low = await wire.ask(offer("low"))
                assert low["type"] == "ack" or low["reason"] in ("load_shedding", "buffer_full")
            # From here on somebody does, and everything gets in.
            while not all(producer.done() for producer in producers):
                await asyncio.to_thread(engine.commit, gateway.status().log.sealed)
                await asyncio.sleep(0.1)
        nacks = Counter(gateway.door.stats.nacks)
        await asyncio.to_thread(engine.commit, gateway.status().log.durable)
        await until(gateway, 0.0, 0.8)
        async with Wire(url) as wire:
            ack = await wire.ask(offer("low", 2))
            assert (ack["status"], "suggestedDelayMs" in ack["details"]) == ("ok", False)
        assert gateway.carried.utilization() < 1.0
        print(f"refused meanwhile: {dict(nacks)}")
        await gateway.flush(0.1)
    files = str(tmp_path / "log" / "segments" / "*.parquet")
    rows = duckdb.sql(f"SELECT key, count(*) FROM '{files}' WHERE source LIKE 'slow-%' GROUP BY key").fetchall()
    assert dict(rows) == {f"{number}/{batch}": 1 for number in range(PRODUCERS) for batch in range(BATCHES)}


def offer(priority: str, number: int = 1) -> dict[str, object]:
    event = {"operation": "INSERT", "table": "slow", "rowId": f"offer-{number}", "after": {"n": 1}}
    return {
        "type": "cdc_batch",
        "sourceDoId": "offer",
        "sequenceNumber": number,
        "events": [event],
        "priority": priority,
    }


async def test_a_client_under_limits_of_rate_gets_everything_through_in_order(tmp_path: Path) -> None:
    limits = RateSettings(exempt=(), burst=10, refill_per_s=60)
    config = msgspec.structs.replace(CONFIG, limits=limits)
    async with gateway_on_socket(tmp_path, gateway_config=config) as (gateway, url):
        async with CdcClient(url, "limited", window_batches_max=32) as client:
            receipts = [
                await client.send([insert("limited", 1, {"n": number}, sequence=number)]) for number in range(150)
            ]
            for receipt in receipts:
                await receipt.durable()
        await gateway.flush(0.1)
        assert gateway.door.stats.nacks["rate_limited"] > 0
    files = str(tmp_path / "log" / "segments" / "*.parquet")
    rows = duckdb.sql(f"SELECT sequence FROM '{files}' ORDER BY position").fetchall()
    assert [number for (number,) in rows] == list(range(150))
