"""Kafka's own clients, unmodified, on one server: librdkafka, aiokafka and kafka-python."""

import asyncio
import json
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

import kafka
from kafka import TopicPartition as PyPartition
from mainstem.client import CdcClient, delete, insert, update
from mainstem.wire.kafka.messages import decode_response, encode_request
from tests.harness.kafka import KafkaServer
from tests.unit.doors.kafka_world import filled_table


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    started = KafkaServer(tmp_path_factory.mktemp("kafka"), connections_max=300, idle_s=600)
    asyncio.run(started.start())
    yield started
    asyncio.run(started.stop())


def produce(server: KafkaServer, topic: str, values: list[bytes], **settings: Any) -> list[int]:
    """The offsets, in the order of the values."""
    producer = Producer({"bootstrap.servers": server.bootstrap, "message.timeout.ms": 20_000, **settings})
    offsets: list[int] = []

    def told(error: KafkaError | None, message: Any) -> None:
        if error is not None:
            raise KafkaException(error)
        offsets.append(message.offset())

    for value in values:
        producer.produce(topic, value=value, key=b"k", on_delivery=told)
    assert producer.flush(20) == 0
    return offsets


def consume(server: KafkaServer, topic: str, count: int, offset: int = OFFSET_BEGINNING, **settings: Any) -> list[Any]:
    consumer = Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": "none", "enable.auto.commit": False, **settings}
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[Any] = []
    until_s = time.monotonic() + 20
    while len(found) < count and time.monotonic() < until_s:
        message = consumer.poll(0.5)
        if message is not None:
            if message.error() is not None:
                raise KafkaException(message.error())
            found.append(message)
    consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["1", "all"])
def test_librdkafka_reads_back_what_it_wrote(server: KafkaServer, codec: str, acks: str) -> None:
    topic = f"rd-{codec}-{acks}"
    values = [b"value %d" % number for number in range(500)]
    settings = {"compression.type": codec, "acks": acks, "enable.idempotence": acks == "all"}
    assert produce(server, topic, values, **settings) == list(range(500))
    assert [message.value() for message in consume(server, topic, 500)] == values


def test_a_fetch_in_the_middle_of_a_batch(server: KafkaServer) -> None:
    produce(server, "middle", [b"%d" % number for number in range(100)], **{"linger.ms": 200})
    assert [message.offset() for message in consume(server, "middle", 3, 97)] == [97, 98, 99]


def test_acks_none_is_taken(server: KafkaServer) -> None:
    produce(server, "careless", [b"x"] * 20, acks="0")
    assert len(consume(server, "careless", 20)) == 20


async def test_aiokafka_reads_back_what_it_wrote(server: KafkaServer) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=server.bootstrap, enable_idempotence=True)
    await producer.start()
    sent = [await producer.send_and_wait("aio", b"%d" % number, headers=[("h", b"1")]) for number in range(50)]
    await producer.stop()
    assert [each.offset for each in sent] == list(range(50))
    consumer = AIOKafkaConsumer(bootstrap_servers=server.bootstrap, group_id=None, enable_auto_commit=False)
    await consumer.start()
    place = AioPartition("aio", 0)
    consumer.assign([place])
    await consumer.seek_to_beginning(place)
    found = [await asyncio.wait_for(consumer.getone(), 10) for _ in range(50)]
    ends = await consumer.end_offsets([place])
    middle = await consumer.offsets_for_times({place: found[20].timestamp})
    await consumer.stop()
    assert [each.value for each in found] == [b"%d" % number for number in range(50)]
    assert found[0].headers == (("h", b"1"),)
    assert ends == {place: 50}
    first = next(each.offset for each in found if each.timestamp >= found[20].timestamp)
    assert middle[place].offset == first


