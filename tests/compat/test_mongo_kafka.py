"""What a Kafka client produces, as documents and in the change streams of a Mongo client; and what both wrote."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pymongo
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from mainstem.app.config import MongoConfig
from tests.compat.mongo_server import free_port
from tests.harness.kafka import KafkaServer


def make(server: KafkaServer, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    wanted = NewTopic(topic, 1, config={name.replace("_", "."): value for name, value in config.items()})
    admin.create_topics([wanted])[topic].result(20)


def send(server: KafkaServer, topic: str, *values: Any) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
    for key, value in values:
        producer.produce(topic, key=json.dumps({"id": key}), value=json.dumps(value))
    assert producer.flush(20) == 0


def envelope(op: str, after: Any, before: Any = None) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {"ts_ms": 1}, "ts_ms": 1}


@pytest.mark.timeout(120)
async def test_envelopes_in_a_topic_are_documents_and_in_the_stream(tmp_path: Path) -> None:
    port = free_port()
    server = KafkaServer(tmp_path / "data", more={"mongo": MongoConfig(port=port)})
    async with server:
        with pymongo.MongoClient[dict[str, Any]](f"mongodb://127.0.0.1:{port}/") as client:
            await asyncio.to_thread(_both_write, server, client)


def _both_write(server: KafkaServer, client: pymongo.MongoClient[dict[str, Any]]) -> None:
    make(server, "users", value_mode="debezium")
    make(server, "events", value_mode="json")
    users = client.kafka.users
    with users.watch(full_document="updateLookup", max_await_time_ms=500) as stream:
        stream.try_next()
        send(server, "users", ("1", envelope("c", {"id": "1", "name": "ann", "age": 30})))
        created = _next(stream)
        assert (created["operationType"], created["ns"]) == ("insert", {"db": "kafka", "coll": "users"})
        users.update_one({"name": "ann"}, {"$set": {"seen": True}})
        assert _next(stream)["updateDescription"]["updatedFields"] == {"seen": True}
        send(server, "users", ("1", envelope("u", {"id": "1", "name": "ann", "age": 31})))
        changed = _next(stream)
        assert (changed["operationType"], changed["fullDocument"]["age"]) == ("update", 31)
        assert users.find_one({}, {"_id": 0}) == {"id": "1", "name": "ann", "age": 31, "seen": True}
        send(server, "users", ("1", envelope("d", None, {"id": "1"})))
        assert _next(stream)["operationType"] == "delete"
        assert users.count_documents({}) == 0
    with client.kafka.watch(max_await_time_ms=500) as stream:
        stream.try_next()
        send(server, "events", ("1", {"kind": "click", "n": 1}), ("1", {"kind": "click", "n": 2}))
        assert [_next(stream)["fullDocument"]["n"] for _ in range(2)] == [1, 2]
    assert sorted(each["n"] for each in client.kafka.events.find({"kind": "click"})) == [1, 2]


def _next(stream: Any) -> Any:
    """The next event. Fails where there is none: waiting for it without end would tell nobody why."""
    ends_s = time.monotonic() + 20
    while time.monotonic() < ends_s:
        event = stream.try_next()
        if event is not None:
            return event
    raise AssertionError("no event came")
