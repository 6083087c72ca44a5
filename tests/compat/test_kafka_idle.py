"""Thousands of clients that connected and say nothing: bounded, refused beyond the bound, and in nobody's way."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from mainstem.runtime.descriptors import raise_descriptor_limit
from mainstem.wire.kafka.messages import encode_request
from tests.harness.kafka import KafkaServer

IDLE = 5_000
# Those that are let in above that: the clients of the test need a few each.
SPARE = 50
KIB_MAX = 64
API_VERSIONS = 18


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[KafkaServer]:
    if raise_descriptor_limit() < 2 * IDLE:
        pytest.skip(f"this user may not open {2 * IDLE} files")
    async with KafkaServer(tmp_path / "data", connections_max=IDLE + SPARE) as started:
        yield started


async def say_hello(server: KafkaServer, opening: asyncio.Semaphore) -> tuple[bool, asyncio.StreamWriter]:
    """A connection, and whether it was let in."""
    host, _, port = server.bootstrap.partition(":")
    async with opening:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(encode_request(API_VERSIONS, 0, 1, {}))
            size = await reader.read(4)
            return len(await reader.readexactly(int.from_bytes(size, "big"))) > 0, writer
        except (ConnectionError, asyncio.IncompleteReadError):
            return False, writer


def produce_and_consume(bootstrap: str) -> list[bytes | None]:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce("beside", value=b"alive", partition=0)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "beside", "enable.auto.commit": False})
    consumer.assign([TopicPartition("beside", 0, 0)])
    message = consumer.poll(30)
    assert message is not None and message.error() is None
    consumer.close()
    return [message.value()]


async def test_five_thousand_idle_connections_cost_little_and_disturb_nobody(server: KafkaServer) -> None:
    opening = asyncio.Semaphore(64)
    process = psutil.Process(server.pid)
    before = process.memory_info().rss
    idle = await asyncio.gather(*[say_hello(server, opening) for _ in range(IDLE)])
    assert all(is_in for is_in, _ in idle)
    kib_each = (process.memory_info().rss - before) / 1024 / IDLE
    assert kib_each < KIB_MAX, kib_each
    assert await asyncio.to_thread(produce_and_consume, server.bootstrap) == [b"alive"]
    # Beyond the bound a client is sent away at once: nobody waits for a place that there is not.
    more = await asyncio.gather(*[say_hello(server, opening) for _ in range(2 * SPARE)])
    assert sum(not is_in for is_in, _ in more) >= SPARE
    for _, writer in (*idle, *more):
        writer.close()
    # Their places are free again.
    async with asyncio.timeout(30):
        is_in = False
        while not is_in:
            is_in, writer = await say_hello(server, opening)
            writer.close()
    assert await asyncio.to_thread(produce_and_consume, server.bootstrap) == [b"alive"]
