"""Kafka's own Java tools, from Maven: the verifiable clients, the transactional copier, and the command for groups."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.downloads import Artifact
from tests.compat.kafka_jars import JVM, KAFKA, jars_of
from tests.compat.kafka_jars import KAFKA_VERSION as VERSION
from tests.harness.kafka import KafkaServer

_JACKSON = "com.fasterxml.jackson"
JARS = (
    *(Artifact(KAFKA, name, VERSION) for name in ("kafka-tools", "kafka-clients", "kafka-server-common")),
    *(Artifact(KAFKA, name, VERSION) for name in ("kafka-tools-api", "kafka-group-coordinator-api")),
    Artifact(KAFKA, "kafka-group-coordinator", VERSION),
    Artifact("net.sourceforge.argparse4j", "argparse4j", "0.7.0"),
    Artifact("net.sf.jopt-simple", "jopt-simple", "5.0.4"),
    *(Artifact(f"{_JACKSON}.core", f"jackson-{name}", "2.19.0") for name in ("core", "databind", "annotations")),
    Artifact(f"{_JACKSON}.dataformat", "jackson-dataformat-csv", "2.19.0"),
    Artifact(f"{_JACKSON}.datatype", "jackson-datatype-jdk8", "2.19.0"),
    Artifact("com.google.re2j", "re2j", "1.8"),
    Artifact("org.slf4j", "slf4j-api", "1.7.36"),
    Artifact("org.slf4j", "slf4j-nop", "1.7.36"),
)


@pytest.fixture(scope="module")
def jars() -> Path:
    return jars_of(f"kafka-tools-{VERSION}", *JARS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    started = KafkaServer(tmp_path_factory.mktemp("kafka-java"))
    asyncio.run(started.start())
    admin = AdminClient({"bootstrap.servers": started.bootstrap})
    # The copier writes to the partition that it read from.
    for made in admin.create_topics([NewTopic("java", 3), NewTopic("copy", 3)]).values():
        made.result(20)
    yield started
    asyncio.run(started.stop())


def run(jars: Path, tool: str, *words: str) -> str:
    command = ["java", *JVM, "-cp", f"{jars}/*", f"org.apache.kafka.tools.{tool}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_the_verifiable_clients_a_transactional_copy_and_the_groups_command(jars: Path, server: KafkaServer) -> None:
    place = ("--bootstrap-server", server.bootstrap)
    said = lines(run(jars, "VerifiableProducer", *place, "--topic", "java", "--max-messages", "3000", "--acks", "-1"))
    assert said[-1]["name"] == "tool_data"
    assert said[-1]["acked"] == 3000

    for protocol in ("classic", "consumer"):
        group = f"java-{protocol}"
        words = ("--topic", "java", "--group-id", group, "--group-protocol", protocol, "--reset-policy", "earliest")
        told = lines(run(jars, "VerifiableConsumer", *place, *words, "--max-messages", "3000"))
        assert sum(each["count"] for each in told if each["name"] == "records_consumed") == 3000
        assert all(each["success"] for each in told if each["name"] == "offsets_committed")

    topics = ("--input-topic", "java", "--input-partition", "0", "--output-topic", "copy", "--group-mode")
    copied = run(
        jars,
        "TransactionalMessageCopier",
        "--broker-list",
        server.bootstrap,
        *topics,
        "--transactional-id",
        "java-copy",
        "--consumer-group",
        "java-copy",
        "--transaction-size",
        "100",
        "--max-messages",
        "500",
        "--enable-random-aborts",
    )
    assert lines(copied)[-1]["consumed"] >= 500
    # Transactions of version 2: each end gave the producer its next epoch.
    described = run(jars, "TransactionsCommand", *place, "describe", "--transactional-id", "java-copy")
    producer = dict(zip(*(row.split() for row in described.strip().splitlines()[-2:]), strict=False))
    assert int(producer["ProducerEpoch"]) >= 5

    command = "consumer.group.ConsumerGroupCommand"
    listed = run(jars, command, *place, "--list").split()
    assert {"java-classic", "java-consumer", "java-copy"} <= set(listed)
    described = run(jars, command, *place, "--describe", "--group", "java-classic")
    assert "java-classic" in described
    reset = ("--reset-offsets", "--group", "java-classic", "--topic", "java", "--to-earliest", "--execute")
    run(jars, command, *place, *reset)
    after = run(jars, command, *place, "--describe", "--group", "java-classic")
    assert all(row.split()[3] == "0" for row in after.splitlines() if row.startswith("java-classic"))
    run(jars, command, *place, "--delete", "--group", "java-classic")
