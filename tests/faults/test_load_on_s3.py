"""Load with trouble: 200 connections, batches of mixed sizes in mixed encodings, tables on a real S3 server behind a
proxy that breaks, and kills of the gateway and of the pipeline while it compacts those tables. DuckDB and Spark judge
what is left: nothing lost, nothing twice.

A minute in the suite, with one of each trouble; ten on demand (`make soak`, LOAD_S, SEED), in an order that the seed
decides. A failure prints its seed.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest

from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.catalog.settings import CatalogSettings
from mainstem.client import Backoff, CdcClient, connect_duckdb, delete, insert, update
from mainstem.tables.maintenance import MaintenanceSettings
from tests.harness.cdcwire import Wire
from tests.harness.proxy import FlakyProxy
from tests.harness.seaweed import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTIONS = 200
TABLES = ("load_a", "load_b", "load_c")
SIZES = (1, 1, 5, 5, 20, 20, 50, 200)
KEYS = 25
# Between two batches of a connection.
PAUSE_S = (2.0, 8.0)
ENCODINGS: tuple[dict[str, Any], ...] = (
    {},
    {"encoding": "msgpack"},
    {"compression": "zstd"},
    {"encoding": "msgpack", "compression": "zstd"},
    {"compression": "deflate"},
)
OUTAGE_S_MAX = 240.0
COMPACTING_S_MAX = 300.0
POLL_S = 0.1
# As many as by default; the pause before the next try is shorter than by default.
BREAKER_FAILURES = 5
BREAKER_OPEN_S = 2.0


class Producer:
    """One source with its own keys: it knows what the tables must hold of them in the end."""

    def __init__(self, number: int, seed: int) -> None:
        self._rng = random.Random(f"{seed}/{number}")
        self.source = f"load-{number:03}"
        self.table = TABLES[number % len(TABLES)]
        self.rows: dict[str, int] = {}
        self.sent = 0
        self._way = ENCODINGS[number % len(ENCODINGS)]

    def events(self) -> list[Any]:
        """A batch of changes to its rows."""
        made = []
        for _ in range(self._rng.choice(SIZES)):
            self.sent += 1
            key = f"{self.source}/{self._rng.randrange(KEYS)}"
            if key not in self.rows:
                change = insert(self.table, key, {"n": self.sent, "source": self.source}, sequence=self.sent)
            elif self._rng.random() < 0.1:
                change = delete(self.table, key, sequence=self.sent)
            else:
                change = update(self.table, key, {"n": self.sent}, sequence=self.sent)
            if change.after is None:
                del self.rows[key]
            else:
                self.rows[key] = self.sent
            made.append(change)
        return made

    async def run(self, url: str, stop: asyncio.Event) -> None:
        """Send until told to stop; every batch is durable when this ends."""
        backoff = Backoff(wait_s_min=0.05, wait_s_max=1.0, rng=self._rng)
        async with CdcClient(url, self.source, backoff=backoff, open_timeout_s=120, **self._way) as client:
            receipts = []
            while not stop.is_set():
                receipts.append(await client.send(self.events()))
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), self._rng.uniform(*PAUSE_S))
            for receipt in receipts:
                await receipt.durable()


class Trouble:
    """What goes wrong, while tables are being committed."""

    def __init__(self, server: ServerProcess, proxy: FlakyProxy, rng: random.Random) -> None:
        self._server = server
        self._proxy = proxy
        self._rng = rng
        self.done: Counter[str] = Counter()

    async def once(self) -> None:
        """One of each, and the pipeline dies with its gateway: a start of Spark is what takes longest."""
        await self.until_it_commits()
        await self.cut()
        await self.flap()
        for kind in (self.outage, self.kill_gateway):
            await self.until_it_commits()
            await kind()

    async def run(self, seconds: float) -> None:
        """Until the time is over, each kind at least once, in an order and with pauses that the seed decides."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        kinds = [self.cut, self.flap, self.outage, self.kill_pipeline, self.kill_gateway]
        todo: list[Any] = []
        while todo or loop.time() < until_s:
            todo = todo or self._rng.sample(kinds, len(kinds))
            await self.until_it_commits()
            await asyncio.sleep(self._rng.uniform(0.0, 2.0))
            await todo.pop()()
            if loop.time() > until_s and all(self.done[kind.__name__] for kind in kinds):
                return

    async def cut(self) -> None:
        """Connections to the store break, again and again."""
        for _ in range(5):
            self._proxy.cut()
            await asyncio.sleep(self._rng.uniform(0.0, 0.5))
        self.done["cut"] += 1

    async def flap(self) -> None:
        """The store is away for moments."""
        for _ in range(3):
            self._proxy.break_down()
            await asyncio.sleep(self._rng.uniform(0.1, 0.8))
            self._proxy.heal()
            await asyncio.sleep(self._rng.uniform(0.1, 0.8))
        self.done["flap"] += 1

    async def outage(self) -> None:
        """The store is away until the breaker opens; producers hear of it, and lose nothing."""
        openings = (await self._breaker())["openings"]
        self._proxy.break_down()
        try:
            opened = await self._until_breaker_is("open")
            assert opened["openings"] > openings and opened["openedMs"] and opened["error"], opened
            assert opened["failures"] >= BREAKER_FAILURES, opened
            async with Wire(self._server.ws_url) as wire:
                event = {"operation": "INSERT", "table": "witness", "rowId": "w", "after": {"n": 1}}
                batch = {"type": "cdc_batch", "sourceDoId": "witness", "events": [event]}
                ack = await wire.ask(batch | {"sequenceNumber": self.done["outage"] + 1})
                # Half-open already, on a slow machine: that is `fallback` as well. It cannot have closed.
                assert ack["status"] == "fallback", ack
                assert ack["details"]["circuitBreakerState"] in ("open", "half-open"), ack
            # Half-open after its pause: one try, which fails, and it is open again.
            while (await self._until_breaker_is("open"))["openings"] == opened["openings"]:
                await asyncio.sleep(POLL_S)
        finally:
            self._proxy.heal()
        closed = await self._until_breaker_is("closed")
        assert (closed["failures"], closed["error"]) == (0, None), closed
        self.done["outage"] += 1

    async def kill_pipeline(self) -> None:
        pid = (await self._status())["pipeline"]["pid"]
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.done["kill_pipeline"] += 1

    async def kill_gateway(self) -> None:
        """And the pipeline with it, at a moment when it has a table's files in hand."""
        async with asyncio.timeout(COMPACTING_S_MAX):
            while not any(job["state"] == "running" for job in await jobs_of(self._server)):
                await asyncio.sleep(POLL_S)
        await asyncio.sleep(self._rng.uniform(0.0, 1.0))
        self._server.kill()
        await self._server.start()
        self.done["kill_gateway"] += 1

    async def until_it_commits(self) -> None:
        """Trouble then meets warm work."""
        before = await self._covered()
        async with asyncio.timeout(400):
            while await self._covered() <= before:
                await asyncio.sleep(POLL_S)

    async def _covered(self) -> int:
        return sum(table["covered"] for table in (await self._status())["tables"].values())

    async def _until_breaker_is(self, state: str) -> dict[str, Any]:
        async with asyncio.timeout(OUTAGE_S_MAX):
            while (breaker := await self._breaker())["state"] != state:
                await asyncio.sleep(POLL_S)
        return breaker

    async def _breaker(self) -> dict[str, Any]:
        breaker: dict[str, Any] = (await self._status())["pipeline"]["circuitBreaker"]
        return breaker

    async def _status(self) -> dict[str, Any]:
        """On a machine that has much to do, an answer may take longer than one wants to wait for it."""
        for _ in range(10):
            try:
                return await self._server.status()
            except httpx.TimeoutException:
                continue
        return await self._server.status()


