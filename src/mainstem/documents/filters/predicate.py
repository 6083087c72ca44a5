"""Row predicates over typed columns, without any engine in them: what a file's statistics can refute.

Owns the neutral form that adapters turn into pyarrow, delta-rs or pyiceberg filters, and `may_match`, which decides
from zone maps. Every predicate is total: a comparison is false on NULL and on NaN, never unknown.
"""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

import datetime as dt
import enum
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec


class Relation(enum.Enum):
    """How a column's value stands to a constant."""

    EQ = "="
    NE = "<>"
    LT = "<"
    LTE = "<="
    GT = ">"
    GTE = ">="


_INVERSE = {
    Relation.EQ: Relation.NE,
    Relation.NE: Relation.EQ,
    Relation.LT: Relation.GTE,
    Relation.GTE: Relation.LT,
    Relation.GT: Relation.LTE,
    Relation.LTE: Relation.GT,
}


class Always(msgspec.Struct, frozen=True):
    """Every row, or none."""

    value: bool


class Relates(msgspec.Struct, frozen=True):
    """The column is there and stands in this relation to a constant of its own type (a float for a DOUBLE column)."""

    column: str
    relation: Relation
    value: Any


class Within(msgspec.Struct, frozen=True):
    """The column is there (and not NaN) and among these constants, or not among them."""

    column: str
    values: tuple[Any, ...]
    negated: bool = False


class Null(msgspec.Struct, frozen=True):
    """The column is NULL, or is not."""

    column: str
    negated: bool = False


class Nan(msgspec.Struct, frozen=True):
    """The column is there and NaN, or there and another number."""

    column: str
    negated: bool = False


class AllOf(msgspec.Struct, frozen=True):
    """All of them."""

    children: tuple["Predicate", ...]


class AnyOf(msgspec.Struct, frozen=True):
    """Any of them."""

    children: tuple["Predicate", ...]


Predicate = Always | Relates | Within | Null | Nan | AllOf | AnyOf

YES = Always(True)
NO = Always(False)


def all_of(children: Iterable[Predicate]) -> Predicate:
    """Conjunction, with constants folded."""
    kept = [child for child in children if child != YES]
    if NO in kept:
        return NO
    return YES if not kept else kept[0] if len(kept) == 1 else AllOf(tuple(kept))


def any_of(children: Iterable[Predicate]) -> Predicate:
    """Disjunction, with constants folded."""
    kept = [child for child in children if child != NO]
    if YES in kept:
        return YES
    return NO if not kept else kept[0] if len(kept) == 1 else AnyOf(tuple(kept))


def negate(predicate: Predicate) -> Predicate:
    """The rows that the predicate leaves out, NULL and NaN among them."""
    match predicate:
        case Always(value):
            return Always(not value)
        case Relates(column, relation, value):
            return any_of([*_unordered(column, value), Relates(column, _INVERSE[relation], value)])
        case Within(column, values, negated):
            sample = values[0] if values else None
            return any_of([*_unordered(column, sample), Within(column, values, not negated)])
        case Null(column, negated):
            return Null(column, not negated)
        case Nan(column, negated):
            return any_of([Null(column), Nan(column, not negated)])
        case AllOf(children):
            return any_of(map(negate, children))
        case AnyOf(children):
            return all_of(map(negate, children))


def _unordered(column: str, value: Any) -> list[Predicate]:
    return [Null(column), Nan(column)] if isinstance(value, float) else [Null(column)]


class ColumnStats(msgspec.Struct, frozen=True):
    """A zone map: bounds of a column's values and how many are NULL. None is unknown. Bounds need not be tight."""

    minimum: Any = None
    maximum: Any = None
    null_count: int | None = None


_UNKNOWN = ColumnStats()


def may_match(predicate: Predicate, stats: Mapping[str, ColumnStats], row_count: int | None = None) -> bool:
    """Whether any row of a file or row group can match. False only where the statistics prove that none does."""
    if row_count == 0:
        return False
    match predicate:
        case Always(value):
            return value
        case AllOf(children):
            return all(may_match(child, stats, row_count) for child in children)
        case AnyOf(children):
            return any(may_match(child, stats, row_count) for child in children)
        case Null(column, negated):
            of = stats.get(column, _UNKNOWN)
            return not _all_null(of, row_count) if negated else of.null_count is None or of.null_count > 0
        case _:
            of = stats.get(predicate.column, _UNKNOWN)
            return not _all_null(of, row_count) and _in_bounds(predicate, of)


def _all_null(stats: ColumnStats, row_count: int | None) -> bool:
    return stats.null_count is not None and row_count is not None and stats.null_count >= row_count


def _in_bounds(predicate: Relates | Within | Nan, stats: ColumnStats) -> bool:
    low, high = stats.minimum, stats.maximum
    # A writer that let NaN into its bounds has said nothing about the other values. None does not compare.
    if isinstance(predicate, Nan) or any(isinstance(bound, float) and math.isnan(bound) for bound in (low, high)):
        return True
    if isinstance(high, dt.datetime) and high.year < dt.MAXYEAR:
        # Delta cuts the microseconds off a maximum.
        high += dt.timedelta(milliseconds=1)
    try:
        match predicate:
            case Relates(_, relation, value):
                return _relation_in_bounds(relation, value, low, high)
            case Within(_, values, negated):
                if negated:
                    return low is None or high is None or low != high or low not in values
                return any(_relation_in_bounds(Relation.EQ, value, low, high) for value in values)
    except TypeError:
        # The statistics are of another type than the column was said to have: they prove nothing.
        return True


def _relation_in_bounds(relation: Relation, value: Any, low: Any, high: Any) -> bool:
    above_low, below_high = low is None, high is None
    match relation:
        case Relation.EQ:
            return bool((above_low or low <= value) and (below_high or value <= high))
        case Relation.NE:
            return bool(above_low or below_high or not low == value == high)
        case Relation.LT:
            return bool(above_low or low < value)
        case Relation.LTE:
            return bool(above_low or low <= value)
        case Relation.GT:
            return bool(below_high or high > value)
        case Relation.GTE:
            return bool(below_high or high >= value)
