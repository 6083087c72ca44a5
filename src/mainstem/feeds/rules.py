"""Sync rules: who sees which rows. Values only: what a document says, and what it means for one viewer.

    {"buckets": [{"name": "mine", "tables": ["todos"],
                  "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}]}

A bucket shows the rows of its tables (of every table, where it names none) that pass all of its filters; a viewer sees
the rows of all buckets together. `jwt:claim` stands for a claim of the viewer's token; a viewer without that claim
passes no such filter, and a row without the column passes no filter on it. Without rules everyone sees everything.
"""

from collections.abc import Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from mainstem.model.errors import Invalid

# Rules are a row of `RULES_TABLE` of the gateway: through the same log, in the order of everything else.
RULES_ROW = "rules"
RULES_COLUMN = "document"
BUCKETS_MAX = 100
FILTERS_MAX = 20
CLAIM_PREFIX = "jwt:"
_VALUES_MAX = 10_000


class FilterOp(StrEnum):
    """How a column's value is compared."""

    EQ = "eq"
    NEQ = "neq"
    IN = "in"
    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"


class Filter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One condition on one column."""

    column: str
    op: FilterOp
    value: Any


class Bucket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Some rows of some tables."""

    name: str
    tables: tuple[str, ...] = ()
    filters: tuple[Filter, ...] = ()


class Rules(msgspec.Struct, frozen=True):
    """The rules of a gateway. No buckets: no client sees anything."""

    buckets: tuple[Bucket, ...] = ()

    @property
    def columns(self) -> frozenset[str]:
        """Every column that a filter looks at."""
        return frozenset(each.column for bucket in self.buckets for each in bucket.filters)

    def view(self, claims: Mapping[str, Any]) -> "View":
        """What they mean for a viewer."""
        shown = []
        for bucket in self.buckets:
            tests = [_test(each, claims) for each in bucket.filters]
            if None not in tests:
                shown.append((frozenset(bucket.tables), tuple(test for test in tests if test is not None)))
        return View(tuple(shown))


class Test(NamedTuple):
    """A filter whose value is known."""

    column: str
    op: FilterOp
    value: Any

    def passes(self, values: Mapping[str, Any]) -> bool:
        """Whether a row passes."""
        if self.column not in values:
            return False
        found = values[self.column]
        match self.op:
            case FilterOp.EQ:
                return _same(found, self.value)
            case FilterOp.NEQ:
                return not _same(found, self.value)
            case FilterOp.IN:
                return any(_same(found, each) for each in self.value)
            case _:
                return _ordered(self.op, found, self.value)


class TableScope(NamedTuple):
    """The tables of a gateway that a token is for: patterns of a table's name, or of `gateway.table`."""

    gateway: str
    patterns: tuple[str, ...]

    def sees(self, table: str) -> bool:
        """Whether a table is one of them."""
        return _is_in_scope(self, table)


@lru_cache(16_384)
def _is_in_scope(scope: TableScope, table: str) -> bool:
    full = f"{scope.gateway}.{table}"
    return any(fnmatchcase(table, each) or fnmatchcase(full, each) for each in scope.patterns)


class View(NamedTuple):
    """What one viewer sees: equal views see the same."""

    shown: tuple[tuple[frozenset[str], tuple[Test, ...]], ...]
    # None: every table.
    scope: TableScope | None = None

    def within(self, scope: TableScope | None) -> "View":
        """The same, of some tables alone."""
        return self._replace(scope=scope)

    def sees(self, table: str, values: Mapping[str, Any]) -> bool:
        """Whether a row with these values is in view."""
        if self.scope is not None and not self.scope.sees(table):
            return False
        return any(
            (not tables or table in tables) and all(test.passes(values) for test in tests)
            for tables, tests in self.shown
        )


EVERYTHING = View(((frozenset(), ()),))


def read_rules(document: Any) -> Rules:
    """Check a document. Raises Invalid."""
    try:
        rules = msgspec.convert(document, Rules)
    except msgspec.ValidationError as error:
        raise Invalid(f"rules are not as expected. got={error}") from error
    if len(rules.buckets) > BUCKETS_MAX:
        raise Invalid(f"too many buckets. expected=at most {BUCKETS_MAX} got={len(rules.buckets)}")
    if len({bucket.name for bucket in rules.buckets}) != len(rules.buckets):
        raise Invalid("two buckets have one name")
    for bucket in rules.buckets:
        if len(bucket.filters) > FILTERS_MAX:
            raise Invalid(f"too many filters. bucket={bucket.name} expected=at most {FILTERS_MAX}")
        for each in bucket.filters:
            _check_filter(bucket, each)
    return rules


def _check_filter(bucket: Bucket, each: Filter) -> None:
    value = each.value
    claim = isinstance(value, str) and value.startswith(CLAIM_PREFIX)
    if each.op is FilterOp.IN:
        fits = claim or (isinstance(value, list) and len(value) <= _VALUES_MAX and all(map(_is_scalar, value)))
    else:
        fits = _is_scalar(value)
    if not fits:
        raise Invalid(f"a filter's value does not fit. bucket={bucket.name} column={each.column} op={each.op}")


def _test(each: Filter, claims: Mapping[str, Any]) -> Test | None:
    value = each.value
    if isinstance(value, str) and value.startswith(CLAIM_PREFIX):
        name = value.removeprefix(CLAIM_PREFIX)
        if claims.get(name) is None:
            return None
        value = claims[name]
    if each.op is FilterOp.IN:
        listed = value if isinstance(value, list | tuple) else [value]
        return Test(each.column, each.op, tuple(one for one in listed if _is_scalar(one))[:_VALUES_MAX])
    # A claim that is a list is for `in` alone.
    return Test(each.column, each.op, value) if _is_scalar(value) else None


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _same(left: Any, right: Any) -> bool:
    # True is not 1 here.
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _ordered(op: FilterOp, left: Any, right: Any) -> bool:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (left, right))
    texts = isinstance(left, str) and isinstance(right, str)
    if not numbers and not texts:
        return False
    match op:
        case FilterOp.GT:
            return bool(left > right)
        case FilterOp.GTE:
            return bool(left >= right)
        case FilterOp.LT:
            return bool(left < right)
        case _:
            return bool(left <= right)
