"""From a Kafka producer into Delta tables, and back to a consumer once only the tables have the records."""

import asyncio
import json
import time
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from mainstem.client import CdcClient, insert
from tests.harness.kafka import KafkaServer, eventually


@pytest.fixture
def server(kafka_lake: KafkaServer) -> KafkaServer:
    return kafka_lake


def rows(server: KafkaServer, table: str, columns: str, more: str = "") -> list[Any]:
    return duckdb.sql(f"SELECT {columns} FROM delta_scan('{server.data}/delta/kafka/{table}') {more}").fetchall()


def make(server: KafkaServer, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    wanted = NewTopic(topic, partitions, config={name.replace("_", "."): value for name, value in config.items()})
    admin.create_topics([wanted])[topic].result(20)


def send(server: KafkaServer, topic: str, records: list[tuple[bytes | None, bytes | None]], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
    for key, value in records:
        producer.produce(topic, key=key, value=value, partition=partition, headers={"h": b"\xff"})
    assert producer.flush(20) == 0


def read(server: KafkaServer, topic: str, count: int, offset: int = 0, partition: int = 0) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, offset)])
    found: list[Any] = []
    until_s = time.monotonic() + 30
    while len(found) < count and time.monotonic() < until_s:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message)
    consumer.close()
    return found


@pytest.mark.spark
async def test_old_records_are_served_from_their_table(server: KafkaServer) -> None:
    make(server, "old", 2)
    await asyncio.to_thread(send, server, "old", [(b"k%d" % n, b"%d " % n * 200) for n in range(3_000)])
    await asyncio.to_thread(send, server, "old", [(None, b"other")], 1)
    assert (await server.flush())["complete"]
    found = rows(server, "old", 'partition, count(*), min("offset"), max("offset")', "GROUP BY 1 ORDER BY 1")
    assert found == [(0, 3_000, 0, 2_999), (1, 1, 0, 0)]
    first = rows(server, "old", "key, value, headers", 'WHERE partition = 0 AND "offset" = 7')
    assert first == [(b"k7", b"7 " * 200, '[["h","/w=="]]')]
    # Nothing is left of it but the table: segments go once everybody has them, and memory is small.
    await eventually(lambda: not list((server.data / "log" / "segments").glob("*.parquet")), 60)
    messages = await asyncio.to_thread(read, server, "old", 3_000)
    assert [(each.offset(), each.key()) for each in messages] == [(n, b"k%d" % n) for n in range(3_000)]
    assert messages[7].value() == b"7 " * 200
    assert messages[7].headers() == [("h", b"\xff")]
    assert messages[7].timestamp()[1] > 1_700_000_000_000
    assert [each.offset() for each in await asyncio.to_thread(read, server, "old", 1, 1_234)] == [1_234]


@pytest.mark.spark
async def test_changes_of_a_table_are_a_topic_once_only_its_history_has_them(server: KafkaServer) -> None:
    async with CdcClient(server.ws_url, source="app") as client:
        await client.send([insert("seen", str(n), {"n": n}) for n in range(50)])
    assert (await server.flush())["complete"]
    await eventually(lambda: not list((server.data / "log" / "segments").glob("*.parquet")), 60)
    async with CdcClient(server.ws_url, source="app") as client:
        await client.send([insert("seen", "50", {"n": 50})])
    found = await asyncio.to_thread(read, server, "cdc.default.seen", 51, 1)
    assert [json.loads(each.value())["after"] for each in found] == [{"n": n} for n in range(51)]


@pytest.mark.spark
async def test_what_is_past_its_retention_goes_from_the_table_too(server: KafkaServer) -> None:
    make(server, "brief", retention_ms="1000")
    await asyncio.to_thread(send, server, "brief", [(None, b"old")] * 10)
    assert (await server.flush())["complete"]
    await eventually(lambda: rows(server, "brief", "count(*)") == [(0,)], 60)
    assert offsets_before_they_went(server, "brief") == list(range(10))
    await asyncio.to_thread(send, server, "brief", [(None, b"new")])
    assert [each.offset() for each in await asyncio.to_thread(read, server, "brief", 1, 10)] == [10]
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "none"})
    low, high = await asyncio.to_thread(consumer.get_watermark_offsets, TopicPartition("brief", 0))
    consumer.close()
    assert high == 11 and low >= 10


@pytest.mark.spark
async def test_deleted_records_go_from_the_table_too(server: KafkaServer) -> None:
    make(server, "cut-rows")
    await asyncio.to_thread(send, server, "cut-rows", [(None, b"%d" % n) for n in range(10)])
    assert (await server.flush())["complete"]
    assert rows(server, "cut-rows", "count(*)") == [(10,)]
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    place = TopicPartition("cut-rows", 0, 10)
    deleted = await asyncio.to_thread(lambda: admin.delete_records([place])[place].result(20))
    assert deleted.low_watermark == 10
    await eventually(lambda: rows(server, "cut-rows", "count(*)") == [(0,)], 60)
    assert offsets_before_they_went(server, "cut-rows") == list(range(10))
    await asyncio.to_thread(send, server, "cut-rows", [(None, b"new")])
    assert (await server.flush())["complete"]
    assert rows(server, "cut-rows", '"offset", value') == [(10, b"new")]
    assert [each.offset() for each in await asyncio.to_thread(read, server, "cut-rows", 1, OFFSET_BEGINNING)] == [10]
    # Who asks for one of them is told, and given nothing else instead.
    with pytest.raises(KafkaException) as refused:
        await asyncio.to_thread(poll_strictly, server, "cut-rows", 3)
    assert refused.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET


