"""The arithmetic, trigonometric and bitwise operators, and `$rand`."""

import math
import operator as operators
import random
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from bson.decimal128 import Decimal128
from bson.int64 import Int64

from mainstem.documents.errors import Refused
from mainstem.documents.expressions.numbers import (
    DECIMAL,
    combine,
    decimal_of,
    decimal_result,
    integer,
    is_decimal,
    number,
    whole_result,
)
from mainstem.documents.expressions.registry import (
    ARGUMENTS_MAX,
    absent,
    any_absent,
    operator,
    wrong_type,
)
from mainstem.documents.values import Rank, date_ms, date_value, is_nan, number_of, rank_of

_GROUP = "arithmetic"
PLACES_MIN, PLACES_MAX = -20, 100


@operator("$add", _GROUP, 0, ARGUMENTS_MAX)
def _add(*values: Any) -> Any:
    if any_absent(*values):
        return None
    total: Any = 0
    date: Any = None
    for value in values:
        rank = rank_of(value)
        if rank is Rank.NUMBER:
            total = combine("$add", total, value, operators.add)
        elif rank is not Rank.DATE:
            raise wrong_type("$add", "numbers or dates", value, 14)
        elif date is not None:
            raise Refused("$add takes at most one date. got=two", code=16612)
        else:
            date = value
    return total if date is None else shifted(date, total, "$add")


@operator("$subtract", _GROUP, 2)
def _subtract(left: Any, right: Any) -> Any:
    if any_absent(left, right):
        return None
    if rank_of(left) is Rank.DATE:
        if rank_of(right) is Rank.DATE:
            return Int64(date_ms(left) - date_ms(right))
        return shifted(left, combine("$subtract", 0, right, operators.sub), "$subtract")
    return combine("$subtract", left, right, operators.sub)


def shifted(date: Any, milliseconds: Any, name: str) -> Any:
    """A date that many milliseconds later."""
    try:
        return date_value(date_ms(date) + round(number_of(milliseconds)))
    except (OverflowError, ValueError):
        raise Refused(f"{name} leaves the range of dates. got={milliseconds} ms", code=15) from None


@operator("$multiply", _GROUP, 0, ARGUMENTS_MAX)
def _multiply(*values: Any) -> Any:
    product: Any = 1
    for value in values:
        if absent(value):
            return None
        product = combine("$multiply", product, value, operators.mul)
    return product


@operator("$divide", _GROUP, 2)
def _divide(left: Any, right: Any) -> Any:
    if any_absent(left, right):
        return None
    one, other = number(left, "$divide"), number(right, "$divide")
    if other == 0:
        raise Refused("$divide by zero", code=2)
    if is_decimal(left) or is_decimal(right):
        return combine("$divide", left, right, DECIMAL.divide)
    return float(one) / float(other)


@operator("$mod", _GROUP, 2)
def _mod(left: Any, right: Any) -> Any:
    if any_absent(left, right):
        return None
    number(left, "$mod", 16611)
    if number(right, "$mod", 16611) == 0:
        raise Refused("$mod by zero", code=16610)
    return combine("$mod", left, right, _remainder)


