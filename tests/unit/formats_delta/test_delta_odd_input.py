"""What a table cannot hold, or could hold and nobody read again, is refused by name; the rest comes back as it went."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bson.datetime_ms import DatetimeMS

from mainstem.client.delta import DeltaTable
from mainstem.model.errors import Invalid

FEED = {"delta.enableChangeDataFeed": "true"}
NANOS = pa.timestamp("ns")
MICROS = pa.timestamp("us")


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable(str(tmp_path), "t")


def struct(name: str, value: Any, type_: pa.DataType) -> pa.Table:
    return pa.table({"s": pa.array([{name: value}], pa.struct([(name, type_)]))})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        pytest.param(struct("t", 1, NANOS), "column=s .*expected=microseconds", id="nanoseconds in a struct"),
        pytest.param(pa.table({"a": pa.array([2**62], MICROS)}), "column=a .*years 1 to 9999", id="a far moment"),
        pytest.param(pa.table({"a": pa.array([3 * 10**6], pa.date32())}), "column=a .*years 1 to 9999", id="a far day"),
        pytest.param(struct("t", 2**62, MICROS), "column=s .*years 1 to 9999", id="a far moment in a struct"),
        pytest.param(
            pa.table({"l": pa.array([[0, 2**62]], pa.list_(MICROS))}), "column=l .*years", id="a far moment in a list"
        ),
        pytest.param(
            pa.table({"m": pa.array([[("k", 2**62)]], pa.map_(pa.string(), MICROS))}), "column=m", id="one in a map"
        ),
        pytest.param([{"d": DatetimeMS(10**17)}], "column=d .*years 1 to 9999", id="a BSON moment"),
        pytest.param([{"d": [DatetimeMS(-(10**17))]}], "column=d .*years 1 to 9999", id="a BSON moment in a list"),
        pytest.param(pa.table({"": [1]}), "a column has a name", id="no name"),
        pytest.param(struct("", 1, pa.int64()), "fields of a struct have names.*column=s", id="no name in a struct"),
        pytest.param(
            pa.table({"s": pa.array([{"a": 1, "A": 2}], pa.struct([("a", pa.int64()), ("A", pa.int64())]))}),
            "differ by more than upper and lower case",
            id="case in a struct",
        ),
    ],
)
def test_it_is_refused_by_name_and_leaves_nothing(table: DeltaTable, rows: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        table.write(rows)
    assert not table.exists()
    table.write([{"k": 1}])
    with pytest.raises(Invalid, match=message):
        table.write(rows)
    assert table.find({}).rows() == [{"k": 1}] and table.version == 0


@pytest.mark.parametrize("name", ['q"x', '"', "a`b", "a.b", "a'b", "a b", "ä"])
def test_a_field_of_a_struct_may_have_any_letters(table: DeltaTable, name: str) -> None:
    table.write(struct(name, 7, pa.int64()))
    table.update({}, {"$set": {"n": 1}})
    assert table.find({}).rows() == [{"s": {name: 7}, "n": 1}]
    assert table.delta_rs().to_pyarrow_table()["s"].to_pylist() == [{name: 7}]


def test_whole_microseconds_come_in_from_nanoseconds_at_any_depth(table: DeltaTable) -> None:
    table.write(pa.table({"l": pa.array([[{"t": 5_000}]], pa.list_(pa.struct([("t", NANOS)])))}))
    ((item,),) = [row["l"] for row in table.find({}).rows()]
    assert item["t"].microsecond == 5


@pytest.mark.parametrize("text", ["x" * 300, "ü/" * 100])
def test_a_partitions_value_may_be_longer_than_a_folders_name(table: DeltaTable, text: str) -> None:
    table.create(pa.schema([("p", pa.string()), ("a", pa.int64())]), partition_by=["p"])
    table.write([{"p": text, "a": 1}, {"p": "short", "a": 2}])
    assert table.find({"p": text}).rows() == [{"p": text, "a": 1}]
    assert table.delete({"p": text}).deleted == 1
    assert table.delta_rs().to_pyarrow_table().to_pylist() == [{"p": "short", "a": 2}]


def test_columns_that_were_named_like_our_own(table: DeltaTable) -> None:
    table.create(pa.schema([("__at", pa.int64()), ("b", pa.string())]), partition_by=["__at"], change_feed=True)
    table.write([{"__at": 1, "b": "x"}, {"__at": 2, "b": "y"}])
    table.upsert([{"__at": 1, "b": "z"}, {"__at": 1, "b": "last"}], key="__at")
    assert sorted(row["b"] for row in table.find({}, sort={"__at": 1}).rows()) == ["last", "y"]
    told = [(row["b"], row["_change_type"]) for row in table.changes(2).read_all().to_pylist()]
    assert sorted(told) == [("last", "update_postimage"), ("x", "update_preimage")]


def test_columns_of_the_change_feed_are_refused_where_there_is_one(table: DeltaTable) -> None:
    table.write([{"_change_type": 1}])
    assert table.find({}).rows() == [{"_change_type": 1}]
    with pytest.raises(Invalid, match=r"with a change feed cannot have these columns.*_change_type"):
        table.set_properties(FEED)
    other = DeltaTable(table.storage, "other")
    with pytest.raises(Invalid, match="with a change feed"):
        other.create(pa.schema([("_Commit_Version", pa.int64())]), change_feed=True)
    other.create(pa.schema([("a", pa.int64())]), change_feed=True)
    with pytest.raises(Invalid, match="with a change feed"):
        other.write([{"_commit_timestamp": 1}])


def test_an_integer_of_json_text_is_never_made_a_double_by_an_update(table: DeltaTable) -> None:
    table.write([{"_id": "1", "j": {"a": 1}}])
    text = '{"a":1, "big": 9223372036854775809, "f": 1.10}'
    table.write(pa.table({"_id": ["2"], "j": [text]}))
    table.update({"_id": "2"}, {"$set": {"other": 5}})
    kept = {row["_id"]: row["j"] for row in table.delta_rs().to_pyarrow_table().to_pylist()}
    assert kept["2"] == text
    table.update({"_id": "2"}, {"$set": {"j.a": 2}})
    kept = {row["_id"]: row["j"] for row in table.delta_rs().to_pyarrow_table().to_pylist()}
    assert kept["2"] == '{"a":2,"big":9223372036854775809,"f":1.1}'
    # A new one is refused: most readers would make it a double.
    for change in ({"$set": {"j.b": 2**63 + 1}}, {"$inc": {"j.big": 1}}):
        with pytest.raises(Invalid, match="64 bits"):
            table.update({"_id": "2"}, change)


def told(table: DeltaTable, first: int = 0) -> list[tuple[Any, str, int]]:
    rows = table.changes(first).read_all().to_pylist()
    return [(row["a"], row["_change_type"], row["_commit_version"]) for row in rows]


def test_changes_across_an_overwrite_that_brings_another_type(table: DeltaTable) -> None:
    table.create(pa.schema([("a", pa.int64()), ("b", pa.int64())]), change_feed=True)
    table.write([{"a": 1, "b": 1}])
    table.write(pa.table({"a": ["x"], "b": [2]}), mode="overwrite")
    assert told(table) == [("1", "insert", 1), ("x", "insert", 2), ("1", "delete", 2)]
    assert [row["b"] for row in table.changes().read_all().to_pylist()] == [1, 2, 1]
    # After it, the column is what it is.
    table.write([{"a": "y", "b": 3}])
    assert table.changes(3).schema.field("a").type == pa.string() and told(table, 3) == [("y", "insert", 3)]
    table.write(pa.table({"a": [7], "b": [4]}), mode="overwrite")
    assert told(table, 3) == [
        *[("y", "insert", 3), ("7", "insert", 4)],
        *sorted([("x", "delete", 4), ("y", "delete", 4)]),
    ]


@pytest.mark.parametrize(("evolution", "value", "text"), [("widen", 2.5, "2.5"), ("variant", "word", '"word"')])
def test_changes_across_a_restore_that_brings_another_type(
    table: DeltaTable, evolution: Any, value: Any, text: str
) -> None:
    table.create(pa.schema([("a", pa.int64())]), change_feed=True, evolution=evolution)
    table.write([{"a": 1}])
    table.write([{"a": value}])
    table.restore(1)
    found = told(table)
    assert found[:2] == [("1", "insert", 1), (text, "insert", 2)]
    # What the restore takes away and brings back evens out. The file that was written anew had 1 as 1.0.
    rest: dict[Any, int] = {}
    for cell, change, _ in found:
        value = json.loads(cell)
        rest[value] = rest.get(value, 0) + (1 if change == "insert" else -1)
    assert rest == {1: 1, json.loads(text): 0}
    table.write([{"a": 3}])
    assert told(table, 4) == [(3, "insert", 4)]
