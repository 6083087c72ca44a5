"""Over `mainstem migrate` what producers, clients and consumers hold stays good, and tables have every change once."""

import asyncio
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pymongo
import pytest
from confluent_kafka import Consumer, Producer

from mainstem.app.config import Config, LogConfig, MongoConfig, PipelineConfig, ServerConfig
from mainstem.app.demo.sample import Shop
from mainstem.app.folder.moving import migrate
from mainstem.app.kafka.config import KafkaConfig
from mainstem.app.process import ServerProcess, reserve_port
from mainstem.catalog.settings import CatalogSettings
from tests.compat.mongo_server import free_port
from tests.contract.catalog_client import new_database
from tests.contract.dolake.dolake_messages import batch, event
from tests.contract.test_sync_rules import Replica, Writer, pull
from tests.faults.test_kills import BATCH, IN_DELTA
from tests.faults.test_kills import Producer as Shopper
from tests.harness.apachekafka import ApacheKafka
from tests.harness.cdcwire import Wire
from tests.harness.judge import Lake, assert_tables_hold
from tests.harness.seaweed import S3Server

HEADERS = {"accept": "application/x-protobuf", "content-type": "application/x-protobuf"}


def moved(config: Config, broker: ApacheKafka, prefix: str) -> Config:
    log = msgspec.structs.replace(config.log, kind="kafka", bootstrap_servers=broker.bootstrap, topic_prefix=prefix)
    return msgspec.structs.replace(config, log=log)


def consumer_of(port: int) -> Consumer:
    settings: dict[str, Any] = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "group.id": "readers",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6_000,
    }
    consumer = Consumer(settings)
    consumer.subscribe(["t"])
    return consumer


def read(port: int, count: int) -> list[bytes | str | None]:
    """The group's next records; what was read is committed."""
    consumer = consumer_of(port)
    found: list[bytes | str | None] = []
    while len(found) < count:
        for message in consumer.consume(count - len(found), 1.0):
            assert message.error() is None
            found.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def produce(port: int, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "enable.idempotence": True})
    for number in numbers:
        producer.produce("t", value=b"%d" % number)
    assert producer.flush(30) == 0


