"""The Kafka door beside Apache Kafka itself, in the same run, by the same client: librdkafka, through confluent-kafka.

Records of 100 bytes and 1 KiB over four partitions. The producer is idempotent with acks=all. Apache Kafka (one node,
from its jars) runs twice: as it comes, where an acknowledgement means that the system has the bytes in its cache, and
with `log.flush.interval.messages=1`, where it means synced, as it always does here. The servers take turns, ours
without its pipeline: a producer waits for the log, and `kafkarows` measures the way from there into a table. Each rate
of producing is the median of three rounds, each with a topic of its own. The client is Python on the same machine: on
two cores it takes about as much of them as the server.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import psutil

from benchmarks import kafka_load
from benchmarks.report import Figure, Report, percentile
from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.kafka.config import KafkaConfig
from mainstem.app.process import ServerProcess, reserve_port
from tests.harness.apachekafka import VERSION, ApacheKafka

SECTION = "kafka"
SECONDS, SECONDS_SMALL = 6.0, 2.0
ROUNDS = 3
# Java compiles what it runs often while it runs it.
WARM_S = 5.0
SIZES = (100, 1_024)
RATE = 5_000
P99_MS_MAX = 25.0
RATIO_MIN = 0.3
# Without a pipeline nothing leaves the backlog.
BACKLOG_BYTES_MAX = 32 << 30
SYNCED = {"log.flush.interval.messages": "1"}
_SYNCED_NAME = "log.flush.interval.messages=1"
T = TypeVar("T")


class Measured(NamedTuple):
    """What one server did: records a second by record size, and milliseconds from end to end."""

    produced: dict[int, float]
    consumed: dict[int, float]
    times_ms: list[float]
    rss_mib: float


class Running(NamedTuple):
    """A server under load. `settle` returns once it has nothing left to do of what came."""

    bootstrap: str
    pid: int
    settle: Callable[[], Awaitable[object]]


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Ours, Kafka's own as it comes and synced, by turns."""
    seconds = SECONDS_SMALL if small else SECONDS
    async with AsyncExitStack() as stack:
        servers = [
            await _ours(stack, folder / "data"),
            await _peer(stack, folder / "plain", {}),
            await _peer(stack, folder / "synced", SYNCED),
        ]
        ours, plain, synced = await _measure(servers, seconds)
    for size in SIZES:
        _beside(report, f"produce {size} B, acks=all", ours.produced[size], plain.produced[size], RATIO_MIN)
        _beside(report, f"produce {size} B, acks=all", ours.produced[size], synced.produced[size], 1.0, synced=True)
        _beside(report, f"consume {size} B, from the start", ours.consumed[size], plain.consumed[size], RATIO_MIN)
    for percent in (50, 99):
        value, name = percentile(ours.times_ms, percent), f"end to end at {RATE:,} records/s, p{percent}"
        met = value <= P99_MS_MAX if percent == 99 else None
        bar = f"≤ {P99_MS_MAX:g} ms" if percent == 99 else None
        for peer, settings in ((plain, "default"), (synced, _SYNCED_NAME)):
            named = f"Kafka {VERSION}, {settings}"
            report.add(SECTION, Figure(name, value, "ms", percentile(peer.times_ms, percent), named, bar, met))
            # Said once.
            bar = met = None
    named = f"Kafka {VERSION}, a heap of 1 GiB"
    report.add(SECTION, Figure("memory after that", ours.rss_mib, "MiB", plain.rss_mib, named))


def _beside(report: Report, name: str, ours: float, peer: float, least: float, *, synced: bool = False) -> None:
    named = f"Kafka {VERSION}, {_SYNCED_NAME if synced else 'default'}"
    bar = f"≥ {least:g} of it"
    note = f"{ours / peer:.2f} of it"
    report.add(SECTION, Figure(name, ours, "records/s", peer, named, bar, ours >= least * peer, note))


async def _ours(stack: AsyncExitStack, folder: Path) -> Running:
    place = stack.enter_context(reserve_port("127.0.0.1"))
    port = place.getsockname()[1]
    config = Config(
        server=ServerConfig(port=0),
        log=LogConfig(buffer_bytes_max=BACKLOG_BYTES_MAX),
        pipeline=PipelineConfig(enabled=False),
        kafka=KafkaConfig(enabled=True, port=port),
    )
    server = await stack.enter_async_context(ServerProcess(folder, config))
    # What is not sealed yet would be sealed while another one is measured.
    return Running(f"127.0.0.1:{port}", server.pid, lambda: server.flush(0))


async def _peer(stack: AsyncExitStack, folder: Path, settings: dict[str, str]) -> Running:
    server = await asyncio.to_thread(stack.enter_context, ApacheKafka(folder, settings))
    return Running(server.bootstrap, server.pid, lambda: asyncio.sleep(0))


async def _measure(servers: list[Running], seconds: float) -> list[Measured]:
    """By turns: what else the machine does at some time is not to be one server's luck."""
    found = [Measured({}, {}, [], 0.0) for _ in servers]
    for server in servers:
        await _alone(server, partial(_warm, server.bootstrap))
    for size in SIZES:
        rates: list[list[float]] = [[] for _ in servers]
        counts: list[int] = []
        for number in range(ROUNDS):
            for server, of_one in zip(servers, rates, strict=True):
                produce = partial(_produce, server.bootstrap, f"load-{size}-{number}", size, seconds)
                count, took_s = await _alone(server, produce)
                of_one.append(count / took_s)
                counts.append(count)
        for server, measured, of_one, count in zip(servers, found, rates, counts[: len(servers)], strict=True):
            consume = partial(kafka_load.consume, server.bootstrap, f"load-{size}-0", count)
            measured.consumed[size] = count / await _alone(server, consume)
            measured.produced[size] = median(of_one)
    for server, measured in zip(servers, found, strict=True):
        measured.times_ms.extend(await _alone(server, partial(_end_to_end, server.bootstrap, seconds)))
    print(f"  {[(each.produced, each.consumed) for each in found]}", flush=True)
    return [
        measured._replace(rss_mib=psutil.Process(server.pid).memory_info().rss / (1 << 20))
        for server, measured in zip(servers, found, strict=True)
    ]


async def _alone(server: Running, work: Callable[[], T]) -> T:
    """Load one server, and wait until neither it nor the disk has anything left to do of that."""
    done = await asyncio.to_thread(work)
    await server.settle()
    await asyncio.to_thread(os.sync)
    return done


def _warm(bootstrap: str) -> None:
    kafka_load.make_topic(bootstrap, "warm")
    count, _ = kafka_load.produce(bootstrap, "warm", 1_024, WARM_S)
    kafka_load.consume(bootstrap, "warm", count)


def _produce(bootstrap: str, topic: str, size: int, seconds: float) -> tuple[int, float]:
    kafka_load.make_topic(bootstrap, topic)
    return kafka_load.produce(bootstrap, topic, size, seconds)


def _end_to_end(bootstrap: str, seconds: float) -> list[float]:
    kafka_load.make_topic(bootstrap, "latency")
    return kafka_load.end_to_end(bootstrap, "latency", RATE, seconds)
