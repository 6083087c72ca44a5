"""From a producer's acknowledgement to a row of the topic's Delta table, at a steady rate."""

import asyncio
import time
from pathlib import Path

import duckdb

from benchmarks import kafka_load
from benchmarks.endtoend import until_running
from benchmarks.report import Figure, Report, percentile
from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.kafka.config import KafkaConfig
from mainstem.app.process import ServerProcess, reserve_port

SECTION = "kafkarows"
RATE = 1_000
FLUSH_INTERVAL_S = 0.5
SECONDS, SECONDS_SMALL = 30.0, 10.0


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Send on a timetable, and look into the table again and again: which offset is in it by when."""
    with reserve_port("127.0.0.1") as place:
        port = place.getsockname()[1]
        config = Config(
            server=ServerConfig(port=0),
            log=LogConfig(flush_interval_s=FLUSH_INTERVAL_S),
            kafka=KafkaConfig(enabled=True, port=port),
        )
        async with ServerProcess(folder / "data", config) as server:
            await until_running(server)
            bootstrap = f"127.0.0.1:{port}"
            await asyncio.to_thread(kafka_load.make_topic, bootstrap, "fresh", 1)
            await asyncio.to_thread(_steady, bootstrap, 100)
            await server.flush(120)
            table = folder / "data" / "delta" / "kafka" / "fresh"
            sending = asyncio.create_task(
                asyncio.to_thread(_steady, bootstrap, int(RATE * (SECONDS_SMALL if small else SECONDS)))
            )
            waits_s = await asyncio.to_thread(_watch, table, sending)
            await sending
    note = f"flush interval {FLUSH_INTERVAL_S} s, {RATE:,} records/s"
    for percent in (50, 95):
        name = f"a record is a row of the Delta table, p{percent}"
        report.add(SECTION, Figure(name, percentile(waits_s, percent), "s", note=note))


def _steady(bootstrap: str, count: int) -> int:
    """Send so many records at the rate, each with the time at which it was sent: how many there are."""
    producer = kafka_load.make_producer(bootstrap)
    began_s = time.perf_counter()
    for number in range(count):
        while (left_s := began_s + number / RATE - time.perf_counter()) > 0:
            producer.poll(min(left_s, 0.002))
        producer.produce("fresh", value=time.time_ns().to_bytes(8, "big") + bytes(92), partition=0)
    producer.flush(30)
    return count


def _watch(table: Path, sending: "asyncio.Task[int]") -> list[float]:
    """Seconds from `produce` to the table's version that has the record, as a reader sees it."""
    waits_s: list[float] = []
    seen = 100
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s:
        is_last = sending.done()
        found = duckdb.sql(
            f'SELECT "offset", value FROM delta_scan(\'{table}\') WHERE "offset" >= {seen} ORDER BY 1'
        ).fetchall()
        now_ns = time.time_ns()
        waits_s += [(now_ns - int.from_bytes(value[:8], "big")) / 1e9 for _, value in found]
        seen += len(found)
        if is_last and seen >= 100 + sending.result():
            return waits_s
        time.sleep(0.02)
    raise RuntimeError(f"only {seen} records were rows within two minutes")
