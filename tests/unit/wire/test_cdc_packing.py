"""MessagePack and zstd: the same messages, and nothing that JSON could not say."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mainstem.model import Invalid
from mainstem.wire import cdc
from mainstem.wire import cdc_packing as packing
from mainstem.wire.cdc_packing import Packing, TooMuch

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def batch(*events: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "cdc_batch", "sequenceNumber": 4, "sourceDoId": "s", "events": list(events), **more}


def event(**changed: Any) -> dict[str, Any]:
    return {"operation": "INSERT", "table": "t", "rowId": "k", "after": {"a": 1}} | changed


@given(rows=st.lists(st.dictionaries(st.text(), VALUES, max_size=4), min_size=1, max_size=3))
def test_the_text_of_a_batch_is_what_its_json_twin_holds(rows: list[dict[str, Any]]) -> None:
    message = packing.decode_client(msgspec.msgpack.encode(batch(*(event(after=row) for row in rows))))
    assert isinstance(message, cdc.CdcBatch)
    text, events = packing.decode_events(bytes(message.events))
    assert [each["after"] for each in json.loads(text)] == rows
    assert [head.row_id for head in cdc.decode_events(text)] == [each.row_id for each in events]


@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_in_one_sentence(data: bytes) -> None:
    for frame in (data, packing.ZSTD_MAGIC + data):
        try:
            content = packing.decompress(frame, 1 << 20)
            if packing.packing_of(content) is Packing.MSGPACK:
                packing.peek(content)
                message = packing.decode_client(content)
                if isinstance(message, cdc.CdcBatch):
                    packing.event_sizes(bytes(message.events))
                    packing.decode_events(bytes(message.events))
        except Invalid as error:
            assert str(error)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "nan"),
        ([{"deep": float("-inf")}], "inf"),
        (msgspec.msgpack.Ext(7, b"x"), "Ext"),
    ],
)
def test_what_json_cannot_say_is_refused(value: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        packing.decode_events(msgspec.msgpack.encode([event(after={"a": value})]))


def test_bytes_become_base64_and_times_become_text() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    text, _ = packing.decode_events(msgspec.msgpack.encode([event(after={"a": b"\x00\x01", "t": at})]))
    assert json.loads(text)[0]["after"] == {"a": "AAE=", "t": "2026-01-02T00:00:00Z"}


def test_bytes_that_look_like_nan_inside_of_a_text_are_a_text() -> None:
    # 0xcb 0x7f 0xf0 cannot stand in UTF-8, but in a binary they can.
    text, _ = packing.decode_events(msgspec.msgpack.encode([event(after={"a": b"\xcb\x7f\xf8"})]))
    assert json.loads(text)[0]["after"]["a"]


def test_nesting_is_bounded() -> None:
    with pytest.raises(Invalid, match="deeply"):
        packing.decode_events(msgspec.msgpack.encode([event(after={"a": 5})])[:-1] + b"\x91" * 100_000 + b"\x05")


def test_a_frame_tells_what_it_is() -> None:
    assert packing.packing_of(b'{"type":"connect"}') is packing.packing_of(b"") is Packing.JSON
    assert packing.packing_of(packing.encode(cdc.Connect())) is Packing.MSGPACK
    assert packing.packing_of(msgspec.msgpack.encode({str(i): i for i in range(100)})) is Packing.MSGPACK
    assert packing.decompress(b"as it is", 1) == b"as it is"


@pytest.mark.parametrize("declared", [True, False])
def test_exactly_the_most_is_taken_and_one_byte_more_is_not(declared: bool) -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=declared)
    assert packing.decompress(compressor.compress(b"x" * 1000), 1000) == b"x" * 1000
    with pytest.raises(TooMuch) as refused:
        packing.decompress(compressor.compress(b"x" * 1001), 1000)
    assert (refused.value.reason, refused.value.bytes_max) == ("payload_too_large", 1000)


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    # 4 GiB of zeros in some hundred kilobytes, and the same with a header that says nothing of the size.
    for declared in (True, False):
        compressor = zstandard.ZstdCompressor(write_content_size=declared)
        with pytest.raises(TooMuch):
            packing.decompress(compressor.compress(bytes(64 << 20)), 16 << 20)


def test_a_large_window_and_a_broken_frame_are_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27, write_content_size=0)
    data = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = data.compress(b"y" * 100) + data.flush()
    with pytest.raises(Invalid, match="zstd"):
        packing.decompress(frame, 1 << 20)
    whole = packing.compress(b"some text")
    for broken in (whole[:-1], whole + b"more", packing.ZSTD_MAGIC, packing.ZSTD_MAGIC + b"\x00"):
        with pytest.raises(Invalid):
            packing.decompress(broken, 1 << 20)


def test_server_messages_survive_both_packings() -> None:
    nack = cdc.Nack(
        timestamp=1, sequence_number=2, reason=cdc.NackReason.RATE_LIMITED, error_message="no", should_retry=True
    )
    assert packing.decode_server(packing.encode(nack)) == packing.decode_server(cdc.encode(nack)) == nack
    assert packing.decode_server(cdc.encode(nack).decode()) == nack
    with pytest.raises(Invalid):
        packing.decode_server(b"\x80")


def test_a_refused_message_can_still_be_addressed() -> None:
    known = packing.peek(msgspec.msgpack.encode({"sequenceNumber": 7, "correlationId": "c", "events": 3}))
    assert (known.sequence_number, known.correlation_id) == (7, "c")
    assert packing.peek(msgspec.msgpack.encode({"sequenceNumber": "x"})).sequence_number == 0
    assert packing.peek(b"\x81").sequence_number == 0
