"""Consumers in groups, unmodified: librdkafka, aiokafka and kafka-python; both protocols, restarts, and tools."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import kafka
from tests.harness.kafka import KafkaServer

PARTITIONS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    started = KafkaServer(tmp_path_factory.mktemp("kafka-groups"))
    asyncio.run(started.start())
    yield started
    asyncio.run(started.stop())


def fill(server: KafkaServer, topic: str, count: int = 200) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(20)
    send(server, topic, range(count))


def send(server: KafkaServer, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
    for number in numbers:
        producer.produce(topic, value=b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(20) == 0


def consumer_of(server: KafkaServer, group: str, **settings: Any) -> Consumer:
    classic = {} if settings.get("group.protocol") == "consumer" else {"session.timeout.ms": 6_000}
    return Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **classic,
            **settings,
        }
    )


class Worker(threading.Thread):
    """A consumer in a thread of its own, until it is told to stop."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        super().__init__(daemon=True)
        self.consumer = consumer
        self.values: list[int] = []
        self.owned: set[int] = set()
        self.rebalances = 0
        self.errors: list[Any] = []
        self._stopping = threading.Event()
        consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self.start()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self.owned |= {each.partition for each in partitions}

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned -= {each.partition for each in partitions}

    def run(self) -> None:
        while not self._stopping.is_set():
            message = self.consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(message.error())
                continue
            self.values.append(int(message.value() or b""))
            self.consumer.commit(message=message, asynchronous=True)

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)
        self.consumer.close()


def wait_for(check: Any, timeout_s: float = 30.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < until_s, "it never came"
        time.sleep(0.05)


PROTOCOLS = [
    {"partition.assignment.strategy": "range"},
    {"partition.assignment.strategy": "cooperative-sticky"},
    {"group.protocol": "consumer"},
]


@pytest.mark.parametrize("settings", PROTOCOLS, ids=["eager", "cooperative", "newer"])
def test_members_share_the_work_as_they_come_and_go(server: KafkaServer, settings: dict[str, str]) -> None:
    topic = "share-" + "-".join(settings.values())
    fill(server, topic)
    workers = [Worker(consumer_of(server, topic, **settings), topic)]
    wait_for(lambda: len(set(workers[0].values)) == 200)
    workers += [Worker(consumer_of(server, topic, **settings), topic) for _ in range(2)]
    wait_for(lambda: all(worker.owned for worker in workers) and sum(len(each.owned) for each in workers) == PARTITIONS)
    send(server, topic, range(200, 300))
    wait_for(lambda: {value for each in workers for value in each.values} == set(range(300)))
    workers[0].stop()
    wait_for(lambda: sum(len(each.owned) for each in workers[1:]) == PARTITIONS)
    send(server, topic, range(300, 400))
    wait_for(lambda: {value for each in workers for value in each.values} == set(range(400)))
    for worker in workers[1:]:
        worker.stop()
    assert not [error for worker in workers for error in worker.errors]


def test_a_static_member_comes_back_without_a_rebalance(server: KafkaServer) -> None:
    fill(server, "static")
    settings = {"partition.assignment.strategy": "range", "session.timeout.ms": 30_000}
    first = Worker(consumer_of(server, "static", **settings, **{"group.instance.id": "one"}), "static")
    second = Worker(consumer_of(server, "static", **settings, **{"group.instance.id": "two"}), "static")
    wait_for(lambda: len(first.owned) == len(second.owned) == 2)
    had, rebalances = set(second.owned), first.rebalances
    second.stop()
    again = Worker(consumer_of(server, "static", **settings, **{"group.instance.id": "two"}), "static")
    wait_for(lambda: again.owned == had)
    send(server, "static", range(200, 240))
    wait_for(lambda: set(range(200, 240)) <= {*first.values, *again.values})
    assert first.rebalances == rebalances
    first.stop()
    again.stop()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_over_a_restart_of_the_server(server: KafkaServer, protocol: str) -> None:
    topic = f"restart-{protocol}"
    fill(server, topic)
    worker = Worker(consumer_of(server, topic, **{"group.protocol": protocol}), topic)
    wait_for(lambda: len(set(worker.values)) == 200)
    server.kill()
    asyncio.run(server.start())
    send(server, topic, range(200, 260))
    wait_for(lambda: set(worker.values) == set(range(260)), 60)
    worker.stop()
    # What was committed before and after is there, with its note.
    consumer = consumer_of(server, topic, **{"group.protocol": protocol})
    committed = consumer.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], 20)
    assert [each.offset for each in committed] == [65] * PARTITIONS
    consumer.close()


