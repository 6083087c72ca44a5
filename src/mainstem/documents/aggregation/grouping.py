"""Stages that put documents together by a key: `$group`, `$bucket`, `$bucketAuto`, `$sortByCount`."""

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from mainstem.documents.accumulators import State
from mainstem.documents.aggregation.accumulating import Recipe, parse_accumulator
from mainstem.documents.aggregation.registry import stage
from mainstem.documents.aggregation.rows import count_of
from mainstem.documents.aggregation.running import Document, Documents, Ledger, Reading, Run, Stage
from mainstem.documents.ast import Expression, Literal
from mainstem.documents.errors import Refused
from mainstem.documents.expressions import Evaluator, Scope, compiled, evaluate, parse_expression
from mainstem.documents.values import MISSING, is_array, is_document, is_number, order_key, rank_of


@stage("$group")
def group(source: Any, reading: Reading) -> Stage:
    if not is_document(source):
        raise Refused("$group takes a document of fields", code=15947)
    if "_id" not in source:
        raise Refused("$group needs an _id", code=15955)
    key = compiled(parse_expression(source["_id"], reading.names))
    recipes = {
        name: parse_accumulator(name, operand, reading.names) for name, operand in source.items() if name != "_id"
    }
    return lambda documents, given: _grouped(documents, key, recipes, given)


def _grouped(documents: Documents, key: Evaluator, recipes: dict[str, Recipe], given: Run) -> Iterator[Document]:
    scope = given.scope
    evaluators = [recipe.value for recipe in recipes.values()]
    grows = any(recipe.grows for recipe in recipes.values())
    groups: dict[Any, tuple[Any, list[State], list[Any]]] = {}
    ledger = Ledger("$group", given.memory_bytes_max)
    for document in documents:
        value = key(document, scope)
        # Text is most keys' type, and its own key is as good as the order's.
        own = value if type(value) is str else order_key(None if value is MISSING else value)
        found = groups.get(own)
        if found is None:
            value = None if value is MISSING else value
            states = [recipe.make(scope, value) for recipe in recipes.values()]
            found = groups[own] = (value, states, [state.add for state in states])
            ledger.add({"_id": value, "": "x" * 40 * len(states)})
        if grows:
            ledger.add(document)
        for evaluator, add in zip(evaluators, found[2], strict=True):
            add(evaluator(document, scope))
    for value, states, _ in groups.values():
        yield {"_id": value, **{name: state.result() for name, state in zip(recipes, states, strict=True)}}


@stage("$sortByCount")
def sort_by_count(source: Any, reading: Reading) -> Stage:
    is_expression = is_document(source) and next(iter(source), "").startswith("$")
    if not is_expression and not (isinstance(source, str) and source.startswith("$")):
        raise Refused("$sortByCount takes a path or an expression", code=40148 if isinstance(source, str) else 40149)
    return reading.pipeline([{"$group": {"_id": source, "count": {"$sum": 1}}}, {"$sort": {"count": -1}}])


def _outputs(source: Any, reading: Reading, code: int) -> dict[str, Recipe]:
    if source is None:
        source = {"count": {"$sum": 1}}
    if not is_document(source):
        raise Refused("output takes a document of accumulators", code=code)
    return {name: parse_accumulator(name, operand, reading.names) for name, operand in source.items()}


def _constant(source: Any, reading: Reading, what: str, code: int) -> Any:
    expression: Expression = parse_expression(source, reading.names)
    if isinstance(expression, Literal):
        return expression.value
    try:
        return evaluate(expression, {})
    except Refused:
        raise Refused(f"{what} takes constants", code=code) from None