def offsets_before_they_went(server: KafkaServer, table: str) -> list[int]:
    """What time travel shows: the version before the one that let go of files."""
    place = f"{server.data}/delta/kafka/{table}"
    gone = next(each["version"] for each in deltalake.DeltaTable(place).history() if each["operation"] == "DELETE")
    before = deltalake.DeltaTable(place, version=gone - 1).scan(columns=["offset"])
    return sorted(pa.RecordBatchReader.from_stream(before).read_all()["offset"].to_pylist())


def poll_strictly(server: KafkaServer, topic: str, offset: int) -> None:
    """Read from an offset on, and from nowhere else where that is not there. Raises what the consumer is told."""
    settings = {"bootstrap.servers": server.bootstrap, "group.id": "none", "auto.offset.reset": "error"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, offset)])
    message = consumer.poll(30)
    consumer.close()
    if message is not None and message.error() is not None:
        raise KafkaException(message.error())


@pytest.mark.spark
async def test_values_become_columns_rows_and_state(server: KafkaServer) -> None:
    make(server, "events", value_mode="json")
    make(server, "latest", cleanup_policy="compact")
    make(server, "pg.public.users", value_mode="debezium")
    await asyncio.to_thread(
        send, server, "events", [(b"a", b'{"user": "ada", "n": 1}'), (b"b", b"no json"), (None, b'{"n": 2, "x": true}')]
    )
    pairs: list[tuple[bytes | None, bytes | None]] = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None)]
    await asyncio.to_thread(send, server, "latest", pairs)
    envelopes = [
        ({"id": 1}, {"before": None, "after": {"id": 1, "name": "ada"}, "op": "c", "ts_ms": 1}),
        ({"id": 2}, {"before": None, "after": {"id": 2, "name": "bob"}, "op": "r", "ts_ms": 1}),
        ({"id": 1}, {"before": None, "after": {"id": 1, "name": "Ada"}, "op": "u", "ts_ms": 2}),
        ({"id": 2}, {"before": {"id": 2, "name": "bob"}, "after": None, "op": "d", "ts_ms": 3}),
    ]
    told: list[tuple[bytes | None, bytes | None]] = [
        (json.dumps(key).encode(), json.dumps(value).encode()) for key, value in envelopes
    ]
    await asyncio.to_thread(send, server, "pg.public.users", [*told, (told[-1][0], None)])
    assert (await server.flush())["complete"]
    assert rows(server, "events", '_kafka_offset, "user", n, x', "ORDER BY 1") == [
        (0, "ada", 1, None),
        (2, None, 2, True),
    ]
    letters = rows(server, "events_dead_letters", "_key, _reason")
    assert [key for key, _ in letters] == ["0/1"]
    assert rows(server, "latest", 'key, value, "offset"') == [(b"a", b"3", 2)]
    assert rows(server, "pg_public_users_records", "count(*)") == [(5,)]
    async with _queries(server) as ask:
        assert await ask("SELECT id, name FROM kafka.pg_public_users") == [{"id": 1, "name": "Ada"}]
        assert await ask("SELECT _key, partitions FROM kafka.__topics WHERE _key = 'latest'") == [
            {"_key": "latest", "partitions": 1}
        ]


@pytest.mark.spark
async def test_records_that_are_no_rows_are_consumed_once_only_the_tables_have_them(server: KafkaServer) -> None:
    make(server, "strange", value_mode="json")
    values = [b'{"n": 1}', b"no json", None, b"\xff", b'{"_kafka_offset": 99}', b'{"n": 2}', b"[]"]
    records: list[tuple[bytes | None, bytes | None]] = [(b"k%d" % number, each) for number, each in enumerate(values)]
    await asyncio.to_thread(send, server, "strange", records)
    assert (await server.flush())["complete"]
    await eventually(lambda: not list((server.data / "log" / "segments").glob("*.parquet")), 60)
    assert rows(server, "strange", "count(*)") == [(2,)]
    # Memory is small: others have taken its room.
    await asyncio.to_thread(send, server, "old-noise", [(None, b"x" * 1_000)] * 2_000)
    messages = await asyncio.to_thread(read, server, "strange", len(values))
    found = [(each.offset(), each.key(), each.value(), each.headers()) for each in messages]
    assert found == [(at, b"k%d" % at, value, [("h", b"\xff")]) for at, value in enumerate(values)]
    assert all(each.timestamp()[1] > 1_700_000_000_000 for each in messages)
    assert [each.offset() for each in await asyncio.to_thread(read, server, "strange", 1, 4)] == [4]


def _queries(server: KafkaServer) -> Any:
    from contextlib import asynccontextmanager

    import httpx

    @asynccontextmanager
    async def opened() -> Any:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:

            async def ask(sql: str) -> Any:
                answer = (await http.post("/v1/query", json={"sql": sql})).json()
                names = [column["name"] for column in answer["columns"]]
                return [dict(zip(names, row, strict=True)) for row in answer["rows"]]

            yield ask

    return opened()