async def compact(server: ServerProcess) -> None:
    """Keep every table's maintenance going, expiry included, until cancelled."""
    while True:
        for table in TABLES:
            # The table may not be there yet, or the server not.
            with suppress(httpx.HTTPError):
                async with httpx.AsyncClient(timeout=120, base_url=server.url) as http:
                    body = {"table": table, "waitS": 10, "snapshotAgeS": 30}
                    await http.post("/v1/compaction/run", json=body)
        await asyncio.sleep(POLL_S)


async def jobs_of(server: ServerProcess) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(timeout=120, base_url=server.url) as http:
        jobs: list[dict[str, Any]] = (await http.get("/v1/compaction/jobs")).json()
    return jobs


async def until_compacted(server: ServerProcess) -> None:
    """A rewrite is committed while changes keep coming in: it is not starved. The job's other steps may take longer."""
    async with asyncio.timeout(COMPACTING_S_MAX):
        while not any(job["progress"].get("compact", {}).get("groups", 0) > 0 for job in await jobs_of(server)):
            await asyncio.sleep(POLL_S)


async def run_load(
    folder: Path, store: S3Server, spark: "SparkSession", seed: int, seconds: float | None = None
) -> None:
    """Under load for some time, or, without one, for as long as it takes to see one of each trouble."""
    producers = [Producer(number, seed) for number in range(CONNECTIONS)]
    with FlakyProxy(store.url) as proxy:
        config = Config(
            server=ServerConfig(port=0),
            log=LogConfig(flush_interval_s=1.0),
            pipeline=PipelineConfig(breaker_failures=BREAKER_FAILURES, breaker_open_s=BREAKER_OPEN_S),
            compaction=MaintenanceSettings(auto=False, snapshots_max=5),
            catalog=CatalogSettings(
                warehouse=store.make_bucket(f"load-{seed}") + "/tables", io=store.io(proxy.url), vend_credentials=True
            ),
        )
        stop = asyncio.Event()
        async with ServerProcess(folder, config) as server:
            async with asyncio.TaskGroup() as tasks:
                for producer in producers:
                    tasks.create_task(producer.run(server.ws_url, stop))
                compacting = tasks.create_task(compact(server))
                trouble = Trouble(server, proxy, random.Random(seed))
                await (trouble.once() if seconds is None else trouble.run(seconds))
                await until_compacted(server)
                compacting.cancel()
                stop.set()
            flushed = await server.flush(timeout_s=300)
            assert flushed["complete"], flushed
        print(f"seed {seed}: {sum(producer.sent for producer in producers)} changes, {dict(trouble.done)}")
        # A new start without the pipeline: whoever judges has the machine, and reads what a restart finds.
        alone = msgspec.structs.replace(config, pipeline=PipelineConfig(enabled=False))
        async with ServerProcess(folder, alone) as server:
            judge_by_duckdb(server.url, producers)
            judge_by_spark(spark, server.url, store.io(proxy.url), producers)
            await judge_by_query(server.url, producers)


