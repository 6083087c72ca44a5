"""Record batches: what goes in comes out, in every codec; what is not one is told so, and never more than that."""

import cramjam
import crc32c
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mainstem.wire.kafka import payload
from mainstem.wire.kafka.opening import Headers, Record, build_batch, open_batch
from mainstem.wire.kafka.payload import Mode
from mainstem.wire.kafka.records import RECORDS_MAX, BadBatch, assign, read_batch

OPTIONAL = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=8), OPTIONAL), max_size=3).map(tuple)
RECORDS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(-1, 1 << 45), OPTIONAL, OPTIONAL, HEADERS), min_size=1, max_size=30
)
PLAIN = [Record(7, 1_000, b"k", b"v" * 100, (("h", None),)), Record(8, 2_000, None, None)]


@given(RECORDS, st.integers(0, 1 << 60))
def test_records_come_back_as_they_were(
    rows: list[tuple[int, int, bytes | None, bytes | None, Headers]], base: int
) -> None:
    offset, records = base, []
    for gap, timestamp, key, value, headers in rows:
        records.append(Record(offset, timestamp, key, value, headers))
        offset += 1 + gap
    head, opened = open_batch(build_batch(records))
    assert opened == records
    assert (head.base_offset, head.next_offset) == (base, records[-1].offset + 1)


@given(st.binary(max_size=200))
def test_whatever_is_no_batch_is_refused(data: bytes) -> None:
    with pytest.raises(BadBatch):
        read_batch(data)


@given(st.integers(0, len(build_batch(PLAIN)) - 1), st.integers(1, 255))
def test_a_changed_byte_is_found(place: int, change: int) -> None:
    batch = bytearray(build_batch(PLAIN))
    batch[place] ^= change
    if place < 8 or 12 <= place < 16:
        # Base offset and leader epoch are the server's: not a part of what is signed.
        assert read_batch(bytes(batch)).records == 2
    else:
        with pytest.raises(BadBatch):
            read_batch(bytes(batch))


@pytest.mark.parametrize("count", [RECORDS_MAX + 1, (1 << 31) - 1])
def test_a_batch_of_very_many_records_is_refused(count: int) -> None:
    """Its checksum holds, and it is small: nobody is to open it."""
    batch = _with_body(zstandard.compress(bytes(1 << 20)), 4, count)
    with pytest.raises(BadBatch, match="at most") as refused:
        read_batch(batch)
    assert refused.value.reason == "invalid"
    assert read_batch(_with_body(b"", 4, RECORDS_MAX)).records == RECORDS_MAX


@given(st.binary(max_size=300), st.integers(0, 4), st.integers(1, 5))
def test_a_batch_that_cannot_be_opened_is_told_so(body: bytes, codec: int, count: int) -> None:
    batch = _with_body(body, codec, count)
    try:
        _, records = open_batch(batch)
    except BadBatch:
        return
    assert len(records) == count


@pytest.mark.parametrize("codec", ["gzip", "snappy", "xerial", "lz4", "zstd"])
def test_every_codec_is_opened(codec: str) -> None:
    body = build_batch(PLAIN)[61:]
    packed = {
        "gzip": lambda: bytes(cramjam.gzip.compress(body)),
        "snappy": lambda: bytes(cramjam.snappy.compress_raw(body)),
        "xerial": lambda: _xerial(body),
        "lz4": lambda: bytes(cramjam.lz4.compress(body)),
        "zstd": lambda: zstandard.compress(body),
    }[codec]()
    number = {"gzip": 1, "snappy": 2, "xerial": 2, "lz4": 3, "zstd": 4}[codec]
    _, records = open_batch(_with_body(packed, number, 2))
    assert [(record.key, record.value) for record in records] == [(b"k", b"v" * 100), (None, None)]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_bomb_is_not_opened(codec: int) -> None:
    zeros = bytes(1 << 20)
    packed = [
        b"",
        bytes(cramjam.gzip.compress(zeros)),
        bytes(cramjam.snappy.compress_raw(zeros)),
        bytes(cramjam.lz4.compress(zeros)),
        zstandard.compress(zeros),
    ][codec]
    with pytest.raises(BadBatch, match="at most"):
        open_batch(_with_body(packed, codec, 1), 1 << 16)


def test_offsets_are_put_in_without_breaking_the_checksum() -> None:
    stored = assign(build_batch(PLAIN), 41, 0)
    assert read_batch(stored).base_offset == 41
    assert [record.offset for record in open_batch(stored)[1]] == [41, 42]
    stamped = assign(build_batch(PLAIN), 41, 0, 9_999)
    assert read_batch(stamped).is_log_append_time
    assert {record.timestamp for record in open_batch(stamped)[1]} == {9_999}


def test_payloads_come_back_as_they_were() -> None:
    packed = payload.pack(Mode.JSON, bytes(range(16)), "kafka.orders", 3, b"batch")
    found = payload.unpack(packed, "here")
    assert (found.mode, found.table, found.partition) == (Mode.JSON, "kafka.orders", 3)
    assert found.topic_id == bytes(range(16))
    assert bytes(found.batch) == b"batch"
    # The stored form: never to be changed without another version.
    assert packed[:8].hex() == "01020c0003000000"


def _with_body(body: bytes, codec: int, count: int) -> bytes:
    batch = bytearray(build_batch(PLAIN)[:61])
    batch[8:12] = (49 + len(body)).to_bytes(4, "big")
    batch[21:23] = codec.to_bytes(2, "big")
    batch[23:27] = (count - 1).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big")
    batch += body
    batch[17:21] = crc32c.crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def _xerial(body: bytes) -> bytes:
    parts = [bytes(cramjam.snappy.compress_raw(body[at : at + 32])) for at in range(0, len(body), 32)]
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2 + framed
