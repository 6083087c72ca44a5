"""Random documents and filters over one table, small enough that they often meet."""

import datetime as dt
import json
from typing import Any

from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from hypothesis import strategies as st

from mainstem.query.documents import Column, Columns, Kind

COLUMNS: Columns = {
    "b": Column(Kind.BOOLEAN),
    "i": Column(Kind.INTEGER),
    "f": Column(Kind.DOUBLE),
    "m": Column(Kind.DECIMAL, 2),
    "s": Column(Kind.STRING),
    "t": Column(Kind.TIMESTAMP_TZ),
    "u": Column(Kind.TIMESTAMP),
    "d": Column(Kind.DATE),
    "x": Column(Kind.BINARY),
    "o": Column(Kind.OBJECT_ID),
    "j": Column(Kind.JSON),
    "k": Column(Kind.JSON),
}

integers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31 - 1, 2**31, -(2**31) - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]),
)
floats = st.one_of(
    st.sampled_from([-1.5, -0.0, 0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 2.0**53, 2.0**63, -(2.0**63), 1e300, 5e-324]),
    st.floats(allow_nan=False, allow_infinity=False, width=64),
)
texts = st.sampled_from(["", "a", "ab", "abc", "b", "B", "é", "\U0001f600", "a'b", 'a"b', "1", "a\nb"])
names = st.sampled_from(["a", "b", "c", "0", "1"])
moments = st.sampled_from(
    [
        dt.datetime(2024, 5, 1, tzinfo=dt.UTC),
        dt.datetime(2024, 5, 1, 0, 0, 0, 1500, tzinfo=dt.UTC),
        dt.datetime(2024, 5, 1, 0, 0, 0, 1000, tzinfo=dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
    ]
)
object_ids = st.sampled_from([ObjectId("5f" * 12), ObjectId("60" * 12)])
blobs = st.sampled_from([b"", b"a", b"b", b"ab"])

json_scalars = st.one_of(st.none(), st.booleans(), integers, floats, texts, st.sampled_from([2**63, 2**64, 10**25]))
json_values = st.recursive(
    json_scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)


def nullable(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


rows = st.fixed_dictionaries(
    {
        "b": nullable(st.booleans()),
        "i": nullable(integers),
        "f": nullable(st.one_of(floats, st.sampled_from([float("nan"), float("inf"), float("-inf")]))),
        "m": nullable(st.decimals(-3, 3, places=2)),
        "s": nullable(texts),
        "t": nullable(moments),
        "u": nullable(moments.map(lambda moment: moment.replace(tzinfo=None))),
        "d": nullable(moments.map(lambda moment: moment.date())),
        "x": nullable(blobs),
        "o": nullable(object_ids.map(str)),
        "j": nullable(json_values.map(json.dumps)),
        "k": nullable(json_values.map(json.dumps)),
    }
)

other_values = st.sampled_from(
    [
        MinKey(),
        MaxKey(),
        Decimal128("0.1"),
        Decimal128("1.005"),
        Decimal128("1E400"),
        Int64(1),
        float("nan"),
        float("inf"),
    ]
)
values = st.one_of(json_values, json_scalars, moments, object_ids, blobs, other_values)
# What extended JSON wraps, beside what plain JSON holds.
document_values = st.recursive(
    st.one_of(json_scalars.map(lambda value: float(value) if isinstance(value, int) and abs(value) >= 2**63 else value),
              moments, object_ids, other_values),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)
patterns = st.sampled_from(["a", "^a", "^ab.*", "b$", "^", "^a|b", "a.b", ""])
regexes = st.builds(Regex, patterns, st.sampled_from(["", "i", "s", "m"]))
paths = st.one_of(
    st.sampled_from(["b", "i", "f", "m", "s", "t", "u", "d", "x", "o", "nowhere", "i.a"]),
    st.builds(
        lambda root, rest: ".".join([root, *rest]), st.sampled_from(["j", "k"]), st.lists(names, max_size=3)
    ),
)
types = st.sampled_from(["double", "string", "object", "array", "bool", "null", "int", "long", "number", "date", 7, 19])


def operators(*, deep: bool) -> st.SearchStrategy[dict[str, Any]]:
    plain = [
        st.tuples(st.sampled_from(["$eq", "$ne", "$lt", "$lte", "$gt", "$gte"]), values),
        st.tuples(st.sampled_from(["$in", "$nin"]), st.lists(values, max_size=3)),
        st.tuples(st.just("$in"), st.lists(st.one_of(values, regexes), max_size=3)),
        st.tuples(st.just("$exists"), st.booleans()),
        st.tuples(st.just("$type"), st.one_of(types, st.lists(types, min_size=1, max_size=3))),
        st.tuples(st.just("$size"), st.integers(0, 3)),
        st.tuples(st.just("$mod"), st.tuples(st.sampled_from([2, 3, -3, 7]), st.integers(-2, 2)).map(list)),
        st.tuples(st.just("$all"), st.lists(values, max_size=2)),
        st.tuples(st.just("$regex"), patterns),
    ]
    if deep:
        inner = operators(deep=False)
        plain += [
            st.tuples(st.just("$not"), inner),
            st.tuples(st.just("$elemMatch"), inner),
            st.tuples(st.just("$elemMatch"), conditions(names, deep=False)),
            st.tuples(st.just("$elemMatch"), st.builds(lambda op: {"$not": op}, inner)),
        ]
    pairs = st.one_of(*plain)
    return st.lists(pairs, min_size=1, max_size=2, unique_by=lambda pair: pair[0]).map(dict)


def conditions(where: st.SearchStrategy[str], *, deep: bool) -> st.SearchStrategy[dict[str, Any]]:
    condition = st.one_of(operators(deep=deep), operators(deep=deep), values, regexes)
    return st.dictionaries(where, condition, min_size=1, max_size=2)


filters = st.recursive(
    conditions(paths, deep=True),
    lambda inner: st.builds(
        lambda name, items: {name: items},
        st.sampled_from(["$and", "$or", "$nor"]),
        st.lists(inner, min_size=1, max_size=2),
    ),
    max_leaves=3,
)
