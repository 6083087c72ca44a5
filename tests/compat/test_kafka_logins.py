"""Logins at the Kafka door: passwords and tokens, and what they let somebody see."""

import asyncio
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from mainstem.admission import AuthSettings, Role, UserSettings
from mainstem.admission.keys import secret_key, sign
from mainstem.admission.quotas import QuotaSettings, QuotasSettings
from mainstem.admission.scram import Mechanism, derive, to_text
from mainstem.app.config import ServerConfig
from mainstem.runtime.clock import SystemClock
from tests.harness.kafka import KafkaServer

SECRET = "0123456789abcdef0123456789abcdef"
QUOTA_BYTES = 100_000


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
        "slow": user("snail", Role.WRITER),
    }
    quotas = QuotasSettings(
        users={"slow": QuotaSettings(produce_bytes_per_s=QUOTA_BYTES, fetch_bytes_per_s=QUOTA_BYTES, requests_per_s=50)}
    )
    more = {"users": users, "auth": AuthSettings(keys={"k": SECRET}), "server": ServerConfig(port=0)}
    folder = tmp_path_factory.mktemp("kafka-logins")
    started = KafkaServer(folder, more=more, token=token(role="admin"), quotas=quotas)
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


def renewed(_: str) -> tuple[str, float]:
    return token(role="writer"), SystemClock().now_ms() / 1000 + 600


def test_a_token_lets_in(server: KafkaServer) -> None:
    settings = {**login(server, "OAUTHBEARER"), "oauth_cb": renewed}
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


# Quotas


def timed_write(settings: dict[str, Any], topic: str, records: int, size: int) -> tuple[float, float]:
    """How long it took, and the longest that the server asked for in between, in seconds."""
    asked_ms: list[float] = [0.0]

    def heard(text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        asked_ms.extend(broker["throttle"]["max"] for broker in brokers if "throttle" in broker)

    producer = Producer({**settings, "statistics.interval.ms": 200, "stats_cb": heard, "linger.ms": 0})
    began_s = time.monotonic()
    for _ in range(records):
        producer.produce(topic, value=b"x" * size)
        producer.flush(30)
    producer.poll(0.5)
    return time.monotonic() - began_s, max(asked_ms) / 1000


def test_who_is_past_a_quota_is_slowed_down_and_told_so(server: KafkaServer) -> None:
    slow = login(server, "SCRAM-SHA-256", "slow", "snail")
    ann = login(server, "SCRAM-SHA-256", "ann", "pencil")
    # Two seconds' worth of bytes, of which one goes at once; nobody waits for what the last answer asks for.
    took_s, asked_s = timed_write(slow, "open-5", 8, QUOTA_BYTES // 4)
    assert took_s >= 0.7
    assert asked_s > 0
    _, asked_s = timed_write(ann, "open-5", 4, QUOTA_BYTES // 4)
    assert asked_s == 0
    consumer = Consumer(
        {**slow, "group.id": "slow", "auto.offset.reset": "earliest", "fetch.message.max.bytes": 30_000}
    )
    consumer.subscribe(["open-5"])
    found = 0
    began_s = time.monotonic()
    while found < 12 and time.monotonic() < began_s + 60:
        message = consumer.poll(1)
        found += message is not None and message.error() is None
    took_s = time.monotonic() - began_s
    consumer.close()
    assert found == 12
    assert took_s >= 12 / 4 - 1.3
    said = httpx.get(f"{server.url}/metrics", headers=server.headers).text
    for quota in ("produce_bytes_per_s", "fetch_bytes_per_s"):
        (line,) = [
            each for each in said.splitlines() if each.startswith(f'mainstem_kafka_throttled_total{{quota="{quota}')
        ]
        assert float(line.split()[-1]) > 0


# TLS


async def test_logins_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    more = {
        "users": {"ann": user("pencil", Role.WRITER)},
        "auth": AuthSettings(keys={"k": SECRET}),
        "server": ServerConfig(port=0, tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem")),
    }
    async with KafkaServer(tmp_path / "data", more=more, token=token(role="admin")) as server:
        encrypted = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(tmp_path / "ca.pem")}
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            settings = {**login(server, mechanism, "ann", "pencil"), **encrypted}
            assert await asyncio.to_thread(write, settings, "secure") == [None]
        bearer = {**login(server, "OAUTHBEARER"), **encrypted, "oauth_cb": renewed}
        assert await asyncio.to_thread(write, bearer, "secure") == [None]
        consumer = Consumer({**settings, "group.id": "secure", "auto.offset.reset": "earliest"})
        consumer.subscribe(["secure"])
        message = await asyncio.to_thread(consumer.poll, 20)
        assert message is not None
        assert (message.error(), message.value()) == (None, b"v")
        consumer.close()
        # Without TLS, without the right authority: not a word.
        plain = login(server, "PLAIN", "ann", "pencil")
        stranger = {**settings, "ssl.ca.location": ssl.get_default_verify_paths().openssl_cafile}
        for wrong in (plain, stranger):
            with pytest.raises(KafkaException):
                await asyncio.to_thread(AdminClient(wrong).list_topics, None, 2)
