"""The Kafka door under load of Kafka's own client library: records of 100 bytes and 1 KiB, four partitions.

The producer is idempotent with acks=all, and every acknowledgement is synced. The client runs on the same machine, in
Python: on two cores it takes about as much of them as the server.
"""

import asyncio
from pathlib import Path

import psutil

from benchmarks import kafka_load
from benchmarks.report import Figure, Report
from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.kafka.config import KafkaConfig
from mainstem.app.process import ServerProcess, reserve_port

SECTION = "kafka"
SECONDS, SECONDS_SMALL = 8.0, 2.0
RATE = 5_000
P99_MS_MAX = 25.0


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Produce, consume, and the time from one to the other."""
    seconds = SECONDS_SMALL if small else SECONDS
    with reserve_port("127.0.0.1") as place:
        port = place.getsockname()[1]
        config = Config(
            server=ServerConfig(port=0),
            pipeline=PipelineConfig(enabled=False),
            kafka=KafkaConfig(enabled=True, port=port),
        )
        async with ServerProcess(folder / "data", config) as server:
            await asyncio.to_thread(_measure, report, f"127.0.0.1:{port}", seconds)
            rss_mib = psutil.Process(server.pid).memory_info().rss / (1 << 20)
    report.add(SECTION, Figure("gateway's memory after that", rss_mib, "MiB"))


def _measure(report: Report, bootstrap: str, seconds: float) -> None:
    for size in (100, 1_024):
        topic = f"load-{size}"
        kafka_load.make_topic(bootstrap, topic)
        count, took_s = kafka_load.produce(bootstrap, topic, size, seconds)
        report.add(SECTION, Figure(f"produce, {size} B, acks=all, synced", count / took_s, "records/s"))
        took_s = kafka_load.consume(bootstrap, topic, count)
        report.add(SECTION, Figure(f"consume, {size} B, from the start", count / took_s, "records/s"))
    kafka_load.make_topic(bootstrap, "latency")
    times_ms = kafka_load.end_to_end(bootstrap, "latency", RATE, seconds)
    p50, p99 = times_ms[len(times_ms) // 2], times_ms[int(len(times_ms) * 0.99)]
    report.add(SECTION, Figure(f"end to end at {RATE} records/s, p50", p50, "ms"))
    met = p99 <= P99_MS_MAX
    report.add(SECTION, Figure(f"end to end at {RATE} records/s, p99", p99, "ms", bar=f"≤ {P99_MS_MAX:g}", met=met))
