"""From `{$sum: …}` to an accumulator: which value of a document goes in, and who takes it."""

from collections.abc import Callable
from typing import Any

import msgspec

from mainstem.documents import accumulators
from mainstem.documents.accumulators import State
from mainstem.documents.errors import Refused
from mainstem.documents.expressions import Evaluator, Names, Scope, compiled, parse_expression
from mainstem.documents.expressions.arrays import positive_count
from mainstem.documents.expressions.registry import NOT_RUN
from mainstem.documents.sort import sort_key
from mainstem.documents.values import is_array, is_document


class Recipe(msgspec.Struct, frozen=True):
    """One accumulator of a stage. `make` is given the variables and the group's key."""

    name: str
    value: Evaluator
    make: Callable[[Scope, Any], State]
    # It keeps every value, so its memory follows the documents and not the groups.
    grows: bool = False


Read = Callable[[str, Any, Names], Recipe]


def _plain(make: Callable[[], State], *, grows: bool = False) -> Read:
    def read(name: str, operand: Any, names: Names) -> Recipe:
        if is_array(operand):
            raise Refused(f"{name} takes one argument here. got={len(operand)}", code=40237)
        return Recipe(name, compiled(parse_expression(operand, names)), lambda scope, key: make(), grows)

    return read


def _count(name: str, operand: Any, names: Names) -> Recipe:
    if not is_document(operand) or operand:
        raise Refused("$count takes an empty document as an accumulator", code=14)
    return Recipe(name, lambda document, scope: 1, lambda scope, key: accumulators.Sum())


def _named(name: str, operand: Any, wanted: tuple[str, ...]) -> None:
    if not is_document(operand):
        raise Refused(f"{name} takes a document of {', '.join(wanted)}", code=5787900)
    if unknown := set(operand) - set(wanted):
        raise Refused(f"unknown argument of {name}. got={sorted(unknown)}", code=5787901)
    for item in wanted:
        if item not in operand:
            raise Refused(f"{name} needs an argument. expected={item}", code=5787906)


def _several(make: Callable[[int], State]) -> Read:
    def read(name: str, operand: Any, names: Names) -> Recipe:
        _named(name, operand, ("input", "n"))
        count = compiled(parse_expression(operand["n"], names))
        value = compiled(parse_expression(operand["input"], names))
        return Recipe(name, value, lambda scope, key: make(positive_count(count(_under_id(key), scope), name)), True)

    return read


def _under_id(key: Any) -> dict[str, Any]:
    """What an expression for `n` sees: the group's key."""
    return {"_id": key, **key} if is_document(key) else {"_id": key}


def _ranked(*, bottom: bool, single: bool) -> Read:
    def read(name: str, operand: Any, names: Names) -> Recipe:
        _named(name, operand, ("sortBy", "output") if single else ("sortBy", "output", "n"))
        if not is_document(operand["sortBy"]):
            raise Refused(f"{name} takes a document of fields as sortBy", code=10065)
        key_of = sort_key(operand["sortBy"])
        output = compiled(parse_expression(operand["output"], names))
        count = compiled(parse_expression(1 if single else operand["n"], names))
        return Recipe(
            name,
            lambda document, scope: (key_of(document), output(document, scope)),
            lambda scope, key: accumulators.Ranked(
                positive_count(count(_under_id(key), scope), name), bottom=bottom, single=single
            ),
        )

    return read


def _percentile(name: str, operand: Any, names: Names) -> Recipe:
    several = name == "$percentile"
    _named(name, operand, ("input", "p", "method") if several else ("input", "method"))
    value = compiled(parse_expression(operand["input"], names))
    points = compiled(parse_expression(operand["p"], names)) if several else None

    def make(scope: Scope, key: Any) -> State:
        wanted = points({}, scope) if points is not None else [0.5]
        return accumulators.Percentile(accumulators.check_points(wanted, operand["method"]), several=several)

    return Recipe(name, value, make, True)


ACCUMULATORS: dict[str, Read] = {
    "$sum": _plain(accumulators.Sum),
    "$avg": _plain(accumulators.Average),
    "$min": _plain(accumulators.Least),
    "$max": _plain(accumulators.Greatest),
    "$first": _plain(accumulators.First),
    "$last": _plain(accumulators.Last),
    "$push": _plain(accumulators.Push, grows=True),
    "$addToSet": _plain(accumulators.AddToSet, grows=True),
    "$mergeObjects": _plain(accumulators.Merge, grows=True),
    "$stdDevPop": _plain(lambda: accumulators.Deviation(sample=False)),
    "$stdDevSamp": _plain(lambda: accumulators.Deviation(sample=True)),
    "$count": _count,
    "$firstN": _several(accumulators.FirstN),
    "$lastN": _several(accumulators.LastN),
    "$minN": _several(lambda count: accumulators.ExtremeN(count, greatest=False)),
    "$maxN": _several(lambda count: accumulators.ExtremeN(count, greatest=True)),
    "$top": _ranked(bottom=False, single=True),
    "$topN": _ranked(bottom=False, single=False),
    "$bottom": _ranked(bottom=True, single=True),
    "$bottomN": _ranked(bottom=True, single=False),
    "$median": _percentile,
    "$percentile": _percentile,
}


def parse_accumulator(field: str, source: Any, names: Names) -> Recipe:
    """Read what one field of a group accumulates."""
    if "." in field:
        raise Refused(f"a field that accumulates has no dot in its name. got={field!r}", code=40235)
    if field.startswith("$"):
        raise Refused(f"a field that accumulates does not start with $. got={field!r}", code=40236)
    if not is_document(source):
        raise Refused(f"a field of a group is an accumulator. got={field}", code=40234)
    if len(source) != 1:
        raise Refused(f"a field of a group has one accumulator. got={list(source)[:3]}", code=40238)
    name, operand = next(iter(source.items()))
    if name in NOT_RUN:
        raise Refused(f"{name} is not supported: {NOT_RUN[name]}", code=115)
    if name not in ACCUMULATORS:
        raise Refused(f"unknown accumulator. got={name}", code=15952)
    return ACCUMULATORS[name](name, operand, names)
