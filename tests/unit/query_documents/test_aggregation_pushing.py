"""What SQL answers of a pipeline is what the pipeline answers, on generated tables."""

# ruff: noqa: PLR0911 - a value for each type.

import datetime as dt
import math
import random
from typing import Any

import duckdb
import pytest
from bson.int64 import Int64
from bson.objectid import ObjectId

from mainstem.documents import Column, Kind, compile_pipeline, row_document
from mainstem.documents.aggregation.pushing import KINDS, TypedTable, push_down
from mainstem.documents.values import identical, order_key

_TYPES = {"i": "int", "l": "long", "f": "double", "s": "string", "b": "bool", "t": "date", "o": "objectId"}
_SQL = {
    "int": "BIGINT", "long": "BIGINT", "double": "DOUBLE", "string": "VARCHAR", "bool": "BOOLEAN",
    "date": "TIMESTAMPTZ", "objectId": "VARCHAR",
}  # fmt: skip
TABLE = TypedTable(
    {name: frozenset({kind}) for name, kind in _TYPES.items()},
    {name: Column(KINDS[kind]) for name, kind in _TYPES.items()},
)


def documents(chance: random.Random, count: int) -> list[dict[str, Any]]:
    def value(kind: str) -> Any:
        match kind:
            case "int":
                return chance.randrange(-3, 9)
            case "long":
                return Int64(chance.choice([1, 2, 1 << 40, -(1 << 62), 1 << 62]))
            case "double":
                return chance.choice([0.5, 1.25, -2.0, 1e10])
            case "string":
                return chance.choice(["", "a", "B", "ü", "zz"])
            case "bool":
                return chance.random() < 0.5
            case "date":
                return dt.datetime(2024, 1, chance.randrange(1, 5), tzinfo=dt.UTC)
        return ObjectId(f"{chance.randrange(4):024x}")

    return [{name: value(kind) for name, kind in _TYPES.items() if chance.random() < 0.8} for _ in range(count)]


def loaded(rows: list[dict[str, Any]]) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    columns = ", ".join(f"{name} {_SQL[kind]}" for name, kind in _TYPES.items())
    connection.execute(f"CREATE TABLE t ({columns})")
    cells = [
        [str(row[name]) if isinstance(row.get(name), ObjectId) else row.get(name) for name in _TYPES] for row in rows
    ]
    if cells:
        connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(_TYPES))})", cells)
    return connection


_KEYS: list[Any] = [None, "$i", "$l", "$s", "$b", "$t", "$o", {"x": "$s", "y": "$b"}]
_FILTERS: list[Any] = [{}, {"i": {"$gt": 1}}, {"s": {"$in": ["a", "ü"]}}, {"f": {"$lt": 1}, "b": True}, {"i": None}]


@pytest.mark.parametrize("seed", range(12))
def test_a_group_is_the_same_in_sql(seed: int) -> None:
    chance = random.Random(seed)
    rows = documents(chance, chance.choice([0, 1, 60]))
    connection = loaded(rows)
    for _ in range(8):
        sums = {"n": {"$sum": 1}, "c": {"$count": {}}, "si": {"$sum": "$i"}, "sl": {"$sum": "$l"}, "af": {"$avg": "$f"}}
        least, most = (f"${chance.choice('ilsbto')}" for _ in range(2))
        ends = {"ai": {"$avg": "$i"}, "m": {"$min": least}, "x": {"$max": most}}
        pipeline = [{"$match": chance.choice(_FILTERS)}, {"$group": {"_id": chance.choice(_KEYS), **sums, **ends}}]
        pushed = push_down(pipeline, TABLE)
        assert pushed.stages == 2 and pushed.group is not None
        found = [pushed.group.document(row) for row in connection.execute(*pushed.sql("t")).fetchall()]
        expected = [dict(item) for item in compile_pipeline(pipeline).run(rows)]
        assert len(found) == len(expected), pipeline
        for items in (found, expected):
            items.sort(key=lambda item: order_key(item["_id"]))
        for one, other in zip(found, expected, strict=True):
            mean, other_mean = one.pop("af"), other.pop("af")
            assert mean == other_mean or math.isclose(mean, other_mean, rel_tol=1e-15)
            assert identical(one, other), pipeline


@pytest.mark.parametrize("seed", range(6))
def test_a_sorted_page_is_the_same_in_sql(seed: int) -> None:
    chance = random.Random(seed)
    rows = documents(chance, 40)
    connection = loaded(rows)
    for _ in range(8):
        names = chance.sample("ilsbto", 6)
        order = {name: chance.choice([1, -1]) for name in names}
        page = [{"$skip": chance.randrange(3)}, {"$limit": 9}]
        pipeline: list[Any] = [{"$match": chance.choice(_FILTERS)}, {"$sort": order}, *page]
        pushed = push_down(pipeline, TABLE)
        assert pushed.stages == 4
        cursor = connection.execute(*pushed.sql("t"))
        found = [row_document(dict(zip(_TYPES, row, strict=True)), TABLE.columns) for row in cursor.fetchall()]
        expected = list(compile_pipeline(pipeline).run(rows))
        # Of equal keys both may choose: the keys are compared, and they are all the fields but one.
        assert [[order_key(item.get(name)) for name in names] for item in found] == [
            [order_key(item.get(name)) for name in names] for item in expected
        ]


@pytest.mark.parametrize(
    ("pipeline", "stages"),
    [
        ([{"$match": {"a.b": 1}}], 0),
        ([{"$match": {"s": {"$regex": "a.*b"}}}], 0),
        ([{"$match": {"mixed": 1}}], 0),
        ([{"$match": {"nulls": {"$exists": True}}}], 0),
        ([{"$match": {"nulls": None}}], 1),
        ([{"$match": {"i": {"$type": "long"}}}], 0),
        ([{"$match": {"$expr": {"$gt": ["$i", 1]}}}], 0),
        ([{"$match": {"i": 1}}, {"$unwind": "$i"}], 1),
        ([{"$group": {"_id": "$f"}}], 0),
        ([{"$group": {"_id": "$nulls"}}], 0),
        ([{"$group": {"_id": "$s", "x": {"$max": "$f"}}}], 0),
        ([{"$group": {"_id": "$s", "x": {"$push": "$i"}}}], 0),
        ([{"$group": {"_id": "$s", "x": {"$sum": "$mixed"}}}], 0),
        ([{"$group": {"_id": "$s"}}, {"$sort": {"_id": 1}}], 1),
        ([{"$sort": {"f": 1}}], 0),
        ([{"$limit": 5}, {"$match": {"i": 1}}], 1),
        ([{"$limit": 0}], 0),
        ([{"$project": {"i": 1, "s": 1}}], 1),
        ([{"$project": {"x": "$i"}}], 0),
    ],
)
def test_what_sql_would_answer_otherwise_is_left_to_the_stages(pipeline: list[Any], stages: int) -> None:
    types = {**TABLE.types, "mixed": frozenset({"int", "string"}), "nulls": frozenset({"int", "null"})}
    columns = {**TABLE.columns, "mixed": Column(Kind.JSON), "nulls": Column(Kind.INTEGER)}
    assert push_down(pipeline, TypedTable(types, columns)).stages == stages
