"""The update operators: from a field's old value to its new one. Owns their arithmetic, knows nothing of paths."""

import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.timestamp import Timestamp

from mainstem.documents.errors import Refused
from mainstem.documents.expressions import combine
from mainstem.documents.filters.match import matcher
from mainstem.documents.filters.parse import is_operators, parse_at
from mainstem.documents.paths import Path
from mainstem.documents.sort import sort_key
from mainstem.documents.values import (
    MISSING,
    TYPE_CODES,
    Rank,
    date_of_ms,
    is_array,
    is_number,
    number_of,
    order_key,
    rank_of,
    type_code,
    type_name,
)

# Written in a field's place by an operator that takes the field away.
REMOVE: Final = object()
DECIMAL_DIGITS_MAX = 34


class Moment(msgspec.Struct, frozen=True):
    """What an operator may know beside the value."""

    now_ms: int
    inserting: bool


Compute = Callable[[Any, Moment], Any]


class Instruction(msgspec.Struct, frozen=True):
    """One operator on one path, ready to run. `compute` returns its argument where nothing changes."""

    path: Path
    compute: Compute
    # The other end of a rename.
    target: Path | None = None
    only_inserting: bool = False


def invalid(message: str, code: int = 9) -> Refused:
    """An update that cannot be applied."""
    return Refused(message, code=code, reason="bad_update")


def _set(name: str, operand: Any) -> Compute:
    order_key(operand)
    return lambda before, moment: operand


def _unset(name: str, operand: Any) -> Compute:
    return lambda before, moment: REMOVE


def _arithmetic(name: str, operand: Any) -> Compute:
    if isinstance(operand, bool) or not is_number(operand):
        raise invalid(f"{name} takes a number. got={type_name(operand)}", 14)
    is_sum = name == "$inc"

    def compute(before: Any, moment: Moment) -> Any:
        if before is MISSING:
            return operand if is_sum else _zero_like(operand)
        if rank_of(before) is not Rank.NUMBER:
            raise invalid(f"{name} needs a number in the field. got={type_name(before)}", 14)
        for number in (before, operand):
            if isinstance(number, Decimal) and len(number.as_tuple().digits) > DECIMAL_DIGITS_MAX:
                # BSON's decimals would round it, and a column may hold more digits than they do.
                raise invalid(f"{name} leaves the {DECIMAL_DIGITS_MAX} digits of a decimal. got={number}")
        result = combine(name, before, operand, (lambda a, b: a + b) if is_sum else (lambda a, b: a * b))
        if isinstance(result, float) and not any(isinstance(item, float | Decimal128) for item in (before, operand)):
            raise invalid(f"{name} leaves the 64 bits of an integer. got={number_of(before)}, {number_of(operand)}", 2)
        return result

    return compute


def _zero_like(number: Any) -> Any:
    """Nothing times a number: of the number's own type, as `$type` tells them."""
    if isinstance(number, float):
        return number * 0.0
    if isinstance(number, Decimal | Decimal128):
        plain = number_of(number)
        # Infinity times nothing is no number, in decimals as in doubles.
        finite = isinstance(plain, Decimal) and plain.is_finite()
        return combine("$mul", number, 0, lambda left, _: left * 0) if finite else Decimal128("NaN")
    return Int64(0) if type_code(number) == TYPE_CODES["long"] else 0


def _extreme(name: str, operand: Any) -> Compute:
    key = order_key(operand)

    def compute(before: Any, moment: Moment) -> Any:
        if before is MISSING:
            return operand
        old = order_key(before)
        return operand if (key < old if name == "$min" else key > old) else before

    return compute


