"""Whatever a client's record batch holds, a segment can be made of it: one that could not would stop everybody's."""

import random
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
import zstandard

from mainstem.formats.segments import Footer
from mainstem.log.seal.expand import Expander
from mainstem.log.seal.expand_records import expand_records
from mainstem.log.seal.segments import SegmentBuilder
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.model.change import SourceId
from mainstem.model.hlc import Hlc
from mainstem.model.position import LogPosition
from mainstem.wire.kafka import payload as payloads
from mainstem.wire.kafka.opening import ZSTD, Record, build_batch
from mainstem.wire.kafka.payload import Mode
from mainstem.wire.kafka.records import HEAD, HEAD_BYTES, assign, read_head


def records(*values: bytes | None) -> list[Record]:
    return [Record(offset, 1_000 + offset, b"%d" % offset, value) for offset, value in enumerate(values)]


def header_of(batch: bytes) -> BatchHeader:
    return BatchHeader(
        first=LogPosition(1),
        count=read_head(batch).records,
        hlc_first=Hlc(1 << 20),
        arrival_ms=1,
        source=SourceId("kafka/x/0"),
        sequence=0,
        fingerprint=0,
        encoding=Encoding.KAFKA_RECORDS,
    )


def sealed(folder: Path, mode: Mode, batch: bytes) -> Footer:
    table = "kafka.t_records" if mode is Mode.DEBEZIUM else "kafka.t"
    builder = SegmentBuilder()
    builder.add(header_of(batch), payloads.pack(mode, bytes(16), table, 0, batch), "here")
    return builder.write(folder / "segment.parquet")


