"""Programs that people have, unmodified, on one server: kcat, a franz-go program, a Kafka Streams application."""

import asyncio
import json
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.downloads import Artifact
from tests.compat.kafka_jars import KAFKA, KAFKA_VERSION, compile_java, jars_of, java
from tests.harness.kafka import KafkaServer

GO_PROGRAM = Path(__file__).parent / "kafka_go"
WORDS = ("ash", "birch", "cedar", "date", "elm", "fir", "gum")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    started = KafkaServer(tmp_path_factory.mktemp("kafka-programs"))
    asyncio.run(started.start())
    yield started
    asyncio.run(started.stop())


def run(*command: str, given: bytes = b"", folder: Path | None = None) -> str:
    done = subprocess.run(command, input=given, cwd=folder, capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, (done.stdout[-2000:] + done.stderr[-2000:]).decode()
    return done.stdout.decode()


# kcat


def test_kcat_writes_reads_lists_and_shares(server: KafkaServer) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("there is no kcat on this machine (Debian: apt-get install kcat)")
    place = ("kcat", "-b", server.bootstrap)
    lines = [f"k{number}:value {number}" for number in range(50)]
    run(*place, "-P", "-t", "cats", "-K:", "-H", "from=kcat", "-z", "lz4", given="\n".join(lines).encode())
    said = run(*place, "-C", "-t", "cats", "-o", "beginning", "-e", "-q", "-f", "%o %k:%s %h\n")
    assert said.splitlines() == [f"{offset} {line} from=kcat" for offset, line in enumerate(lines)]
    assert run(*place, "-C", "-t", "cats", "-o", "-2", "-e", "-q").splitlines() == ["value 48", "value 49"]
    known = json.loads(run(*place, "-L", "-J"))
    assert [len(each["partitions"]) for each in known["topics"] if each["topic"] == "cats"] == [1]
    assert run(*place, "-Q", "-t", "cats:0:0").split() == ["cats", "[0]", "offset", "0"]
    shared = run(*place, "-G", "cat-group", "-X", "auto.offset.reset=earliest", "-e", "-q", "-c", "50", "cats")
    assert len(shared.splitlines()) == 50


# franz-go


def test_a_franz_go_program_writes_copies_and_administers(server: KafkaServer, tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("there is no Go on this machine: the franz-go program cannot be built")
    program = tmp_path / "program"
    run("go", "build", "-o", str(program), ".", folder=GO_PROGRAM)
    said = json.loads(run(str(program), server.bootstrap))
    assert said == {"written": 200, "found": list(range(200)), "lag": 0, "end": 200}


# Kafka Streams


def _streams_jars() -> Path:
    whole = Artifact(KAFKA, "kafka-streams", KAFKA_VERSION, is_whole=True)
    return jars_of(f"kafka-streams-{KAFKA_VERSION}", whole, Artifact("org.slf4j", "slf4j-simple", "1.7.36"))


class Counts:
    """The counts that a Streams application has committed, as they come."""

    def __init__(self, server: KafkaServer) -> None:
        self.found: dict[str, list[int]] = {word: [] for word in WORDS}
        self._consumer = Consumer(
            {
                "bootstrap.servers": server.bootstrap,
                "group.id": "counts",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        self._consumer.subscribe(["counts"])

    def wait_for(self, total: int, log: Path) -> None:
        until_s = time.monotonic() + 90
        while sum(map(len, self.found.values())) < total:
            assert time.monotonic() < until_s, log.read_text()[-3000:]
            message = self._consumer.poll(0.5)
            if message is not None and message.error() is None:
                self.found[(message.key() or b"").decode()].append(int(message.value() or b""))

    def close(self) -> None:
        self._consumer.close()


def test_a_streams_application_counts_exactly_once_over_a_kill(server: KafkaServer, tmp_path: Path) -> None:
    """The second run has nothing of the first but what the server has: its offsets, its open transaction to be aborted,
    and the changelog from which the store is made again."""
    jars = _streams_jars()
    classes = compile_java("CountByKey.java", jars, tmp_path / "classes")
    log = tmp_path / "streams.log"
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for made in admin.create_topics([NewTopic("words", 2), NewTopic("counts", 2)]).values():
        made.result(20)
    counts = Counts(server)
    _write(server, 0, 300)
    with java([jars, classes], "CountByKey", server.bootstrap, str(tmp_path / "first"), log=log) as first:
        counts.wait_for(300, log)
        _write(server, 300, 1_000)
        counts.wait_for(301, log)
        first.kill()
        first.wait()
    with java([jars, classes], "CountByKey", server.bootstrap, str(tmp_path / "second"), log=log):
        counts.wait_for(1_000, log)
    counts.close()
    wanted = Counter(WORDS[number % len(WORDS)] for number in range(1_000))
    assert counts.found == {word: list(range(1, wanted[word] + 1)) for word in WORDS}


def _write(server: KafkaServer, first: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(first, end):
        producer.produce("words", value=WORDS[number % len(WORDS)].encode(), partition=number % 2)
    assert producer.flush(20) == 0
