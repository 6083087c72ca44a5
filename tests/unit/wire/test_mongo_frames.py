"""Bytes in, requests out: what is whole is read, what is cut off waits, what is wrong is refused by name."""

import struct
import zlib
from typing import Any

import bson
import cramjam
import pytest
from crc32c import crc32c

from mainstem.model.errors import Invalid
from mainstem.wire.mongo.compression import Compressor
from mainstem.wire.mongo.frames import (
    DEPTH_MAX,
    MESSAGE_BYTES_MAX,
    BadFrame,
    Decoder,
    Request,
    check_depth,
    cursor_reply,
    decode_document,
    reply,
)


def message(opcode: int, body: bytes, request_id: int = 7) -> bytes:
    return struct.pack("<iiii", len(body) + 16, request_id, 0, opcode) + body


def op_msg(document: dict[str, Any], flags: int = 0, sequences: dict[str, list[dict[str, Any]]] | None = None) -> bytes:
    body = struct.pack("<I", flags) + b"\x00" + bson.encode(document)
    for name, documents in (sequences or {}).items():
        inside = name.encode() + b"\x00" + b"".join(map(bson.encode, documents))
        body += b"\x01" + struct.pack("<i", len(inside) + 4) + inside
    return message(2013, body)


def test_a_message_is_read_byte_by_byte() -> None:
    decoder = Decoder()
    data = op_msg({"ping": 1, "$db": "admin"})
    found = [request for byte in data for request in decoder.feed(bytes([byte]))]
    assert [request.body for request in found] == [{"ping": 1, "$db": "admin"}]
    assert found[0].id == 7


def test_two_messages_in_one_read_and_a_third_that_waits() -> None:
    decoder = Decoder()
    data = op_msg({"ping": 1}) + op_msg({"hello": 1}) + op_msg({"find": "a"})[:-1]
    assert [next(iter(request.body)) for request in decoder.feed(data)] == ["ping", "hello"]
    assert decoder.waiting_bytes


def test_documents_of_a_sequence_stay_as_they_came() -> None:
    (request,) = Decoder().feed(op_msg({"insert": "a"}, sequences={"documents": [{"a": 1}, {"b": 2.0}]}))
    assert [bson.decode(each) for each in request.sequences["documents"]] == [{"a": 1}, {"b": 2.0}]


def test_flags_are_told() -> None:
    (request,) = Decoder().feed(op_msg({"getMore": 1}, flags=2 | 1 << 16))
    assert request.more_to_come
    assert request.exhaust_allowed


def test_an_unknown_required_flag_is_refused() -> None:
    with pytest.raises(BadFrame, match="unknown flag"):
        Decoder().feed(op_msg({"ping": 1}, flags=4))


