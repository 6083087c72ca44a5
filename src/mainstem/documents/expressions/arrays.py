"""The array and set operators. Sets are arrays whose order and repetitions do not count; equality is BSON's."""

from collections.abc import Callable
from typing import Any

from mainstem.documents.errors import Refused
from mainstem.documents.expressions.compiling import truthy
from mainstem.documents.expressions.numbers import integer
from mainstem.documents.expressions.registry import (
    ARGUMENTS_MAX,
    Evaluator,
    Scope,
    absent,
    any_absent,
    named,
    operator,
    wrong_type,
)
from mainstem.documents.expressions.strings import index_bound
from mainstem.documents.sort import sort_key
from mainstem.documents.values import MISSING, is_array, is_document, is_number, number_of, order_key

_GROUP = "array"
# What $range may make; MongoDB's own bound is 100 MB of memory.
RANGE_MAX = 3_000_000


def array_of(value: Any, name: str, code: int) -> list[Any]:
    """An array, or an error."""
    if not is_array(value):
        raise wrong_type(name, "an array", value, code)
    return value  # type: ignore[no-any-return]


@operator("$arrayElemAt", _GROUP, 2)
def _element(array: Any, index: Any) -> Any:
    if any_absent(array, index):
        return None
    items = array_of(array, "$arrayElemAt", 28689)
    if not is_number(index):
        raise wrong_type("$arrayElemAt", "a number as index", index, 28690)
    at = integer(index, "$arrayElemAt (index)", 28691)
    return items[at] if -len(items) <= at < len(items) else MISSING


@operator("$first", _GROUP, 1)
def _first(array: Any) -> Any:
    return None if absent(array) else next(iter(array_of(array, "$first", 28689)), MISSING)


@operator("$last", _GROUP, 1)
def _last(array: Any) -> Any:
    return None if absent(array) else next(reversed(array_of(array, "$last", 28689)), MISSING)


@operator("$concatArrays", _GROUP, 0, ARGUMENTS_MAX)
def _concat(*arrays: Any) -> Any:
    joined: list[Any] = []
    for array in arrays:
        if absent(array):
            return None
        joined.extend(array_of(array, "$concatArrays", 28664))
    return joined


@operator("$size", _GROUP, 1)
def _size(array: Any) -> int:
    return len(array_of(array, "$size", 17124))


@operator("$reverseArray", _GROUP, 1)
def _reversed(array: Any) -> Any:
    return None if absent(array) else array_of(array, "$reverseArray", 34435)[::-1]


@operator("$in", _GROUP, 2)
def _contains(value: Any, array: Any) -> bool:
    wanted = order_key(value)
    return any(order_key(item) == wanted for item in array_of(array, "$in", 40081))


@operator("$indexOfArray", _GROUP, 2, 4)
def _index(array: Any, value: Any, start: Any = MISSING, end: Any = MISSING) -> Any:
    if absent(array):
        return None
    items = array_of(array, "$indexOfArray", 40090)
    begin = index_bound("$indexOfArray", start, 0)
    stop = min(index_bound("$indexOfArray", end, len(items)), len(items))
    wanted = order_key(value)
    return next((at for at in range(begin, stop) if order_key(items[at]) == wanted), -1)


@operator("$range", _GROUP, 2, 3)
def _range(start: Any, end: Any, step: Any = 1) -> list[int]:
    for code, value in ((34443, start), (34445, end), (34447, step)):
        if not is_number(value):
            raise wrong_type("$range", "numbers", value, code)
    first, last, by = (integer(value, "$range", code) for code, value in ((34444, start), (34446, end), (34448, step)))
    if by == 0:
        raise Refused("$range takes a step other than 0", code=34449)
    numbers = range(first, last, by)
    if len(numbers) > RANGE_MAX:
        raise Refused(f"$range is too long. expected=at most {RANGE_MAX} got={len(numbers)}", code=146)
    return list(numbers)


@operator("$slice", _GROUP, 2, 3)
def _slice(array: Any, first: Any, count: Any = MISSING) -> Any:
    if any_absent(array, first) or count is None:
        return None
    items = array_of(array, "$slice", 28724)
    if not is_number(first):
        raise wrong_type("$slice", "numbers", first, 28725)
    at = integer(first, "$slice", 28726)
    if count is MISSING:
        return items[:at] if at >= 0 else items[at:]
    if not is_number(count):
        raise wrong_type("$slice", "numbers", count, 28727)
    length = integer(count, "$slice", 28728)
    if length <= 0:
        raise Refused(f"$slice takes a count above 0 beside a position. got={length}", code=28729)
    start = max(len(items) + at, 0) if at < 0 else at
    return items[start : start + length]


