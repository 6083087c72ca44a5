"""Tests on one JSON node in SQL. Owns what each test of the tree means on JSON's six types.

In extended JSON some values are objects with a marked name ({"$oid": …}). SQL only knows that such an object is not a
document; whether it passes a test is left to `matches`.
"""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Protocol

from mainstem.documents.filters.ast import (
    AnyElement,
    Bits,
    Compare,
    Exists,
    Length,
    Modulo,
    Node,
    OfType,
    OneOf,
    Op,
    Pattern,
    Test,
)
from mainstem.documents.filters.dialects import Dialect, NumberBounds, Sql
from mainstem.documents.filters.patterns import literal_prefix, literal_text
from mainstem.documents.filters.predicate import Relation
from mainstem.documents.filters.typed import nearest_double, on_grid
from mainstem.documents.values import INT64_MAX, INT64_MIN, TYPE_CODES, Rank, is_nan, number_of, rank_of

_WITH_EQUAL = (Op.EQ, Op.LTE, Op.GTE)
# A structural comparison is written out; beyond this it is left to `matches`.
STRUCTURE_SIZE_MAX = 100


class Unsayable(Exception):
    """The engine has no words for a part of the path; the caller approximates."""


def constant(value: bool) -> Sql:
    """TRUE or FALSE."""
    return Sql("TRUE" if value else "FALSE")


_TRUE, _FALSE = constant(True), constant(False)


def all_sql(parts: Iterable[Sql]) -> Sql:
    """Conjunction, with constants folded."""
    kept = [part for part in parts if part != _TRUE]
    if _FALSE in kept:
        return _FALSE
    return _joined(kept, " AND ") if kept else _TRUE


def any_sql(parts: Iterable[Sql]) -> Sql:
    """Disjunction, with constants folded."""
    kept = [part for part in parts if part != _FALSE]
    if _TRUE in kept:
        return _TRUE
    return _joined(kept, " OR ") if kept else _FALSE


def not_sql(part: Sql) -> Sql:
    """Negation of what is true: what is false and what is unknown."""
    if part in (_TRUE, _FALSE):
        return _FALSE if part == _TRUE else _TRUE
    return Sql(f"NOT COALESCE({part.text}, FALSE)", part.parameters)


def _joined(parts: list[Sql], word: str) -> Sql:
    if len(parts) == 1:
        return parts[0]
    text = word.join(f"({part.text})" for part in parts)
    return Sql(text, tuple(value for part in parts for value in part.parameters))


class Compiler(Protocol):
    """What the tests need of the compiler that runs them."""

    dialect: Dialect

    def approximate(self, upper: Sql, *, is_upper: bool) -> Sql:
        """Note that the answer is not exact; give the wide condition or the empty one."""

    def variable(self, letter: str) -> str:
        """A fresh name."""

    def inside(self, tests: "NodeTests", node: Node, element: str, *, upper: bool) -> Sql:
        """A whole filter on an element."""


