"""No write changes a value: it is stored as what it is, or refused with the name of its column."""

import datetime as dt
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from bson.objectid import ObjectId

from mainstem.client.delta import DeltaTable, Storage, create_storage
from mainstem.formats.delta.values.exact import cast_exactly
from mainstem.model.errors import Invalid
from tests.harness.delta_values import COLUMNS, VALUES, as_written, is_kept, wide_table

Row = dict[str, Any]
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def storage() -> Storage:
    return create_storage("memory://")


@pytest.mark.parametrize("column", COLUMNS)
def test_every_value_into_every_column(storage: Storage, column: str) -> None:
    """One row per value that fits; the others are refused, and what is refused leaves nothing behind."""
    table = wide_table(storage, f"every-{column}", random.Random(column))
    fits: list[Row] = []
    for at, value in enumerate(VALUES):
        row = {"_id": at, column: value}
        version = table.version
        try:
            # A row of its own first, so that a refusal is seen to be one of the whole write.
            table.write([{"_id": -1 - at}, row]) if at % 2 else table.upsert([{"_id": -1 - at}, row])
        except Invalid as error:
            assert column in str(error)
            assert table.version == version
        else:
            fits.append(row)
    found = {row["_id"]: row for row in table.query({"_id": {"$gte": 0}})}
    assert len(found) == len(fits) > 0
    for row in fits:
        kept = as_written(found[row["_id"]][column], column)
        given = as_written(row[column], column)
        assert is_kept(given, kept), f"{given!r} became {kept!r}"


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_every_value_makes_a_column_that_holds_it(value: Any) -> None:
    table = DeltaTable(create_storage("memory://"), "made")
    try:
        table.write([{"_id": 1, "v": value}, {"_id": 2}])
    except Invalid as error:
        assert "column=v" in str(error)
        assert not table.exists()
        return
    assert is_kept(value, table.query({"_id": 1})[0]["v"])


@pytest.mark.parametrize(
    "values",
    [
        [Decimal("1.5"), 2], [1, 2.5], [2**53 + 1, 0.5], [2**63, 1], [Decimal("1.5"), 0.1],
        [Decimal("NaN"), Decimal(1)], [Decimal("1" * 30), Decimal("0.5" + "0" * 20)], [ObjectId(), "text"],
        ["a", 1, None, True], [NOON, dt.date(2024, 1, 1)], [b"a", "a"], [{"$date": 1}, 5],
    ],
    ids=str,
)  # fmt: skip
def test_mixed_values_make_a_column_that_holds_them_all(values: list[Any]) -> None:
    table = DeltaTable(create_storage("memory://"), "mixed")
    table.write([{"_id": at, "v": value} for at, value in enumerate(values)])
    found = {row["_id"]: row.get("v") for row in table.query()}
    for at, value in enumerate(values):
        assert is_kept(value, found[at]), f"{value!r} became {found[at]!r}"


def test_a_fraction_never_takes_the_place_of_a_whole_number(storage: Storage) -> None:
    table = DeltaTable(storage, "whole")
    table.write([{"_id": 1, "n": 5}, {"_id": 2, "n": 6}])
    before = table.query(sort={"_id": 1})
    attempts: list[Callable[[], object]] = [
        lambda: table.write([{"_id": 3, "n": 2.75}]),
        lambda: table.write([{"_id": 3, "n": Decimal("2.5")}]),
        lambda: table.write(pa.table({"_id": [3], "n": [2.75]})),
        lambda: table.write(pd.DataFrame({"_id": [3], "n": [2.75]})),
        lambda: table.write(pa.table({"_id": [3], "n": [2.75]}), mode="overwrite", evolve=False),
        lambda: table.upsert([{"_id": 1, "n": 9.99}]),
        lambda: table.upsert([{"_id": 1.7, "n": 9}]),
        lambda: table.upsert([], delete=[{"_id": 1.7}]),
        lambda: table.upsert(pa.table({"_id": [1.7], "n": [9]})),
        lambda: table.update({"_id": 1}, {"$inc": {"n": 0.5}}),
        lambda: table.update({"_id": 1}, {"$mul": {"n": 0.5}}),
        lambda: table.update({"_id": 1}, {"$set": {"n": "5"}}),
    ]
    for attempt in attempts:
        with pytest.raises(Invalid, match=r"does not fit its column. column=(n|_id)"):
            attempt()
    assert table.query(sort={"_id": 1}) == before
    # A whole number is one, however it is written.
    table.update({"_id": 1}, {"$inc": {"n": 2.0}})
    table.upsert([{"_id": 2.0, "n": Decimal("8")}])
    assert table.query(sort={"_id": 1}) == [{"_id": 1, "n": 7}, {"_id": 2, "n": 8}]


