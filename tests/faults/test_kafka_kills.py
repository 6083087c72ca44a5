"""The server is killed under idempotent producers: every acknowledged record is there once, in order, for librdkafka,
for Kafka's own Java consumer, and for DuckDB on the table."""

import asyncio
import os
import random
import threading
from pathlib import Path

import duckdb
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.kafka_jars import read_by_java
from tests.harness.kafka import KafkaServer

PARTITIONS = 3


class Writer(threading.Thread):
    """Sends numbers to its own partition until it is told to stop; notes which were acknowledged."""

    def __init__(self, bootstrap: str, partition: int) -> None:
        super().__init__()
        self.partition = partition
        self.acked: list[tuple[int, int]] = []
        self.sent = 0
        self.stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "retry.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        while not self.stopping.is_set():
            self._producer.produce("counted", value=b"%d" % self.sent, partition=self.partition, on_delivery=self._told)
            self.sent += 1
            self._producer.poll(0.001)
        assert self._producer.flush(100) == 0

    def _told(self, error: object, message: object) -> None:
        assert error is None, error
        self.acked.append((message.offset(), int(message.value())))  # type: ignore[attr-defined]


@pytest.mark.spark
async def test_every_acknowledged_record_is_there_once(tmp_path: Path) -> None:
    await soak(tmp_path, seed=1, kills=4)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_every_acknowledged_record_is_there_once_over_many_kills(tmp_path: Path) -> None:
    seed, kills = int(os.environ.get("SEED", "1")), int(os.environ.get("KILLS", "200")) // 10 + 1
    await soak(tmp_path, seed=seed, kills=kills)


async def soak(tmp_path: Path, *, seed: int, kills: int) -> None:
    print(f"{seed=} {kills=}")
    rng = random.Random(seed)
    async with KafkaServer(tmp_path, pipeline=True, log={"segment_retention_s": 0.0}, tail_bytes_max=1 << 20) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        await asyncio.to_thread(lambda: admin.create_topics([NewTopic("counted", PARTITIONS)])["counted"].result(20))
        writers = [Writer(server.bootstrap, partition) for partition in range(PARTITIONS)]
        for writer in writers:
            writer.start()
        for _ in range(kills):
            await asyncio.sleep(rng.uniform(0.5, 2.5))
            server.kill()
            await server.start()
        await asyncio.sleep(1)
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            await asyncio.to_thread(writer.join)
        assert min(len(writer.acked) for writer in writers) > 200
        found = {writer.partition: await asyncio.to_thread(_read, server, writer) for writer in writers}
        total = sum(writer.sent for writer in writers)
        by_java = await asyncio.to_thread(read_by_java, server.bootstrap, "counted", total)
        assert (await server.flush())["complete"]
        table = duckdb.sql(
            f"SELECT partition, \"offset\", value FROM delta_scan('{tmp_path}/delta/kafka/counted') ORDER BY 1, 2"
        ).fetchall()
    for writer in writers:
        expected = [(number, number) for number in range(writer.sent)]
        # Everything was acknowledged in the end, so it is all there: once, in order, without a gap.
        assert writer.acked == expected
        assert found[writer.partition] == expected
        assert [(offset, int(value)) for offset, value in by_java[writer.partition]] == expected
        assert [(offset, int(value)) for own, offset, value in table if own == writer.partition] == expected


def _read(server: KafkaServer, writer: Writer) -> list[tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition("counted", writer.partition, 0)])
    found: list[tuple[int, int]] = []
    misses = 0
    while len(found) < writer.sent and misses < 40:
        messages = consumer.consume(5_000, 0.5)
        misses = 0 if messages else misses + 1
        for message in messages:
            if message.error() is None:
                found.append((message.offset() or 0, int(message.value() or b"-1")))
    consumer.close()
    return found