@stage("$bucket")
def bucket(source: Any, reading: Reading) -> Stage:
    if not is_document(source):
        raise Refused("$bucket takes a document", code=40201)
    if unknown := set(source) - {"groupBy", "boundaries", "default", "output"}:
        raise Refused(f"unknown argument of $bucket. got={sorted(unknown)}", code=40197)
    if "groupBy" not in source or "boundaries" not in source:
        raise Refused("$bucket needs groupBy and boundaries", code=40198)
    group_by = source["groupBy"]
    if not is_document(group_by) and not (isinstance(group_by, str) and group_by.startswith("$")):
        raise Refused("$bucket takes a path or an expression as groupBy", code=40202)
    if not is_array(source["boundaries"]):
        raise Refused("$bucket takes an array of boundaries", code=40200)
    bounds = [_constant(item, reading, "$bucket (boundaries)", 40191) for item in source["boundaries"]]
    if len(bounds) < 2:
        raise Refused("$bucket takes at least two boundaries", code=40192)
    keys = [order_key(item) for item in bounds]
    if len({rank_of(item) for item in bounds}) != 1:
        raise Refused("$bucket takes boundaries of one type", code=40193)
    if any(low >= high for low, high in itertools.pairwise(keys)):
        raise Refused("$bucket takes boundaries in ascending order", code=40194)
    has_default = "default" in source
    default = _constant(source["default"], reading, "$bucket (default)", 40195) if has_default else None
    if has_default and keys[0] <= order_key(default) < keys[-1]:
        raise Refused("the default of $bucket lies outside of its boundaries", code=40199)
    value_of = compiled(parse_expression(group_by, reading.names))
    recipes = _outputs(source.get("output"), reading, 40196)

    def place(document: Any, scope: Scope) -> Any:
        value = value_of(document, scope)
        own = order_key(None if value is MISSING else value)
        at = bisect_right(keys, own) - 1
        if at < 0 or at >= len(bounds) - 1:
            if not has_default:
                raise Refused("a value is in no bucket, and $bucket has no default", code=40066)
            return default
        return bounds[at]

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        return iter(sorted(_grouped(documents, place, recipes, given), key=lambda found: order_key(found["_id"])))

    return run


@stage("$bucketAuto")
def bucket_auto(source: Any, reading: Reading) -> Stage:
    if not is_document(source):
        raise Refused("$bucketAuto takes a document", code=40240)
    if unknown := set(source) - {"groupBy", "buckets", "output", "granularity"}:
        raise Refused(f"unknown argument of $bucketAuto. got={sorted(unknown)}", code=40245)
    if "groupBy" not in source or "buckets" not in source:
        raise Refused("$bucketAuto needs groupBy and buckets", code=40246)
    if "granularity" in source:
        raise Refused("granularity of $bucketAuto is not supported", code=115)
    if not is_number(source["buckets"]):
        raise Refused("$bucketAuto takes a number of buckets", code=40241)
    wanted = count_of(source["buckets"], "$bucketAuto (buckets)", 40243, 1)
    value_of = compiled(parse_expression(source["groupBy"], reading.names))
    recipes = _outputs(source.get("output"), reading, 40244)

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        ledger = Ledger("$bucketAuto", given.memory_bytes_max)
        held: list[tuple[Any, Any, Document]] = []
        for document in documents:
            ledger.add(document)
            value = value_of(document, given.scope)
            value = None if value is MISSING else value
            held.append((order_key(value), value, document))
        held.sort(key=lambda item: item[0])
        yield from _even_buckets(held, wanted, recipes, given)

    return run


def _even_buckets(
    held: list[tuple[Any, Any, Document]], wanted: int, recipes: dict[str, Recipe], given: Run
) -> Iterator[Document]:
    size = max(round(len(held) / wanted), 1)
    start, made = 0, 0
    while start < len(held):
        made += 1
        end = len(held) if made == wanted else min(start + size, len(held))
        # Equal values stay together.
        while end < len(held) and held[end][0] == held[end - 1][0]:
            end += 1
        low, high = held[start][1], held[min(end, len(held) - 1)][1]
        states = {name: recipe.make(given.scope, None) for name, recipe in recipes.items()}
        for _, _, document in held[start:end]:
            for name, recipe in recipes.items():
                states[name].add(recipe.value(document, given.scope))
        yield {"_id": {"min": low, "max": high}, **{name: state.result() for name, state in states.items()}}
        start = end
