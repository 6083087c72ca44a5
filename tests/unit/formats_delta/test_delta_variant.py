"""Variant: any value there and back, and as a column of a table."""

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.delta import DeltaTable, create_storage
from mainstem.formats.delta.values import variant
from mainstem.model.errors import Corrupt, Invalid, MainstemError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCALARS: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=100)
    | st.binary(max_size=100)
    | st.dates()
    | st.datetimes(timezones=st.just(dt.UTC))
    | st.uuids()
    | st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=5)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5)
)


@given(VALUES)
def test_there_and_back(value: Any) -> None:
    assert variant.decode(*variant.encode(value)) == value


@given(VALUES, st.data())
def test_broken_bytes_are_an_error_or_a_value(value: Any, data: st.DataObject) -> None:
    metadata, encoded = variant.encode(value)
    cut = data.draw(st.integers(0, max(0, len(encoded) - 1)))
    try:
        variant.decode(metadata, encoded[:cut])
    except MainstemError:
        pass


def test_wide_and_deep() -> None:
    wide = {f"field {n}": n for n in range(70_000)}
    assert variant.decode(*variant.encode(wide)) == wide
    long = list(range(70_000))
    assert variant.decode(*variant.encode(long)) == long
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    with pytest.raises(Invalid, match="deep"):
        variant.encode(deep)
    with pytest.raises(Corrupt):
        variant.decode(variant.encode({"a": 1})[0], b"\x02\x01\x09\x00\x01\x00")


def test_a_column_of_variants() -> None:
    table = DeltaTable(create_storage("memory://"), "docs")
    rows = [
        {"_id": 1, "doc": {"a": 1, "deep": [{"b": dt.date(2024, 1, 1)}]}},
        {"_id": 2, "doc": [1, 2, "three"]},
        {"_id": 3, "doc": "text"},
        {"_id": 4, "doc": Decimal("1.5"), "id": str(uuid.UUID(int=5))},
        {"_id": 5},
    ]
    table.write(rows[:3], variants=["doc"])
    table.write(rows[3:])
    assert table.query(sort={"_id": 1}) == rows
    assert table.query({"doc.a": 1}) == rows[:1]
    assert table.query({"doc": "three"}) == rows[1:2]
    assert table.query({"doc": None}) == rows[4:]
    table.update({"_id": 3}, {"$set": {"doc": {"now": "this"}}})
    assert table.query({"doc.now": "this"}) == [{"_id": 3, "doc": {"now": "this"}}]
    table.upsert([{"_id": 1, "doc": 7}])
    assert table.query({"doc": 7}) == [{"_id": 1, "doc": 7}]


SHAPES: list[Any] = [
    {"a": {"b": n, "c": [1, n]}, "city": f"city {n % 7}", "when": dt.datetime(2026, 1, 1, 0, 0, n % 60, tzinfo=dt.UTC)}
    for n in range(200)
] + [{"a": "other"}, {"a": {"b": "text"}, "more": {"x": None}}, "plain", 2.5, [1, {"b": 2}], True, b"\x00\xff"]


def test_shredded_variants_are_the_same_values(tmp_path: Path) -> None:
    storage = create_storage(str(tmp_path))
    found: dict[bool, DeltaTable] = {}
    for shredded in (False, True):
        table = DeltaTable(storage, f"shredded-{shredded}")
        two = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
        schema = pa.schema([("_id", pa.int64()), ("v", two), ("at", pa.timestamp("us", "UTC"))])
        table.create(schema, variants=["v"], shredded=shredded, deletion_vectors=True)
        rows = [{"_id": n, "v": value, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)} for n, value in enumerate(SHAPES)]
        table.write([*rows, {"_id": 1_000, "v": None}])
        table.update({"v.a.b": 7}, {"$set": {"v": {"a": {"b": -7}}}})
        table.delete({"v.city": "city 3"})
        table.upsert([{"_id": 5, "v": {"new": [None]}}])
        found[shredded] = table
    plain, apart = (sorted(found[each].query(), key=lambda row: row["_id"]) for each in (False, True))
    assert apart == plain
    assert (
        [row["_id"] for row in found[True].query({"v.a.b": {"$gte": 190}})]
        == [row["_id"] for row in found[False].query({"v.a.b": {"$gte": 190}})]
        != []
    )
    files = [pq.ParquetFile(uri).schema.names for uri in found[True].snapshot().file_uris()]
    assert any("typed_value" in names for names in files)
    assert "variantShredding-preview" in (found[True].state().protocol.readerFeatures or ())
    assert "variantShredding-preview" not in (found[False].state().protocol.readerFeatures or ())


@pytest.mark.spark
@pytest.mark.parametrize("shredded", [False, True])
def test_spark_reads_variants_of_ours(tmp_path: Path, spark: "SparkSession", shredded: bool) -> None:
    table = DeltaTable(create_storage(str(tmp_path)), "t")
    two = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    table.create(pa.schema([("_id", pa.int64()), ("v", two)]), variants=["v"], shredded=shredded)
    table.write([{"_id": n, "v": value} for n, value in enumerate(SHAPES)] + [{"_id": 1_000, "v": None}])
    expected = {row["_id"]: row.get("v") for row in table.query()}
    rows = table.to_spark(spark).collect()
    assert {row["_id"]: None if row["v"] is None else row["v"].toPython() for row in rows} == expected
    assert table.to_spark(spark).where("try_variant_get(v, '$.a.b', 'bigint') >= 190").count() == 10
    spark.sql(f"DELETE FROM delta.`{table.uri}` WHERE _id < 100")
    spark.sql(f"""INSERT INTO delta.`{table.uri}` VALUES (2000, parse_json('{{"a": {{"b": 190}}}}'))""")
    assert sorted(row["_id"] for row in table.query({"v.a.b": 190})) == [190, 2000]