def test_kafka_python_reads_back_what_it_wrote(server: KafkaServer) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=server.bootstrap, acks="all")
    sent = [producer.send("py", b"%d" % number).get(10).offset for number in range(20)]
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=server.bootstrap, group_id=None, enable_auto_commit=False)
    place = PyPartition("py", 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    found: list[bytes] = []
    until_s = time.monotonic() + 15
    while len(found) < 20 and time.monotonic() < until_s:
        for records in consumer.poll(timeout_ms=500).values():
            found += [record.value for record in records]
    assert consumer.beginning_offsets([place]) == {place: 0}
    assert consumer.offsets_for_times({place: 1 << 42})[place] is None
    consumer.close()
    assert (sent, found) == (list(range(20)), [b"%d" % number for number in range(20)])


def test_topics_are_administered(server: KafkaServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    wanted = NewTopic("managed", num_partitions=3, replication_factor=1, config={"retention.ms": "60000"})
    admin.create_topics([wanted])["managed"].result(10)
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([wanted])["managed"].result(10)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic("bad", num_partitions=1, config={"no.such": "1"})])["bad"].result(10)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    admin.create_partitions([NewPartitions("managed", 5)])["managed"].result(10)
    with pytest.raises(KafkaException) as refused:
        admin.create_partitions([NewPartitions("managed", 2)])["managed"].result(10)
    assert refused.value.args[0].code() == KafkaError.INVALID_PARTITIONS
    assert len(admin.list_topics("managed", timeout=10).topics["managed"].partitions) == 5
    resource = ConfigResource(ConfigResource.Type.TOPIC, "managed")
    change = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    altered = ConfigResource(ConfigResource.Type.TOPIC, "managed", incremental_configs=[change])
    admin.incremental_alter_configs([altered])[altered].result(10)
    told = admin.describe_configs([resource])[resource].result(10)
    assert (told["max.message.bytes"].value, told["retention.ms"].value) == ("2000", "60000")
    with pytest.raises(KafkaException) as refused:
        produce(server, "managed", [b"x" * 3000], **{"enable.idempotence": False})
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    described = admin.describe_cluster().result(10)
    assert [(node.id, node.port) for node in described.nodes] == [(1, int(server.bootstrap.split(":")[1]))]
    admin.delete_topics(["managed"])["managed"].result(10)
    assert "managed" not in admin.list_topics(timeout=10).topics


# Traps that others fell into


def test_a_record_past_max_message_bytes_is_refused_and_the_others_go_on(server: KafkaServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic("narrow", 1, config={"max.message.bytes": "1000"})])["narrow"].result(10)
    with pytest.raises(KafkaException) as refused:
        produce(server, "narrow", [b"x" * 5_000])
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert produce(server, "narrow", [b"small"]) == [0]
    assert [message.value() for message in consume(server, "narrow", 1)] == [b"small"]


def test_offsets_by_timestamp(server: KafkaServer) -> None:
    """Also where a batch has many times in it, and where times do not grow with the offsets."""
    times_ms = [1_000, 2_000, 3_000, 2_500, 5_000]
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 200})
    for time_ms in times_ms:
        producer.produce("timed", value=b"v", timestamp=time_ms)
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "none"})
    found = {}
    for asked_ms in (0, 1_000, 1_001, 2_400, 3_001, 5_000, 5_001):
        (place,) = consumer.offsets_for_times([TopicPartition("timed", 0, asked_ms)], 10)
        found[asked_ms] = place.offset
    consumer.close()
    # -1: the end, which is where a consumer goes that finds none.
    assert found == {0: 0, 1_000: 0, 1_001: 1, 2_400: 2, 3_001: 4, 5_000: 4, 5_001: -1}


def test_metadata_makes_a_topic_where_the_client_asks_for_that_and_only_there(server: KafkaServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for allows, code in ((False, 3), (True, 0), (False, 0)):
        wanted = {"topics": [{"name": "made-by-metadata"}], "allow_auto_topic_creation": allows}
        with _connected(server) as plain:
            plain.sendall(encode_request(3, 12, 1, wanted))
            (topic,) = decode_response(3, 12, _answer(plain)).topics
        assert topic.error_code.value == code
        assert len(topic.partitions) == (not code)
        assert ("made-by-metadata" in admin.list_topics(timeout=10).topics) == (not code)


def test_more_partitions_are_there_once_they_are_told(server: KafkaServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic("grows", 1)])["grows"].result(10)
    admin.create_partitions([NewPartitions("grows", 3)])["grows"].result(10)
    producer = Producer({"bootstrap.servers": server.bootstrap})
    told: list[Any] = []
    producer.produce("grows", value=b"v", partition=2, on_delivery=lambda error, message: told.append((error, message)))
    assert producer.flush(20) == 0
    assert [(error, message.partition(), message.offset()) for error, message in told] == [(None, 2, 0)]


def test_tools_are_told_how_large_topics_are(server: KafkaServer) -> None:
    produce(server, "sized", [b"v" * 1_000] * 10)
    sizes = []
    for wanted in (None, [{"topic": "sized", "partitions": [0, 7]}, {"topic": "nothing", "partitions": [0]}]):
        with _connected(server) as plain:
            plain.sendall(encode_request(35, 4, 1, {"topics": wanted}))
            (folder,) = decode_response(35, 4, _answer(plain)).results
        (parts,) = [each.partitions for each in folder.topics if each.name == "sized"]
        sizes += [(each.partition_index, each.partition_size) for each in parts]
    assert [number for number, _ in sizes] == [0, 0]
    assert 10_000 < sizes[0][1] == sizes[1][1] < 20_000


