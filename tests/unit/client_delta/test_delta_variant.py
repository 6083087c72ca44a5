"""Variant: any value there and back, and as a column of a table."""

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.delta import DeltaTable, create_storage, variant
from mainstem.model.errors import Corrupt, Invalid, MainstemError

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