def _remainder(left: Any, right: Any) -> Any:
    """Of the dividend's sign, as C has it."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right * (abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1)
    if isinstance(left, Decimal):
        return DECIMAL.remainder(left, right)
    return math.nan if math.isinf(left) else math.fmod(left, right)


@operator("$abs", _GROUP, 1)
def _abs(value: Any) -> Any:
    if absent(value):
        return None
    found = number(value, "$abs", 28765)
    if is_decimal(value):
        return decimal_result("$abs", lambda: abs(decimal_of(found)))
    return abs(found) if isinstance(found, float) else whole_result(abs(int(found)), wide=isinstance(value, Int64))


def _rounding(name: str, rounding: str) -> None:
    @operator(name, _GROUP, 1)
    def to_whole(value: Any) -> Any:
        if absent(value):
            return None
        found = number(value, name, 28765)
        if isinstance(found, int):
            return value
        if is_decimal(value):
            exact = decimal_of(found)
            return value if not exact.is_finite() else decimal_result(name, lambda: exact.to_integral_value(rounding))
        if not math.isfinite(found):
            return found
        # The sign of a zero is the value's.
        return math.copysign(float(math.ceil(found) if name == "$ceil" else math.floor(found)), found)


_rounding("$ceil", "ROUND_CEILING")
_rounding("$floor", "ROUND_FLOOR")


def _at_place(name: str, rounding: str) -> None:
    @operator(name, _GROUP, 1, 2)
    def at_place(value: Any, place: Any = 0) -> Any:
        if any_absent(value, place):
            return None
        found = number(value, name, 51081)
        places = integer(place, f"{name} (place)", 51082)
        if not PLACES_MIN <= places <= PLACES_MAX:
            raise Refused(f"{name} takes a place of {PLACES_MIN}..{PLACES_MAX}. got={places}", code=51083)
        if isinstance(found, int):
            if places >= 0:
                return value
            step = Decimal(1).scaleb(-places)
            rounded = int((Decimal(found) / step).to_integral_value(rounding) * step)
            return whole_result(rounded, wide=isinstance(value, Int64))
        if not math.isfinite(found):
            return value
        exact = Decimal(found) if isinstance(found, float) else decimal_of(found)
        if places >= -int(exact.as_tuple().exponent):
            return value
        result = exact.quantize(Decimal(1).scaleb(-places), rounding) if exact else exact
        return decimal_result(name, lambda: result) if is_decimal(value) else float(result)


_at_place("$round", ROUND_HALF_EVEN)
_at_place("$trunc", "ROUND_DOWN")


def _function(name: str, on_double: Callable[[float], float], on_decimal: Callable[[Decimal], Decimal] | None) -> None:
    @operator(name, _GROUP, 1)
    def compute(value: Any) -> Any:
        if absent(value):
            return None
        found = number(value, name, 28765)
        if name in _DOMAINS:
            code, allowed, wanted = _DOMAINS[name]
            if not is_nan(found) and not allowed(found):
                raise Refused(f"{name} takes {wanted}. got={found}", code=code)
        if is_decimal(value) and on_decimal is not None:
            exact = decimal_of(found)
            return decimal_result(name, lambda: on_decimal(exact))
        try:
            return on_double(float(found))
        except OverflowError:
            return math.inf


_DOMAINS: dict[str, tuple[int, Callable[[Any], bool], str]] = {
    "$sqrt": (28714, lambda found: found >= 0, "numbers from 0 up"),
    "$ln": (28766, lambda found: found > 0, "positive numbers"),
    "$log10": (28761, lambda found: found > 0, "positive numbers"),
}
_function("$sqrt", math.sqrt, DECIMAL.sqrt)
_function("$exp", math.exp, DECIMAL.exp)
_function("$ln", math.log, DECIMAL.ln)
_function("$log10", math.log10, DECIMAL.log10)


@operator("$log", _GROUP, 2)
def _log(value: Any, base: Any) -> Any:
    if any_absent(value, base):
        return None
    found, of = number(value, "$log", 28756), number(base, "$log", 28757)
    if not found > 0:
        raise Refused(f"$log takes positive numbers. got={found}", code=28758)
    if not of > 0 or of == 1:
        raise Refused(f"$log takes a positive base other than 1. got={of}", code=28759)
    if is_decimal(value) or is_decimal(base):
        return decimal_result("$log", lambda: DECIMAL.divide(DECIMAL.ln(decimal_of(found)), DECIMAL.ln(decimal_of(of))))
    return math.log(found) / math.log(of)


@operator("$pow", _GROUP, 2)
def _pow(base: Any, exponent: Any) -> Any:
    if any_absent(base, exponent):
        return None
    one, other = number(base, "$pow", 28762), number(exponent, "$pow", 28763)
    if one == 0 and other < 0:
        raise Refused("$pow of 0 and a negative exponent", code=28764)
    if is_decimal(base) or is_decimal(exponent):
        return decimal_result("$pow", lambda: DECIMAL.power(decimal_of(one), decimal_of(other)))
    if isinstance(one, int) and isinstance(other, int) and other >= 0 and (abs(one) <= 1 or other <= 64):
        return whole_result(int(one) ** int(other), wide=isinstance(base, Int64) or isinstance(exponent, Int64))
    try:
        return math.pow(one, other)
    except OverflowError:
        return -math.inf if one < 0 and other % 2 == 1 else math.inf
    except ValueError:
        return math.nan


operator("$rand", _GROUP, 0)(random.random)


def _angle(name: str, compute: Callable[[float], float], low: float, high: float) -> None:
    @operator(name, "trigonometry", 1)
    def of_angle(value: Any) -> Any:
        if absent(value):
            return None
        found = number(value, name, 28765)
        if not is_nan(found) and not low <= found <= high:
            raise Refused(f"{name} takes numbers of {low}..{high}. got={found}", code=50989)
        if math.isinf(found) and name in ("$sin", "$cos", "$tan"):
            raise Refused(f"{name} takes finite numbers. got={found}", code=50989)
        try:
            result = compute(float(found))
        except OverflowError:
            result = math.copysign(math.inf, float(found)) if name == "$sinh" else math.inf
        return Decimal128(DECIMAL.create_decimal(repr(result))) if is_decimal(value) else result


def _atanh(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) == 1 else math.atanh(value)


for _name, _compute, _low, _high in (
    ("$sin", math.sin, -math.inf, math.inf),
    ("$cos", math.cos, -math.inf, math.inf),
    ("$tan", math.tan, -math.inf, math.inf),
    ("$asin", math.asin, -1, 1),
    ("$acos", math.acos, -1, 1),
    ("$atan", math.atan, -math.inf, math.inf),
    ("$sinh", math.sinh, -math.inf, math.inf),
    ("$cosh", math.cosh, -math.inf, math.inf),
    ("$tanh", math.tanh, -math.inf, math.inf),
    ("$asinh", math.asinh, -math.inf, math.inf),
    ("$acosh", math.acosh, 1, math.inf),
    ("$atanh", _atanh, -1, 1),
    ("$degreesToRadians", math.radians, -math.inf, math.inf),
    ("$radiansToDegrees", math.degrees, -math.inf, math.inf),
):
    _angle(_name, _compute, _low, _high)


@operator("$atan2", "trigonometry", 2)
def _atan2(first: Any, second: Any) -> Any:
    if any_absent(first, second):
        return None
    result = math.atan2(float(number(first, "$atan2", 51044)), float(number(second, "$atan2", 51045)))
    decimal = is_decimal(first) or is_decimal(second)
    return Decimal128(DECIMAL.create_decimal(repr(result))) if decimal else result


def _bits(name: str, start: int, join: Callable[[int, int], int]) -> None:
    @operator(name, "bitwise", 0, ARGUMENTS_MAX)
    def joined(*values: Any) -> Any:
        if any_absent(*values):
            return None
        result = start
        for value in values:
            result = join(result, _bit_operand(name, value))
        return whole_result(result, wide=any(isinstance(value, Int64) for value in values))


def _bit_operand(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, "ints and longs", value, 14)
    return int(value)


_bits("$bitAnd", -1, operators.and_)
_bits("$bitOr", 0, operators.or_)
_bits("$bitXor", 0, operators.xor)


@operator("$bitNot", "bitwise", 1)
def _bit_not(value: Any) -> Any:
    return None if absent(value) else whole_result(~_bit_operand("$bitNot", value), wide=isinstance(value, Int64))