def _current_date(name: str, operand: Any) -> Compute:
    kind = operand.get("$type") if isinstance(operand, Mapping) and set(operand) == {"$type"} else operand
    if kind not in ("date", "timestamp") and not isinstance(kind, bool):
        raise invalid(f"$currentDate takes true or a $type of date or timestamp. got={operand!r}", 2)

    def compute(before: Any, moment: Moment) -> Any:
        if kind == "timestamp":
            return Timestamp(moment.now_ms // 1000, 1)
        return date_of_ms(moment.now_ms)

    return compute


def _array_of(before: Any, name: str) -> list[Any]:
    if before is MISSING:
        return []
    if not is_array(before):
        raise invalid(f"{name} needs an array in the field. got={type_name(before)}", 2)
    return list(before)


def _each(name: str, operand: Any, allowed: tuple[str, ...]) -> tuple[list[Any], Mapping[str, Any]]:
    """The values to add, and the modifiers beside `$each`."""
    order_key(operand)
    if not isinstance(operand, Mapping) or "$each" not in operand:
        if is_operators(operand):
            raise invalid(f"{name} takes modifiers only beside $each. got={next(iter(operand))}")
        return [operand], {}
    if unknown := set(operand) - {"$each", *allowed}:
        raise invalid(f"unknown modifier of {name}. got={sorted(unknown)}", 2)
    if not is_array(operand["$each"]):
        raise invalid(f"$each takes an array. got={type_name(operand['$each'])}", 2)
    return list(operand["$each"]), {key: value for key, value in operand.items() if key != "$each"}


def _push(name: str, operand: Any) -> Compute:
    values, modifiers = _each(name, operand, ("$slice", "$sort", "$position"))
    position = _whole(modifiers, "$position")
    limit = _whole(modifiers, "$slice")
    arrange = _arrangement(modifiers["$sort"]) if "$sort" in modifiers else None

    def compute(before: Any, moment: Moment) -> Any:
        array = _array_of(before, name)
        at = len(array) if position is None else position
        array[at:at] = values
        if arrange is not None:
            array = arrange(array)
        if limit is not None:
            array = array[:limit] if limit >= 0 else array[limit:]
        return array

    return compute


def _whole(modifiers: Mapping[str, Any], name: str) -> int | None:
    value = modifiers.get(name)
    if value is None and name not in modifiers:
        return None
    if value is None or isinstance(value, bool) or not is_number(value) or number_of(value) != int(number_of(value)):
        raise invalid(f"{name} takes a whole number. got={value!r}", 2)
    return int(number_of(value))


def _arrangement(source: Any) -> Callable[[list[Any]], list[Any]]:
    if isinstance(source, Mapping):
        if not source:
            raise invalid("$sort takes at least one field. got={}", 2)
        key = sort_key(source)
        return lambda array: sorted(array, key=lambda item: key(item if isinstance(item, Mapping) else {}))
    if isinstance(source, bool) or not is_number(source) or number_of(source) not in (1, -1):
        raise invalid(f"$sort takes 1, -1 or fields. got={source!r}", 2)
    return lambda array: sorted(array, key=order_key, reverse=number_of(source) == -1)


def _add_to_set(name: str, operand: Any) -> Compute:
    values, _ = _each(name, operand, ())

    def compute(before: Any, moment: Moment) -> Any:
        array = _array_of(before, name)
        present = {order_key(item) for item in array}
        for value in values:
            key = order_key(value)
            if key not in present:
                present.add(key)
                array.append(value)
        return array

    return compute


def _pop(name: str, operand: Any) -> Compute:
    if isinstance(operand, bool) or not is_number(operand) or number_of(operand) not in (1, -1):
        raise invalid(f"$pop takes 1 or -1. got={operand!r}")
    last = number_of(operand) == 1
    return lambda before, moment: (
        before if before is MISSING else _array_of(before, name)[:-1] if last else _array_of(before, name)[1:]
    )


def _pull(name: str, operand: Any) -> Compute:
    if name == "$pullAll":
        if not is_array(operand):
            raise invalid(f"$pullAll takes an array. got={type_name(operand)}", 2)
        keys = {order_key(item) for item in operand}
        drops: Callable[[Any], bool] = lambda item: order_key(item) in keys  # noqa: E731
    elif isinstance(operand, Mapping) and not is_operators(operand):
        inside = matcher(operand)
        drops = lambda item: isinstance(item, Mapping) and inside(item)  # noqa: E731
    elif is_operators(operand) or rank_of(operand) is Rank.REGEX:
        outside = matcher(parse_at(("",), operand))
        drops = lambda item: outside({"": item})  # noqa: E731
    else:
        key = order_key(operand)
        drops = lambda item: order_key(item) == key  # noqa: E731

    def compute(before: Any, moment: Moment) -> Any:
        if before is MISSING:
            return before
        array = _array_of(before, name)
        kept = [item for item in array if not drops(item)]
        return before if len(kept) == len(array) else kept

    return compute


def _bit(name: str, operand: Any) -> Compute:
    if not isinstance(operand, Mapping) or not operand:
        raise invalid(f"$bit takes a document of and, or, xor. got={type_name(operand)}", 2)
    steps: list[tuple[Callable[[int, int], int], Any]] = []
    for step, number in operand.items():
        if step not in _BIT_STEPS:
            raise invalid(f"$bit takes and, or, xor. got={step}", 2)
        if isinstance(number, bool) or not isinstance(number, int):
            raise invalid(f"$bit takes ints and longs. got={type_name(number)}", 2)
        steps.append((_BIT_STEPS[step], number))

    def compute(before: Any, moment: Moment) -> Any:
        value = 0 if before is MISSING else before
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid(f"$bit needs an int or a long in the field. got={type_name(before)}", 2)
        wide = type_code(value) == TYPE_CODES["long"] or any(type_code(n) == TYPE_CODES["long"] for _, n in steps)
        result = int(value)
        for join, number in steps:
            result = join(result, int(number))
        return Int64(result) if wide else result

    return compute


_BIT_STEPS: dict[str, Callable[[int, int], int]] = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


OPERATORS: dict[str, Callable[[str, Any], Compute]] = {
    "$set": _set,
    "$setOnInsert": _set,
    "$unset": _unset,
    "$inc": _arithmetic,
    "$mul": _arithmetic,
    "$min": _extreme,
    "$max": _extreme,
    "$currentDate": _current_date,
    "$push": _push,
    "$addToSet": _add_to_set,
    "$pop": _pop,
    "$pull": _pull,
    "$pullAll": _pull,
    "$bit": _bit,
}
