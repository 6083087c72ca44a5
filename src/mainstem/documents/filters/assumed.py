"""One test of a filter on a column of which nothing is known, as a predicate that every matching row passes.

The constant says what the column would have to hold. Statistics of another type prove nothing about it: `may_match`
then keeps the file. Only text is ambiguous: a column may hold it as it is, or be JSON text in which it stands; both are
let through.
"""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

from typing import Any

from mainstem.documents.columns import Column, Kind
from mainstem.documents.filters.ast import Compare, OneOf, Op, Pattern, Test
from mainstem.documents.filters.match import single
from mainstem.documents.filters.predicate import YES, Nan, Null, Predicate, Relates, Relation, all_of, any_of
from mainstem.documents.filters.typed import RELATION, column_test
from mainstem.documents.values import MISSING, Rank, binary_parts, is_nan, number_of, rank_of

# How JSON text begins that may hold a text or an ObjectId somewhere: a string, an array, a wrapped value.
_JSON_STARTS = (('"', "#"), ("[", "\\"), ("{", "|"))


def assumed_test(name: str, test: Test) -> Predicate:
    """Where the test may hold."""
    if single(test)(MISSING):
        return YES
    match test:
        case Compare(op, operand):
            return _compare(name, op, operand)
        case OneOf(operands, patterns):
            parts = [_compare(name, Op.EQ, operand) for operand in operands]
            return any_of([*parts, *(_text(name, pattern) for pattern in patterns)])
        case Pattern():
            return _text(name, test)
    return Null(name, negated=True)


def _compare(name: str, op: Op, operand: Any) -> Predicate:
    match rank_of(operand):
        case Rank.NUMBER:
            # Not moved onto any grid: Python compares numbers of all types by their exact values.
            number = number_of(operand)
            return Nan(name) if is_nan(number) else Relates(name, RELATION[op], number)
        case Rank.BOOLEAN:
            return Relates(name, RELATION[op], bool(operand))
        case Rank.STRING:
            return _text(name, Compare(op, operand))
        case Rank.OBJECT_ID:
            return any_of([Relates(name, RELATION[op], str(operand)), *_in_json(name)])
        case Rank.DATE:
            return column_test(name, Column(Kind.TIMESTAMP_TZ), Compare(op, operand)).predicate
        case Rank.BINARY if op is Op.EQ:
            return Relates(name, Relation.EQ, binary_parts(operand)[0])
    return Null(name, negated=True)


def _text(name: str, test: Compare | Pattern) -> Predicate:
    return any_of([column_test(name, Column(Kind.STRING), test).predicate, *_in_json(name)])


def _in_json(name: str) -> list[Predicate]:
    return [
        all_of([Relates(name, Relation.GTE, first), Relates(name, Relation.LT, after)]) for first, after in _JSON_STARTS
    ]
