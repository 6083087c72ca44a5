"""The server is killed under transactions: every record of a committed one is there once and in order, of an aborted
one none, and readers of committed records, the table, and a group's offsets all say the same.

Three kinds of producers at once: plain idempotent ones that fill `source`; copiers that take it to `copied` within
their transactions and leave some open, so that the next one of their name fences them; writers of `direct` that
commit, abort, or are silent for longer than their transactions may take. `make soak KILLS=40 SEED=3` runs the same
for longer, and judges the tables, too: that takes Spark. A failure prints its seed.
"""

import asyncio
import os
import queue
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.kafka_jars import read_by_java
from tests.harness.kafka import KafkaServer

PARTITIONS = 3
CALL_S = 60.0
# librdkafka 2.16 may never come back from sending offsets when the coordinator goes meanwhile, whatever time it is
# given (its issues 5456 and 5511): such a producer is left alone, as one whose process died is.
HUNG_S = 30.0
READ_S_MAX = 90.0
# Of a writer that is silent for longer than its transaction may take.
SHORT_MS, LONG_MS = 2_000, 60_000
QUICK = {"retry.backoff.ms": 20, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}


class Worker(threading.Thread):
    """Works until it is told to stop. What it raises is raised by `end`."""

    def __init__(self, bootstrap: str, name: str, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.bootstrap = bootstrap
        self.rng = random.Random(f"{seed}/{name}")
        self.stopping = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        # Told where the test waits for it.
        except BaseException as error:
            self._failure = error

    def work(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Raise what it ended with."""
        if self._failure is not None:
            raise self._failure

    def end(self, timeout_s: float = 120.0) -> None:
        self.stopping.set()
        self.join(timeout_s)
        self.check()
        assert not self.is_alive(), f"{self.name} never ended"

    def transactional(self, timeout_ms: int = LONG_MS) -> Producer:
        settings = {"bootstrap.servers": self.bootstrap, "transactional.id": self.name, "linger.ms": 2, **QUICK}
        producer = Producer({**settings, "transaction.timeout.ms": timeout_ms})
        again(lambda: producer.init_transactions(CALL_S))
        return producer


def again(call: Callable[[], Any]) -> Any:
    """Call until it is not told to call again: the server may be gone just now."""
    until_s = time.monotonic() + CALL_S
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > until_s:
                raise


class Hung(Exception):
    """A call that does not come back."""


def within(call: Callable[[], Any]) -> None:
    """Make a call in a thread of its own, which is left behind where it does not come back."""
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            call()
        # Raised by who waits for it.
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)

    threading.Thread(target=work, daemon=True).start()
    try:
        error = ended.get(timeout=HUNG_S)
    except queue.Empty:
        raise Hung from None
    if error is not None:
        raise error


class Filler(Worker):
    """Sends numbers to its own partition of `source`."""

    def __init__(self, bootstrap: str, partition: int, seed: str) -> None:
        super().__init__(bootstrap, f"filler-{partition}", seed)
        self.partition = partition
        self.sent = self.acked = 0

    def work(self) -> None:
        settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 2, **QUICK}
        producer = Producer({**settings, "message.timeout.ms": 120_000})
        while not self.stopping.wait(0.004):
            producer.produce("source", value=b"%d" % self.sent, partition=self.partition, on_delivery=self._told)
            self.sent += 1
            producer.poll(0)
        assert producer.flush(100) == 0

    def _told(self, error: object, message: object) -> None:
        assert error is None, error
        self.acked += 1


class Copier(Worker):
    """Takes `source` to `copied`, partition by partition, exactly once; now and then it is gone in the middle of it."""

    def __init__(self, bootstrap: str, name: str, seed: str) -> None:
        super().__init__(bootstrap, name, seed)
        # Which were left with an open transaction; each of them has to be fenced.
        self.zombies: list[Producer] = []
        self.hung: list[Producer] = []
        self.commits = 0

    def work(self) -> None:
        while not self.stopping.is_set():
            consumer = self._consumer()
            try:
                self._copy(self.transactional(), consumer)
            finally:
                consumer.close()
        for zombie in self.zombies:
            with pytest.raises(KafkaException) as caught:
                zombie.commit_transaction(CALL_S)
            assert caught.value.args[0].fatal(), caught.value

    def _consumer(self) -> Consumer:
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "copiers", "enable.auto.commit": False, **QUICK}
        consumer = Consumer(
            {
                **settings,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
            }
        )
        consumer.subscribe(["source"])
        return consumer

    def _copy(self, producer: Producer, consumer: Consumer) -> None:
        """Transaction after transaction, until one was not committed: then all begins anew from the group's offsets."""
        while not self.stopping.is_set():
            messages = [each for each in consumer.consume(self.rng.randint(1, 200), 0.2) if each.error() is None]
            if not messages:
                continue
            producer.begin_transaction()
            try:
                for message in messages:
                    producer.produce("copied", value=message.value(), partition=message.partition() or 0)
                if self.rng.random() < 0.1 and len(self.zombies) < 5:
                    producer.flush(CALL_S)
                    self.zombies.append(producer)
                    return
                places, member = _after(messages), _member(consumer)
                within(partial(again, partial(producer.send_offsets_to_transaction, places, member, CALL_S)))
                if self.rng.random() < 0.1:
                    again(lambda: producer.abort_transaction(CALL_S))
                    return
                again(lambda: producer.commit_transaction(CALL_S))
                self.commits += 1
            except Hung:
                # It may not be destroyed either: that would wait for the call.
                self.hung.append(producer)
                return
            except KafkaException as error:
                _check_expected(error.args[0])
                if error.args[0].txn_requires_abort():
                    again(lambda: producer.abort_transaction(CALL_S))
                return


def _after(messages: list[Any]) -> list[TopicPartition]:
    """Where a group goes on behind these."""
    ends: dict[int, int] = {}
    for message in messages:
        ends[message.partition()] = max(message.offset() + 1, ends.get(message.partition(), 0))
    return [TopicPartition("source", partition, end) for partition, end in ends.items()]


def _member(consumer: Consumer) -> Any:
    return consumer.consumer_group_metadata()


def _check_expected(error: KafkaError) -> None:
    """A rebalance, a fence or a time-out may end a transaction; nothing else may."""
    assert error.txn_requires_abort() or error.fatal(), error


class Direct(Worker):
    """Writes transactions of a few records to `direct`; what became of each of them is noted."""

    def __init__(self, bootstrap: str, number: int, seed: str) -> None:
        super().__init__(bootstrap, f"direct-{number}", seed)
        # By transaction: its records, by partition, in the order in which they were sent.
        self.committed: dict[str, list[tuple[int, bytes]]] = {}
        self.aborted: dict[str, list[tuple[int, bytes]]] = {}
        # Whose end nobody was told.
        self.unknown: dict[str, list[tuple[int, bytes]]] = {}
        self._number = 0
        self.overdue = 0

    def work(self) -> None:
        while not self.stopping.is_set():
            is_slow = self.rng.random() < 0.2
            producer = self.transactional(SHORT_MS if is_slow else LONG_MS)
            for _ in range(self.rng.randint(1, 30)):
                if self.stopping.is_set() or not self._write(producer, is_slow=is_slow):
                    break
            del producer

    def _write(self, producer: Producer, *, is_slow: bool) -> bool:
        """One transaction; whether the producer is of use after it."""
        name = f"{self.name}/{self._number}"
        self._number += 1
        count = self.rng.randint(1, 40)
        records = [(self.rng.randrange(PARTITIONS), f"{name}/{n}".encode()) for n in range(count)]
        aborts = self.rng.random() < 0.3
        is_over = is_slow and self.rng.random() < 0.3
        try:
            producer.begin_transaction()
            for partition, value in records:
                producer.produce("direct", value=value, partition=partition)
            if is_over and producer.flush(CALL_S) == 0:
                self.aborted[name] = records
                self.overdue += 1
                # Longer than the transaction may take: whatever comes later, the server has aborted it.
                time.sleep(SHORT_MS / 1000 + 2.0)
                with pytest.raises(KafkaException):
                    producer.commit_transaction(CALL_S)
                return False
            if aborts:
                self.aborted[name] = records
                again(lambda: producer.abort_transaction(CALL_S))
            else:
                self.unknown[name] = records
                again(lambda: producer.commit_transaction(CALL_S))
                self.committed[name] = self.unknown.pop(name)
        except KafkaException as error:
            _check_expected(error.args[0])
            if error.args[0].txn_requires_abort():
                # Not committed, as the client was told: the abort may wait for its time-out.
                self.aborted[name] = self.unknown.pop(name, records)
            return False
        return True


async def test_transactions_over_kills(tmp_path: Path) -> None:
    await soak(tmp_path, seed=1, kills=2, lake=False)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_transactions_over_many_kills(tmp_path: Path) -> None:
    seed, kills = int(os.environ.get("SEED", "1")), int(os.environ.get("KILLS", "200")) // 5 + 1
    await soak(tmp_path, seed=seed, kills=kills, lake=True)


async def soak(folder: Path, *, seed: int, kills: int, lake: bool) -> None:
    print(f"{seed=} {kills=}")
    rng = random.Random(seed)
    # Without Spark while there are kills, which would each start it anew. Segments are made all the same, and those are
    # what the consumers in the end read most of.
    settings: dict[str, Any] = {"log": {"segment_retention_s": 0.0, "flush_interval_s": 0.5}, "tail_bytes_max": 1 << 20}
    async with KafkaServer(folder, **settings) as server:
        await asyncio.to_thread(_make_topics, server)
        bootstrap = server.bootstrap
        fillers = [Filler(bootstrap, partition, str(seed)) for partition in range(PARTITIONS)]
        copiers = [Copier(bootstrap, f"copier-{number}", str(seed)) for number in range(2)]
        directs = [Direct(bootstrap, number, str(seed)) for number in range(3)]
        for worker in (*fillers, *copiers, *directs):
            worker.start()
        for _ in range(kills):
            await asyncio.sleep(rng.uniform(0.3, 2.5))
            server.kill()
            await server.start()
        await asyncio.sleep(2.0)
        for worker in (*fillers, *directs):
            await asyncio.to_thread(worker.end)
        sent = {filler.partition: filler.sent for filler in fillers}
        await asyncio.to_thread(_until_copied, server, sent, copiers)
        for worker in copiers:
            await asyncio.to_thread(worker.end)
    async with KafkaServer(folder, pipeline=lake, **settings) as server:
        found = {topic: await asyncio.to_thread(_read, server, topic) for topic in ("source", "copied", "direct")}
        groups = await asyncio.to_thread(_committed_offsets, server)
        if lake:
            for topic, records in found.items():
                count = sum(map(len, records.values()))
                by_java = await asyncio.to_thread(read_by_java, server.bootstrap, topic, count)
                assert {part: [value for _, value in rows] for part, rows in by_java.items()} == records
            assert (await server.flush())["complete"]
            assert {topic: _rows(folder, topic) for topic in found} == found
    assert all(filler.acked == filler.sent for filler in fillers)
    assert sum(copier.commits for copier in copiers) > 10
    assert found["source"] == {part: [b"%d" % number for number in range(count)] for part, count in sent.items()}
    # Each number once, in its order, though copiers died, aborted and fenced each other.
    assert found["copied"] == found["source"]
    assert groups == sent
    _judge_direct(found["direct"], directs)
    print({"source": sum(sent.values()), "commits": [copier.commits for copier in copiers]})
    print({"hung": [len(copier.hung) for copier in copiers]})
    print({each.name: (len(each.committed), len(each.aborted), each.overdue, len(each.unknown)) for each in directs})


def _judge_direct(direct: dict[int, list[bytes]], directs: list[Direct]) -> None:
    assert sum(len(each.committed) for each in directs) > 10
    found = {value for values in direct.values() for value in values}
    assert len(found) == sum(map(len, direct.values())), "a record twice"
    for each in directs:
        for name, records in each.aborted.items():
            assert not {value for _, value in records} & found, f"aborted, and there: {name}"
        for name, records in each.unknown.items():
            there = {value for _, value in records} & found
            assert not there or len(there) == len(records), f"in part: {name}"
        # A writer's transactions follow each other, so its records are in the order in which it sent them.
        ended = {**each.committed, **{name: got for name, got in each.unknown.items() if got[0][1] in found}}
        in_order = [
            record for name in sorted(ended, key=lambda name: int(name.split("/")[1])) for record in ended[name]
        ]
        for partition, values in direct.items():
            own = [value for value in values if value.startswith(f"{each.name}/".encode())]
            assert own == [value for place, value in in_order if place == partition], each.name


def _make_topics(server: KafkaServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for made in admin.create_topics([NewTopic(name, PARTITIONS) for name in ("source", "copied", "direct")]).values():
        made.result(20)


def _until_copied(server: KafkaServer, sent: dict[int, int], copiers: list[Copier]) -> None:
    until_s = time.monotonic() + READ_S_MAX
    while (found := _committed_offsets(server)) != sent:
        for copier in copiers:
            copier.check()
        assert time.monotonic() < until_s, f"copied={found} {sent=}"
        time.sleep(0.2)


def _committed_offsets(server: KafkaServer) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "copiers"})
    places = [TopicPartition("source", partition) for partition in range(PARTITIONS)]
    found = {each.partition: each.offset for each in consumer.committed(places, 20)}
    consumer.close()
    return found


def _read(server: KafkaServer, topic: str) -> dict[int, list[bytes]]:
    """Every committed record, by partition, up to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    ended: set[int] = set()
    until_s = time.monotonic() + READ_S_MAX
    while len(ended) < PARTITIONS:
        assert time.monotonic() < until_s, f"{topic}: {ended=}"
        for message in consumer.consume(5_000, 0.2):
            error, partition = message.error(), message.partition() or 0
            if error is None:
                found[partition].append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(partition)
    consumer.close()
    return found


def _rows(folder: Path, topic: str) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    place = folder / "delta" / "kafka" / topic
    for partition, value in duckdb.sql(
        f"SELECT partition, value FROM delta_scan('{place}') ORDER BY partition, \"offset\""
    ).fetchall():
        found[partition].append(value)
    return found
