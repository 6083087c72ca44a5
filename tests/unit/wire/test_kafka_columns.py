"""Large batches as columns: the same records as one by one, and nothing that is refused there."""

from base64 import b64encode

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.wire.kafka.columns import base64_texts, open_columns
from mainstem.wire.kafka.opening import Record, build_batch, decompress_batch, read_dense
from mainstem.wire.kafka.records import BadBatch

FIELD = st.none() | st.binary(max_size=70) | st.sampled_from([b"", b"v" * 100, b"v" * 9_000])
ROWS = st.lists(st.tuples(st.integers(-(1 << 33), 1 << 33), FIELD, FIELD), min_size=1, max_size=140)
Row = tuple[int, bytes | None, bytes | None]


def batch_of(rows: list[Row], base: int = 5) -> bytes:
    return build_batch(
        [Record(base + at, 1_800_000_000_000 + time, key, value) for at, (time, key, value) in enumerate(rows)]
    )


@given(ROWS, st.integers(0, 1 << 60))
def test_columns_are_the_records(rows: list[Row], base: int) -> None:
    head, data = decompress_batch(batch_of(rows, base))
    records = read_dense(head, data)
    found = open_columns(head, data)
    assert found is not None
    assert found.timestamps.tolist() == [record.timestamp for record in records]
    assert _listed(found.keys, len(records)) == [record.key for record in records]
    assert _listed(found.values, len(records)) == [record.value for record in records]
    assert found.bytes == sum(len(record.key or b"") + len(record.value or b"") for record in records)


@given(ROWS, st.data())
def test_what_is_broken_is_left_to_who_says_why(rows: list[Row], data: st.DataObject) -> None:
    head, good = decompress_batch(batch_of(rows))
    body = bytearray(good[: data.draw(st.integers(0, len(good)))])
    for _ in range(data.draw(st.integers(0, 3)) if body else 0):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    if (found := open_columns(head, bytes(body))) is None:
        return
    records = read_dense(head, bytes(body))
    assert found.timestamps.tolist() == [record.timestamp for record in records]
    assert _listed(found.keys, len(records)) == [record.key for record in records]
    assert _listed(found.values, len(records)) == [record.value for record in records]


@pytest.mark.parametrize(
    "records",
    [
        [Record(0, 1, None, b"v", (("name", b"value"),))],
        [Record(0, 1, None, b"v"), Record(2, 1, None, b"v")],
        [Record(0, 1, None, b"v"), Record(1, 1 << 60, None, b"v")],
        [Record(0, 1, None, bytes(1 << 21))],
    ],
)
def test_headers_gaps_and_long_numbers_are_read_one_by_one(records: list[Record]) -> None:
    assert open_columns(*decompress_batch(build_batch(records))) is None


def test_a_batch_that_claims_more_records_than_it_has() -> None:
    head, data = decompress_batch(batch_of([(0, None, b"v")]))
    more = head._replace(records=2)
    assert open_columns(more, data) is None
    with pytest.raises(BadBatch):
        read_dense(more, data)


@given(st.lists(st.none() | st.binary(max_size=20), min_size=1))
def test_base64_of_many_at_once(values: list[bytes | None]) -> None:
    wanted = [None if value is None else b64encode(value).decode() for value in values]
    assert base64_texts(pa.array(values, pa.binary())).to_pylist() == wanted
    # Of a part of an array, too.
    assert base64_texts(pa.array([b"before", *values], pa.binary())[1:]).to_pylist() == wanted


def _listed(values: pa.BinaryArray | None, count: int) -> list[bytes | None]:
    return [None] * count if values is None else values.to_pylist()
