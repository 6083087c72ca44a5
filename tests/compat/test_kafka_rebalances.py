"""Groups of real clients in which members come and go all the time: who stays is never told that nobody knows it.

Five groups at once: librdkafka's eager, cooperative and newer protocol, and Java's consumer with both protocols. What
each client is told is read from its own connection.
"""

import json
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from mainstem.feeds.groups.settings import GroupSettings
from tests.compat.kafka_jars import JVM, tools_jars
from tests.harness.kafka_told import Told, told_server

PARTITIONS = 6
CHURN_S = 8.0
CLASSIC = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 200}
PROTOCOLS: dict[str, dict[str, object]] = {
    "eager": {"partition.assignment.strategy": "range", **CLASSIC},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky", **CLASSIC},
    "newer": {"group.protocol": "consumer"},
    # Those that come and go beside Java's consumers.
    "java-classic": {"partition.assignment.strategy": "range", **CLASSIC},
    "java-consumer": {"group.protocol": "consumer"},
}
# While members come and go these are no fault: join again, or commit again behind the next assignment.
EXPECTED = {KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.STALE_MEMBER_EPOCH}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[str, Told]]:
    """Where clients connect, and what they are told."""
    groups = GroupSettings(rebalance_delay_ms=50, heartbeat_interval_ms=200)
    with told_server(tmp_path, groups=groups) as (bootstrap, told):
        yield bootstrap, told


class Member(threading.Thread):
    """A consumer of a group that polls, and commits what it got at once, until it is told to go."""

    def __init__(self, bootstrap: str, group: str, name: str) -> None:
        super().__init__(name=f"{group}/{name}", daemon=True)
        self.values: set[int] = set()
        self.lost = 0
        self.faults: list[object] = []
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": self.name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
                **PROTOCOLS[group],
            }
        )
        self.start()

    def run(self) -> None:
        self._consumer.subscribe(["busy"], on_lost=self._on_lost)
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            if message is None:
                continue
            if message.error() is not None:
                self.faults.append(message.error())
                continue
            self.values.add(int(message.value() or b""))
            try:
                self._consumer.commit(message=message, asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() not in EXPECTED:
                    self.faults.append(error.args[0])
        self._consumer.close()

    def _on_lost(self, consumer: Consumer, partitions: object) -> None:
        self.lost += 1

    def end(self) -> None:
        self._stopping.set()
        self.join(30)
        assert not self.is_alive(), f"{self.name} never ended"


def test_who_stays_in_a_group_is_never_unknown(place: tuple[str, Told], tmp_path: Path) -> None:
    bootstrap, told = place
    jars = tools_jars()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("busy", PARTITIONS)])["busy"].result(20)
    steady = [Member(bootstrap, group, "steady") for group in PROTOCOLS if not group.startswith("java")]
    with ExitStack() as stack:
        java = [Java(stack, jars, bootstrap, kind, tmp_path / f"{kind}.txt") for kind in ("classic", "consumer")]
        # Everybody is in before others come and go.
        wait_for(lambda: all(each.is_in() for each in java), "Java's consumers")
        churns = [threading.Thread(target=churn, args=(bootstrap, group), daemon=True) for group in PROTOCOLS]
        for thread in churns:
            thread.start()
        sent = send_for(bootstrap, CHURN_S)
        for thread in churns:
            thread.join(60)
        # Whoever stayed has all partitions now, and gets what comes next.
        last = send(bootstrap, range(sent, sent + 60))
        wait_for(lambda: all(set(range(sent, last)) <= member.values for member in steady), "the last records")
        wait_for(lambda: all(set(range(sent, last)) <= each.values() for each in java), "Java's last records")
    for member in steady:
        member.end()
        assert member.faults == [], member.name
        assert member.lost == 0, (member.name, told.all_of(member.name))
        assert told.count(member.name, ErrorCode.unknown_member_id) == 0, told.all_of(member.name)
    for each in java:
        assert told.count(each.client, ErrorCode.unknown_member_id) == 0, told.all_of(each.client)
    # They did rebalance.
    assert told.count("eager/steady", ErrorCode.rebalance_in_progress) > 3
    assert told.count("java-classic/steady", ErrorCode.rebalance_in_progress) > 3


def churn(bootstrap: str, group: str) -> None:
    """Members that come at the same time, stay for a moment, and go while others come."""
    rng = random.Random(group)
    until_s = time.monotonic() + CHURN_S
    members: list[Member] = []
    number = 0
    while time.monotonic() < until_s:
        if len(members) < 4 and rng.random() < 0.6:
            members += [Member(bootstrap, group, f"guest-{number + n}") for n in range(rng.randint(1, 2))]
            number += 2
        elif members:
            members.pop(rng.randrange(len(members))).end()
        time.sleep(rng.uniform(0.05, 0.5))
    for member in members:
        member.end()


class Java:
    """Kafka's VerifiableConsumer, which tells what it does."""

    def __init__(self, stack: ExitStack, jars: Path, bootstrap: str, kind: str, out: Path) -> None:
        self._out = out
        self.client = f"java-{kind}/steady"
        settings = out.with_suffix(".properties")
        beats = "heartbeat.interval.ms=200\n" if kind == "classic" else ""
        settings.write_text(f"client.id={self.client}\n{beats}")
        tool = ["java", *JVM, "-cp", f"{jars}/*", "org.apache.kafka.tools.VerifiableConsumer"]
        words = ["--bootstrap-server", bootstrap, "--topic", "busy", "--group-id", f"java-{kind}", "--verbose"]
        words += ["--group-protocol", kind, "--reset-policy", "earliest", "--command-config", str(settings)]
        if kind == "classic":
            words += ["--session-timeout", "6000"]
        with out.open("wb") as said:
            process = subprocess.Popen([*tool, *words], stdout=said, stderr=subprocess.STDOUT)
        stack.callback(process.wait)
        stack.callback(process.kill)

    def _events(self) -> list[dict[str, object]]:
        found = []
        for line in self._out.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                # The last line may not be whole yet.
                continue
        return found

    def is_in(self) -> bool:
        """Whether it has partitions."""
        return any(each["name"] == "partitions_assigned" and each["partitions"] for each in self._events())

    def values(self) -> set[int]:
        """What it was given."""
        return {int(str(each["value"])) for each in self._events() if each["name"] == "record_data"}


def send_for(bootstrap: str, seconds: float) -> int:
    """Numbers for so long: how many."""
    count = 0
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        count = send(bootstrap, range(count, count + 30))
        time.sleep(0.5)
    return count


def send(bootstrap: str, numbers: range) -> int:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce("busy", value=b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(20) == 0
    return numbers.stop


def wait_for(check: Callable[[], bool], what: str, timeout_s: float = 40.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < until_s, f"never came: {what}"
        time.sleep(0.1)
