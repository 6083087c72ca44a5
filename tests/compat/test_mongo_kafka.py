"""What a Kafka client produces, as documents and in the change streams of a Mongo client; and what both wrote."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
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


def send(server: KafkaServer, topic: str, *values: Any, idempotent: bool = True) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": idempotent})
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


@pytest.mark.timeout(120)
async def test_a_record_that_is_a_row_in_two_tables_is_two_events_of_a_database(tmp_path: Path) -> None:
    """Told as they come, read from frames after a restart, and read from segments: the same, from every token on."""
    port = free_port()
    # Sealed by the flush below, and not before.
    server = KafkaServer(tmp_path / "data", log={"flush_interval_s": 3600}, more={"mongo": MongoConfig(port=port)})
    async with server:
        begin, told = await asyncio.to_thread(_told_twice, server, port)
        for client in ("here", "restarted", "sealed"):
            if client == "restarted":
                server.kill()
                await server.start()
            elif client == "sealed":
                async with httpx.AsyncClient() as http:
                    await http.post(f"{server.url}/flush?timeoutS=0.01")
                assert (await server.status())["log"]["sealed"] == (await server.status())["log"]["durable"]
                server.kill()
                await server.start()
            await asyncio.to_thread(_told_again, port, begin, told)


def _told_twice(server: KafkaServer, port: int) -> tuple[Any, list[Any]]:
    make(server, "users", value_mode="debezium")
    with (
        pymongo.MongoClient[dict[str, Any]](f"mongodb://127.0.0.1:{port}/") as client,
        client.kafka.watch(max_await_time_ms=500) as stream,
    ):
        stream.try_next()
        begin = stream.resume_token
        rows: list[tuple[str, Any]] = [
            ("1", envelope("c", {"id": "1", "age": 30})),
            ("2", envelope("c", {"id": "2", "age": 40})),
            ("1", envelope("u", {"id": "1", "age": 31})),
            ("2", envelope("d", None, {"id": "2"})),
        ]
        # An idempotent producer would be an event of its own.
        send(server, "users", *rows, idempotent=False)
        client.kafka.other.insert_one({"_id": "last"})
        return begin, [_next(stream) for _ in range(2 * len(rows) + 1)]


def _what(event: Any) -> Any:
    return event["_id"]["_data"], event["operationType"], event["ns"]["coll"], event["documentKey"]["_id"]


def _told_again(port: int, begin: Any, told: list[Any]) -> None:
    tables = [each["ns"]["coll"] for each in told]
    assert tables == ["users", "users_records"] * 4 + ["other"]
    assert [each["operationType"] for each in told[:-1:2]] == ["insert", "insert", "update", "delete"]
    expected = [_what(each) for each in told]
    with pymongo.MongoClient[dict[str, Any]](f"mongodb://127.0.0.1:{port}/") as client:
        for number, token in enumerate([begin, *(each["_id"] for each in told)]):
            with client.kafka.watch(resume_after=token, max_await_time_ms=200) as stream:
                assert [_what(_next(stream)) for _ in expected[number:]] == expected[number:]
                assert stream.try_next() is None
        # Tokens of one table's stream and of all tables' are places in the same log.
        with client.kafka.users_records.watch(resume_after=told[2]["_id"], max_await_time_ms=200) as stream:
            assert [_what(_next(stream)) for _ in range(3)] == expected[3:8:2]
        # A token of before the rows of a position were told apart stood for all of them.
        data = told[2]["_id"]["_data"]
        with client.kafka.watch(resume_after={"_data": f"{data[:16]}01{data[18:]}"}, max_await_time_ms=200) as stream:
            assert [_what(_next(stream)) for _ in expected[4:]] == expected[4:]


def _next(stream: Any) -> Any:
    """The next event. Fails where there is none: waiting for it without end would tell nobody why."""
    ends_s = time.monotonic() + 20
    while time.monotonic() < ends_s:
        event = stream.try_next()
        if event is not None:
            return event
    raise AssertionError("no event came")