def test_malformed_requests_of_every_api_close_their_connection_and_no_other(server: KafkaServer) -> None:
    rng = random.Random(16)
    with _connected(server) as bystander:
        for entry in filled_table():
            for version in (entry.min_version, entry.max_version):
                body = struct.pack(">hhih", entry.key, version, 1, -1) + rng.randbytes(rng.randrange(1, 60))
                with _connected(server) as plain:
                    plain.sendall(struct.pack(">i", len(body)) + body)
                    plain.shutdown(socket.SHUT_WR)
                    # An answer or an end, and soon.
                    plain.settimeout(20)
                    while plain.recv(65_536):
                        pass
        bystander.sendall(_frame(18, 0, 9))
        assert struct.unpack_from(">i", _answer(bystander))[0] == 9


def test_records_are_deleted_and_their_offsets_are_out_of_range(server: KafkaServer) -> None:
    produce(server, "cut", [b"%d" % number for number in range(10)])
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    place = TopicPartition("cut", 0, 4)
    assert admin.delete_records([place])[place].result(10).low_watermark == 4
    assert consume(server, "cut", 1)[0].offset() == 4
    with pytest.raises(KafkaException) as refused:
        consume(server, "cut", 1, 2, **{"auto.offset.reset": "error"})
    assert refused.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET


async def test_a_long_poll_ends_when_a_record_comes(server: KafkaServer) -> None:
    produce(server, "poll", [b"first"])
    consumer = AIOKafkaConsumer(bootstrap_servers=server.bootstrap, fetch_max_wait_ms=20_000, enable_auto_commit=False)
    await consumer.start()
    place = AioPartition("poll", 0)
    consumer.assign([place])
    consumer.seek(place, 1)
    waiting = asyncio.create_task(consumer.getone())
    # The fetch is under way once nothing came for a while.
    done, _ = await asyncio.wait([waiting], timeout=1)
    assert not done
    began_s = time.monotonic()
    await asyncio.to_thread(produce, server, "poll", [b"second"])
    found = await asyncio.wait_for(waiting, 10)
    assert (found.value, time.monotonic() - began_s < 5) == (b"second", True)
    await consumer.stop()


def test_fetch_sessions_are_refused_politely(server: KafkaServer) -> None:
    """As by a broker that has no room for one more: a client then asks for everything each time."""
    produce(server, "sessions", [b"v"])
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000_000}
    wanted = {"max_bytes": 1_000_000, "topics": [{"topic": "sessions", "partitions": [part]}]}
    with _connected(server) as plain:
        # The first of a session: it is answered in full, and in none.
        plain.sendall(encode_request(1, 12, 1, {**wanted, "session_id": 0, "session_epoch": 0}))
        first = decode_response(1, 12, _answer(plain))
        plain.sendall(encode_request(1, 12, 2, {"session_id": 7, "session_epoch": 1, "max_bytes": 1_000_000}))
        later = decode_response(1, 12, _answer(plain))
    assert (first.error_code.value, first.session_id) == (0, 0)
    assert len(first.responses[0].partitions[0].records) > 60
    assert (later.error_code.value, later.session_id, later.responses) == (70, 0, ())