def test_a_sum_never_loses_digits(storage: Storage) -> None:
    table = DeltaTable(storage, "digits")
    table.write([{"_id": 1, "n": 10**37}, {"_id": 2, "n": 10**20}])
    with pytest.raises(Invalid, match="34 digits"):
        table.update({"_id": 1}, {"$inc": {"n": -1}})
    table.update({"_id": 2}, {"$inc": {"n": 1}})
    assert table.query(sort={"_id": 1}) == [{"_id": 1, "n": 10**37}, {"_id": 2, "n": 10**20 + 1}]


ARROW: list[tuple[pa.Array, pa.DataType, bool]] = [
    (pa.array([2.75]), pa.int64(), False),
    (pa.array([2.0, None, -3.0]), pa.int64(), True),
    (pa.array([math.nan]), pa.int64(), False),
    (pa.array([2**53 + 1]), pa.float64(), False),
    (pa.array([2**40]), pa.int32(), False),
    (pa.array([2**63], pa.uint64()), pa.int64(), False),
    (pa.array([5], pa.uint64()), pa.int64(), True),
    (pa.array([0.1]), pa.float32(), False),
    (pa.array([0.5, math.nan, math.inf]), pa.float32(), True),
    (pa.array([0.1], pa.float32()), pa.float64(), True),
    (pa.array([0.1]), pa.decimal128(10, 2), False),
    (pa.array([0.25]), pa.decimal128(10, 2), True),
    (pa.array([2.755]), pa.decimal128(10, 2), False),
    (pa.array([Decimal("0.1")]), pa.float64(), False),
    (pa.array([Decimal("0.5")]), pa.float64(), True),
    (pa.array([Decimal("2.5")]), pa.int64(), False),
    (pa.array([Decimal("2.0")]), pa.int64(), True),
    (pa.array([Decimal("2.505")]), pa.decimal128(10, 2), False),
    (pa.array([dt.datetime(2024, 1, 1, 5)]), pa.date32(), False),
    (pa.array([dt.datetime(2024, 1, 1)]), pa.date32(), True),
    (pa.array([dt.date(2024, 1, 1)]), pa.timestamp("us", "UTC"), True),
    (pa.array([1], pa.timestamp("ns")), pa.timestamp("us"), False),
    (pa.array([1000], pa.timestamp("ns", "UTC")), pa.timestamp("us", "UTC"), True),
    (pa.array(["5"]), pa.int64(), False),
    (pa.array([5]), pa.string(), False),
    (pa.array([True]), pa.int64(), False),
    (pa.array([2]), pa.bool_(), False),
    (pa.array([b"a"]), pa.string(), False),
    (pa.array(["a"]), pa.binary(), False),
    (pa.array([5]), pa.timestamp("us"), False),
    (pa.array(["a", None]).dictionary_encode(), pa.string(), True),
    (pa.array([None, None]), pa.decimal128(10, 2), True),
    (pa.array([[2.5]]), pa.list_(pa.int64()), False),
    (pa.array([[2.0], None]), pa.list_(pa.int64()), True),
    (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())]), False),
    (pa.array([{"a": 1}]), pa.struct([("a", pa.int32())]), True),
]


