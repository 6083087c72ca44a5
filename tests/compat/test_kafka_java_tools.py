"""Kafka's own Java tools, from Maven: the verifiable clients, the transactional copier, and the command for groups."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.kafka_jars import run_tool, tools_jars
from tests.harness.kafka import KafkaServer


@pytest.fixture(scope="module")
def jars() -> Path:
    return tools_jars()


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


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_the_verifiable_clients_a_transactional_copy_and_the_groups_command(jars: Path, server: KafkaServer) -> None:
    place = ("--bootstrap-server", server.bootstrap)
    said = lines(
        run_tool(jars, "VerifiableProducer", *place, "--topic", "java", "--max-messages", "3000", "--acks", "-1")
    )
    assert said[-1]["name"] == "tool_data"
    assert said[-1]["acked"] == 3000

    for protocol in ("classic", "consumer"):
        group = f"java-{protocol}"
        words = ("--topic", "java", "--group-id", group, "--group-protocol", protocol, "--reset-policy", "earliest")
        told = lines(run_tool(jars, "VerifiableConsumer", *place, *words, "--max-messages", "3000"))
        assert sum(each["count"] for each in told if each["name"] == "records_consumed") == 3000
        assert all(each["success"] for each in told if each["name"] == "offsets_committed")

    topics = ("--input-topic", "java", "--input-partition", "0", "--output-topic", "copy", "--group-mode")
    copied = run_tool(
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
    described = run_tool(jars, "TransactionsCommand", *place, "describe", "--transactional-id", "java-copy")
    producer = dict(zip(*(row.split() for row in described.strip().splitlines()[-2:]), strict=False))
    assert int(producer["ProducerEpoch"]) >= 5

    command = "consumer.group.ConsumerGroupCommand"
    listed = run_tool(jars, command, *place, "--list").split()
    assert {"java-classic", "java-consumer", "java-copy"} <= set(listed)
    described = run_tool(jars, command, *place, "--describe", "--group", "java-classic")
    assert "java-classic" in described
    reset = ("--reset-offsets", "--group", "java-classic", "--topic", "java", "--to-earliest", "--execute")
    run_tool(jars, command, *place, *reset)
    after = run_tool(jars, command, *place, "--describe", "--group", "java-classic")
    assert all(row.split()[3] == "0" for row in after.splitlines() if row.startswith("java-classic"))
    run_tool(jars, command, *place, "--delete", "--group", "java-classic")
