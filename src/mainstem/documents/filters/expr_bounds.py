"""What `$expr` says of typed columns: comparisons of a column with a constant, and their combinations.

Owns the difference to filters: expressions compare across types by the order of all values, and a field that is missing
(a NULL) is below everything. The rest of the expression language is left to `matches`.
"""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

from mainstem.documents.columns import Column, Columns, Kind
from mainstem.documents.expressions import evaluate, truthy
from mainstem.documents.filters.ast import Call, Compare, Compound, Expression, Literal, Op, Reference
from mainstem.documents.filters.predicate import NO, YES, Always, Nan, Null, Predicate, all_of, any_of, negate
from mainstem.documents.filters.typed import Bounded, column_test
from mainstem.documents.values import MISSING, Rank, is_nan, number_of, rank_of

_RANK = {
    Kind.BOOLEAN: Rank.BOOLEAN,
    Kind.INTEGER: Rank.NUMBER,
    Kind.DOUBLE: Rank.NUMBER,
    Kind.DECIMAL: Rank.NUMBER,
    Kind.STRING: Rank.STRING,
    Kind.TIMESTAMP: Rank.DATE,
    Kind.TIMESTAMP_TZ: Rank.DATE,
    Kind.DATE: Rank.DATE,
    Kind.BINARY: Rank.BINARY,
    Kind.OBJECT_ID: Rank.OBJECT_ID,
}
_OPS = {op.value: op for op in Op}
_MIRRORED = {Op.EQ: Op.EQ, Op.LT: Op.GT, Op.GT: Op.LT, Op.LTE: Op.GTE, Op.GTE: Op.LTE}
_UNKNOWN = Bounded(YES, exact=False)


def expression_bound(expression: Expression, columns: Columns) -> Bounded:
    """A predicate that holds wherever the expression is true; where it is exact, only there."""
    match expression:
        case Literal():
            return Bounded(Always(truthy(evaluate(expression, {}))))
        case Call("$and", arguments):
            return _combined([expression_bound(item, columns) for item in arguments], conjunction=True)
        case Call("$or", arguments):
            return _combined([expression_bound(item, columns) for item in arguments], conjunction=False)
        case Call("$not", (argument,)):
            inner = expression_bound(argument, columns)
            return Bounded(negate(inner.predicate)) if inner.exact else _UNKNOWN
        case Call("$in", (Reference() as reference, Compound(None, items))) if all(
            isinstance(item, Literal) for item in items
        ):
            parts = [expression_bound(Call("$eq", (reference, item)), columns) for item in items]
            return _combined(parts, conjunction=False)
        case Call("$ne", arguments):
            equal = expression_bound(Call("$eq", arguments), columns)
            return Bounded(negate(equal.predicate)) if equal.exact else _UNKNOWN
        case Call(name, (Reference(path), Literal() as constant)) if name in _OPS:
            return _comparison(path, _OPS[name], constant, columns)
        case Call(name, (Literal() as constant, Reference(path))) if name in _OPS:
            return _comparison(path, _MIRRORED[_OPS[name]], constant, columns)
        case _:
            return _UNKNOWN


def _combined(parts: list[Bounded], *, conjunction: bool) -> Bounded:
    join = all_of if conjunction else any_of
    return Bounded(join(part.predicate for part in parts), all(part.exact for part in parts))


def _comparison(path: tuple[str, ...], op: Op, constant: Literal, columns: Columns) -> Bounded:
    if not path:
        return _UNKNOWN
    column = columns.get(path[0])
    missing = _holds(op, MISSING, constant)
    if column is None or (len(path) > 1 and not column.is_opaque):
        return Bounded(Always(missing))
    if column.is_opaque:
        return _UNKNOWN if missing else Bounded(Null(path[0], negated=True), exact=False)
    present = _present(path[0], column, op, constant)
    return Bounded(any_of([present.predicate, Null(path[0]) if missing else NO]), present.exact)


def _present(name: str, column: Column, op: Op, constant: Literal) -> Bounded:
    rank = rank_of(constant.value)
    if rank is not _RANK[column.kind]:
        # Of two types one is always below the other.
        below = _RANK[column.kind] < rank
        return Bounded(Null(name, negated=True) if below == (op in (Op.LT, Op.LTE)) and op is not Op.EQ else NO)
    if rank is Rank.NUMBER and is_nan(number_of(constant.value)):
        return Bounded(Null(name, negated=True), exact=False)
    tested = column_test(name, column, Compare(op, constant.value))
    if column.kind is Kind.DOUBLE and op in (Op.LT, Op.LTE):
        lower: Predicate = any_of([tested.predicate, Nan(name)])
        return Bounded(lower, tested.exact)
    return tested


def _holds(op: Op, value: object, constant: Literal) -> bool:
    return bool(evaluate(Call(op.value, (Literal(value), constant)), {}))
