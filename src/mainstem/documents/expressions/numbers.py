"""Arithmetic on BSON's numbers: which type a result has. Decimal over double over long over int.

An int that leaves 32 bits is a long, a long that leaves 64 bits is a double. Used by expressions, accumulators and the
update operators alike.
"""

import math
from collections.abc import Callable
from decimal import Decimal, DecimalException
from typing import Any

from bson.decimal128 import Decimal128, create_decimal128_context
from bson.int64 import Int64

from mainstem.documents.errors import Refused
from mainstem.documents.values import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    is_number,
    number_of,
    type_name,
)

DECIMAL = create_decimal128_context()


def number(value: Any, name: str, code: int = 14) -> Any:
    """A number as Python computes with it; an error for anything else."""
    if not is_number(value):
        raise Refused(f"{name} takes numbers. got={type_name(value)}", code=code)
    return number_of(value)


def is_decimal(value: Any) -> bool:
    """Whether a number is a decimal."""
    return isinstance(value, Decimal128 | Decimal)


def decimal_of(value: Any) -> Decimal:
    """A number as a decimal of 34 digits. A double comes with its 15 digits, as MongoDB converts it."""
    if isinstance(value, Decimal):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return DECIMAL.create_decimal(f"{value:.15g}")
    return DECIMAL.create_decimal(value)


def decimal_result(name: str, compute: Callable[[], Decimal]) -> Decimal128:
    """What a computation with decimals comes to, within 34 digits."""
    try:
        return Decimal128(DECIMAL.create_decimal(compute()))
    except DecimalException as error:
        raise Refused(f"{name} has no decimal result ({type(error).__name__})", code=2) from None


def whole_result(result: int, *, wide: bool) -> Any:
    """An integer result in the narrowest type that holds it; `wide`: an operand was a long."""
    if not INT64_MIN <= result <= INT64_MAX:
        return float(result)
    if wide or not INT32_MIN <= result <= INT32_MAX:
        return Int64(result)
    return result


def combine(name: str, left: Any, right: Any, operate: Callable[[Any, Any], Any]) -> Any:
    """Apply an operation to two numbers."""
    if type(left) is int and type(right) is int:
        result = operate(left, right)
        return result if INT32_MIN <= result <= INT32_MAX else whole_result(result, wide=False)
    if type(left) is float and type(right) is float:
        return _on_doubles(left, right, operate)
    one, other = number(left, name), number(right, name)
    if is_decimal(left) or is_decimal(right):
        return decimal_result(name, lambda: operate(decimal_of(one), decimal_of(other)))
    if isinstance(one, float) or isinstance(other, float):
        return _on_doubles(float(one), float(other), operate)
    return whole_result(operate(int(one), int(other)), wide=isinstance(left, Int64) or isinstance(right, Int64))


def _on_doubles(left: float, right: float, operate: Callable[[Any, Any], Any]) -> Any:
    try:
        return operate(left, right)
    except OverflowError:
        return math.inf if (left > 0) == (right > 0) else -math.inf


def integer(value: Any, name: str, code: int, bits: int = 32) -> int:
    """A whole number of at most that many bits, in whichever type it comes."""
    found = number_of(value) if is_number(value) else None
    bound = 1 << (bits - 1)
    if found is None or not math.isfinite(found) or found != int(found) or not -bound <= found < bound:
        raise Refused(f"{name} takes a whole number of {bits} bits. got={value!r}", code=code)
    return int(found)