def test_a_checksum_is_checked() -> None:
    body = struct.pack("<I", 1) + b"\x00" + bson.encode({"ping": 1})
    head = struct.pack("<iiii", len(body) + 20, 1, 0, 2013)
    data = head + body + struct.pack("<I", crc32c(head + body))
    assert Decoder().feed(data)[0].body == {"ping": 1}
    with pytest.raises(BadFrame, match="checksum"):
        Decoder().feed(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize(
    ("number", "pack"),
    [
        (Compressor.SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
        (Compressor.ZLIB, zlib.compress),
        (Compressor.ZSTD, lambda data: bytes(cramjam.zstd.compress(data))),
        (Compressor.NOOP, bytes),
    ],
)
def test_compressed_messages_come_and_go(number: Compressor, pack: Any) -> None:
    plain = op_msg({"ping": 1, "x": "y" * 1000})[16:]
    (request,) = Decoder().feed(message(2012, struct.pack("<iiB", 2013, len(plain), number) + pack(plain)))
    assert request.body["x"] == "y" * 1000
    (again,) = Decoder().feed(reply(request, bson.encode({"ok": 1}), 3))
    assert (again.body, again.compressor) == ({"ok": 1}, number)


def test_a_message_that_unpacks_to_more_than_it_says_is_refused() -> None:
    packed = zlib.compress(bytes(1_000_000))
    with pytest.raises(BadFrame):
        Decoder().feed(message(2012, struct.pack("<iiB", 2013, 100, 2) + packed))
    packed = bytes(cramjam.zstd.compress(bytes(1_000_000)))
    with pytest.raises(BadFrame):
        Decoder().feed(message(2012, struct.pack("<iiB", 2013, 100, 3) + packed))


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<iiii", 8, 0, 0, 2013),
        struct.pack("<iiii", MESSAGE_BYTES_MAX + 1, 0, 0, 2013),
        struct.pack("<iiii", -5, 0, 0, 2013),
        message(2013, b""),
        message(2013, struct.pack("<I", 0)),
        message(2013, struct.pack("<I", 0) + b"\x00\xff\xff\xff\x7f"),
        message(2013, struct.pack("<I", 0) + b"\x09"),
        message(2013, struct.pack("<I", 0) + b"\x01\x04\x00\x00\x00"),
        message(2004, b"\x00\x00\x00\x00no end"),
        message(2012, b"\x00"),
        message(1, b"\x00\x00\x00\x00"),
        message(2013, struct.pack("<I", 0) + b"\x00" + bson.encode({"a": 1}) + b"\x00" + bson.encode({"a": 1})),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        Decoder().feed(data)


def test_the_first_hello_of_old_drivers() -> None:
    body = b"\x00\x00\x00\x00admin.$cmd\x00" + struct.pack("<ii", 0, -1) + bson.encode({"isMaster": 1})
    (request,) = Decoder().feed(message(2004, body))
    assert (request.body, request.legacy, request.database) == ({"isMaster": 1}, True, "admin")
    answer = reply(request, bson.encode({"ok": 1.0}), 1)
    assert struct.unpack_from("<iiii", answer)[3] == 1
    assert bson.decode(answer[36:]) == {"ok": 1.0}


def _nested(levels: int, *, arrays: bool = False) -> bytes:
    data = b"\x05\x00\x00\x00\x00"
    for _ in range(levels):
        inside = (b"\x04" if arrays else b"\x03") + b"0\x00" + data
        data = struct.pack("<i", len(inside) + 5) + inside + b"\x00"
    return data


@pytest.mark.parametrize("arrays", [False, True])
def test_deep_nesting_is_refused_by_name(arrays: bool) -> None:
    check_depth(_nested(DEPTH_MAX - 1, arrays=arrays))
    for levels in (DEPTH_MAX, 5_000):
        with pytest.raises(Invalid, match="nested too deep") as error:
            decode_document(_nested(levels, arrays=arrays))
        assert error.value.reason == "too_deep"


def test_a_whole_message_with_a_body_that_cannot_be_read_is_told_apart() -> None:
    bad = message(2013, struct.pack("<I", 0) + b"\x00" + _nested(DEPTH_MAX + 1))
    first, second = Decoder().feed(bad + op_msg({"ping": 1}))
    assert first.error is not None
    assert (first.error.reason, second.body) == ("too_deep", {"ping": 1})


def test_a_cursor_reply_is_what_bson_would_write() -> None:
    documents = [bson.encode({"a": n}) for n in range(12)]
    data = cursor_reply("firstBatch", documents, 5, "db.é", bson.encode({"ok": 1.0})[4:-1])
    assert bson.decode(data) == {
        "cursor": {"firstBatch": [{"a": n} for n in range(12)], "id": 5, "ns": "db.é"},
        "ok": 1.0,
    }


def test_a_reply_carries_the_request_it_answers() -> None:
    data = reply(Request(41, {}), bson.encode({"ok": 1}), 9, more_to_come=True)
    assert struct.unpack_from("<iiiiI", data) == (len(data), 9, 41, 2013, 2)
