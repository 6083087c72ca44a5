"""One test of a filter on one typed column, as a neutral predicate.

Owns the arithmetic that keeps engines from rounding: a constant is first moved onto the values that the column can hold
(whole numbers, doubles, decimals of a scale, days, milliseconds), so that the comparison is exact in any engine.
"""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

import datetime as dt
import math
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from mainstem.documents.columns import Column, Kind
from mainstem.documents.filters.ast import Bits, Compare, Exists, Modulo, OfType, OneOf, Op, Pattern, Test
from mainstem.documents.filters.match import single
from mainstem.documents.filters.patterns import literal_prefix
from mainstem.documents.filters.predicate import (
    NO,
    YES,
    Nan,
    Null,
    Predicate,
    Relates,
    Relation,
    Within,
    all_of,
    any_of,
)
from mainstem.documents.values import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    MISSING,
    NUMBER_CODES,
    TYPE_CODES,
    Rank,
    binary_parts,
    date_ms,
    is_nan,
    number_of,
    rank_of,
)

DAY_MS = 86_400_000
_WITH_EQUAL = (Op.EQ, Op.LTE, Op.GTE)
RELATION = {
    Op.EQ: Relation.EQ,
    Op.LT: Relation.LT,
    Op.LTE: Relation.LTE,
    Op.GT: Relation.GT,
    Op.GTE: Relation.GTE,
}
_NUMERIC = (Kind.INTEGER, Kind.DOUBLE, Kind.DECIMAL)
_CODE = {
    Kind.BOOLEAN: "bool",
    Kind.DOUBLE: "double",
    Kind.DECIMAL: "decimal",
    Kind.STRING: "string",
    Kind.TIMESTAMP: "date",
    Kind.TIMESTAMP_TZ: "date",
    Kind.DATE: "date",
    Kind.BINARY: "binData",
    Kind.OBJECT_ID: "objectId",
}
_WIDE = Context(prec=40)
_EPOCH_DAY = dt.date(1970, 1, 1)
_EPOCH = dt.datetime(1970, 1, 1)
_MS_MIN = (dt.datetime.min - _EPOCH) // dt.timedelta(milliseconds=1)
_MS_MAX = (dt.datetime.max - _EPOCH) // dt.timedelta(milliseconds=1)


class Bounded(NamedTuple):
    """A predicate that holds at least where the test does, and, if `exact`, only there."""

    predicate: Predicate
    exact: bool = True


def column_test(name: str, column: Column, test: Test) -> Bounded:
    """The test on a column that is not JSON text."""
    match test:
        case Compare(op, operand):
            return _compare(name, column, op, operand)
        case OneOf():
            return _one_of(name, column, test)
        case Pattern():
            return _pattern(name, column, test)
        case Exists():
            return Bounded(Null(name, negated=True))
        case OfType(codes):
            return Bounded(_of_type(name, column, codes))
        case Bits() if column.kind in _NUMERIC or column.kind is Kind.BINARY:
            return Bounded(Null(name, negated=True), exact=False)
        case Modulo() if column.kind in _NUMERIC:
            return Bounded(Null(name, negated=True), exact=False)
        case _:
            # A scalar is no array, and a NULL is missing: the answer is the same in every row.
            assert not single(test)(MISSING)
            return Bounded(NO)


def _compare(name: str, column: Column, op: Op, operand: Any) -> Bounded:
    rank = rank_of(operand)
    match rank:
        case Rank.NULL:
            return Bounded(Null(name) if op in _WITH_EQUAL else NO)
        case Rank.MIN_KEY:
            return Bounded(YES if op in (Op.GT, Op.GTE) else NO)
        case Rank.MAX_KEY:
            return Bounded(YES if op in (Op.LT, Op.LTE) else NO)
        case Rank.NUMBER if column.kind in _NUMERIC:
            return Bounded(_number(name, column, op, number_of(operand)))
        case Rank.STRING if column.kind is Kind.STRING:
            return Bounded(Relates(name, RELATION[op], str(operand)))
        case Rank.OBJECT_ID if column.kind is Kind.OBJECT_ID:
            return Bounded(Relates(name, RELATION[op], str(operand)))
        case Rank.BOOLEAN if column.kind is Kind.BOOLEAN:
            return Bounded(Relates(name, RELATION[op], bool(operand)))
        case Rank.BINARY if column.kind is Kind.BINARY:
            return _binary(name, op, operand)
        case Rank.DATE if column.kind in (Kind.TIMESTAMP, Kind.TIMESTAMP_TZ):
            return Bounded(_timestamp(name, op, date_ms(operand), with_zone=column.kind is Kind.TIMESTAMP_TZ))
        case Rank.DATE if column.kind is Kind.DATE:
            return Bounded(_day(name, op, date_ms(operand)))
        case _:
            return Bounded(NO)


def _number(name: str, column: Column, op: Op, number: int | float | Decimal) -> Predicate:
    if is_nan(number):
        return Nan(name) if column.kind is Kind.DOUBLE and op in _WITH_EQUAL else NO
    if column.kind is Kind.DOUBLE:
        step = nearest_double(op, number)
        return NO if step is None else Relates(name, *step)
    if math.isinf(number):
        return Null(name, negated=True) if (number > 0) == (op in (Op.LT, Op.LTE)) and op is not Op.EQ else NO
    scale = column.scale if column.kind is Kind.DECIMAL else 0
    step_on_grid = on_grid(op, Fraction(number) * 10**scale)
    if step_on_grid is None:
        return NO
    relation, whole = step_on_grid
    low, high = (INT64_MIN, INT64_MAX) if column.kind is Kind.INTEGER else (1 - 10**38, 10**38 - 1)
    if not low <= whole <= high:
        return _beyond(name, relation, above=whole > high)
    return Relates(name, relation, whole if column.kind is Kind.INTEGER else Decimal(whole).scaleb(-scale, _WIDE))