def expected(producers: list[Producer], table: str) -> tuple[dict[str, int], set[tuple[str, int]]]:
    """The rows of a table, and its changes as (source, number)."""
    mine = [producer for producer in producers if producer.table == table]
    rows = {key: n for producer in mine for key, n in producer.rows.items()}
    return rows, {(producer.source, number) for producer in mine for number in range(1, producer.sent + 1)}


def judge(name: str, producers: list[Producer], read: Any) -> None:
    for table in TABLES:
        rows, changes = expected(producers, table)
        found = read(f"SELECT _key, n FROM lake.default.{table}")
        assert len(found) == len(dict(found)), f"{name}: keys of {table} stand twice"
        assert dict(found) == rows, f"{name}: {table} differs in {sorted(dict(found).items() ^ rows.items())[:10]}"
        history = read(f"SELECT _source, _sequence FROM lake.default.{table}_history")
        assert not changes - set(history), f"{name}: lost {sorted(changes - set(history))[:10]} of {table}"
        assert len(history) == len(changes), f"{name}: {len(history) - len(changes)} changes of {table} count twice"


def judge_by_duckdb(url: str, producers: list[Producer]) -> None:
    lake = connect_duckdb(url)
    judge("DuckDB", producers, lambda sql: lake.execute(sql).fetchall())


def judge_by_spark(spark: "SparkSession", url: str, io: dict[str, str], producers: list[Producer]) -> None:
    catalog = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": url,
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".client.region": io["s3.region"],
        **{f".{name}": value for name, value in io.items()},
    }
    for name, value in catalog.items():
        spark.conf.set(f"spark.sql.catalog.loaded{name}", value)
    judge(
        "Spark",
        producers,
        lambda sql: [tuple(row) for row in spark.sql(sql.replace("lake.default", "loaded.default")).collect()],
    )


async def judge_by_query(url: str, producers: list[Producer]) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        for table in TABLES:
            answer = await http.post("/v1/query", json={"sql": f"SELECT count(*) AS rows_now FROM {table}"})
            assert answer.status_code == 200, answer.text
            assert str(len(expected(producers, table)[0])) in answer.text


@pytest.mark.spark
@pytest.mark.timeout(900)
async def test_a_minute_of_load_with_a_flapping_store_and_kills(
    tmp_path: Path, s3_server: S3Server, spark: "SparkSession"
) -> None:
    await run_load(tmp_path, s3_server, spark, seed=20_261_116)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(0)
async def test_ten_minutes_of_it(tmp_path: Path, s3_server: S3Server, spark: "SparkSession") -> None:
    seed, seconds = int(os.environ.get("SEED", "1")), float(os.environ.get("LOAD_S", "600"))
    await run_load(tmp_path, s3_server, spark, seed, seconds)
