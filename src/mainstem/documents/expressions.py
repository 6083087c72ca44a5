"""The expression language of `$expr`: its syntax and its evaluation on one document.

Expressions compare by the total order of all values, without the type bracketing of filters, and a path that walks
through an array yields the array of what it finds there. Owns no filter semantics.
"""



import math
from collections.abc import Callable, Mapping
from decimal import Decimal, DecimalException
from typing import Any

from bson.decimal128 import Decimal128, create_decimal128_context
from bson.int64 import Int64

from mainstem.documents.ast import Call, Compound, Expression, Literal, Reference
from mainstem.documents.paths import Path, parse_path
from mainstem.documents.values import (
    DEPTH_MAX,
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    MISSING,
    Rank,
    date_ms,
    date_of_ms,
    is_array,
    is_document,
    is_number,
    number_of,
    order_key,
    rank_of,
    type_name,
)
from mainstem.model.errors import Invalid

ARGUMENTS_MAX = 1_000
_DECIMAL = create_decimal128_context()


def _invalid(message: str) -> Invalid:
    return Invalid(message, reason="bad_expression")


def parse_expression(source: Any, depth: int = 0) -> Expression:
    """Read an expression. An unknown operator or variable, or a wrong number of arguments, is an error."""
    if depth > DEPTH_MAX:
        raise _invalid(f"expression is nested too deep. expected=at most {DEPTH_MAX} levels")
    if isinstance(source, str) and source.startswith("$"):
        return _reference(source)
    if is_array(source):
        return Compound(None, tuple(parse_expression(item, depth + 1) for item in source))
    if not isinstance(source, Mapping):
        order_key(source)
        return Literal(source)
    first = next(iter(source), "")
    if not first.startswith("$"):
        return Compound(tuple(source), tuple(parse_expression(item, depth + 1) for item in source.values()))
    if len(source) != 1:
        raise _invalid(f"an expression has one operator. got={list(source)[:3]}")
    return _call(first, source[first], depth)


def _reference(text: str) -> Expression:
    if not text.startswith("$$"):
        return Reference(parse_path(text[1:]))
    name, _, rest = text[2:].partition(".")
    if name not in ("ROOT", "CURRENT"):
        raise _invalid(f"unknown variable. expected=$$ROOT or $$CURRENT got=$${name}")
    return Reference(parse_path(rest) if rest else ())


def _call(name: str, operand: Any, depth: int) -> Expression:
    if name == "$literal":
        order_key(operand)
        return Literal(operand)
    if name not in _ARITY:
        raise _invalid(f"unknown expression operator. got={name}")
    if name == "$cond" and isinstance(operand, Mapping):
        if set(operand) != {"if", "then", "else"}:
            raise _invalid(f"$cond takes if, then and else. got={sorted(operand)}")
        operand = [operand["if"], operand["then"], operand["else"]]
    items = operand if is_array(operand) else [operand]
    low, high = _ARITY[name]
    if not low <= len(items) <= high:
        raise _invalid(f"wrong number of arguments of {name}. expected={low}..{high} got={len(items)}")
    return Call(name, tuple(parse_expression(item, depth + 1) for item in items))


Evaluator = Callable[[Any], Any]


def evaluate(expression: Expression, document: Any) -> Any:
    """The expression's value on one document. For many documents, `evaluator` once is faster."""
    return evaluator(expression)(document)


def evaluator(expression: Expression) -> Evaluator:
    """The expression as a function of a document. A wrong type or a division by zero is an error, as in MongoDB."""
    match expression:
        case Literal(value):
            return lambda document: value
        case Reference(path):
            return lambda document: _at(document, path, 0)
        case Compound(names, items):
            return _compound(names, [evaluator(item) for item in items])
        case Call(name, arguments):
            return _applied(name, [evaluator(item) for item in arguments])


def _compound(names: tuple[str, ...] | None, parts: list[Evaluator]) -> Evaluator:
    if names is None:
        return lambda document: [None if (item := part(document)) is MISSING else item for part in parts]
    fields = list(zip(names, parts, strict=True))
    return lambda document: {
        name: value for name, part in fields if (value := part(document)) is not MISSING
    }


