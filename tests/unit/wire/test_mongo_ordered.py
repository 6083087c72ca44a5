"""Ordered bytes against the one order of values that filters and sorts have."""

import datetime as dt
from typing import Any

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from hypothesis import example, given
from hypothesis import strategies as st

from mainstem.documents.values import order_key
from mainstem.wire.mongo.from_ordered import value_of
from mainstem.wire.mongo.ordered import after, ordered, reversed_order

numbers = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-5, 5),
    st.integers(-5, 5).map(Int64),
    st.floats(),
    st.sampled_from([0.0, -0.0, 1.0, 0.1, 5e-324, 1.7976931348623157e308, float(1 << 53), float(1 << 63)]),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9).map(Decimal128),
    st.sampled_from(["1", "1.00", "0.1", "1E+400", "-1E+400", "1E-6000", "-1E-6000", "NaN"]).map(Decimal128),
)
scalars = st.one_of(
    numbers,
    st.text(max_size=8),
    st.none(),
    st.booleans(),
    st.binary(max_size=4),
    st.builds(Binary, st.binary(max_size=4), st.sampled_from([0, 5, 128])),
    st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1)).map(lambda at: at.replace(microsecond=0)),
    st.builds(Timestamp, st.integers(0, 9), st.integers(0, 9)),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.sampled_from([MinKey(), MaxKey(), Regex("a", "i"), Code("x")]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=6,
)


@given(values, values)
@example(1, 1.0)
@example(Int64(1), Decimal128("1.0"))
@example((1 << 53) + 1, float(1 << 53))
@example({"a": 1}, {"a": 1, "b": 2})
@example("a", "a\x00")
def test_bytes_are_ordered_as_values_are(left: Any, right: Any) -> None:
    assert (ordered(left) < ordered(right)) == (order_key(left) < order_key(right))
    assert (ordered(left) == ordered(right)) == (order_key(left) == order_key(right))


@given(values, values)
def test_a_descending_order_is_the_other_way_round(left: Any, right: Any) -> None:
    a, b = ordered(left), ordered(right)
    assert (reversed_order(a) > reversed_order(b)) == (a < b)
    assert a < after(a)


@given(values)
@example(Code("x", {"a": 1}))
@example(-(2.0**63))
def test_bytes_lead_back_to_an_equal_value(value: Any) -> None:
    assert ordered(value_of(ordered(value))) == ordered(value)


@given(st.binary(max_size=40))
@example(b"")
@example(b"\x5c\x61\x00\x00\x08")
@example(b"\x28" * 400)
def test_bytes_of_others_are_a_value_or_refused(data: bytes) -> None:
    try:
        value = value_of(data)
    except ValueError:
        return
    order_key(value)