@pytest.mark.timeout(300)
async def test_what_clients_hold_is_good_after_the_move(tmp_path: Path, broker: ApacheKafka) -> None:
    kafka_port, mongo_port = free_port(), free_port()
    with reserve_port("127.0.0.1") as place:
        config = Config(
            server=ServerConfig(port=place.getsockname()[1]),
            log=LogConfig(flush_interval_s=1.0),
            pipeline=PipelineConfig(enabled=False),
            kafka=KafkaConfig(enabled=True, port=kafka_port),
            mongo=MongoConfig(port=mongo_port),
        )
    one = ServerProcess(tmp_path / "data", config)
    await one.start()
    client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(f"mongodb://127.0.0.1:{mongo_port}")
    ada = Replica("ada")
    last = batch("shop", 4, [event(sequence=9, rowId="user-9", after={"id": "user-9", "n": 9})])
    async with httpx.AsyncClient(base_url=one.url, headers=HEADERS, timeout=60) as http:
        writer = Writer(http)
        for number in range(4):
            await writer.write(f"n{number}", text=f'"{number}"')
        await pull(http, ada)
        with client.kept.a.watch() as stream:
            client.kept.a.insert_one({"_id": 1})
            token = next(stream)["_id"]
        await asyncio.to_thread(produce, kafka_port, range(10))
        assert await asyncio.to_thread(read, kafka_port, 6) == [b"%d" % number for number in range(6)]
        async with Wire(one.ws_url) as wire:
            await wire.greet("shop")
            for number in range(1, 4):
                assert (await wire.ask(batch("shop", number, [event(sequence=number)])))["status"] == "ok"
            # Some in segments, as there is no pipeline in no table, and the rest in files of frames.
            await http.post("/flush?timeoutS=0.01")
            async with asyncio.timeout(60):
                while not list((tmp_path / "data" / "log").glob("companion-*")):
                    await asyncio.sleep(0.05)
            assert (await wire.ask(last))["status"] == "ok"
        client.kept.a.update_one({"_id": 1}, {"$set": {"x": 1}})
        await writer.write("n1", text='"again"')
    one.kill()
    await one.__aexit__()
    client.close()
    after = moved(config, broker, "doors")
    plan = await asyncio.to_thread(migrate, tmp_path / "data", after, lambda *_: None)
    assert plan.leaving is not None and plan.leaving.segments and plan.leaving.files
    async with ServerProcess(tmp_path / "data", after) as two:
        status = (await two.status())["log"]
        assert status["durable"] >= plan.leaving.last and status["id"] == plan.moved.spans[-1][0]
        async with Wire(two.ws_url) as wire:
            await wire.greet("shop")
            assert (await wire.ask(last))["status"] == "duplicate"
            assert (await wire.ask(batch("shop", 5, [event(sequence=10)])))["status"] == "ok"
        async with httpx.AsyncClient(base_url=two.url, headers=HEADERS, timeout=60) as http:
            writer.client = http
            assert [delta.row_id for delta in await pull(http, ada)] == ["n1"]
            await writer.write("n5", text='"new"')
            assert [delta.row_id for delta in await pull(http, ada)] == ["n5"]
            assert ada.values() == {key: row.values() for key, row in writer.rows.items()}
        await asyncio.to_thread(produce, kafka_port, range(10, 12))
        assert await asyncio.to_thread(read, kafka_port, 6) == [b"%d" % number for number in range(6, 12)]
        client = pymongo.MongoClient(f"mongodb://127.0.0.1:{mongo_port}")
        client.kept.a.insert_one({"_id": 2})
        with client.kept.a.watch(resume_after=token) as stream:
            events = [next(stream) for _ in range(2)]
        assert [each["operationType"] for each in events] == ["update", "insert"]
        assert client.kept.a.count_documents({}) == 2
        client.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", ["folder", "s3"])
async def test_every_change_is_in_the_tables_once(
    tmp_path: Path, broker: ApacheKafka, s3_server: S3Server, place: str
) -> None:
    """Killed under load, moved, and served: from the same folder, or from another machine where all is elsewhere."""
    with reserve_port("127.0.0.1") as held:
        config = Config(
            server=ServerConfig(port=held.getsockname()[1]),
            log=LogConfig(flush_events=2_000, flush_interval_s=0.5, flush_age_s=0.5),
        )
    if place == "s3":
        catalog = CatalogSettings(
            postgres=new_database(),
            warehouse=s3_server.make_bucket("migrate") + "/warehouse",
            io=s3_server.io(),
            vend_credentials=True,
        )
        config = msgspec.structs.replace(config, catalog=catalog)
    else:
        config = msgspec.structs.replace(config, tables={f"default.{IN_DELTA}": {"format": "delta"}})
    data = tmp_path / "one"
    shop = Shop(7)
    producer = Shopper(f"ws://127.0.0.1:{config.server.port}/ws", shop)
    async with asyncio.TaskGroup() as tasks:
        one = ServerProcess(data, config)
        await one.start()
        tasks.create_task(producer.run())
        # Some is in the tables, some in segments, some in neither.
        async with asyncio.timeout(240):
            while min([t["covered"] for t in (await one.status())["tables"].values()] or [0]) < 500:
                await asyncio.sleep(0.1)
        pipeline = (await one.status())["pipeline"]["pid"]
        one.kill()
        with suppress(ProcessLookupError):
            os.kill(pipeline, signal.SIGKILL)
        await one.__aexit__()
        after = moved(config, broker, f"tables-{place}")
        plan = await asyncio.to_thread(migrate, data, after, lambda *_: None)
        assert plan.records
        if place == "s3":
            shutil.rmtree(data)
            data = tmp_path / "two"
        async with ServerProcess(data, after) as two:
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
            places: dict[str, Lake] = dict.fromkeys(shop.tables, two.url)
            if place == "folder":
                places[IN_DELTA] = data / "delta"
            assert_tables_hold(places, shop)
