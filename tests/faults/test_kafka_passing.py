"""Two gateways over one log on Apache Kafka, each at its own address: any of them takes any connection.

Both listen from their start; the one that stands by passes connections on to the one that leads.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pymongo
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from mainstem.app.config import Config, MongoConfig, ServerConfig
from mainstem.app.kafka.config import KafkaConfig
from mainstem.app.process import ServerProcess, reserve_port
from mainstem.app.serve import LOST_EXIT_CODE
from mainstem.client import CdcClient, WebSocketTransport, insert
from mainstem.log.kafka.settings import KafkaLogSettings
from tests.contract.test_sync_client import Replica
from tests.faults.test_kafka_gateways import TAKEOVER_S_MAX, Load, config_of
from tests.faults.test_kafka_log import judge
from tests.harness.apachekafka import ApacheKafka

PASSES_ON = "connections are passed on to the gateway that leads"


def with_ports(config: Config) -> Config:
    """The same at addresses of its own."""
    places = [reserve_port("127.0.0.1") for _ in range(3)]
    ports = [place.getsockname()[1] for place in places]
    for place in places:
        place.close()
    return msgspec.structs.replace(
        config,
        server=ServerConfig(port=ports[0]),
        kafka=KafkaConfig(enabled=True, port=ports[1]),
        mongo=MongoConfig(port=ports[2]),
    )


@asynccontextmanager
async def passing_on(folder: Path, config: Config) -> AsyncIterator[tuple[ServerProcess, "asyncio.Task[None]"]]:
    """A gateway that passes connections on, and the task that ends when it leads."""
    server, log = ServerProcess(folder, config), folder / "gateway.log"
    before = log.read_text().count(PASSES_ON) if log.exists() else 0
    leading = asyncio.create_task(server.start())
    try:
        async with asyncio.timeout(60):
            while not log.exists() or log.read_text().count(PASSES_ON) == before:
                assert not leading.done(), "it leads"
                await asyncio.sleep(0.05)
        yield server, leading
    finally:
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        await server.stop()


def url_of(config: Config) -> str:
    return f"http://127.0.0.1:{config.server.port}"


async def all_get_on(loads: list[Load], batches: int = 20) -> None:
    async with asyncio.timeout(TAKEOVER_S_MAX):
        counts = [len(load.told) for load in loads]
        await asyncio.gather(*[load.until(count + batches) for load, count in zip(loads, counts, strict=True)])


async def judge_loads(folder: Path, broker: ApacheKafka, prefix: str, loads: list[Load]) -> None:
    """Every batch that was acknowledged is in the log, once, in its order, at its position where one was told."""
    kafka = KafkaLogSettings(broker.bootstrap, f"{prefix}.log")
    diary = await judge(folder, kafka, {}, distinct=False)
    seen = {first: count for _, _, first, count in diary.seen}
    for load in loads:
        assert all(seen.get(first) == last - first + 1 for first, last in load.placed)
        sequences = [sequence for source, sequence, _, _ in diary.seen if source == load.source]
        assert sequences == list(range(1, len(load.told) + 1))


async def test_every_client_may_come_to_either_gateway(tmp_path: Path, broker: ApacheKafka) -> None:
    first = with_ports(config_of(broker, "either", str(tmp_path / "warehouse")))
    second = with_ports(first)
    async with (
        ServerProcess(tmp_path / "one", first) as one,
        passing_on(tmp_path / "two", second),
        httpx.AsyncClient(base_url=url_of(second), timeout=60) as http,
    ):
        # Who asks the one that stands by is answered by the one that leads.
        assert (await http.get("/health")).json() == {"status": "ok"}
        status = (await http.get("/status")).json()["gateway"]
        assert status["pid"] == one.pid and status["peers"]["leader"].endswith(f":{one.pid}")
        assert status["peers"]["received"] == 1

        # A change that comes in by one reaches the followers of the other at once, in both directions.
        ada, bob = Replica(tmp_path, "ada"), Replica(tmp_path, "bob")
        ada.connect(WebSocketTransport(url_of(first), "team"))
        bob.connect(WebSocketTransport(url_of(second), "team"))
        for replica in (ada, bob):
            replica.sync.start_auto_sync()
        for writer, reader, row in ((ada, bob, "by one"), (bob, ada, "by two")):
            writer.sync.tracker.insert("todos", row, {"title": row})
            async with asyncio.timeout(30):
                while reader.values(row) is None:
                    await asyncio.sleep(0.01)
        await ada.close()
        await bob.close()

        before = (await one.status())["log"]["durable"]
        async with CdcClient(f"ws://127.0.0.1:{second.server.port}/ws", source="cdc") as cdc:
            await (await cdc.send([insert("orders", "1", {"n": 1})])).durable()
        answer = await http.post("/v1/ingest/default/orders?key=id", json=[{"id": "2", "n": 2}])
        assert answer.status_code == 200, answer.text
        assert (await one.status())["log"]["durable"] == before + 2
        await asyncio.to_thread(_kafka, first, second)
        await asyncio.to_thread(_mongo, first, second)


def _kafka(first: Config, second: Config) -> None:
    here, there = (f"127.0.0.1:{config.kafka.port}" for config in (first, second))
    producer = Producer({"bootstrap.servers": there, "message.timeout.ms": 30_000})
    # Clients use the address that they are told from then on: it is the one that they came by.
    (broker,) = producer.list_topics(timeout=30).brokers.values()
    assert f"{broker.host}:{broker.port}" == there
    for number in range(100):
        producer.produce("numbers", b"%d" % number)
    assert producer.flush(30) == 0
    for bootstrap in (here, there):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"by {bootstrap}"})
        consumer.assign([TopicPartition("numbers", 0, OFFSET_BEGINNING)])
        found = consumer.consume(100, 30)
        assert [message.value() for message in found] == [b"%d" % number for number in range(100)]
        # The group's coordinator is told as the broker is.
        consumer.commit(offsets=[TopicPartition("numbers", 0, 100)], asynchronous=False)
        consumer.close()


def _mongo(first: Config, second: Config) -> None:
    told = []
    for config in (second, first):
        client: pymongo.MongoClient[Any]
        with pymongo.MongoClient(f"mongodb://127.0.0.1:{config.mongo.port}/?replicaSet=mainstem") as client:
            told.append(client.admin.command("hello")["me"])
            notes: pymongo.collection.Collection[Any] = client.shop.notes
            notes.insert_one({"_id": config.mongo.port})
            found = {each["_id"] for each in notes.find()}
    assert found == {first.mongo.port, second.mongo.port}
    assert told == [f"127.0.0.1:{second.mongo.port}", f"127.0.0.1:{first.mongo.port}"]


async def test_gateways_are_killed_and_stopped_in_turns_under_load(tmp_path: Path, broker: ApacheKafka) -> None:
    first = with_ports(config_of(broker, "turns", str(tmp_path / "warehouse")))
    second = with_ports(first)
    loads = [
        Load(f"ws://127.0.0.1:{config.server.port}/ws", f"s{number}-{at}")
        for at, config in enumerate((first, second))
        for number in range(2)
    ]
    async with (
        asyncio.TaskGroup() as tasks,
        ServerProcess(tmp_path / "one", first) as one,
        passing_on(tmp_path / "two", second) as (two, leading),
    ):
        running = [tasks.create_task(load.run()) for load in loads]
        await all_get_on(loads)
        one.kill()
        async with asyncio.timeout(TAKEOVER_S_MAX):
            await leading
        # The clients of its address go on there, whoever leads.
        async with passing_on(tmp_path / "one", first) as (again, back):
            await all_get_on(loads)
            # And the other one is stopped, as in a rolling restart: it lets go of the log.
            assert await two.stop() == 0
            async with asyncio.timeout(TAKEOVER_S_MAX):
                await back
            async with passing_on(tmp_path / "two", second):
                await all_get_on(loads)
                for load in loads:
                    load.stop.set()
                await asyncio.gather(*running)
                assert (await again.status())["gateway"]["pid"] == again.pid
    await judge_loads(tmp_path / "judge", broker, "turns", loads)


async def test_a_leader_is_paused_and_wakes(tmp_path: Path, broker: ApacheKafka) -> None:
    first = with_ports(config_of(broker, "woken", str(tmp_path / "warehouse")))
    second = with_ports(first)
    by_one, by_two = (
        Load(f"ws://127.0.0.1:{config.server.port}/ws", name) for config, name in ((first, "one"), (second, "two"))
    )
    async with (
        asyncio.TaskGroup() as tasks,
        ServerProcess(tmp_path / "one", first) as one,
        passing_on(tmp_path / "two", second) as (two, leading),
    ):
        running = [tasks.create_task(load.run()) for load in (by_one, by_two)]
        await all_get_on([by_one, by_two])
        os.kill(one.pid, signal.SIGSTOP)
        # Its own clients wait with it; those of the other are cut off, and go on.
        async with asyncio.timeout(TAKEOVER_S_MAX):
            await leading
        await all_get_on([by_two])
        before = (await two.status())["log"]["durable"]
        told = len(by_one.placed)
        os.kill(one.pid, signal.SIGCONT)
        async with asyncio.timeout(TAKEOVER_S_MAX):
            assert await one.wait() == LOST_EXIT_CODE
        # Answers that were on their way may have come; nothing that it wrote after it woke.
        assert all(last <= before for _, last in by_one.placed[told:])
        async with passing_on(tmp_path / "one", first):
            await all_get_on([by_one, by_two])
            for load in (by_one, by_two):
                load.stop.set()
            await asyncio.gather(*running)
    await judge_loads(tmp_path / "judge", broker, "woken", [by_one, by_two])
