"""The Kafka door beside Apache Kafka itself, in the same run, by the same client: librdkafka, through confluent-kafka.

Records of 100 bytes and 1 KiB over four partitions. The producer is idempotent with acks=all. Apache Kafka (one node,
from its jars) runs twice: as it comes, where an acknowledgement means that the system has the bytes in its cache, and
with `log.flush.interval.messages=1`, where it means synced, as it always does here. The servers run one after the
other. The client is Python on the same machine: on two cores it takes about as much of them as the server.
"""

import asyncio
import os
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks import kafka_load
from benchmarks.report import Figure, Report, percentile
from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.kafka.config import KafkaConfig
from mainstem.app.process import ServerProcess, reserve_port
from tests.harness.apachekafka import VERSION, ApacheKafka

SECTION = "kafka"
SECONDS, SECONDS_SMALL = 6.0, 2.0
WARM_S = 2.0
SIZES = (100, 1_024)
RATE = 5_000
P99_MS_MAX = 25.0
RATIO_MIN = 0.3
SYNCED = {"log.flush.interval.messages": "1"}


class Measured(NamedTuple):
    """What one server did: records a second by record size, and milliseconds from end to end."""

    produced: dict[int, float]
    consumed: dict[int, float]
    times_ms: list[float]
    rss_mib: float


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Ours, then Kafka's own, as it comes and synced."""
    seconds = SECONDS_SMALL if small else SECONDS
    ours = await _ours(folder / "data", seconds)
    plain = await asyncio.to_thread(_peer, folder / "plain", {}, seconds)
    synced = await asyncio.to_thread(_peer, folder / "synced", SYNCED, seconds)
    for size in SIZES:
        _beside(report, f"produce {size} B, acks=all", ours.produced[size], plain.produced[size], RATIO_MIN)
        _beside(report, f"produce {size} B, acks=all", ours.produced[size], synced.produced[size], 1.0, synced=True)
        _beside(report, f"consume {size} B, from the start", ours.consumed[size], plain.consumed[size], RATIO_MIN)
    for percent in (50, 99):
        value, name = percentile(ours.times_ms, percent), f"end to end at {RATE:,} records/s, p{percent}"
        met = value <= P99_MS_MAX if percent == 99 else None
        bar = f"≤ {P99_MS_MAX:g} ms" if percent == 99 else None
        peer = f"Kafka {VERSION}, default"
        report.add(SECTION, Figure(name, value, "ms", percentile(plain.times_ms, percent), peer, bar, met))
    peer = f"Kafka {VERSION}, a heap of 1 GiB"
    report.add(SECTION, Figure("memory after that", ours.rss_mib, "MiB", plain.rss_mib, peer))


def _beside(report: Report, name: str, ours: float, peer: float, least: float, *, synced: bool = False) -> None:
    named = f"Kafka {VERSION}, " + ("log.flush.interval.messages=1" if synced else "default")
    bar = f"≥ {least:g} of it"
    note = f"{ours / peer:.2f} of it"
    report.add(SECTION, Figure(name, ours, "records/s", peer, named, bar, ours >= least * peer, note))


async def _ours(folder: Path, seconds: float) -> Measured:
    with reserve_port("127.0.0.1") as place:
        port = place.getsockname()[1]
        config = Config(
            server=ServerConfig(port=0),
            pipeline=PipelineConfig(enabled=False),
            kafka=KafkaConfig(enabled=True, port=port),
        )
        async with ServerProcess(folder, config) as server:
            return await asyncio.to_thread(_measure, f"127.0.0.1:{port}", seconds, server.pid)


def _peer(folder: Path, settings: dict[str, str], seconds: float) -> Measured:
    with ApacheKafka(folder, settings) as server:
        return _measure(server.bootstrap, seconds, server.pid)


def _measure(bootstrap: str, seconds: float, pid: int) -> Measured:
    kafka_load.make_topic(bootstrap, "warm")
    count, _ = kafka_load.produce(bootstrap, "warm", 1_024, WARM_S)
    kafka_load.consume(bootstrap, "warm", count)
    produced, consumed = {}, {}
    for size in SIZES:
        topic = f"load-{size}"
        kafka_load.make_topic(bootstrap, topic)
        count, took_s = kafka_load.produce(bootstrap, topic, size, seconds)
        produced[size] = count / took_s
        consumed[size] = count / kafka_load.consume(bootstrap, topic, count)
    kafka_load.make_topic(bootstrap, "latency")
    # What the system still has to write of the load before is not part of the way of a record at this rate.
    os.sync()
    times_ms = kafka_load.end_to_end(bootstrap, "latency", RATE, seconds)
    rss_mib = psutil.Process(pid).memory_info().rss / (1 << 20)
    print(f"  {bootstrap}: {produced=} {consumed=} p50={percentile(times_ms, 50):.1f} ms", flush=True)
    return Measured(produced, consumed, times_ms, rss_mib)
