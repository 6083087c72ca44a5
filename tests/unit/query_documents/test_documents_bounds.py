"""Everything is bounded, and each bound answers with a named error."""

import datetime as dt
import re
from typing import Any

import pytest
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.regex import Regex

from mainstem.documents import (
    apply_update,
    columns,
    matches,
    parse_filter,
    parse_sort,
    row_document,
    sort_documents,
    to_duckdb,
    upsert_seed,
)
from mainstem.documents.filters.parse import NODES_MAX, OPERANDS_MAX
from mainstem.documents.filters.patterns import SOURCE_LENGTH_MAX, literal_prefix, pattern_of
from mainstem.documents.updates.update import PADDING_MAX
from mainstem.documents.values import order_key
from mainstem.model.errors import Invalid


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def nested_filter(depth: int) -> dict[str, Any]:
    source: dict[str, Any] = {"a": 1}
    for _ in range(depth):
        source = {"$and": [source]}
    return source


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(nested_filter(150), id="nesting"),
        pytest.param({"a": nested(150)}, id="nesting of an operand"),
        pytest.param({"$or": [{"a": 1}] * (NODES_MAX + 1)}, id="conditions"),
        pytest.param({"a": {"$in": [1] * (OPERANDS_MAX + 1)}}, id="operands"),
        pytest.param({"a": {"$regex": "a" * (SOURCE_LENGTH_MAX + 1)}}, id="pattern"),
        pytest.param({".".join("a" * 101): 1}, id="parts of a path"),
        pytest.param({"a" * 5_000: 1}, id="length of a path"),
        pytest.param({"$expr": nested(150)}, id="nesting of an expression"),
        pytest.param({1: 1}, id="a name that is no text"),
        pytest.param({"a": object()}, id="a value that is no document's"),
        pytest.param({"a": {"$not": {"$not": 1}}}, id="a wrong operand below another"),
    ],
)
def test_a_filter_past_a_bound_is_refused(source: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        parse_filter(source)


def test_a_filter_at_its_depth_still_runs() -> None:
    assert matches(nested_filter(90), {"a": 1})
    assert matches({"a": nested(99)}, {"a": nested(99)})


def test_a_document_that_is_too_deep_is_refused_and_not_a_crash() -> None:
    with pytest.raises(Invalid):
        order_key(nested(5_000))


def test_a_sort_through_two_arrays_is_refused() -> None:
    with pytest.raises(Invalid) as refused:
        sort_documents([{"a": [1, 2], "b": [3, 4]}], {"a": 1, "b": 1})
    assert refused.value.reason == "parallel_arrays"


@pytest.mark.parametrize(
    "sort", [{"a": 2}, {"a": "asc"}, {"": 1}, {"$a": 1}, {"a..b": 1}, {f"a{n}": 1 for n in range(33)}]
)
def test_a_wrong_sort_is_refused(sort: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        parse_sort(sort)


def test_an_update_may_not_fill_an_array_without_end() -> None:
    for index in (PADDING_MAX + 10, 10**30):
        with pytest.raises(Invalid):
            apply_update({"$set": {f"a.{index}": 1}}, {"a": []}, now_ms=0)


def test_an_update_may_not_nest_a_document_too_deep() -> None:
    with pytest.raises(Invalid):
        apply_update({"$set": {".".join("a" * 60): nested(60)}}, {}, now_ms=0)


def test_one_operand_in_many_places_is_not_shared() -> None:
    operand: dict[str, Any] = {"n": []}
    updated = apply_update({"$set": {"a.$[]": operand}}, {"a": [1, 2]}, now_ms=0)
    updated.document["a"][0]["n"].append(1)
    assert updated.document["a"][1] == {"n": []}
    assert operand == {"n": []}


def test_an_update_says_what_it_changed() -> None:
    updated = apply_update(
        {"$set": {"b.c": 1}, "$unset": {"d": 1}, "$inc": {"e": 0}}, {"_id": 1, "d": 2, "e": 5}, now_ms=0
    )
    assert (dict(updated.set), updated.removed, updated.modified) == ({"b.c": 1}, ("d",), True)


def test_the_seed_of_an_upsert() -> None:
    seed = upsert_seed({"_id": 7, "a.b": {"$eq": 1}, "c": {"$gt": 5}, "$and": [{"d": {"$in": [4]}}], "e": Regex("x")})
    assert seed == {"_id": 7, "a": {"b": 1}, "d": 4}
    with pytest.raises(Invalid):
        upsert_seed({"a": {"x": 1}, "a.b": 2})


def test_patterns_keep_the_meaning_of_pcre() -> None:
    assert matches({"s": {"$regex": r"(?<year>\d+)\z"}}, {"s": "in 2024"})
    assert matches({"s": {"$regex": r"a\Z"}}, {"s": "a\n"})
    assert not matches({"s": {"$regex": r"a\z"}}, {"s": "a\n"})
    assert not matches({"s": {"$regex": r"^\w$"}}, {"s": "é"})
    assert matches({"s": {"$regex": "É", "$options": "i"}}, {"s": "é"})
    assert matches({"s": re.compile("AB", re.IGNORECASE)}, {"s": "ab"})
    for source in (r"\p{Lu}", "[[:alpha:]]", r"a\K", "(?R)"):
        with pytest.raises(Invalid):
            pattern_of(source)


@pytest.mark.parametrize(
    ("source", "prefix"),
    [
        ("^ab", "ab"),
        ("^ab.*", "ab"),
        ("^abc?", "ab"),
        ("^abc+", "abc"),
        ("^a|b", ""),
        ("ab", ""),
        ("^ab$", "ab"),
        ("^", ""),
    ],
)
def test_the_prefix_that_a_pattern_asks_for(source: str, prefix: str) -> None:
    assert literal_prefix(pattern_of(source))[0] == prefix


def test_a_row_as_a_document() -> None:
    kinds = columns(
        i="integer", t="timestamp_tz", d="date", o="object_id", j="json", e="extended_json", m="decimal", n="string"
    )
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    row = {
        "i": 1,
        "t": moment,
        "d": moment.date(),
        "o": "60" * 12,
        "j": '{"big": 18446744073709551616, "$date": 5}',
        "e": '{"when": {"$date": "2024-01-01T00:00:00Z"}, "n": {"$numberLong": "7"}}',
        "m": Decimal128("1.5").to_decimal(),
        "n": None,
    }
    document = row_document(row, kinds)
    assert document["d"] == moment
    assert document["o"] == ObjectId("60" * 12)
    assert document["j"] == {"big": 2.0**64, "$date": 5}
    assert document["e"] == {"when": moment, "n": Int64(7)}
    assert "n" not in document


def test_a_dbref_is_a_document() -> None:
    assert matches({"r": {"$ref": "users", "$id": 7}}, {"r": DBRef("users", 7)})
    assert matches({"r.$id": 7}, {"r": DBRef("users", 7)})


def test_sql_of_a_large_membership_stays_flat() -> None:
    condition = to_duckdb({"s": {"$in": [str(n) for n in range(2_000)]}}, columns(s="string"))
    assert condition.text.startswith('"s" IN (?')
    assert len(condition.parameters) == 2_000


def test_sql_quotes_names() -> None:
    condition = to_duckdb({'a"; DROP TABLE t; --': 1}, columns(**{'a"; DROP TABLE t; --': "integer"}))
    assert condition.text == '"a""; DROP TABLE t; --" = ?'