def test_a_note_with_an_offset_comes_back(server: KafkaServer) -> None:
    fill(server, "notes", 4)
    consumer = consumer_of(server, "notes")
    consumer.commit(offsets=[TopicPartition("notes", 1, 1, "half way")], asynchronous=False)
    (found,) = consumer.committed([TopicPartition("notes", 1)], 20)
    assert (found.offset, found.metadata) == (1, "half way")
    with pytest.raises(KafkaException) as caught:
        consumer.commit(offsets=[TopicPartition("notes", 1, 1, "x" * 5000)], asynchronous=False)
    assert caught.value.args[0].name() == "OFFSET_METADATA_TOO_LARGE"
    consumer.close()


def test_tools_list_describe_reset_and_delete(server: KafkaServer) -> None:
    fill(server, "tools", 40)
    worker = Worker(consumer_of(server, "tools"), "tools")
    wait_for(lambda: len(worker.values) == 40)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    listed = {each.group_id: each.state.name for each in admin.list_consumer_groups().result().valid}
    assert listed["tools"] == "STABLE"
    described = admin.describe_consumer_groups(["tools"])["tools"].result()
    assert [len(member.assignment.topic_partitions) for member in described.members] == [PARTITIONS]
    with pytest.raises(KafkaException) as caught:
        admin.delete_consumer_groups(["tools"])["tools"].result()
    assert caught.value.args[0].name() == "NON_EMPTY_GROUP"
    worker.stop()
    back = ConsumerGroupTopicPartitions("tools", [TopicPartition("tools", number, 3) for number in range(PARTITIONS)])
    admin.alter_consumer_group_offsets([back])["tools"].result()
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("tools")])["tools"].result()
    assert sorted((each.partition, each.offset) for each in found.topic_partitions) == [(n, 3) for n in range(4)]
    admin.delete_consumer_groups(["tools"])["tools"].result()
    assert "tools" not in {each.group_id for each in admin.list_consumer_groups().result().valid}


async def test_aiokafka_shares_and_commits(server: KafkaServer) -> None:
    await asyncio.to_thread(fill, server, "aio")
    options: dict[str, Any] = {
        "bootstrap_servers": server.bootstrap,
        "group_id": "aio",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 500,
    }
    one, two = (AIOKafkaConsumer("aio", **options) for _ in range(2))
    await one.start()
    try:
        await two.start()
        seen: set[int] = set()
        async with asyncio.timeout(30):
            while len(seen) < 200 or not (one.assignment() and two.assignment()):
                for consumer in (one, two):
                    for messages in (await consumer.getmany(timeout_ms=100)).values():
                        seen |= {int(message.value) for message in messages}
        for consumer in (one, two):
            await consumer.commit()
            for place in consumer.assignment():
                assert await consumer.committed(place) == 50
    finally:
        await two.stop()
        await one.stop()


def test_kafka_python_shares_and_commits(server: KafkaServer) -> None:
    fill(server, "python")
    consumer = kafka.KafkaConsumer(
        "python",
        bootstrap_servers=server.bootstrap,
        group_id="python",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=10_000,
    )
    seen = {int(next(consumer).value) for _ in range(200)}
    assert seen == set(range(200))
    consumer.commit()
    places = [kafka.TopicPartition("python", number) for number in range(PARTITIONS)]
    assert [consumer.committed(place) for place in places] == [50] * PARTITIONS
    consumer.close()


def command(server: KafkaServer, *words: str) -> Any:
    """What `mainstem …` prints: JSON where it was asked for."""
    place = ("--bootstrap", server.bootstrap)
    done = subprocess.run(
        [sys.executable, "-m", "mainstem.app", *words, *place], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in words else done.stdout


def test_our_own_commands_and_the_lag_in_status_and_metrics(server: KafkaServer) -> None:
    assert "made by-hand" in command(server, "topics", "create", "by-hand", "--partitions", "2")
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(10):
        producer.produce("by-hand", value=b"x", partition=number % 2)
    assert producer.flush(20) == 0
    assert command(server, "topics", "describe", "by-hand", "--json")[1] == {
        "partition": 1,
        "first": 0,
        "next": 5,
        "records": 5,
    }
    assert {"topic": "by-hand", "partitions": 2, "records": 10} in command(server, "topics", "list", "--json")
    command(server, "groups", "reset", "hand", "--topic", "by-hand", "--to", "2")
    found = command(server, "groups", "describe", "hand", "--json")
    assert [(row["partition"], row["offset"], row["lag"]) for row in found] == [(0, 2, 3), (1, 2, 3)]
    assert "hand" in command(server, "groups", "list")
    assert httpx.get(f"{server.url}/status").json()["groups"]["hand"] == {"by-hand": 6}
    metrics = httpx.get(f"{server.url}/metrics").text
    assert 'mainstem_group_lag_records{group="hand",topic="by-hand"} 6.0' in metrics
    assert "deleted" in command(server, "groups", "delete", "hand", "--yes")
    assert "deleted" in command(server, "topics", "delete", "by-hand", "--yes")