def _applied(name: str, parts: list[Evaluator]) -> Evaluator:
    match name:
        case "$and":
            return lambda document: all(truthy(part(document)) for part in parts)
        case "$or":
            return lambda document: any(truthy(part(document)) for part in parts)
        case "$cond":
            test, then, otherwise = parts
            return lambda document: then(document) if truthy(test(document)) else otherwise(document)
        case "$ifNull":
            return lambda document: _first_present(parts, document)
    function = _FUNCTIONS[name]
    if len(parts) == 2:
        left, right = parts
        return lambda document: function(left(document), right(document))
    return lambda document: function(*[part(document) for part in parts])


def truthy(value: Any) -> bool:
    """False, null, missing and zero are false; everything else, the empty text too, is true."""
    if value is True or value is False:
        return bool(value)
    match rank_of(value):
        case Rank.NUMBER:
            return bool(number_of(value))
        case Rank.NULL | Rank.MISSING:
            return False
        case _:
            return True


def _at(node: Any, path: Path, at: int) -> Any:
    if at == len(path):
        return node
    if is_document(node):
        return _at(node.get(path[at], MISSING), path, at + 1)
    if is_array(node):
        found = (_at(item, path, at) for item in node)
        return [item for item in found if item is not MISSING]
    return MISSING


def _first_present(parts: list[Evaluator], document: Any) -> Any:
    value: Any = MISSING
    for part in parts:
        value = part(document)
        if value is not None and value is not MISSING:
            break
    return value


def _absent(*values: Any) -> bool:
    return any(value is None or value is MISSING for value in values)


def _compared(left: Any, right: Any) -> int:
    one, other = order_key(left), order_key(right)
    return (one > other) - (one < other)


def _number(value: Any, name: str) -> Any:
    if not is_number(value):
        raise _invalid(f"{name} takes numbers. got={type_name(value)}")
    return number_of(value)


def combine(name: str, left: Any, right: Any, operate: Callable[[Any, Any], Any]) -> Any:
    """Apply an operation to two numbers with BSON's widening: decimal over double over long over int."""
    one, other = _number(left, name), _number(right, name)
    if any(isinstance(item, Decimal | Decimal128) for item in (left, right)):
        try:
            return Decimal128(_DECIMAL.create_decimal(operate(_decimal(one), _decimal(other))))
        except DecimalException as error:
            raise _invalid(f"{name} has no decimal result. got={one}, {other} ({type(error).__name__})") from None
    if isinstance(one, float) or isinstance(other, float):
        try:
            return operate(float(one), float(other))
        except OverflowError:
            return math.inf if (one > 0) == (other > 0) else -math.inf
    result = operate(int(one), int(other))
    if not INT64_MIN <= result <= INT64_MAX:
        return float(result)
    if isinstance(left, Int64) or isinstance(right, Int64) or not INT32_MIN <= result <= INT32_MAX:
        return Int64(result)
    return result


def _decimal(value: Any) -> Decimal:
    return value if isinstance(value, Decimal) else _DECIMAL.create_decimal(value)


def _add(*values: Any) -> Any:
    if _absent(*values):
        return None
    dates = [value for value in values if rank_of(value) is Rank.DATE]
    if len(dates) > 1:
        raise _invalid("$add takes at most one date. got=two")
    total: Any = 0
    for value in values:
        if rank_of(value) is not Rank.DATE:
            total = combine("$add", total, value, lambda left, right: left + right)
    return _shifted(dates[0], total, "$add") if dates else total


def _subtract(left: Any, right: Any) -> Any:
    if _absent(left, right):
        return None
    if rank_of(left) is Rank.DATE:
        if rank_of(right) is Rank.DATE:
            return Int64(date_ms(left) - date_ms(right))
        return _shifted(left, combine("$subtract", 0, right, lambda zero, value: zero - value), "$subtract")
    return combine("$subtract", left, right, lambda one, other: one - other)


