"""Stages that put documents together by a key: `$group`, `$bucket`, `$bucketAuto`, `$sortByCount`."""

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mainstem.documents.accumulators import State
from mainstem.documents.aggregation.accumulating import Recipe, parse_accumulator
from mainstem.documents.aggregation.ordering import begun, in_order
from mainstem.documents.aggregation.registry import stage
from mainstem.documents.aggregation.rows import count_of
from mainstem.documents.aggregation.running import Document, Documents, Ledger, Reading, Run, Stage
from mainstem.documents.errors import Refused
from mainstem.documents.expressions import Evaluator, Scope, compiled, evaluate, parse_expression
from mainstem.documents.filters.ast import Expression, Literal
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
    source, groups = iter(documents), _Groups(key, recipes, given)
    unfit = groups.take(source)
    if unfit is None:
        yield from groups.results()
        return
    # Groups that do not fit memory: their documents by the group's key, so that one of them is held at a time.
    value_of = lambda document: order_key(_present(key(document, given.scope)))  # noqa: E731
    ordered = begun(in_order(groups.known_taken(unfit), value_of, "$group", given))
    yield from groups.results()
    for _, documents_of_one in itertools.groupby(ordered, value_of):
        one = _Groups(key, recipes, replace(given, spill=None))
        one.take(documents_of_one)
        yield from one.results()


def _present(value: Any) -> Any:
    return None if value is MISSING else value


class _Groups:
    """The groups that are in memory."""

    def __init__(self, key: Evaluator, recipes: dict[str, Recipe], given: Run) -> None:
        self._key = key
        self._recipes = recipes
        self._given = given
        self._evaluators = [recipe.value for recipe in recipes.values()]
        # A group that keeps its values cannot go on in memory: then all documents must be there to begin again.
        self._grows = any(recipe.grows for recipe in recipes.values())
        self._taken: list[Document] = []
        self._groups: dict[Any, tuple[Any, list[State], list[Any]]] = {}

    def take(self, documents: Iterator[Document]) -> Iterator[Document] | None:
        """Take documents in, up to one that there is no room for: that one, and those after it. None without one."""
        key, scope, groups = self._key, self._given.scope, self._groups
        ledger = Ledger("$group", self._given.memory_bytes_max)
        keeps = self._grows and self._given.spill is not None
        for document in documents:
            value = key(document, scope)
            # Text is most keys' type, and its own key is as good as the order's.
            own = value if type(value) is str else order_key(_present(value))
            found = groups.get(own)
            try:
                if found is None:
                    ledger.add({"_id": _present(value), "": "x" * 40 * len(self._recipes)})
                    found = groups[own] = self._made(_present(value))
                if self._grows:
                    ledger.add(document)
            except Refused:
                if self._given.spill is None:
                    raise
                return itertools.chain([document], documents)
            if keeps:
                self._taken.append(document)
            for evaluator, add in zip(self._evaluators, found[2], strict=True):
                add(evaluator(document, scope))
        return None

    def known_taken(self, documents: Iterator[Document]) -> Iterator[Document]:
        """Go on with the groups that are here; the documents of all others. Where groups grow, none goes on."""
        if self._grows:
            taken, self._taken = self._taken, []
            self._groups.clear()
            yield from taken
            yield from documents
            return
        for document in documents:
            value = self._key(document, self._given.scope)
            found = self._groups.get(value if type(value) is str else order_key(_present(value)))
            if found is None:
                yield document
                continue
            for evaluator, add in zip(self._evaluators, found[2], strict=True):
                add(evaluator(document, self._given.scope))

    def _made(self, value: Any) -> tuple[Any, list[State], list[Any]]:
        states = [recipe.make(self._given.scope, value) for recipe in self._recipes.values()]
        return value, states, [state.add for state in states]

    def results(self) -> Iterator[Document]:
        """The group's documents."""
        for value, states, _ in self._groups.values():
            yield {"_id": value, **{name: state.result() for name, state in zip(self._recipes, states, strict=True)}}


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
        count = 0

        def counted() -> Iterator[Document]:
            nonlocal count
            for document in documents:
                count += 1
                yield document

        key = lambda document: order_key(_present(value_of(document, given.scope)))  # noqa: E731
        ordered = begun(in_order(counted(), key, "$bucketAuto", given))
        size = max(round(count / wanted), 1)
        found = ((_present(value_of(document, given.scope)), document) for document in ordered)
        yield from _even_buckets(found, size, wanted, recipes, given)

    return run


def _even_buckets(
    found: Iterator[tuple[Any, Document]], size: int, wanted: int, recipes: dict[str, Recipe], given: Run
) -> Iterator[Document]:
    """Values in order with their documents, in `wanted` buckets of `size`; equal values stay together."""
    grows = any(recipe.grows for recipe in recipes.values())
    following, made = next(found, None), 0
    while following is not None:
        made += 1
        low, taken = following[0], 0
        last = order_key(low)
        ledger = Ledger("$bucketAuto", given.memory_bytes_max)
        states = {name: recipe.make(given.scope, None) for name, recipe in recipes.items()}
        while following is not None:
            value, document = following
            if taken >= size and made < wanted and order_key(value) != last:
                break
            if grows:
                ledger.add(document)
            for name, recipe in recipes.items():
                states[name].add(recipe.value(document, given.scope))
            high, last, taken = value, order_key(value), taken + 1
            following = next(found, None)
        # A bucket ends where the next one begins, the last one with its greatest value.
        high = high if following is None else following[0]
        yield {"_id": {"min": low, "max": high}, **{name: state.result() for name, state in states.items()}}