@pytest.mark.parametrize(("column", "type_", "fits"), ARROW, ids=str)
def test_arrow_is_cast_exactly_or_refused(column: pa.Array, type_: pa.DataType, fits: bool) -> None:
    if not fits:
        with pytest.raises(Invalid, match="column=c"):
            cast_exactly(column, type_, "c")
        return
    cast = cast_exactly(column, type_, "c")
    assert cast.type == type_
    for before, after in zip(column.to_pylist(), cast.to_pylist(), strict=True):
        assert before is after is None or is_kept(before, after)


def test_pandas_moments_are_moments(storage: Storage) -> None:
    table = DeltaTable(storage, "moments")
    table.write(pd.DataFrame({"_id": [1], "t": pd.to_datetime(["2024-01-01T00:00:00.000001"])}))
    assert table.schema.field("t").type == pa.timestamp("us")
    assert table.query()[0]["t"] == dt.datetime(2024, 1, 1, 0, 0, 0, 1)
    with pytest.raises(Invalid, match="column=t"):
        table.write(pd.DataFrame({"_id": [2], "t": pd.to_datetime(["2024-01-01T00:00:00.000000001"])}))
    with pytest.raises(Invalid, match="column=t"):
        table.write([{"_id": 2, "t": pd.Timestamp("2024-01-01T00:00:00.000000001")}])


def test_an_update_leaves_other_columns_to_the_byte(storage: Storage) -> None:
    """Text that another writer left is not decoded and written anew: not its spaces, nor its digits."""
    table = DeltaTable(storage, "bytes")
    table.create(pa.schema([("_id", pa.int64()), COLUMNS["json"], ("n", pa.int64())]))
    text = '{ "big": 9223372036854775809,  "e": 1E2 }'
    table.write(pa.table({"_id": [1, 2], "json": [text, text], "n": [1, 1]}))
    table.update({}, {"$inc": {"n": 1}})
    table.update({"_id": 2}, {"$set": {"json.more": 1}})
    found = table.query_arrow(sort={"_id": 1})
    assert found["json"].to_pylist()[0] == text
    assert found["n"].to_pylist() == [2, 2]


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([{"_id": 1, "a": 1, "A": 2}], "upper and lower case"),
        ([{"_id": 1, "file_index": 1}], "file_index"),
        ([{"_id": 1, "File_Row_Number": 1}], "Row_Number"),
        ([{"_id": 1, "x\ud800": 1}], "Unicode"),
        ([{"_id": 1, "v": "\ud800"}], "column=v"),
        ([{"_id": 1, "v": np.datetime64("2024-01-01")}], "column=v"),
        ([{"_id": 1, "v": Decimal("1" * 38)}, {"_id": 2, "v": Decimal("0.5")}], "column=v"),
        ([{"_id": 1, "": 1}], "name"),
        (pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), "one name"),
        (pa.table({"t": pa.array([1], pa.time32("s"))}), "no such type"),
        (pa.table({"d": pa.array([1], pa.decimal256(50, 2))}), "no such type"),
    ],
    ids=lambda value: str(value)[:40].encode("ascii", "replace").decode(),
)
def test_what_cannot_be_is_refused_by_name(rows: Any, word: str) -> None:
    table = DeltaTable(create_storage("memory://"), "t")
    with pytest.raises(Invalid, match=word):
        table.write(rows)
    assert not table.exists()
    table.write([{"_id": 0}])
    for attempt in (lambda: table.write(rows), lambda: table.upsert(rows)):
        with pytest.raises(Invalid):
            attempt()
    assert table.version == 0
    assert table.schema.names == ["_id"]


@pytest.mark.parametrize(
    "filter", [{"s": "lone \ud800"}, {"s": {"$gte": "a", "$lt": "\ud800"}}, {"j.x": "\ud800"}], ids=ascii
)
def test_a_filter_with_half_a_character_is_refused_by_name(storage: Storage, filter: Row) -> None:
    table = DeltaTable(storage, "halves")
    if not table.exists():
        table.write([{"_id": n, "s": f"lone {n}", "j": {"x": n}} for n in range(100)])
    for attempt in (table.query, table.query_arrow, table.delete):
        with pytest.raises(Invalid, match="not Unicode"):
            attempt(filter)
    assert table.query_arrow().num_rows == 100