def _shifted(date: Any, milliseconds: Any, name: str) -> Any:
    try:
        return date_of_ms(date_ms(date) + round(number_of(milliseconds)))
    except (OverflowError, ValueError):
        raise _invalid(f"{name} leaves the range of dates. got={milliseconds} ms") from None


def _multiply(*values: Any) -> Any:
    if _absent(*values):
        return None
    product: Any = 1
    for value in values:
        product = combine("$multiply", product, value, lambda left, right: left * right)
    return product


def _divide(left: Any, right: Any) -> Any:
    if _absent(left, right):
        return None
    one, other = _number(left, "$divide"), _number(right, "$divide")
    if other == 0:
        raise _invalid("$divide by zero")
    if isinstance(one, Decimal) or isinstance(other, Decimal):
        return combine("$divide", left, right, _DECIMAL.divide)
    return float(one) / float(other)


def _mod(left: Any, right: Any) -> Any:
    if _absent(left, right):
        return None
    if _number(right, "$mod") == 0:
        raise _invalid("$mod by zero")
    return combine("$mod", left, right, _remainder)


def _remainder(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return left - right * (abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1)
    if isinstance(left, Decimal):
        return _DECIMAL.remainder(left, right)
    return math.nan if math.isinf(left) else math.fmod(left, right)


def _concat(*values: Any) -> Any:
    for value in values:
        if value is not None and value is not MISSING and rank_of(value) is not Rank.STRING:
            raise _invalid(f"$concat takes text. got={type_name(value)}")
    return None if _absent(*values) else "".join(values)


def _text(value: Any, name: str) -> str:
    match rank_of(value):
        case Rank.NULL | Rank.MISSING:
            return ""
        case Rank.STRING:
            return str(value)
        case Rank.NUMBER:
            return str(number_of(value))
        case Rank.DATE:
            return date_of_ms(date_ms(value)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case _:
            raise _invalid(f"{name} takes text. got={type_name(value)}")


def _lower(value: Any) -> str:
    # Only ASCII letters change, as MongoDB documents it.
    return "".join(letter.lower() if letter.isascii() else letter for letter in _text(value, "$toLower"))


def _upper(value: Any) -> str:
    return "".join(letter.upper() if letter.isascii() else letter for letter in _text(value, "$toUpper"))


def _size(value: Any) -> int:
    if not is_array(value):
        raise _invalid(f"$size takes an array. got={type_name(value)}")
    return len(value)


def _contains(value: Any, array: Any) -> bool:
    if not is_array(array):
        raise _invalid(f"$in takes an array. got={type_name(array)}")
    wanted = order_key(value)
    return any(order_key(item) == wanted for item in array)


_ARITY: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("$eq", "$ne", "$lt", "$lte", "$gt", "$gte", "$cmp"), (2, 2)),
    **dict.fromkeys(("$subtract", "$divide", "$mod", "$in"), (2, 2)),
    **dict.fromkeys(("$and", "$or", "$add", "$multiply", "$concat"), (0, ARGUMENTS_MAX)),
    **dict.fromkeys(("$not", "$toLower", "$toUpper", "$size"), (1, 1)),
    "$ifNull": (2, ARGUMENTS_MAX),
    "$cond": (3, 3),
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "$eq": lambda left, right: _compared(left, right) == 0,
    "$ne": lambda left, right: _compared(left, right) != 0,
    "$lt": lambda left, right: _compared(left, right) < 0,
    "$lte": lambda left, right: _compared(left, right) <= 0,
    "$gt": lambda left, right: _compared(left, right) > 0,
    "$gte": lambda left, right: _compared(left, right) >= 0,
    "$cmp": _compared,
    "$not": lambda value: not truthy(value),
    "$add": _add,
    "$subtract": _subtract,
    "$multiply": _multiply,
    "$divide": _divide,
    "$mod": _mod,
    "$concat": _concat,
    "$toLower": _lower,
    "$toUpper": _upper,
    "$size": _size,
    "$in": _contains,
}