@named("$zip", _GROUP, "inputs", "useLongestLength?", "defaults?")
def _zip(inputs: Any, longest: Any, defaults: Any) -> Any:
    if absent(inputs):
        return None
    arrays = array_of(inputs, "$zip (inputs)", 34461)
    if not arrays:
        raise Refused("$zip takes at least one array. got=[]", code=34465)
    if longest is not MISSING and not isinstance(longest, bool):
        raise wrong_type("$zip", "a boolean as useLongestLength", longest, 34463)
    if any_absent(*arrays):
        return None
    for array in arrays:
        array_of(array, "$zip", 34468)
    fill = [None] * len(arrays) if absent(defaults) else array_of(defaults, "$zip (defaults)", 34462)
    if not absent(defaults) and longest is not True:
        raise Refused("$zip takes defaults only with useLongestLength", code=34466)
    if len(fill) != len(arrays):
        raise Refused("$zip takes a default for each array", code=34467)
    length = (max if longest is True else min)(map(len, arrays))
    return [
        [array[at] if at < len(array) else fill[place] for place, array in enumerate(arrays)] for at in range(length)
    ]


@named("$sortArray", _GROUP, "input", "sortBy", lazy=True)
def _sort_array(source: Evaluator, by: Evaluator) -> Evaluator:
    # The order is a constant, as MongoDB wants it: read once.
    order = by({}, {})
    arrange = arrangement(order, 2942507)

    def run(document: Any, scope: Scope) -> Any:
        array = source(document, scope)
        return None if absent(array) else arrange(array_of(array, "$sortArray", 2942504))

    return run


def arrangement(order: Any, code: int) -> Callable[[list[Any]], list[Any]]:
    """A way to sort an array: 1, -1 or by fields of its documents."""
    if is_document(order):
        key = sort_key(order)
        return lambda array: sorted(array, key=lambda item: key(item if is_document(item) else {}))
    if not is_number(order) or number_of(order) not in (1, -1):
        raise Refused(f"a sort of an array is 1, -1 or fields. got={order!r}", code=code)
    return lambda array: sorted(array, key=order_key, reverse=number_of(order) == -1)


def _several(name: str, choose: Callable[[list[Any], int], list[Any]]) -> None:
    @named(name, _GROUP, "n", "input")
    def several(count: Any, array: Any) -> Any:
        wanted = positive_count(count, name)
        return None if absent(array) else choose(array_of(array, name, 5788200), wanted)


def positive_count(value: Any, name: str) -> int:
    """How many elements an operator is to give."""
    if not is_number(value):
        raise wrong_type(name, "a number as n", value, 5787902)
    count = integer(value, f"{name} (n)", 5787903, 64)
    if count < 1:
        raise Refused(f"{name} takes an n above 0. got={count}", code=5787908)
    return count


_several("$firstN", lambda array, count: array[:count])
_several("$lastN", lambda array, count: array[-count:])
_several("$minN", lambda array, count: sorted((i for i in array if i is not None), key=order_key)[:count])
_several("$maxN", lambda array, count: sorted((i for i in array if i is not None), key=order_key, reverse=True)[:count])


def distinct(items: Any) -> dict[Any, Any]:
    """The elements by their keys, each once, the first of its equals."""
    found: dict[Any, Any] = {}
    for item in items:
        found.setdefault(order_key(item), item)
    return found


@operator("$setUnion", "set", 0, ARGUMENTS_MAX)
def _union(*arrays: Any) -> Any:
    if any_absent(*arrays):
        return None
    joined = distinct(item for array in arrays for item in array_of(array, "$setUnion", 17043))
    return [joined[key] for key in sorted(joined)]


@operator("$setIntersection", "set", 0, ARGUMENTS_MAX)
def _intersection(*arrays: Any) -> Any:
    if any_absent(*arrays):
        return None
    sets = [distinct(array_of(array, "$setIntersection", 17047)) for array in arrays]
    kept = [key for key in sets[0] if all(key in other for other in sets[1:])] if sets else []
    return [sets[0][key] for key in sorted(kept)]


@operator("$setDifference", "set", 2)
def _difference(left: Any, right: Any) -> Any:
    if any_absent(left, right):
        return None
    gone = distinct(array_of(right, "$setDifference", 17049))
    found = distinct(array_of(left, "$setDifference", 17048))
    return [item for key, item in found.items() if key not in gone]


@operator("$setEquals", "set", 2, ARGUMENTS_MAX)
def _equal(*arrays: Any) -> bool:
    sets = [set(distinct(array_of(array, "$setEquals", 17044))) for array in arrays]
    return all(other == sets[0] for other in sets[1:])


@operator("$setIsSubset", "set", 2)
def _subset(left: Any, right: Any) -> bool:
    one = distinct(array_of(left, "$setIsSubset", 17046))
    other = distinct(array_of(right, "$setIsSubset", 17042))
    return one.keys() <= other.keys()


@operator("$anyElementTrue", "set", 1)
def _any_true(array: Any) -> bool:
    return any(map(truthy, array_of(array, "$anyElementTrue", 17041)))


@operator("$allElementsTrue", "set", 1)
def _all_true(array: Any) -> bool:
    return all(map(truthy, array_of(array, "$allElementsTrue", 17040)))
