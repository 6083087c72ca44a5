"""The predicate that a scan can use to skip: true wherever the filter may match, decided on typed columns alone.

Owns the direction of every approximation. Under a negation the inner predicate must hold only where the inner filter
certainly does; `_bound` is asked for the one or the other.
"""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

from collections.abc import Mapping
from typing import Any

from mainstem.documents.columns import Columns
from mainstem.documents.filters.assumed import assumed_test
from mainstem.documents.filters.ast import And, Expr, Field, Node, Not, Or, Schema
from mainstem.documents.filters.expr_bounds import expression_bound
from mainstem.documents.filters.match import single
from mainstem.documents.filters.parse import parse_filter
from mainstem.documents.filters.predicate import NO, YES, Always, Null, Predicate, all_of, any_of, negate
from mainstem.documents.filters.typed import column_test
from mainstem.documents.values import MISSING


def pushdown(filter: Mapping[str, Any] | Node, columns: Columns | None = None) -> Predicate:
    """A predicate that every matching row passes; rows that pass are re-checked with `matches`.

    Without columns it holds for a column of any type, and skips less: of `$ne`, `$not` and `$expr` nothing.
    """
    return _bound(parse_filter(filter) if isinstance(filter, Mapping) else filter, columns, upper=True)


def is_exact(node: Node, columns: Columns, predicate: Predicate) -> bool:
    """Whether a filter's predicate holds for no row that the filter does not match."""
    return _bound(node, columns, upper=False) == predicate


def _bound(node: Node, columns: Columns | None, *, upper: bool) -> Predicate:
    match node:
        case And(children):
            return all_of(_bound(child, columns, upper=upper) for child in children)
        case Or(children):
            return any_of(_bound(child, columns, upper=upper) for child in children)
        case Not(child):
            return negate(_bound(child, columns, upper=not upper))
        case Schema():
            return YES if upper else NO
        case Expr() | Field() if columns is None and not upper:
            # Without a description of the column nothing is certain.
            return NO
        case Field(path, test) if columns is None:
            return assumed_test(path[0], test) if len(path) == 1 else _below(field=node)
        case Expr() if columns is None:
            return YES
        case Expr(expression):
            assert columns is not None
            predicate, exact = expression_bound(expression, columns)
            return predicate if exact or upper else NO
        case Field():
            assert columns is not None
            return _field(node, columns, upper=upper)


def _below(field: Field) -> Predicate:
    """A path into a column."""
    return YES if single(field.test)(MISSING) else Null(field.path[0], negated=True)


def _field(field: Field, columns: Columns, *, upper: bool) -> Predicate:
    name = field.path[0]
    column = columns.get(name)
    passes_missing = single(field.test)(MISSING)
    if column is None:
        return Always(passes_missing)
    if column.is_opaque:
        # A NULL is a missing field; of a value that is there nothing is known.
        if passes_missing:
            return YES if upper else Null(name)
        return Null(name, negated=True) if upper else NO
    if len(field.path) > 1:
        return Always(passes_missing)
    predicate, exact = column_test(name, column, field.test)
    return predicate if exact or upper else NO
