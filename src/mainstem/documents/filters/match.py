"""Does a document match? The meaning of the tree, compiled into closures so that a scan pays for parsing once.

This is the reference: `pushdown` and `sql` may let through more than this does, never less.
"""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from bson.regex import Regex

from mainstem.documents.expressions import Scope, evaluator, truthy
from mainstem.documents.filters.ast import (
    And,
    AnyElement,
    Bits,
    Compare,
    Exists,
    Expr,
    Field,
    Length,
    Modulo,
    Node,
    Not,
    OfType,
    OneOf,
    Op,
    Or,
    Pattern,
    Schema,
    Test,
)
from mainstem.documents.filters.parse import parse_filter
from mainstem.documents.filters.patterns import compiled, options_of
from mainstem.documents.paths import Path, reach
from mainstem.documents.schema import validator
from mainstem.documents.values import (
    INT64_MAX,
    INT64_MIN,
    MISSING,
    Rank,
    binary_parts,
    is_array,
    is_document,
    is_nan,
    is_number,
    number_of,
    order_key,
    rank_of,
    type_code,
)

Matcher = Callable[[Any], bool]

_RELATIONS: dict[Op, Callable[[Any, Any], bool]] = {
    Op.EQ: operator.eq,
    Op.LT: operator.lt,
    Op.LTE: operator.le,
    Op.GT: operator.gt,
    Op.GTE: operator.ge,
}
_WITH_EQUAL = (Op.EQ, Op.LTE, Op.GTE)


def matches(filter: Mapping[str, Any] | Node, document: Mapping[str, Any]) -> bool:
    """Whether the document matches the filter. For many documents, `matcher` once is faster."""
    return matcher(filter)(document)


def matcher(filter: Mapping[str, Any] | Node, scope: Scope | None = None) -> Matcher:
    """A predicate over documents. `scope` has the values of the variables that its `$expr` may use."""
    if isinstance(filter, Mapping):
        filter = parse_filter(filter, frozenset(scope or ()))
    return _node(filter, {} if scope is None else scope)


def _node(node: Node, scope: Scope) -> Matcher:
    match node:
        case Field(path, test):
            return _field(path, test)
        case And(children):
            return _conjunction([_node(item, scope) for item in children])
        case Or(children):
            return _disjunction([_node(item, scope) for item in children])
        case Not(inner):
            inside = _node(inner, scope)
            return lambda root: not inside(root)
        case Expr(expression):
            value_of = evaluator(expression, scope)
            return lambda root: truthy(value_of(root))
        case Schema(document):
            return validator(document)


def _conjunction(parts: list[Matcher]) -> Matcher:
    if len(parts) == 2:
        first, second = parts
        return lambda root: first(root) and second(root)
    return lambda root: all(part(root) for part in parts)


def _disjunction(parts: list[Matcher]) -> Matcher:
    return lambda root: any(part(root) for part in parts)


def spreads(test: Test) -> bool:
    """Whether an array at the end of the path stands for its elements too."""
    return not isinstance(test, Exists | Length | AnyElement)


def _field(path: Path, test: Test) -> Matcher:
    passes = single(test)
    if not path:
        return passes
    spread = spreads(test)
    if len(path) > 1:

        def along(root: Any) -> bool:
            for value, _ in reach(root, path, spread=spread):  # noqa: SIM110 - a generator costs more than the test
                if passes(value):
                    return True
            return False

        return along
    name = path[0]

    def direct(root: Any) -> bool:
        # By far the most common case: one name of a document.
        if type(root) is not dict:
            return any(passes(value) for value, _ in reach(root, path, spread=spread))
        value = root.get(name, MISSING)
        if spread and isinstance(value, list | tuple):
            for item in value:
                if passes(item):
                    return True
        return passes(value)

    return direct


def single(test: Test) -> Matcher:
    """The test on one value, without any walk through arrays."""
    match test:
        case Compare(op, operand):
            return _comparison(op, operand)
        case OneOf():
            return _membership(test)
        case Pattern():
            return _search(test)
        case Exists():
            return lambda value: value is not MISSING
        case OfType(codes):
            return lambda value: type_code(value) in codes
        case Length(count):
            return lambda value: is_array(value) and len(value) == count
        case Modulo(divisor, remainder):
            return lambda value: _leaves(value, divisor, remainder)
        case Bits():
            return _bits(test)
        case AnyElement():
            return _any_element(test)


