"""Partition transforms over columns: as pyiceberg takes them of single values, and as metadata writes them."""

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from mainstem.pipeline.passes.transforms import apply_transform, delta_value, partition_json, partition_text
from mainstem.pipeline.passes.values import arrow_type
from mainstem.tables.types import ColumnType

_EPOCH = dt.datetime(1970, 1, 1)
_TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
_SOURCES: dict[str, tuple[IcebergType, Any]] = {
    "int": (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    "long": (LongType(), st.integers(-(2**63), 2**63 - 1)),
    "string": (StringType(), st.text(max_size=12)),
    "binary": (BinaryType(), st.binary(max_size=12)),
    "uuid": (UUIDType(), st.binary(min_size=16, max_size=16)),
    "date": (DateType(), st.dates()),
    "timestamp": (TimestampType(), _TIMES),
    "timestamptz": (TimestamptzType(), _TIMES.map(lambda value: value.replace(tzinfo=dt.UTC))),
    "decimal(9,2)": (DecimalType(9, 2), st.decimals(-9999999, 9999999, places=2)),
    "decimal(38,5)": (DecimalType(38, 5), st.decimals(-(10**20), 10**20, places=5)),
}
_CASES = [
    *((source, f"bucket[{size}]") for source in _SOURCES for size in (1, 7, 100)),
    *((source, "truncate[3]") for source in ("int", "long", "string", "binary", "decimal(9,2)", "decimal(38,5)")),
    *((source, part) for source in ("date", "timestamp", "timestamptz") for part in ("year", "month", "day")),
    *((source, "hour") for source in ("timestamp", "timestamptz")),
    *((source, "identity") for source in _SOURCES),
]


def _internal(value: Any) -> Any:
    """A value as pyiceberg's transforms take it."""
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1)
    return (value - _EPOCH.date()).days if isinstance(value, dt.date) else value


@pytest.mark.parametrize(("source", "transform"), _CASES)
@settings(max_examples=20)
@given(data=st.data())
def test_agrees_with_pyiceberg(source: str, transform: str, data: st.DataObject) -> None:
    iceberg_type, values = _SOURCES[source]
    column = data.draw(st.lists(st.none() | values, min_size=1, max_size=8))
    # Values repeat, in tables.
    column = column * 2
    found = apply_transform(transform, ColumnType(source), pa.array(column, arrow_type(ColumnType(source))))
    take = parse_transform(transform).transform(iceberg_type)
    assert [found.values[code] for code in found.codes] == [
        None if value is None else take(_internal(value)) for value in column
    ]
    # A partition has one code.
    assert len(set(map(repr, found.values))) == len(found.values)
    for value in found.values:
        # All of them can be written down.
        partition_json(transform, ColumnType(source), value)
        partition_text(transform, ColumnType(source), value)
        delta_value(transform, ColumnType(source), value)


@pytest.mark.parametrize(
    ("source", "transform", "value", "in_json", "in_text"),
    [
        ("date", "identity", dt.date(2024, 2, 29), "2024-02-29", "2024-02-29"),
        ("timestamptz", "day", dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC), "1969-12-31", "1969-12-31"),
        ("timestamp", "hour", dt.datetime(1970, 1, 2, 1), 25, "1970-01-02-01"),
        ("date", "month", dt.date(1971, 3, 1), 14, "1971-03"),
        ("date", "year", dt.date(1969, 3, 1), -1, "1969"),
        ("string", "truncate[2]", "ünique", "ün", "ün"),
        ("long", "truncate[10]", -1, -10, "-10"),
        ("decimal(9,2)", "identity", decimal.Decimal("1.50"), "1.50", "1.50"),
        ("timestamp", "identity", dt.datetime(2024, 1, 1, 1), "2024-01-01T01:00:00.000000", "2024-01-01T01:00:00"),
        ("string", "identity", None, None, "null"),
        ("binary", "identity", b"\x01\xff", "01FF", "Af8="),
    ],
)
def test_as_metadata_and_folders_write_them(
    source: str, transform: str, value: Any, in_json: Any, in_text: str
) -> None:
    found = apply_transform(transform, ColumnType(source), pa.array([value], arrow_type(ColumnType(source))))
    (stored,) = [found.values[code] for code in found.codes]
    assert partition_json(transform, ColumnType(source), stored) == in_json
    assert partition_text(transform, ColumnType(source), stored).startswith(in_text)
