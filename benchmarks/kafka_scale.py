"""The Kafka door with much of everything: 1,000 partitions, 200 groups, 5,000 idle connections, a consumer far behind.

Partitions and groups beside Apache Kafka in the same run; connections and the consumer beside the same server without.
"""

import asyncio
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks import kafka_load
from benchmarks.kafka import BACKLOG_BYTES_MAX
from benchmarks.report import Figure, Report, percentile
from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.kafka.config import KafkaConfig
from mainstem.app.process import ServerProcess, reserve_port
from mainstem.runtime.descriptors import raise_descriptor_limit
from mainstem.wire.kafka.messages import encode_request
from tests.harness.apachekafka import VERSION, ApacheKafka

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized
    from multiprocessing.synchronize import Event

SECTION = "kafkascale"
PARTITIONS, RECORDS_EACH = 1_000, 20
GROUPS, COMMITS = 200, 5
CONNECTIONS, CONNECTIONS_SMALL = 5_000, 1_000
OPENING_AT_ONCE = 64
# What an idle connection may cost: a tenth of a megabyte would make 5,000 of them half a gigabyte.
KIB_MAX = 64.0
RATE, TAIL_S, TAIL_S_SMALL = 1_000, 8.0, 4.0
P99_MS_MAX = 25.0
# How far behind the consumer is that reads while others are at the tail.
BEHIND_BYTES, BEHIND_BYTES_SMALL = 10 << 30, 200 << 20
PEER = f"Kafka {VERSION}, default"
_API_VERSIONS = 18