def _bits(test: Bits) -> Matcher:
    join = all if test.every else any

    def passes(value: Any) -> bool:
        rank = rank_of(value)
        if rank is Rank.BINARY:
            data, _ = binary_parts(value)
            bits = int.from_bytes(data, "little")
            return join((bits >> place & 1) == test.set for place in test.places)
        if rank is not Rank.NUMBER:
            return False
        number = number_of(value)
        if not math.isfinite(number) or number != int(number) or not INT64_MIN <= number <= INT64_MAX:
            return False
        # The sign goes on for ever to the left.
        whole = int(number)
        return join((whole >> min(place, 63) & 1) == test.set for place in test.places)

    return passes


def _comparison(op: Op, operand: Any) -> Matcher:
    rank = rank_of(operand)
    if rank is Rank.NULL:
        with_equal = op in _WITH_EQUAL
        return lambda value: with_equal and (value is None or value is MISSING)
    if rank is Rank.MIN_KEY or rank is Rank.MAX_KEY:
        return _against_bound(op, rank)
    if rank is Rank.STRING and op is Op.EQ:
        return lambda value: isinstance(value, str) and value == operand
    relation, key = _RELATIONS[op], order_key(operand)
    if rank is Rank.NUMBER:
        number = number_of(operand)
        if is_nan(number):
            with_equal = op in _WITH_EQUAL
            return lambda value: with_equal and rank_of(value) is Rank.NUMBER and order_key(value) == key
        return _against_number(relation, number)

    def compare(value: Any) -> bool:
        return rank_of(value) is rank and relation(order_key(value), key)

    return compare


def _against_number(relation: Callable[[Any, Any], bool], number: Any) -> Matcher:
    def compare(value: Any) -> bool:
        if rank_of(value) is not Rank.NUMBER:
            return False
        found = number_of(value)
        # A decimal raises where it meets NaN.
        return not is_nan(found) and relation(found, number)

    if not isinstance(number, int | float):
        return compare

    def compare_plainly(value: Any) -> bool:
        if type(value) is int or type(value) is float:
            # Python compares ints and floats by exact value, and NaN with nothing.
            return relation(value, number)
        return compare(value)

    return compare_plainly


def _against_bound(op: Op, bound: Rank) -> Matcher:
    def compare(value: Any) -> bool:
        if rank_of(value) is bound:
            return op in _WITH_EQUAL
        return op in ((Op.LT, Op.LTE) if bound is Rank.MAX_KEY else (Op.GT, Op.GTE))

    return compare


def _membership(test: OneOf) -> Matcher:
    keys = {order_key(operand) for operand in test.operands}
    if any(operand is None for operand in test.operands):
        keys.add(order_key(MISSING))
    searches = [_search(pattern) for pattern in test.patterns]
    if not searches:
        return lambda value: order_key(value) in keys
    return lambda value: order_key(value) in keys or any(search(value) for search in searches)


def _search(pattern: Pattern) -> Matcher:
    find = compiled(pattern).search

    def search(value: Any) -> bool:
        if isinstance(value, str):
            return find(value) is not None
        return isinstance(value, Regex) and value.pattern == pattern.source and options_of(value) == pattern.options

    return search


def _leaves(value: Any, divisor: int, remainder: int) -> bool:
    if not is_number(value):
        return False
    number = number_of(value)
    if not isinstance(number, int):
        if not math.isfinite(number):
            return False
        number = int(number)
    left = abs(number) % abs(divisor)
    return INT64_MIN <= number <= INT64_MAX and (-left if number < 0 else left) == remainder


def _any_element(test: AnyElement) -> Matcher:
    # An $expr cannot stand in here, so no variable is needed.
    inside = _node(test.filter, {})
    if test.as_document:
        return lambda value: (
            is_array(value) and any(inside(item) for item in value if is_document(item) or is_array(item))
        )
    return lambda value: is_array(value) and any(inside(item) for item in value)