def _beyond(name: str, relation: Relation, *, above: bool) -> Predicate:
    upward = relation in (Relation.LT, Relation.LTE)
    return Null(name, negated=True) if upward == above and relation is not Relation.EQ else NO


def on_grid(op: Op, value: Fraction) -> tuple[Relation, int] | None:
    """The same comparison for a column that holds whole numbers only; None where none can pass."""
    floor = math.floor(value)
    whole = floor == value
    match op:
        case Op.EQ:
            return (Relation.EQ, floor) if whole else None
        case Op.LT:
            return (Relation.LT if whole else Relation.LTE), floor
        case Op.LTE:
            return Relation.LTE, floor
        case Op.GT:
            return Relation.GT, floor
        case Op.GTE:
            return (Relation.GTE if whole else Relation.GT), floor


def nearest_double(op: Op, number: int | float | Decimal) -> tuple[Relation, float] | None:
    """The same comparison for a column of doubles; None where none can pass."""
    try:
        double = float(number)
    except OverflowError:
        double = math.inf if number > 0 else -math.inf
    if double == number:
        return RELATION[op], double
    if op is Op.EQ:
        return None
    # No double lies between the constant and the double next to it, so the side decides.
    if op in (Op.LT, Op.LTE):
        return (Relation.LT if double > number else Relation.LTE), double
    return (Relation.GTE if double > number else Relation.GT), double


def _binary(name: str, op: Op, operand: Any) -> Bounded:
    data, subtype = binary_parts(operand)
    if op is Op.EQ:
        return Bounded(Relates(name, Relation.EQ, data) if subtype == 0 else NO)
    # BSON orders binaries by their length first, engines do not.
    return Bounded(Null(name, negated=True), exact=False)


def _timestamp(name: str, op: Op, ms: int, *, with_zone: bool) -> Predicate:
    # Columns hold microseconds and documents whole milliseconds, cut off: a value passes by the millisecond it is in.
    match op:
        case Op.EQ:
            return all_of(
                [
                    _timestamp(name, Op.GTE, ms, with_zone=with_zone),
                    _timestamp(name, Op.LTE, ms, with_zone=with_zone),
                ]
            )
        case Op.LT | Op.LTE:
            relation, edge = Relation.LT, ms + (op is Op.LTE)
        case Op.GT | Op.GTE:
            relation, edge = Relation.GTE, ms + (op is Op.GT)
    if not _MS_MIN <= edge <= _MS_MAX:
        return _beyond(name, relation, above=edge > 0)
    moment = _EPOCH + dt.timedelta(milliseconds=edge)
    return Relates(name, relation, moment.replace(tzinfo=dt.UTC) if with_zone else moment)


def _day(name: str, op: Op, ms: int) -> Predicate:
    step = on_grid(op, Fraction(ms, DAY_MS))
    if step is None:
        return NO
    relation, day = step
    try:
        return Relates(name, relation, _EPOCH_DAY + dt.timedelta(days=day))
    except OverflowError:
        return _beyond(name, relation, above=day > 0)


def _one_of(name: str, column: Column, test: OneOf) -> Bounded:
    parts = [_compare(name, column, Op.EQ, operand) for operand in test.operands]
    parts += [_pattern(name, column, pattern) for pattern in test.patterns]
    equal: list[Any] = []
    others: list[Predicate] = []
    for part in parts:
        match part.predicate:
            case Relates(_, Relation.EQ, value):
                equal.append(value)
            case other:
                others.append(other)
    if len(equal) == 1:
        others.append(Relates(name, Relation.EQ, equal[0]))
    elif equal:
        others.append(Within(name, tuple(equal)))
    return Bounded(any_of(others), all(part.exact for part in parts))


def _pattern(name: str, column: Column, pattern: Pattern) -> Bounded:
    if column.kind is not Kind.STRING:
        return Bounded(NO)
    prefix, whole = literal_prefix(pattern)
    if not prefix:
        return Bounded(Null(name, negated=True), exact=whole)
    parts: list[Predicate] = [Relates(name, Relation.GTE, prefix)]
    after = _successor(prefix)
    if after is not None:
        parts.append(Relates(name, Relation.LT, after))
    return Bounded(all_of(parts), exact=whole)


def _successor(prefix: str) -> str | None:
    """The least text above everything that starts with the prefix."""
    for end in range(len(prefix), 0, -1):
        last = ord(prefix[end - 1])
        if last < 0x10FFFF:
            following = 0xE000 if last == 0xD7FF else last + 1  # surrogates are no characters
            return prefix[: end - 1] + chr(following)
    return None


def _of_type(name: str, column: Column, codes: frozenset[int]) -> Predicate:
    present = Null(name, negated=True)
    if column.kind is not Kind.INTEGER:
        return present if TYPE_CODES[_CODE[column.kind]] in codes else NO
    wanted = codes & NUMBER_CODES
    narrow, wide = TYPE_CODES["int"] in wanted, TYPE_CODES["long"] in wanted
    if narrow and wide:
        return present
    if narrow:
        return all_of([Relates(name, Relation.GTE, INT32_MIN), Relates(name, Relation.LTE, INT32_MAX)])
    if wide:
        return any_of([Relates(name, Relation.LT, INT32_MIN), Relates(name, Relation.GT, INT32_MAX)])
    return NO
