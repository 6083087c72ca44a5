"""Random documents and filters over one table, small enough that they often meet."""

import datetime as dt
import json
from typing import Any, NamedTuple

from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from mainstem.documents import Column, Columns, Kind, row_document

Values = st.SearchStrategy[Any]
# A busy machine is slow, not wrong.
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


class Scenario(NamedTuple):
    """A filter and the rows that it is asked of."""

    filter: dict[str, Any]
    table: list[dict[str, Any]]


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
    "z": Column(Kind.OTHER),
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
    return st.one_of(st.none(), strategy, strategy, strategy)


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
        "z": nullable(st.lists(st.integers(0, 3), max_size=3)),
    }
)

other_values = st.sampled_from(
    [
        MinKey(),
        MaxKey(),
        Decimal128("0.1"),
        Decimal128("1.005"),
        Decimal128("1E400"),
        Decimal128("NaN"),
        Decimal128("-Infinity"),
        Int64(1),
        float("nan"),
        float("inf"),
    ]
)
values = st.one_of(json_values, json_scalars, moments, object_ids, blobs, other_values)
# What extended JSON wraps, beside what plain JSON holds.
document_values = st.recursive(
    st.one_of(
        json_scalars.map(lambda value: float(value) if isinstance(value, int) and abs(value) >= 2**63 else value),
        moments,
        object_ids,
        other_values,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)
patterns = st.sampled_from(["a", "^a", "^ab.*", "b$", "^", "^a|b", "a.b", ""])
regexes = st.builds(Regex, patterns, st.sampled_from(["", "i", "s", "m"]))
paths = st.one_of(
    st.sampled_from(["b", "i", "f", "m", "s", "t", "u", "d", "x", "o", "z", "z.0", "nowhere", "i.a"]),
    st.builds(lambda root, rest: ".".join([root, *rest]), st.sampled_from(["j", "k"]), st.lists(names, max_size=3)),
)
types = st.sampled_from(["double", "string", "object", "array", "bool", "null", "int", "long", "number", "date", 7, 19])


def parts_of(value: Any, path: str, found: list[tuple[str, Any]]) -> None:
    """Every value in a document with a path that leads to it, with and without the indexes of arrays."""
    if path:
        found.append((path, value))
    if isinstance(value, dict):
        for name, item in value.items():
            parts_of(item, f"{path}.{name}" if path else name, found)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            parts_of(item, f"{path}.{index}", found)
            if isinstance(item, dict):
                parts_of(item, path, found)


class FilterMaker:
    """Draws a filter step by step: large strategies built from strategies cost more than the tests themselves."""

    def __init__(self, draw: st.DrawFn, parts: list[tuple[str, Any]]) -> None:
        self.draw = draw
        self.parts = parts

    def filter(self, depth: int = 0) -> dict[str, Any]:
        if depth < 2 and self.draw(st.integers(0, 2)) == 2:
            name = self.draw(st.sampled_from(["$and", "$or", "$nor"]))
            return {name: [self.filter(depth + 1) for _ in range(self.draw(st.integers(1, 2)))]}
        if self.draw(st.integers(0, 9)) == 9:
            return {"$expr": self.expression(0)}
        return self.conditions(None, depth=0)

    def expression(self, depth: int) -> Any:
        if depth < 2 and self.draw(st.integers(0, 2)) == 2:
            name = self.draw(st.sampled_from(["$and", "$or", "$not"]))
            return {name: [self.expression(depth + 1) for _ in range(1 if name == "$not" else 2)]}
        path, value = self.part()
        sides = [f"${path}", {"$literal": value}]
        if self.draw(st.integers(0, 4)) == 4:
            return {"$in": [f"${path}", [{"$literal": self.part()[1]} for _ in range(2)]]}
        return {self.draw(relations): sides if self.draw(st.booleans()) else sides[::-1]}

    def conditions(self, where: st.SearchStrategy[str] | None, depth: int) -> dict[str, Any]:
        found = {}
        for _ in range(self.draw(st.integers(1, 2))):
            # Often a path with its own value, so that at least one row has an opinion.
            path, value = self.part()
            name = path if where is None else self.draw(where)
            match self.draw(st.integers(0, 4)):
                case 0 | 1:
                    found[name] = {self.draw(relations): value}
                case 2 | 3:
                    found[name] = self.operators(depth)
                case _:
                    found[name] = self.draw(st.one_of(regexes, st.just(value)))
        return found

    def part(self) -> tuple[str, Any]:
        choice = self.draw(st.integers(0, 5))
        if self.parts and choice < 5:
            path, value = self.draw(st.sampled_from(self.parts))
            return path, self.draw(values) if choice == 4 else value
        return self.draw(paths), self.draw(values)

    def operators(self, depth: int) -> dict[str, Any]:
        return dict(self.operator(depth) for _ in range(self.draw(st.integers(1, 2))))

    def operator(self, depth: int) -> tuple[str, Any]:  # noqa: PLR0911
        name = self.draw(st.sampled_from(OPERATORS if depth == 0 else OPERATORS[:-3]))
        match name:
            case "$in" | "$nin" | "$all":
                operands = [self.part()[1] for _ in range(self.draw(st.integers(0, 3)))]
                if name == "$in" and self.draw(st.booleans()):
                    operands.append(self.draw(regexes))
                return name, operands
            case "$not":
                return name, self.operators(depth + 1)
            case "$elemMatch":
                if self.draw(st.booleans()):
                    return name, self.operators(depth + 1)
                return name, self.conditions(names, depth + 1)
            case "$elemMatch not":
                return "$elemMatch", {"$not": self.operators(depth + 1)}
            case _ if name in ARGUMENTS:
                return name, self.draw(ARGUMENTS[name])
            case _:
                return name, self.part()[1]


relations = st.sampled_from(["$eq", "$ne", "$lt", "$lte", "$gt", "$gte"])
ARGUMENTS: dict[str, Values] = {
    "$exists": st.booleans(),
    "$type": st.one_of(types, st.lists(types, min_size=1, max_size=3)),
    "$size": st.integers(0, 3),
    "$mod": st.tuples(st.sampled_from([2, 3, -3, 7]), st.integers(-2, 2)).map(list),
    "$regex": patterns,
}
OPERATORS = [*ARGUMENTS, "$in", "$nin", "$all", "$lt", "$gte", "$ne", "$not", "$elemMatch", "$elemMatch not"]


@st.composite
def scenarios(draw: st.DrawFn, of: st.SearchStrategy[dict[str, Any]], columns: Columns) -> Scenario:
    """Rows, and a filter whose paths and operands are often taken from them."""
    table = draw(st.lists(of, min_size=2, max_size=6))
    parts: list[tuple[str, Any]] = []
    for row in table:
        parts_of(row_document(row, columns), "", parts)
    return Scenario(FilterMaker(draw, parts).filter(), table)


@st.composite
def many_filters(
    draw: st.DrawFn, of: st.SearchStrategy[dict[str, Any]], columns: Columns, count: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Many filters on the same rows: for an engine to which a question costs much, and a longer one little more."""
    first = draw(scenarios(of, columns))
    parts: list[tuple[str, Any]] = []
    for row in first.table:
        parts_of(row_document(row, columns), "", parts)
    return [first.filter, *(FilterMaker(draw, parts).filter() for _ in range(count - 1))], first.table
