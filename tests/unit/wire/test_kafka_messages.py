"""Frames and messages: bytes in, values out, in every version that the door serves."""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from mainstem.model.errors import Invalid
from mainstem.wire.kafka.frames import Framer, FrameTooLarge, RequestHead, framed, read_head
from mainstem.wire.kafka.messages import Unreadable, decode_request, encode_response

HEAD = bytes.fromhex("0012 0000 00000007 0002") + b"me"


@given(st.lists(st.binary(min_size=8, max_size=50), max_size=8), st.integers(1, 30))
def test_frames_are_found_however_the_bytes_come(frames: list[bytes], step: int) -> None:
    framer = Framer(100)
    data = b"".join(part for frame in frames for part in framed([frame]))
    found = [frame for at in range(0, len(data), step) for frame in framer.feed(data[at : at + step])]
    assert found == frames
    assert framer.held_bytes == 0


@pytest.mark.parametrize("length", [-1, 0, 7, 101, (1 << 31) - 1])
def test_a_length_out_of_bounds_ends_it(length: int) -> None:
    with pytest.raises(FrameTooLarge):
        Framer(100).feed(length.to_bytes(4, "big", signed=True))


def test_the_head_of_a_request_is_read() -> None:
    assert read_head(HEAD) == RequestHead(18, 0, 7, "me", 12)
    assert read_head(HEAD[:8] + b"\xff\xff").client_id is None


@given(st.binary(max_size=40))
def test_a_bad_head_is_refused_by_name(data: bytes) -> None:
    try:
        read_head(data)
    except Invalid:
        pass


@given(st.binary(max_size=120), st.sampled_from([(0, 9), (0, 13), (1, 12), (3, 12), (19, 7), (2, 7), (32, 4)]))
def test_a_bad_body_is_refused_by_name(data: bytes, which: tuple[int, int]) -> None:
    try:
        decode_request(RequestHead(*which, 1, None, 0), data)
    except Unreadable:
        pass


@pytest.mark.parametrize("version", range(14))
def test_one_answer_serves_every_version(version: int) -> None:
    partition = {"partition_index": 0, "leader_id": 1, "replica_nodes": (1,), "isr_nodes": (1,), "leader_epoch": 0}
    answer = {
        "brokers": [{"node_id": 1, "host": "h", "port": 9092, "rack": None}],
        "controller_id": 1,
        "topics": [{"name": "t", "error_code": ErrorCode.none, "partitions": [partition]}],
    }
    encoded = encode_response(3, version, 5, answer)
    assert int.from_bytes(encoded[:4], "big") == len(encoded) - 4
    schema = load_response_schema(3, version)
    read: Any = entity_reader(schema)(encoded, 8 + schema.__flexible__)[0]
    assert read.topics[0].name == "t"
    assert read.brokers[0].port == 9092


def test_tags_of_a_flexible_head_are_passed_over() -> None:
    schema = load_request_schema(18, 3)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, schema(client_software_name="kcat", client_software_version="1"))  # type: ignore[call-arg]
    frame = HEAD + bytes.fromhex("01 05 02 aabb") + buffer.getvalue()
    request = decode_request(RequestHead(18, 3, 7, "me", 12), frame)
    assert request.client_software_name == "kcat"
