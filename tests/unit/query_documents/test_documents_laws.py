"""Laws that hold for every document: of the order, of projections and of updates."""

import functools
import itertools
from typing import Any

from bson import json_util
from hypothesis import given
from hypothesis import strategies as st

from mainstem.documents import apply_update, matches, project, sort_documents, sort_key
from mainstem.documents.values import identical, order_key, same
from tests.unit.query_documents.document_strategies import document_values, names, relaxed

documents = st.dictionaries(names, document_values, max_size=4)
paths = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=2).map(".".join)


@relaxed
@given(st.lists(document_values, min_size=3, max_size=3))
def test_the_order_is_total(values: list[Any]) -> None:
    one, two, three = map(order_key, values)
    assert (one < two) + (one == two) + (one > two) == 1
    if one <= two <= three:
        assert one <= three


@relaxed
@given(document_values)
def test_a_value_matches_itself(value: Any) -> None:
    assert matches({"x": {"$eq": value}}, {"x": value})
    assert not matches({"x": {"$ne": value}}, {"x": value})
    assert matches({"x": {"$in": [value]}}, {"x": value})


@relaxed
@given(documents, paths, document_values)
def test_a_negation_is_the_rest(document: dict[str, Any], path: str, value: Any) -> None:
    for operator in ("$eq", "$lt", "$gte"):
        positive = matches({path: {operator: value}}, document)
        assert matches({path: {"$not": {operator: value}}}, document) is not positive
        assert matches({"$nor": [{path: {operator: value}}]}, document) is not positive


@relaxed
@given(documents, st.sets(st.sampled_from(["a", "b", "c"]), min_size=1))
def test_inclusion_and_exclusion_make_the_whole(document: dict[str, Any], chosen: set[str]) -> None:
    kept = project(dict.fromkeys(sorted(chosen), 1), document)
    rest = project(dict.fromkeys(sorted(chosen), 0), document)
    assert not kept.keys() & rest.keys()
    assert all(same({**rest, **kept}[name], value) for name, value in document.items())


@relaxed
@given(st.lists(documents, max_size=5), st.sampled_from([{"a": 1}, {"a": -1}, {"b": -1}]))
def test_a_sort_follows_its_key(table: list[dict[str, Any]], sort: dict[str, Any]) -> None:
    key = sort_key(sort)
    ordered = sort_documents(table, sort)
    assert all(not key(right) < key(left) for left, right in itertools.pairwise(ordered))
    assert sorted(map(id, ordered)) == sorted(map(id, table))


@relaxed
@given(documents, st.sampled_from(["a", "b"]), document_values)
def test_what_is_set_is_found_and_setting_it_again_changes_nothing(
    document: dict[str, Any], name: str, value: Any
) -> None:
    before = json_util.dumps(document)
    for operator in ("$set", "$min", "$max"):
        once = apply_update({operator: {name: value}}, document, now_ms=0)
        again = apply_update({operator: {name: value}}, once.document, now_ms=0)
        assert not again.modified
        assert identical(once.document, again.document)
        if operator == "$set":
            assert matches({name: {"$eq": value}}, once.document)
    assert json_util.dumps(document) == before


@relaxed
@given(st.lists(document_values, max_size=4), st.lists(document_values, max_size=3))
def test_a_set_holds_each_value_once(array: list[Any], added: list[Any]) -> None:
    update = {"$addToSet": {"x": {"$each": added}}}
    once = apply_update(update, {"x": array}, now_ms=0)
    assert not apply_update(update, once.document, now_ms=0).modified
    distinct = {order_key(item) for item in [*array, *added]}
    assert {order_key(item) for item in once.document["x"]} == distinct
    pulled = functools.reduce(
        lambda document, item: apply_update({"$pullAll": {"x": [item]}}, document, now_ms=0).document,
        added,
        once.document,
    )
    assert not {order_key(item) for item in pulled["x"]} & {order_key(item) for item in added}
