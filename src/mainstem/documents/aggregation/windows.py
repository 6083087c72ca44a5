"""`$setWindowFields`: fields computed from the documents around each one, partition by partition."""

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from mainstem.documents.aggregation.accumulating import ACCUMULATORS, parse_accumulator
from mainstem.documents.aggregation.ordering import in_order
from mainstem.documents.aggregation.registry import stage
from mainstem.documents.aggregation.rows import check_sort, plain_value, with_value
from mainstem.documents.aggregation.running import Document, Documents, Ledger, Reading, Run, Stage
from mainstem.documents.aggregation.window_functions import FUNCTIONS, Ordered
from mainstem.documents.errors import Refused
from mainstem.documents.expressions import compiled, field_path, parse_expression
from mainstem.documents.expressions.dates import FIXED_MS, add_units, unit_of
from mainstem.documents.sort import sort_key
from mainstem.documents.values import (
    MISSING,
    Rank,
    date_ms,
    is_array,
    is_document,
    is_number,
    number_of,
    order_key,
    rank_of,
)

WINDOW_OPERATORS = frozenset(ACCUMULATORS) | frozenset(FUNCTIONS)
# Of one document: the first and the one after the last of those around it.
Bounds = Callable[[Ordered, int], tuple[int, int]]
Compute = Callable[[Ordered, Run], list[Any]]


@stage("$setWindowFields")
def set_window_fields(source: Any, reading: Reading) -> Stage:
    if not is_document(source):
        raise Refused("$setWindowFields takes a document", code=9)
    if unknown := set(source) - {"partitionBy", "sortBy", "output"}:
        raise Refused(f"unknown argument of $setWindowFields. got={sorted(unknown)}", code=40415)
    if not is_document(source.get("output")):
        raise Refused("$setWindowFields needs output", code=40414)
    partition = compiled(parse_expression(source.get("partitionBy"), reading.names))
    order = source.get("sortBy")
    if order is not None:
        check_sort(order, "$setWindowFields")
    key = sort_key(order) if order else None
    outputs = [(field_path(name), _output(item, order, reading)) for name, item in source["output"].items()]

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        def part_of(document: Document) -> Any:
            value = partition(document, given.scope)
            if is_array(value):
                raise Refused("$setWindowFields has no partition for an array", code=14)
            return order_key(None if value is MISSING else value)

        placed = part_of if key is None else lambda document: (part_of(document), key(document))
        for _, part in itertools.groupby(in_order(documents, placed, "$setWindowFields", given), part_of):
            # One partition is held at a time: its windows may reach from its first document to its last.
            ledger, held = Ledger("$setWindowFields", given.memory_bytes_max), list[Document]()
            for document in part:
                ledger.add(document)
                held.append(document)
            ordered = Ordered(held, [key(item) for item in held] if key else None, order)
            columns = [(path, compute(ordered, given)) for path, compute in outputs]
            for at, document in enumerate(held):
                changed = document
                for path, values in columns:
                    if values[at] is not MISSING:
                        changed = with_value(changed, path, values[at])
                yield changed

    return run


def _output(source: Any, order: Any, reading: Reading) -> Compute:
    if not is_document(source):
        raise Refused("a field of output is a document", code=9)
    names = [name for name in source if name != "window"]
    if len(names) != 1:
        raise Refused(f"a field of output has one function. got={names[:3]}", code=9)
    name = names[0]
    if name in FUNCTIONS:
        if "window" in source and name not in ("$derivative", "$integral", "$covariancePop", "$covarianceSamp"):
            raise Refused(f"{name} takes no window", code=5371601)
        bounds = _bounds(source.get("window"), order)
        return FUNCTIONS[name](source[name], order, reading.names, bounds)
    if name not in ACCUMULATORS:
        raise Refused(f"unknown window function. got={name}", code=9)
    return _accumulated(name, source[name], _bounds(source.get("window"), order), reading)


def _accumulated(name: str, operand: Any, bounds: Bounds, reading: Reading) -> Compute:
    recipe = parse_accumulator("window", {name: operand}, reading.names)

    def compute(ordered: Ordered, given: Run) -> list[Any]:
        values = [recipe.value(item, given.scope) for item in ordered.documents]
        results: list[Any] = []
        state, taken, start = recipe.make(given.scope, None), 0, 0
        for at in range(len(values)):
            low, high = bounds(ordered, at)
            if low != start or high < taken or low >= high:
                state, taken, start = recipe.make(given.scope, None), low, low
            # A window that only grows goes on where the last one ended.
            while taken < high:
                state.add(values[taken])
                taken += 1
            found = state.result()
            results.append(list(found) if type(found) is list else dict(found) if type(found) is dict else found)
        return results

    return compute


def _bounds(source: Any, order: Any) -> Bounds:
    if source is None:
        return lambda ordered, at: (0, len(ordered.documents))
    if not is_document(source) or set(source) - {"documents", "range", "unit"}:
        raise Refused("a window takes documents, or range and unit", code=9)
    if "documents" in source:
        return _by_documents(_pair(source["documents"]), order)
    if "range" not in source:
        return lambda ordered, at: (0, len(ordered.documents))
    if not order or len(order) != 1:
        raise Refused("a window by range needs a sort by one field", code=5339902)
    return _by_range(_pair(source["range"]), source.get("unit"), order)


def _pair(source: Any) -> tuple[Any, Any]:
    if not is_array(source) or len(source) != 2:
        raise Refused("a window has a lower and an upper bound", code=5339900)
    low, high = source
    for bound in source:
        if bound not in ("current", "unbounded") and not (is_number(bound) and math.isfinite(number_of(bound))):
            raise Refused(f"a bound is a number, current or unbounded. got={bound!r}", code=5339901)
    return low, high


def _by_documents(pair: tuple[Any, Any], order: Any) -> Bounds:
    if not order and any(is_number(bound) or bound == "current" for bound in pair):
        raise Refused("a window of documents needs a sort", code=5339901)
    low, high = (0 if b == "current" else None if b == "unbounded" else int(number_of(b)) for b in pair)

    def bounds(ordered: Ordered, at: int) -> tuple[int, int]:
        size = len(ordered.documents)
        start = 0 if low is None else min(max(at + low, 0), size)
        end = size if high is None else min(max(at + high + 1, 0), size)
        return start, max(end, start)

    return bounds


def _by_range(pair: tuple[Any, Any], unit: Any, order: Any) -> Bounds:
    path = field_path(next(iter(order)))
    if number_of(order[next(iter(order))]) != 1:
        raise Refused("a window by range needs an ascending sort", code=5339902)
    kind = unit_of(unit, "a window") if unit is not None else None

    def value_of(document: Document) -> Any:
        value = plain_value(document, path)
        wanted = Rank.DATE if kind else Rank.NUMBER
        if rank_of(value) is not wanted:
            raise Refused(f"a window by range needs {'dates' if kind else 'numbers'} to sort by", code=5429513)
        return date_ms(value) if kind else number_of(value)

    def shifted(value: Any, bound: Any) -> Any:
        if bound == "current":
            return value
        if kind is None:
            return value + number_of(bound)
        if kind in FIXED_MS:
            return value + FIXED_MS[kind] * int(number_of(bound))
        return add_units(value, kind, int(number_of(bound)))

    def bounds(ordered: Ordered, at: int) -> tuple[int, int]:
        values = ordered.numbers(value_of)
        start = 0 if pair[0] == "unbounded" else bisect_left(values, shifted(values[at], pair[0]))
        end = len(values) if pair[1] == "unbounded" else bisect_right(values, shifted(values[at], pair[1]))
        return start, max(end, start)

    return bounds