def test_times_are_the_producers_or_the_brokers(server: KafkaServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    config = {"message.timestamp.type": "LogAppendTime"}
    admin.create_topics([NewTopic("stamped", 1, config=config)])["stamped"].result(20)
    for topic, kind in (("unstamped", TIMESTAMP_CREATE_TIME), ("stamped", TIMESTAMP_LOG_APPEND_TIME)):
        began_ms = time.time_ns() // 1_000_000
        producer = Producer({"bootstrap.servers": server.bootstrap})
        told: list[Any] = []
        producer.produce(topic, value=b"v", timestamp=1_234, on_delivery=lambda *both, told=told: told.append(both[1]))
        assert producer.flush(20) == 0
        found = consume(server, topic, 1)[0].timestamp()
        assert found[0] == kind
        # The producer is told the same time as consumers.
        assert told[0].timestamp()[1] == found[1]
        assert (found[1] == 1_234) if kind == TIMESTAMP_CREATE_TIME else (found[1] >= began_ms)


async def test_a_tables_changes_are_a_topic(server: KafkaServer) -> None:
    """Whichever door they came through: keyed by row, at offsets that stay, past other tables' changes."""
    async with CdcClient(server.ws_url, source="app") as client:
        await client.send([insert("orders", "1", {"n": 1}), insert("others", "x", {"n": 0})])
        await client.send([update("orders", "1", {"n": 2}), delete("orders", "1")])
    await asyncio.to_thread(produce, server, "noise", [b"x"] * 50)
    found = await asyncio.to_thread(consume, server, "cdc.default.orders", 3)
    told = [json.loads(message.value()) for message in found]
    assert [each["op"] for each in told] == ["c", "u", "d"]
    assert [each["after"] for each in told] == [{"n": 1}, {"n": 2}, None]
    assert {message.key() for message in found} == {b'{"id":"1"}'}
    again = await asyncio.to_thread(consume, server, "cdc.default.orders", 1, found[2].offset())
    assert (again[0].offset(), again[0].value()) == (found[2].offset(), found[2].value())
    # One who waits at the end hears of the next change.
    consumer = AIOKafkaConsumer(bootstrap_servers=server.bootstrap, fetch_max_wait_ms=10_000, enable_auto_commit=False)
    await consumer.start()
    place = AioPartition("cdc.default.orders", 0)
    consumer.assign([place])
    await consumer.seek_to_end(place)
    waiting = asyncio.create_task(consumer.getone())
    await asyncio.wait([waiting], timeout=0.5)
    async with CdcClient(server.ws_url, source="app2") as client:
        await client.send([insert("orders", "2", {"n": 3})])
    record = await asyncio.wait_for(waiting, 10)
    await consumer.stop()
    assert json.loads(record.value)["after"] == {"n": 3}
    with pytest.raises(KafkaException):
        await asyncio.to_thread(produce, server, "cdc.default.orders", [b"x"], **{"message.timeout.ms": 3_000})
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    unknown = (await asyncio.to_thread(admin.list_topics, "cdc.default.nothing", 10)).topics["cdc.default.nothing"]
    assert unknown.error is not None and unknown.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_versions_that_nobody_knows_are_answered_as_kafka_does(server: KafkaServer) -> None:
    with _connected(server) as plain:
        plain.sendall(_frame(18, 99, 7))
        answer = _answer(plain)
        # Version 0: the correlation id, UNSUPPORTED_VERSION, and the versions that there are.
        assert struct.unpack_from(">ihi", answer)[:2] == (7, 35)
        known = [(each["api_key"], each["min_version"], each["max_version"]) for each in filled_table().versions()]
        assert struct.unpack_from(">i", answer, 6)[0] == len(known)
        assert list(struct.iter_unpack(">hhh", answer[10:])) == known
    for frame in (_frame(3, 99, 1), _frame(999, 0, 1), _frame(0, 9, 1), struct.pack(">i", 1 << 30), b"GET / HTTP"):
        with _connected(server) as plain:
            plain.sendall(frame)
            assert plain.recv(10) == b""
    assert produce(server, "lives", [b"v"]) == [0]


def test_connections_are_bounded_and_the_server_lives(server: KafkaServer) -> None:
    produce(server, "bounded", [b"v"])
    opened: list[socket.socket] = []
    try:
        for _ in range(320):
            opened.append(_connected(server))
        refused = [plain for plain in opened if _is_closed(plain)]
        assert 10 <= len(refused) <= 320 - 200
    finally:
        for plain in opened:
            plain.close()
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s:
        try:
            assert len(consume(server, "bounded", 1)) == 1
            return
        except (KafkaException, AssertionError):
            continue
    raise AssertionError("the door stayed shut")


async def test_idle_and_half_open_connections_are_ended(tmp_path: Path) -> None:
    async with KafkaServer(tmp_path, idle_s=1.0) as server:
        silent = _connected(server)
        with silent, _connected(server) as half:
            half.sendall(_frame(18, 0, 1)[:7])
            silent.settimeout(20)
            half.settimeout(20)
            assert await asyncio.to_thread(silent.recv, 1) == b""
            assert await asyncio.to_thread(half.recv, 1) == b""


def _connected(server: KafkaServer) -> socket.socket:
    host, port = server.bootstrap.split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def _is_closed(plain: socket.socket) -> bool:
    plain.settimeout(0.02)
    try:
        return plain.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def _frame(api_key: int, version: int, correlation_id: int) -> bytes:
    body = struct.pack(">hhih", api_key, version, correlation_id, -1)
    return struct.pack(">i", len(body)) + body


def _answer(plain: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", _exactly(plain, 4))
    return _exactly(plain, length)


def _exactly(plain: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += plain.recv(count - len(data))
    return data
