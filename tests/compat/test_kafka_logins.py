"""Logins at the Kafka door: passwords and tokens, and what they let somebody see."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from mainstem.admission import AuthSettings, Role, UserSettings
from mainstem.admission.keys import secret_key, sign
from mainstem.admission.scram import Mechanism, derive, to_text
from mainstem.app.config import ServerConfig
from mainstem.runtime.clock import SystemClock
from tests.harness.kafka import KafkaServer

SECRET = "0123456789abcdef0123456789abcdef"


def token(**claims: Any) -> str:
    now_s = SystemClock().now_ms() // 1000
    return sign({"sub": "tom", "exp": now_s + 600, "namespace": "*", **claims}, secret_key("k", SECRET))


def user(password: str, role: Role, tables: tuple[str, ...] = ("*",)) -> UserSettings:
    lines = [to_text(derive(password, hash_name=each.hash_name, iterations=4096)) for each in Mechanism]
    return UserSettings(tuple(lines), role, ("kafka",), tables)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    users = {
        "ann": user("pencil", Role.WRITER),
        "rob": user("rubber", Role.READER, ("open*",)),
    }
    more = {"users": users, "auth": AuthSettings(keys={"k": SECRET}), "server": ServerConfig(port=0)}
    started = KafkaServer(tmp_path_factory.mktemp("kafka-logins"), more=more, token=token(role="admin"))
    asyncio.run(started.start())
    yield started
    asyncio.run(started.stop())


def login(server: KafkaServer, mechanism: str, name: str = "", password: str = "") -> dict[str, Any]:
    given = {"sasl.username": name, "sasl.password": password} if mechanism != "OAUTHBEARER" else {}
    return {
        "bootstrap.servers": server.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "log_level": 0,
        **given,
    }


def write(settings: dict[str, Any], topic: str) -> list[Any]:
    producer = Producer({**settings, "message.timeout.ms": 5_000})
    told: list[Any] = []
    producer.produce(topic, value=b"v", on_delivery=lambda error, _: told.append(error))
    producer.flush(10)
    return told


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_lets_its_user_in_and_no_other(server: KafkaServer, mechanism: str) -> None:
    assert write(login(server, mechanism, "ann", "pencil"), "open-1") == [None]
    for name, password in (("ann", "rubber"), ("nobody", "pencil")):
        admin = AdminClient(login(server, mechanism, name, password))
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=2)


def test_a_token_lets_in(server: KafkaServer) -> None:
    def renew(_: str) -> tuple[str, float]:
        return token(role="writer"), SystemClock().now_ms() / 1000 + 600

    settings = {**login(server, "OAUTHBEARER"), "oauth_cb": renew}
    assert write(settings, "open-2") == [None]
    assert write(login(server, "PLAIN", "token", token(role="writer")), "open-2") == [None]


def test_without_a_login_nothing_is_answered(server: KafkaServer) -> None:
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0}).list_topics(timeout=2)


def test_a_reader_of_some_topics_sees_those_and_writes_none(server: KafkaServer) -> None:
    ann = login(server, "SCRAM-SHA-256", "ann", "pencil")
    rob = login(server, "SCRAM-SHA-256", "rob", "rubber")
    assert write(ann, "secret") == [None]
    assert write(ann, "open-3") == [None]
    seen = AdminClient(rob).list_topics(timeout=10).topics
    assert "open-3" in seen
    assert "secret" not in seen
    assert [error.name() for error in write(rob, "open-3")] == ["TOPIC_AUTHORIZATION_FAILED"]
    consumer = Consumer({**rob, "group.id": "rob", "auto.offset.reset": "earliest"})
    consumer.subscribe(["open-3"])
    message = consumer.poll(20)
    assert message is not None
    assert (message.error(), message.value()) == (None, b"v")
    consumer.close()


def test_nobody_takes_part_in_a_group_that_reads_what_it_may_not(server: KafkaServer) -> None:
    ann = login(server, "SCRAM-SHA-256", "ann", "pencil")
    rob = login(server, "SCRAM-SHA-256", "rob", "rubber")
    assert write(ann, "secret") == [None]
    assert write(ann, "open-4") == [None]
    owner = Consumer({**ann, "group.id": "owners"})
    owner.commit(offsets=[TopicPartition("secret", 0, 1)], asynchronous=False)
    owner.close()
    thief = Consumer({**rob, "group.id": "owners"})
    thief.subscribe(["open-4"])
    message = thief.poll(20)
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.name() == "GROUP_AUTHORIZATION_FAILED"
    thief.close()
