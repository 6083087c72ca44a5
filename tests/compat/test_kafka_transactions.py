"""Transactions of librdkafka: exactly once from topic to topic, and nothing in a table that was not committed."""

import asyncio
import time
from typing import Any

import duckdb
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness.kafka import KafkaServer


@pytest.fixture
def server(kafka_lake: KafkaServer) -> KafkaServer:
    return kafka_lake


def make(server: KafkaServer, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(20)


def transactional(server: KafkaServer, name: str, timeout_ms: int = 30_000) -> Producer:
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "transactional.id": name, "transaction.timeout.ms": timeout_ms}
    )
    producer.init_transactions(20)
    return producer


def put(producer: Producer, topic: str, values: list[bytes], partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value=value, partition=partition)
    producer.flush(20)


def read(server: KafkaServer, topic: str, *, committed: bool = True, partition: int = 0) -> list[bytes]:
    """Everything up to the end, as far as it may be read."""
    level = "read_committed" if committed else "read_uncommitted"
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": level,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[bytes] = []
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error() is not None:
            break
        found.append(message.value() or b"")
    consumer.close()
    return found


def rows(server: KafkaServer, table: str) -> list[bytes]:
    place = f"{server.data}/delta/kafka/{table}"
    found = duckdb.sql(f"SELECT value FROM delta_scan('{place}') ORDER BY partition, \"offset\"").fetchall()
    return [value for (value,) in found]


@pytest.mark.spark
async def test_only_what_was_committed_is_read_and_is_in_the_table(server: KafkaServer) -> None:
    make(server, "mixed")
    producer = await asyncio.to_thread(transactional, server, "mixed")
    plain = Producer({"bootstrap.servers": server.bootstrap})
    producer.begin_transaction()
    put(producer, "mixed", [b"aborted"] * 3)
    put(plain, "mixed", [b"plain 1"])
    producer.abort_transaction(20)
    producer.begin_transaction()
    put(producer, "mixed", [b"one", b"two"])
    put(plain, "mixed", [b"plain 2"])
    # While it is open nobody reads past its first record, and a flush brings none of it into the table.
    assert await asyncio.to_thread(read, server, "mixed") == [b"plain 1"]
    assert (await server.flush())["complete"]
    assert rows(server, "mixed") == [b"plain 1", b"plain 2"]
    # Also once memory and the log have let go of its frames it can be read by who reads everything.
    everything = await asyncio.to_thread(read, server, "mixed", committed=False)
    assert set(everything) >= {b"plain 1", b"one", b"two", b"plain 2"}
    put(producer, "mixed", [b"three"])
    producer.commit_transaction(20)
    assert await asyncio.to_thread(read, server, "mixed") == [b"plain 1", b"one", b"two", b"plain 2", b"three"]
    assert (await server.flush())["complete"]
    assert rows(server, "mixed") == [b"plain 1", b"one", b"two", b"plain 2", b"three"]


@pytest.mark.spark
async def test_a_restart_in_an_open_transaction_keeps_its_records(server: KafkaServer) -> None:
    make(server, "over")
    producer = await asyncio.to_thread(transactional, server, "over", 60_000)
    producer.begin_transaction()
    put(producer, "over", [b"before"])
    assert (await server.flush())["complete"]
    server.kill()
    await server.start()
    await asyncio.to_thread(put, producer, "over", [b"after"])
    await asyncio.to_thread(producer.commit_transaction, 30)
    assert await asyncio.to_thread(read, server, "over") == [b"before", b"after"]
    assert (await server.flush())["complete"]
    assert rows(server, "over") == [b"before", b"after"]


def test_a_copy_from_topic_to_topic_is_exactly_once(server: KafkaServer) -> None:
    make(server, "in", 2)
    make(server, "out")
    source = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(300):
        source.produce("in", value=b"%d" % number, partition=number % 2)
    assert source.flush(20) == 0

    def copy(name: str, until: int, *, dies: bool) -> None:
        """Copy so many; one that dies leaves its last transaction open."""
        producer = transactional(server, name)
        consumer = Consumer(
            {
                "bootstrap.servers": server.bootstrap,
                "group.id": "copy",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
            }
        )
        consumer.subscribe(["in"])
        done = 0
        deadline_s = time.monotonic() + 40
        while done < until and time.monotonic() < deadline_s:
            messages = [each for each in consumer.consume(40, 0.5) if each.error() is None]
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce("out", value=message.value())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 20
            )
            done += len(messages)
            if dies and done >= until:
                producer.flush(20)
                break
            producer.commit_transaction(20)
        consumer.close()

    copy("copier", 100, dies=True)
    # The next one with its name aborts what it left open, and begins where it last committed.
    copied = len(read(server, "out"))
    copy("copier", 300 - copied, dies=False)
    assert sorted(map(int, read(server, "out"))) == list(range(300))


def test_a_zombie_is_fenced(server: KafkaServer) -> None:
    make(server, "fenced")
    zombie = transactional(server, "fenced")
    zombie.begin_transaction()
    put(zombie, "fenced", [b"zombie"])
    heir = transactional(server, "fenced")
    heir.begin_transaction()
    put(heir, "fenced", [b"heir"])
    heir.commit_transaction(20)
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(20)
    assert caught.value.args[0].fatal()
    assert read(server, "fenced") == [b"heir"]


def test_a_transaction_that_takes_too_long_is_aborted(server: KafkaServer) -> None:
    make(server, "slow")
    producer = transactional(server, "slow", 1_000)
    producer.begin_transaction()
    put(producer, "slow", [b"too late"])
    plain = Producer({"bootstrap.servers": server.bootstrap})
    put(plain, "slow", [b"behind it"])
    until_s = time.monotonic() + 20
    found: list[Any] = []
    while not found and time.monotonic() < until_s:
        found = read(server, "slow")
    assert found == [b"behind it"]
    with pytest.raises(KafkaException):
        producer.commit_transaction(20)
