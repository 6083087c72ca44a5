"""Two gateways over one log on Apache Kafka: one owns it, the other stands by. Clients only ever see one address."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.demo.sample import Shop
from mainstem.app.process import ServerProcess, reserve_port
from mainstem.app.serve import LOST_EXIT_CODE
from mainstem.catalog.settings import CatalogSettings
from mainstem.client import CdcClient, insert
from mainstem.log.kafka.settings import KafkaLogSettings
from mainstem.model import LogPosition
from tests.contract.catalog_client import new_database
from tests.contract.test_sync_rules import MINE, Replica, Writer, pull, set_rules
from tests.contract.test_sync_rules import server as sync_server
from tests.faults.test_kafka_log import judge
from tests.faults.test_kills import BATCH, Producer
from tests.harness.apachekafka import ApacheKafka, KafkaCluster
from tests.harness.judge import assert_tables_hold
from tests.harness.seaweed import S3Server

# On a machine that is busy with other tests. `make bench ARGS=scale` measures it.
TAKEOVER_S_MAX = 60.0


def config_of(broker: ApacheKafka | KafkaCluster, prefix: str, warehouse: str, *, pipeline: bool = False) -> Config:
    with reserve_port("127.0.0.1") as place:
        port = place.getsockname()[1]
    return Config(
        server=ServerConfig(port=port),
        log=LogConfig(
            kind="kafka",
            bootstrap_servers=broker.bootstrap,
            topic_prefix=prefix,
            flush_events=2_000,
            flush_interval_s=0.5,
            flush_age_s=0.5,
        ),
        pipeline=PipelineConfig(enabled=pipeline),
        catalog=CatalogSettings(postgres=new_database(), warehouse=warehouse),
    )


@asynccontextmanager
async def standing_by(folder: Path, config: Config) -> AsyncIterator[tuple[ServerProcess, "asyncio.Task[None]"]]:
    """A gateway that waits for its turn, and the task that ends when it serves."""
    server = ServerProcess(folder, config)
    serving = asyncio.create_task(server.start())
    log = folder / "gateway.log"
    try:
        async with asyncio.timeout(60):
            while not (log.exists() and "standing by" in log.read_text()):
                await asyncio.sleep(0.05)
        yield server, serving
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await server.stop()


class Load:
    """Sends one batch after the other, and keeps the positions that it was told. `keys`: of so many keys in turns."""

    def __init__(self, url: str, source: str, keys: int = 10**9) -> None:
        self._url = url
        self.source = source
        self._keys = keys
        self.stop = asyncio.Event()
        # None where a batch was sent again, and was durable already.
        self.told: list[tuple[int, int] | None] = []

    async def run(self) -> None:
        async with CdcClient(self._url, source=self.source) as client:
            while not self.stop.is_set():
                number = len(self.told)
                change = insert("orders", f"{self.source}-{number % self._keys}", {"n": number})
                receipt = await client.send([change] * 2)
                self.told.append((await receipt.durable()).positions)

    @property
    def placed(self) -> list[tuple[int, int]]:
        return [positions for positions in self.told if positions is not None]

    async def until(self, batches: int) -> None:
        while len(self.told) < batches:
            await asyncio.sleep(0.002)


async def test_one_that_stands_by_takes_over_whoever_owned_the_log(tmp_path: Path, broker: ApacheKafka) -> None:
    config = config_of(broker, "takeover", str(tmp_path / "warehouse"))
    loads = [Load(f"ws://127.0.0.1:{config.server.port}/ws", f"s{number}") for number in range(3)]
    async with asyncio.TaskGroup() as tasks, ServerProcess(tmp_path / "one", config) as one:
        running = [tasks.create_task(load.run()) for load in loads]
        async with standing_by(tmp_path / "two", config) as (two, serving):
            await asyncio.gather(*[load.until(20) for load in loads])
            one.kill()
            killed_s = time.monotonic()
            counts = [len(load.told) for load in loads]
            await asyncio.gather(*[load.until(count + 20) for load, count in zip(loads, counts, strict=True)])
            assert time.monotonic() - killed_s < TAKEOVER_S_MAX
            await serving
            # And back, without a wait for the lease: who stops lets go of the log.
            async with standing_by(tmp_path / "one", config) as (three, again):
                assert await two.stop() == 0
                counts = [len(load.told) for load in loads]
                await asyncio.gather(*[load.until(count + 20) for load, count in zip(loads, counts, strict=True)])
                await again
                for load in loads:
                    load.stop.set()
                await asyncio.gather(*running)
                status = await three.status()
                assert status["log"]["durable"] >= max(last for load in loads for _, last in load.placed)
    kafka = KafkaLogSettings(broker.bootstrap, "takeover.log")
    diary = await judge(tmp_path / "judge", kafka, {}, distinct=False)
    seen = {first: count for _, _, first, count in diary.seen}
    assert all(seen.get(first) == last - first + 1 for load in loads for first, last in load.placed)
    for load in loads:
        sequences = [sequence for source, sequence, _, _ in diary.seen if source == load.source]
        assert sequences == list(range(1, len(load.told) + 1))


async def test_a_paused_gateway_ends_when_it_wakes(tmp_path: Path, broker: ApacheKafka) -> None:
    config = config_of(broker, "paused", str(tmp_path / "warehouse"))
    # It would keep the port: the other has one of its own.
    with reserve_port("127.0.0.1") as place:
        other = msgspec.structs.replace(config, server=ServerConfig(port=place.getsockname()[1]))
    async with asyncio.TaskGroup() as tasks, ServerProcess(tmp_path / "one", config) as one:
        old = Load(one.ws_url, "old")
        sending = tasks.create_task(old.run())
        async with standing_by(tmp_path / "two", other) as (two, serving):
            await old.until(20)
            os.kill(one.pid, signal.SIGSTOP)
            async with asyncio.timeout(TAKEOVER_S_MAX):
                await serving
            before = (await two.status())["log"]["durable"]
            async with CdcClient(two.ws_url, source="new") as client:
                receipt = await client.send([insert("orders", "new", {"n": 1})])
                assert (await receipt.durable()).positions == (before + 1, before + 1)
            told = len(old.placed)
            os.kill(one.pid, signal.SIGCONT)
            async with asyncio.timeout(60):
                assert await one.wait() == LOST_EXIT_CODE
            # Answers that were on their way may have come; nothing that it wrote after it woke.
            assert all(last <= before for _, last in old.placed[told:])
            assert (await two.status())["log"]["durable"] == before + 1
            sending.cancel()


async def test_rules_of_sync_clients_hold_on_a_machine_that_never_heard_of_them(
    tmp_path: Path, broker: ApacheKafka
) -> None:
    config = config_of(broker, "rules", str(tmp_path / "warehouse"))
    async with sync_server(tmp_path / "one", config) as client:
        writer, ada = Writer(client), Replica("ada")
        await set_rules(client, MINE)
        await writer.write("n1", owner='"ada"', text='"for ada"')
        await writer.write("n2", owner='"bob"', text='"for bob"')
        await pull(client, ada)
        assert ada.values() == writer.seen_by("ada")
    async with sync_server(tmp_path / "two", config) as client:
        writer.client = client
        await writer.write("n3", owner='"bob"', text='"for bob too"')
        bob = Replica("bob")
        assert await pull(client, ada) == []
        await pull(client, bob)
        assert (ada.values(), bob.values()) == (writer.seen_by("ada"), writer.seen_by("bob"))
        assert len(bob.values()) == 2


@pytest.mark.timeout(900)
async def test_a_gateway_whose_machine_is_lost_begins_elsewhere(
    tmp_path: Path, broker: ApacheKafka, s3_server: S3Server
) -> None:
    """Kafka has the log, PostgreSQL the catalog, S3 segments and tables: nothing is on the machine that is lost."""
    config = config_of(broker, "lost", s3_server.make_bucket("lost") + "/warehouse", pipeline=True)
    config = msgspec.structs.replace(
        config, catalog=msgspec.structs.replace(config.catalog, io=s3_server.io(), vend_credentials=True)
    )
    shop = Shop(5)
    producer = Producer(f"ws://127.0.0.1:{config.server.port}/ws", shop)
    async with asyncio.TaskGroup() as tasks:
        one = ServerProcess(tmp_path / "one", config)
        await one.start()
        tasks.create_task(producer.run())
        # Some is in the tables, some in segments, some in neither.
        async with asyncio.timeout(240):
            while min([t["covered"] for t in (await one.status())["tables"].values()] or [0]) < LogPosition(500):
                await asyncio.sleep(0.1)
        pipeline = (await one.status())["pipeline"]["pid"]
        one.kill()
        os.kill(pipeline, signal.SIGKILL)
        await one.__aexit__()
        shutil.rmtree(tmp_path / "one")
        async with ServerProcess(tmp_path / "two", config) as two:
            durable = producer.durable
            async with asyncio.timeout(120):
                while producer.durable < durable + 50:
                    await asyncio.sleep(0.05)
            producer.stop()
            async with asyncio.timeout(120):
                while producer.durable * BATCH < shop.events:
                    await asyncio.sleep(0.05)
            flushed = await two.flush(timeout_s=240)
            assert flushed["complete"], flushed
            assert_tables_hold(two.url, shop)
