"""For tests of DeltaTable: values of every type, columns of every type, and whether a value came back as it went."""

import datetime as dt
import math
import random
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from mainstem.client.delta import DeltaTable, Storage
from mainstem.formats.delta.schema import KIND, VARIANT

BERLIN = dt.timezone(dt.timedelta(hours=2))
COLUMNS: dict[str, pa.Field] = {
    name: pa.field(name, type_, True, {KIND: kind} if kind else None)
    for name, type_, kind in [
        ("boolean", pa.bool_(), None),
        ("byte", pa.int8(), None),
        ("short", pa.int16(), None),
        ("int", pa.int32(), None),
        ("long", pa.int64(), None),
        ("float", pa.float32(), None),
        ("double", pa.float64(), None),
        ("decimal", pa.decimal128(10, 2), None),
        ("wide", pa.decimal128(38, 0), None),
        ("text", pa.string(), None),
        ("binary", pa.binary(), None),
        ("day", pa.date32(), None),
        ("moment", pa.timestamp("us", "UTC"), None),
        ("local", pa.timestamp("us"), None),
        ("ints", pa.list_(pa.int64()), None),
        ("struct", pa.struct([("a", pa.int32()), ("b", pa.string())]), None),
        ("map", pa.map_(pa.string(), pa.float64()), None),
        ("json", pa.string(), "json"),
        ("extended", pa.string(), "extended_json"),
        ("id", pa.string(), "object_id"),
        ("variant", VARIANT, "variant"),
    ]
}
VALUES: list[Any] = [
    True, 0, 1, -1, 127, 128, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 + 1, 10**37, 10**40, Int64(7),
    0.0, 0.5, 2.0, 2.75, 0.1, 9.99, 1e300, -1e-300, math.inf, math.nan, float(2**63),
    Decimal("2"), Decimal("2.5"), Decimal("2.505"), Decimal("0.1"), Decimal("1e9"), Decimal("123456789012.5"),
    Decimal("NaN"), Decimal("1" * 38), Decimal("1" * 45), Decimal128("3.25"),
    "", "text", "5", "65f0c0ffee65f0c0ffee65f0", "lone \ud800", "é\x00\U0001f600", Code("x()"),
    b"", b"\x00\xff", b"text", bytearray(b"ab"), Binary(b"ab", 0), Binary(b"ab", 128), uuid.UUID(int=5),
    dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, tzinfo=dt.UTC), dt.datetime(2024, 2, 29, 12, 30),
    dt.datetime(2024, 2, 29, 1, 2, 3, 456_789, tzinfo=BERLIN), dt.datetime(2024, 3, 1, 2, tzinfo=BERLIN),
    dt.datetime(1950, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC), DatetimeMS(5), dt.time(1), dt.timedelta(1),
    ObjectId("65f0c0ffee65f0c0ffee65f0"), Regex("^a", 2), Timestamp(5, 1), {1, 2}, object,
    [], [1, 2], [1, 2.75], [1, None], ["a"], (1, 2), [[1]], {}, {"a": 1, "b": "x"}, {"a": 1.5}, {"a": 1, "c": 2},
    {"a": 2**40}, {"k": 0.5}, {"k": 2**53 + 1}, {"a": {"b": [None, {"c": 1}]}}, {1: 2},
    {"$date": 5}, {"$date": "2024-01-01T00:00:00Z"}, {"$oid": "65f0c0ffee65f0c0ffee65f0"}, {"a": {"$numberLong": "5"}},
    [2**63], {"a": 2**63}, [Decimal("1.50")], [Decimal("1" * 40)], [uuid.UUID(int=9)], ["lone \udfff"],
    [dt.datetime(2024, 1, 1, 1, 1, 1, 123_457, tzinfo=dt.UTC)], {"when": dt.date(2024, 1, 2)}, [ObjectId("0" * 24)],
    [math.nan, -math.inf], {"a": b"\x01"}, [dt.time(1)], ["x", dt.datetime(1900, 1, 1, 0, 0, 0, 999_999)],
]  # fmt: skip


def is_kept(value: Any, found: Any) -> bool:  # noqa: PLR0911 - case by case
    """Whether a stored value is the one that was written: a number by its value, a day by its midnight."""
    if isinstance(value, Mapping):
        return isinstance(found, Mapping) and list(value) == list(found) and all(
            is_kept(item, found[name]) for name, item in value.items()
        )  # fmt: skip
    if isinstance(value, list | tuple):
        return isinstance(found, list) and len(value) == len(found) and all(map(is_kept, value, found))
    if isinstance(value, bool) or isinstance(found, bool):
        return value is found
    if isinstance(value, _NUMBERS) and isinstance(found, _NUMBERS):
        one, other = _plain(value), _plain(found)
        return bool(one == other or (one != one and other != other))  # noqa: PLR0124
    if isinstance(value, dt.date | DatetimeMS):
        return isinstance(found, dt.date) and _moment(value) == _moment(found)
    if isinstance(value, bytes | bytearray):
        alike = getattr(value, "subtype", 0) == getattr(found, "subtype", 0)
        return isinstance(found, bytes) and alike and bytes(value) == bytes(found)
    return type(value) is type(found) and bool(value == found)


_NUMBERS = (int, float, Decimal, Decimal128)


def _plain(value: Any) -> Any:
    number = value.to_decimal() if isinstance(value, Decimal128) else value
    return math.nan if isinstance(number, Decimal) and number.is_nan() else number


def _moment(value: Any) -> dt.datetime:
    if isinstance(value, DatetimeMS):
        value = value.as_datetime()
    if not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


def as_written(value: Any, column: str) -> Any:
    """A map comes back as pairs and a struct with all of its fields: as the dictionaries that they were written as."""
    if column == "map" and isinstance(value, list):
        return dict(value)
    if column == "struct" and isinstance(value, Mapping):
        return {name: item for name, item in value.items() if item is not None}
    return value


def wide_table(
    storage: Storage, name: str, rng: random.Random, evolution: Literal["refuse", "widen", "variant"] = "refuse"
) -> DeltaTable:
    """An empty table with a column of every type."""
    table = DeltaTable(storage, name)
    partitions = rng.choice([[], [], ["text"], ["double"], ["binary", "day"], ["moment"], ["long", "decimal"]])
    table.create(
        pa.schema([pa.field("_id", pa.int64()), *COLUMNS.values()]),
        partition_by=partitions,
        variants=["variant"],
        deletion_vectors=rng.random() < 0.5,
        change_feed=rng.random() < 0.5,
        evolution=evolution,
    )
    return table