def test_text_from_arrow_is_what_its_column_says(storage: Storage) -> None:
    table = DeltaTable(storage, "texts")
    table.create(pa.schema([("_id", pa.int64()), COLUMNS["json"], COLUMNS["id"]]))
    for column, text in (("json", "{not json"), ("id", "not an id"), ("id", "65F0C0FFEE65F0C0FFEE65F0")):
        with pytest.raises(Invalid, match=f"column={column}"):
            table.write(pa.table({"_id": [1], column: [text]}))
    table.write(pa.table({"_id": [1], "json": ["[1]"], "id": ["65f0c0ffee65f0c0ffee65f0"]}))
    assert table.query() == [{"_id": 1, "json": [1], "id": ObjectId("65f0c0ffee65f0c0ffee65f0")}]


PARTITIONS: dict[str, list[Any]] = {
    "double": [math.nan, 0.0, -0.0, 0.1, math.inf, -math.inf, 1e300, None],
    "float": [math.nan, 0.5, -math.inf],
    "long": [-(2**63), 0, 2**63 - 1, None],
    "decimal": [Decimal("0.05"), Decimal("100"), None],
    "text": ["", " ", "a/b", "null", "__HIVE_DEFAULT_PARTITION__", "é%41", None],
    "binary": [b"ab", b"\x00", "é".encode(), None],
    "boolean": [True, False, None],
    "day": [dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
    "moment": [NOON + dt.timedelta(microseconds=1), dt.datetime(1900, 1, 1, tzinfo=dt.UTC), None],
    "local": [dt.datetime(2024, 1, 1, 0, 0, 0, 999_999)],
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_row_is_in_its_partition_once(storage: Storage, name: str) -> None:
    table = DeltaTable(storage, f"by-{name}")
    table.create(pa.schema([("_id", pa.int64()), COLUMNS[name]]), partition_by=[name])
    rows = [{"_id": at, name: value} for at, value in enumerate(PARTITIONS[name] * 3)]
    table.write(rows)
    table.upsert(rows[:2])
    found = {row["_id"]: row.get(name) for row in table.query()}
    assert table.query_arrow().num_rows == len(found) == len(rows)
    for row in rows:
        value, kept = row[name], found[row["_id"]]
        assert (value is None and kept is None) or is_kept(value, kept), f"{value!r} became {kept!r}"
        if isinstance(value, float) and isinstance(kept, float) and value == value:  # noqa: PLR0124
            assert math.copysign(1, value) == math.copysign(1, kept)


def test_partitions_that_cannot_be_are_refused_by_name() -> None:
    for rows, by, word in (
        ([{"_id": 1, "p": b"\xff"}], ["p"], "UTF-8"),
        ([{"_id": 1, "p": 1}], ["_id", "p"], "not partitioned by"),
        (pa.table({"_id": [1], "p": [[1]]}), ["p"], "single value"),
        ([{"_id": 1}], ["p"], "no such column"),
    ):
        table = DeltaTable(create_storage("memory://"), "t")
        with pytest.raises(Invalid, match=word):
            table.write(rows, partition_by=by)
        assert not table.exists()


def test_an_overwrite_brings_its_own_columns(storage: Storage) -> None:
    table = DeltaTable(storage, "over")
    table.write([{"_id": 1, "n": 1, "d": 1.5}])
    table.write([{"_id": 1, "n": 2.75, "d": 2}], mode="overwrite")
    assert table.query() == [{"_id": 1, "n": 2.75, "d": 2}]
    table.write([{"_id": 5, "d": 7}], mode="overwrite")
    assert table.schema.names == ["_id", "d"]
    assert table.query() == [{"_id": 5, "d": 7}]
    assert len(table.history()) == 3