class Scale(NamedTuple):
    """Seconds and MiB of one server."""

    create_s: float
    metadata_s: float
    produce_s: float
    consume_s: float
    partitions_mib: float
    join_s: float
    commit_s: float
    groups_mib: float


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Ours beside Kafka, then ours beside itself."""
    raise_descriptor_limit()
    with reserve_port("127.0.0.1") as place:
        async with ServerProcess(folder / "data", _config(place.getsockname()[1])) as server:
            bootstrap = f"127.0.0.1:{place.getsockname()[1]}"
            before_mib = _mib(server.pid)
            ours = await asyncio.to_thread(_scale, bootstrap, server.pid)
            await _idle(report, bootstrap, server.pid, CONNECTIONS_SMALL if small else CONNECTIONS)
    with ApacheKafka(folder / "peer") as peer:
        theirs = await asyncio.to_thread(_scale, peer.bootstrap, peer.pid)
    _add(report, ours, theirs, before_mib)
    await _behind(report, folder / "behind", small=small)


def _add(report: Report, ours: Scale, theirs: Scale, before_mib: float) -> None:
    named = {
        "create_s": (f"create {PARTITIONS:,} partitions", "s"),
        "metadata_s": (f"metadata of {PARTITIONS:,} partitions", "s"),
        "produce_s": (f"produce {RECORDS_EACH} records to each of them", "s"),
        "consume_s": ("consume all of that", "s"),
        "partitions_mib": ("memory after that", "MiB"),
        "join_s": (f"{GROUPS} groups of one member join", "s"),
        "commit_s": (f"each commits {COMMITS} times", "s"),
        "groups_mib": ("memory after that, groups joined", "MiB"),
    }
    for field, (name, unit) in named.items():
        note = f"{before_mib:.0f} MiB at the start" if unit == "MiB" else None
        report.add(SECTION, Figure(name, getattr(ours, field), unit, getattr(theirs, field), PEER, note=note))


def _config(port: int, tail_bytes_max: int = 128 << 20, kept_bytes_max: int = 2 << 30) -> Config:
    return Config(
        server=ServerConfig(port=0),
        pipeline=PipelineConfig(enabled=False),
        log=LogConfig(flush_interval_s=1.0, buffer_bytes_max=BACKLOG_BYTES_MAX),
        kafka=KafkaConfig(enabled=True, port=port, tail_bytes_max=tail_bytes_max, kept_bytes_max=kept_bytes_max),
    )


def _mib(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / (1 << 20)


def _scale(bootstrap: str, pid: int) -> Scale:
    create_s = _timed(lambda: kafka_load.make_topic(bootstrap, "many", PARTITIONS))
    metadata_s = _timed(lambda: AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60))
    producer = kafka_load.make_producer(bootstrap)
    count = PARTITIONS * RECORDS_EACH

    def produce() -> None:
        for number in range(count):
            producer.produce("many", value=bytes(100), partition=number % PARTITIONS)
            producer.poll(0)
        if producer.flush(kafka_load.TOOK_S_MAX):
            raise RuntimeError("not everything was acknowledged")

    produce_s = _timed(produce)
    consume_s = kafka_load.consume(bootstrap, "many", count, PARTITIONS)
    partitions_mib = _mib(pid)
    kafka_load.make_topic(bootstrap, "grouped", 1)
    with _groups(bootstrap) as (join_s, members):
        commit_s = _timed(lambda: _commit(members))
        groups_mib = _mib(pid)
    return Scale(create_s, metadata_s, produce_s, consume_s, partitions_mib, join_s, commit_s, groups_mib)


def _timed(work: object) -> float:
    began_s = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - began_s


@contextmanager
def _groups(bootstrap: str) -> Iterator[tuple[float, list[Consumer]]]:
    members: list[Consumer] = []
    began_s = time.perf_counter()
    try:
        for number in range(GROUPS):
            member = Consumer(
                {"bootstrap.servers": bootstrap, "group.id": f"group-{number}", "enable.auto.commit": False}
            )
            members.append(member)
            member.subscribe(["grouped"])
        waiting = list(members)
        while waiting:
            for member in waiting:
                member.poll(0)
            waiting = [member for member in waiting if not member.assignment()]
            time.sleep(0.005)
            if time.perf_counter() - began_s > kafka_load.TOOK_S_MAX:
                raise RuntimeError(f"{len(waiting)} of {GROUPS} groups did not join")
        yield time.perf_counter() - began_s, members
    finally:
        for member in members:
            member.close()


def _commit(members: list[Consumer]) -> None:
    for number in range(COMMITS):
        for member in members:
            member.commit(offsets=[TopicPartition("grouped", 0, number)], asynchronous=False)


async def _idle(report: Report, bootstrap: str, pid: int, count: int) -> None:
    host, _, port = bootstrap.partition(":")
    hello = encode_request(_API_VERSIONS, 0, 1, {})
    opening = asyncio.Semaphore(OPENING_AT_ONCE)

    async def connect() -> asyncio.StreamWriter:
        async with opening:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(hello)
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            return writer

    before_mib = _mib(pid)
    writers = await asyncio.gather(*[connect() for _ in range(count)])
    kib = (_mib(pid) - before_mib) * 1024 / count
    metadata_s = await asyncio.to_thread(
        _timed, lambda: AdminClient({"bootstrap.servers": bootstrap}).list_topics("grouped", timeout=60)
    )
    for writer in writers:
        writer.close()
    note = f"{count:,} connections that asked for ApiVersions; metadata beside them in {metadata_s * 1000:.0f} ms"
    bar = f"≤ {KIB_MAX:g} KiB"
    report.add(SECTION, Figure("memory of an idle connection", kib, "KiB", bar=bar, met=kib <= KIB_MAX, note=note))


async def _behind(report: Report, folder: Path, *, small: bool) -> None:
    """Consumers at the tail, alone and beside one that reads everything that only segments have."""
    seconds = TAIL_S_SMALL if small else TAIL_S
    with reserve_port("127.0.0.1") as place:
        bootstrap = f"127.0.0.1:{place.getsockname()[1]}"
        # Nothing of the backlog is in memory or in files of frames.
        config = _config(place.getsockname()[1], tail_bytes_max=1 << 20, kept_bytes_max=0)
        async with ServerProcess(folder, config) as server:
            await asyncio.to_thread(kafka_load.make_topic, bootstrap, "backlog")
            count, wanted = 0, (BEHIND_BYTES_SMALL if small else BEHIND_BYTES) // 1_024
            while count < wanted:
                count += (await asyncio.to_thread(kafka_load.produce, bootstrap, "backlog", 1_024, 2.0))[0]
            await server.flush(0)
            for topic in ("alone", "beside"):
                await asyncio.to_thread(kafka_load.make_topic, bootstrap, topic)
            # What the system still has to write of the backlog is not part of the way of a record at this rate.
            await asyncio.to_thread(os.sync)
            alone = await asyncio.to_thread(kafka_load.end_to_end, bootstrap, "alone", RATE, seconds)
            reading = _Reading(bootstrap, count)
            try:
                await asyncio.to_thread(reading.wait)
                beside = await asyncio.to_thread(kafka_load.end_to_end, bootstrap, "beside", RATE, seconds)
            finally:
                read, took_s = reading.stop()
    note = f"{count:,} records of 1 KiB behind; it read {read / took_s:,.0f} records/s meanwhile"
    for percent in (50, 99):
        value = percentile(beside, percent)
        bar, met = (f"≤ {P99_MS_MAX:g} ms", value <= P99_MS_MAX) if percent == 99 else (None, None)
        name = f"at the tail beside a consumer that is behind, {RATE:,} records/s, p{percent}"
        report.add(SECTION, Figure(name, value, "ms", percentile(alone, percent), "without it", bar, met, note))


class _Reading:
    """A consumer that reads a topic from the start, again and again, until it is told to stop. In a process of its own:
    what it costs is not to be taken from the client that measures."""

    def __init__(self, bootstrap: str, count: int) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._found = spawning.Value("q", 0)
        self._is_over = spawning.Event()
        self._began_s = time.perf_counter()
        self._process = spawning.Process(target=_read_on, args=(bootstrap, count, self._found, self._is_over))
        self._process.start()

    def wait(self) -> None:
        """Until it reads: the start of its process is none of the server's work."""
        until_s = time.perf_counter() + kafka_load.TOOK_S_MAX
        while not self._found.value:
            time.sleep(0.01)
            if time.perf_counter() > until_s:
                raise RuntimeError("the consumer that is behind read nothing")
        self._began_s = time.perf_counter()

    def stop(self) -> tuple[int, float]:
        self._is_over.set()
        self._process.join(30)
        return self._found.value, time.perf_counter() - self._began_s


def _read_on(bootstrap: str, count: int, found: "Synchronized[int]", is_over: "Event") -> None:
    consumer = kafka_load.make_consumer(bootstrap, **{"fetch.message.max.bytes": 1 << 20})
    places = [TopicPartition("backlog", partition, 0) for partition in range(kafka_load.PARTITIONS)]
    while not is_over.is_set():
        consumer.assign(places)
        until = found.value + count
        while found.value < until and not is_over.is_set():
            found.value += len(consumer.consume(1_000, 0.2))
    consumer.close()