@pytest.mark.parametrize(
    "values",
    [
        # No text at all, alone and inside an object.
        (b"\xff\xfe",),
        (b'{"a":"\xff"}',),
        # Two objects in one value.
        (b'{"a":1},{"b":2}',),
        (b'1,{"b":2}',),
        # One object in two values.
        (b'{"a":[{}', b'{"x":1}]}'),
        # What the record itself says.
        (b'{"_kafka_offset":7}',),
        (None, b"", b" ", b"[1]", b"{", b'{"a":1}}', b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"),
    ],
)
@pytest.mark.parametrize("times", [1, 100])
def test_a_value_that_is_no_object_is_a_dead_letter_alone(
    tmp_path: Path, values: tuple[bytes | None, ...], times: int
) -> None:
    good = '{"n": 1, "text": "ä"}'.encode()
    part = sealed(tmp_path, Mode.JSON, build_batch(records(good, *values * times, good))).tables["kafka.t"]
    assert (part.count, part.errors) == (len(values) * times + 2, len(values) * times)
    rows = pq.read_table(tmp_path / "segment.parquet", columns=["error", "columns"]).to_pylist()
    assert [rows[0]["error"], rows[-1]["error"]] == [None, None]


@pytest.mark.parametrize("fields", ["[1]", '[{"field":[1]}]', "[null]", '[{"field":5}]'])
def test_a_strange_schema_of_an_envelope_is_a_dead_letter(tmp_path: Path, fields: str) -> None:
    value = f'{{"schema":{{"fields":{fields}}},"payload":{{"op":"c","after":{{"a":1}}}}}}'.encode()
    tables = sealed(tmp_path, Mode.DEBEZIUM, build_batch(records(value))).tables
    assert tables["kafka.t"].errors == 1
    assert tables["kafka.t_records"].errors == 0


@pytest.mark.parametrize("offsets", [(0, 0), (1, 2), (0, 1 << 40), (0, -1)])
def test_records_that_claim_other_offsets_than_their_batch_are_a_dead_letter(
    tmp_path: Path, offsets: tuple[int, ...]
) -> None:
    forged = build_batch([Record(offset, 1, None, b"v") for offset in offsets], first=0, last=1)
    part = sealed(tmp_path, Mode.RAW, forged).tables["kafka.t"]
    assert (part.count, part.errors) == (1, 1)


def test_no_two_keys_of_a_compacted_topic_are_one_row(tmp_path: Path) -> None:
    keys = [None, b"0", b"offset:0", b"base64:MA==", b"", b"\xff", b"base64:/w==", b"base64:"]
    sealed(tmp_path, Mode.COMPACT, build_batch([Record(at, 1, key, b"v") for at, key in enumerate(keys)]))
    found = pq.read_table(tmp_path / "segment.parquet", columns=["key"])["key"].to_pylist()
    assert len(set(found)) == len(keys)


def test_batches_that_become_far_too_large_share_a_bound() -> None:
    expander = Expander()
    expander.opening_bytes_left = 3_000_000
    bomb, plain = _zipped(build_batch(records(bytes(2_000_000)))), build_batch(records(b"v" * 1_000))
    errors = []
    for batch in (bomb, plain, bomb, plain, bomb, plain):
        payload = payloads.pack(Mode.RAW, bytes(16), "kafka.t", 0, batch)
        (rows,) = expand_records(expander, header_of(batch), payload, "here")
        errors.append(rows.errors is not None)
    assert errors == [False, False, True, False, True, False]
    assert 0 < expander.opening_bytes_left < 1_100_000


@pytest.mark.parametrize("attributes", [0, 8])
def test_a_large_batch_becomes_the_rows_that_small_ones_become(tmp_path: Path, attributes: int) -> None:
    """A large one is opened as columns, small ones record by record."""
    dice = random.Random(3)
    some = [None, b"", b"a", b"ab", b"abc", 'ä"'.encode(), b"\xff" * 40]
    base = (1 << 40) + 7
    every = [Record(base + at, 1_000 + at // 3, dice.choice(some), dice.choice(some)) for at in range(1_000)]
    # No calendar has the time of one.
    every[500] = every[500]._replace(timestamp=-5)
    parts = {"large": [every], "small": [every[at : at + 10] for at in range(0, 1_000, 10)]}
    found = {}
    for name, batches in parts.items():
        builder = SegmentBuilder()
        position = 1
        for records_ in batches:
            batch = build_batch(records_, attributes=attributes)
            # One time for all of them where it is the server's.
            batch = assign(batch, records_[0].offset, 0, 2_000 if attributes else None)
            header = msgspec.structs.replace(header_of(batch), first=LogPosition(position))
            builder.add(header, payloads.pack(Mode.RAW, bytes(16), "kafka.t", 3, batch), "here")
            position += header.count
        builder.write(tmp_path / name)
        found[name] = pq.read_table(tmp_path / name, columns=["position", "op", "key", "columns", "error"]).to_pylist()
    assert found["large"] == found["small"]
    assert len(found["large"]) == 1_000


def _zipped(batch: bytes) -> bytes:
    body = zstandard.compress(batch[HEAD_BYTES:])
    fields = list(HEAD.unpack_from(batch))
    fields[1], fields[5] = HEAD_BYTES - 12 + len(body), ZSTD
    return HEAD.pack(*fields) + body


@pytest.mark.parametrize("mode", list(Mode))
def test_no_batch_stops_sealing(tmp_path: Path, mode: Mode) -> None:
    dice = random.Random(7)
    pieces = [b"{", b"}", b"[", b"]", b",", b'"', b'"op":"c"', b'"after":', b"{}", b"\xff", b"\0", b"1", b'"a":1', b" "]
    for _ in range(300):
        values = [b"".join(dice.choices(pieces, k=dice.randrange(12))) for _ in range(dice.randrange(1, 80))]
        batch = bytearray(build_batch(records(*values)))
        for _ in range(dice.choice((0, 0, 1, 5))):
            batch[dice.randrange(HEAD_BYTES, len(batch))] = dice.randrange(256)
        footer = sealed(tmp_path, mode, bytes(batch))
        assert footer.tables