class NodeTests:
    """The tests over the nodes of one column."""

    def __init__(self, compiler: Compiler, *, extended: bool) -> None:
        self.compiler = compiler
        self.dialect = compiler.dialect
        self.extended = extended

    def is_object(self, node: str) -> str:
        """Whether a node is a document, and not a value that extended JSON wraps."""
        plain = self.dialect.is_object(node)
        return f"({plain} AND NOT {self.dialect.is_marked(node)})" if self.extended else plain

    def test(self, node: str, test: Test, *, upper: bool) -> Sql:
        """Whether the node passes, widened or narrowed as `upper` says."""
        match test:
            case Compare(op, operand):
                return self._compare(node, op, operand, upper=upper)
            case OneOf(operands, patterns):
                return self._one_of(node, operands, patterns, upper=upper)
            case Pattern():
                return self._pattern(node, test, upper=upper)
            case Exists():
                return Sql(f"{node} IS NOT NULL")
            case OfType(codes):
                return self._of_type(node, codes, upper=upper)
            case Length(count):
                return Sql(f"({self.dialect.is_array(node)} AND {self.dialect.element_count(node)} = {count})")
            case Modulo(divisor, remainder):
                exact = self.dialect.modulo(node, divisor, remainder)
                if exact is None:
                    exact = self.compiler.approximate(Sql(self.dialect.is_number(node)), is_upper=upper)
                return self._or_wrapped(node, exact, upper=upper)
            case Bits():
                raise Unsayable
            case AnyElement(inner, as_document):
                element = self.compiler.variable("m")
                condition = self.compiler.inside(self, inner, element, upper=upper)
                if as_document:
                    holds = f"({self.is_object(element)} OR {self.dialect.is_array(element)})"
                    condition = all_sql([Sql(holds), condition])
                found = self.dialect.any(self.dialect.elements(node), element, condition.text)
                return Sql(f"({self.dialect.is_array(node)} AND {found})", condition.parameters)

    def _wrapped(self, node: str) -> Sql:
        return Sql(f"({self.dialect.is_object(node)} AND {self.dialect.is_marked(node)})")

    def _or_wrapped(self, node: str, plain: Sql, *, upper: bool) -> Sql:
        """What plain JSON says, and where a wrapped value might pass too, that as well."""
        if not self.extended:
            return plain
        return any_sql([plain, self.compiler.approximate(self._wrapped(node), is_upper=upper)])

    def _compare(self, node: str, op: Op, operand: Any, *, upper: bool) -> Sql:
        dialect, rank = self.dialect, rank_of(operand)
        match rank:
            case Rank.NULL:
                if op not in _WITH_EQUAL:
                    return constant(False)
                return Sql(f"({node} IS NULL OR {dialect.is_null(node)})")
            case Rank.MIN_KEY | Rank.MAX_KEY:
                outward = (Op.GT, Op.GTE) if rank is Rank.MIN_KEY else (Op.LT, Op.LTE)
                if op not in outward:
                    return self._or_wrapped(node, constant(False), upper=upper)
                # Extended JSON can hold the bound itself, which is not beyond itself.
                beyond = constant(True)
                return self.compiler.approximate(beyond, is_upper=upper) if self.extended else beyond
            case Rank.NUMBER:
                return self._or_wrapped(node, self._number(node, op, operand, upper=upper), upper=upper)
            case Rank.STRING:
                right = dialect.text_constant(str(operand))
                relation = "=" if op is Op.EQ else Relation[op.name].value
                plain = Sql(f"({dialect.is_string(node)} AND {dialect.text(node)} {relation} {right.text})", (operand,))
                return self._or_wrapped(node, plain, upper=upper)
            case Rank.BOOLEAN:
                passing = [value for value in (False, True) if _holds(op, value, bool(operand))]
                return any_sql(Sql(dialect.is_boolean(node, value)) for value in passing)
            case Rank.OBJECT | Rank.ARRAY:
                return self._structure(node, op, operand, upper=upper)
            case _:
                return self._or_wrapped(node, constant(False), upper=upper)

    def _number(self, node: str, op: Op, operand: Any, *, upper: bool) -> Sql:
        number = number_of(operand)
        if is_nan(number):
            return constant(False)
        if number in (float("inf"), float("-inf")):
            return self._infinite(node, op, above=number > 0)
        bounds = NumberBounds(_integer_bounds(op, Fraction(number)), nearest_double(op, number))
        exact = self.dialect.compare_number(node, bounds)
        if exact is None:
            return self.compiler.approximate(Sql(self.dialect.is_number(node)), is_upper=upper)
        return exact

    def _infinite(self, node: str, op: Op, *, above: bool) -> Sql:
        # Plain JSON has no infinities, so every number is on one side.
        passes = op in ((Op.LT, Op.LTE) if above else (Op.GT, Op.GTE))
        return Sql(self.dialect.is_number(node)) if passes else constant(False)

    def _structure(self, node: str, op: Op, operand: Any, *, upper: bool) -> Sql:
        is_array = rank_of(operand) is Rank.ARRAY
        sort = Sql(self.dialect.is_array(node) if is_array else self.is_object(node))
        if op is Op.EQ and _size(operand) <= STRUCTURE_SIZE_MAX and isinstance(operand, dict | list | tuple):
            equal = self._equal(node, operand, upper=upper)
            if equal is not None:
                return equal
        return self.compiler.approximate(sort, is_upper=upper)

    def _equal(self, node: str, operand: Any, *, upper: bool) -> Sql | None:
        dialect = self.dialect
        if isinstance(operand, dict):
            keys = dialect.keys_are(node, tuple(operand))
            if keys is None:
                return None
            parts = [Sql(self.is_object(node)), keys]
            children = [dialect.child(node, name) for name in operand]
        else:
            parts = [Sql(f"{dialect.is_array(node)} AND {dialect.element_count(node)} = {len(operand)}")]
            children = [dialect.item(node, index) for index in range(len(operand))]
        values = list(operand.values()) if isinstance(operand, dict) else list(operand)
        for child, value in zip(children, values, strict=True):
            if child is None:
                return None
            if value is None:
                # Inside a structure null is null; a missing value would be another length or other names.
                parts.append(Sql(dialect.is_null(child)))
            else:
                parts.append(self._compare(child, Op.EQ, value, upper=upper))
        return all_sql(parts)

    def _one_of(self, node: str, operands: tuple[Any, ...], patterns: tuple[Pattern, ...], *, upper: bool) -> Sql:
        texts = [str(operand) for operand in operands if rank_of(operand) is Rank.STRING]
        parts = [
            self._compare(node, Op.EQ, operand, upper=upper)
            for operand in operands
            if rank_of(operand) is not Rank.STRING
        ]
        if texts:
            marks = ", ".join(self.dialect.text_constant(text).text for text in texts)
            listed = f"({self.dialect.is_string(node)} AND {self.dialect.text(node)} IN ({marks}))"
            parts.append(self._or_wrapped(node, Sql(listed, tuple(texts)), upper=upper))
        parts += [self._pattern(node, pattern, upper=upper) for pattern in patterns]
        return any_sql(parts)

    def _pattern(self, node: str, pattern: Pattern, *, upper: bool) -> Sql:
        dialect = self.dialect
        is_string, text = Sql(dialect.is_string(node)), dialect.text(node)
        part = literal_text(pattern)
        prefix, whole = literal_prefix(pattern)
        if part is not None:
            plain = all_sql([is_string, dialect.contains(text, dialect.text_constant(part))])
        elif prefix or whole:
            plain = all_sql([is_string, dialect.starts_with(text, dialect.text_constant(prefix))])
            if not whole:
                plain = self.compiler.approximate(plain, is_upper=upper)
        else:
            plain = self.compiler.approximate(is_string, is_upper=upper)
        return self._or_wrapped(node, plain, upper=upper)

    def _of_type(self, node: str, codes: frozenset[int], *, upper: bool) -> Sql:
        dialect = self.dialect
        parts = [
            Sql(condition)
            for name, condition in (
                ("string", dialect.is_string(node)),
                ("object", self.is_object(node)),
                ("array", dialect.is_array(node)),
                ("bool", dialect.any_boolean(node)),
                ("null", dialect.is_null(node)),
            )
            if TYPE_CODES[name] in codes
        ]
        wanted = [name for name in ("int", "long", "double") if TYPE_CODES[name] in codes]
        if len(wanted) == 3:
            parts.append(Sql(dialect.is_number(node)))
        elif wanted:
            conditions = [dialect.is_number_of(node, name) for name in wanted]
            if None in conditions:
                parts.append(self.compiler.approximate(Sql(dialect.is_number(node)), is_upper=upper))
            else:
                parts += [Sql(condition) for condition in conditions if condition is not None]
        return self._or_wrapped(node, any_sql(parts), upper=upper)


def _holds(op: Op, value: bool, operand: bool) -> bool:
    match op:
        case Op.EQ:
            return value == operand
        case Op.LT:
            return value < operand
        case Op.LTE:
            return value <= operand
        case Op.GT:
            return value > operand
        case Op.GTE:
            return value >= operand


def _integer_bounds(op: Op, value: Fraction) -> tuple[Relation, int] | bool:
    step = on_grid(op, value)
    if step is None:
        return False
    relation, whole = step
    if INT64_MIN <= whole <= INT64_MAX:
        return step
    above = whole > INT64_MAX
    return relation is not Relation.EQ and above == (relation in (Relation.LT, Relation.LTE))


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_size, value.values()))
    return 1 + sum(map(_size, value)) if isinstance(value, list | tuple) else 1
