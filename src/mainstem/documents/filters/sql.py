"""The filter as a WHERE condition with parameters, over typed columns and JSON text.

Where SQL cannot say a test exactly, the condition lets more rows through and `exact` is False: the caller then checks
each row's document with `matches`. Under a negation the inner condition is narrowed instead, so that the whole is never
too narrow. The condition may be NULL where it is not true, as conditions in WHERE may.
"""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mainstem.documents.columns import Column, Columns, Kind
from mainstem.documents.errors import Refused
from mainstem.documents.filters.ast import And, Compare, Expr, Field, Modulo, Node, Not, Op, Or, Pattern, Schema, Test
from mainstem.documents.filters.dialects import EXACT_INTEGER_MAX, Dialect, Sql
from mainstem.documents.filters.duckdb_dialect import DUCKDB
from mainstem.documents.filters.expr_bounds import expression_bound
from mainstem.documents.filters.match import single, spreads
from mainstem.documents.filters.parse import parse_filter
from mainstem.documents.filters.patterns import literal_text
from mainstem.documents.filters.predicate import (
    AllOf,
    Always,
    AnyOf,
    Nan,
    Null,
    Predicate,
    Relates,
    Relation,
    Within,
)
from mainstem.documents.filters.spark_dialect import SPARK
from mainstem.documents.filters.sql_nodes import NodeTests, Unsayable, all_sql, any_sql, constant, not_sql
from mainstem.documents.filters.typed import column_test, nearest_double
from mainstem.documents.paths import Path, is_index
from mainstem.documents.values import MISSING, Rank, is_nan, number_of, rank_of
from mainstem.sql import spark_text

# No array has more elements than nine digits can count; a longer number is only ever a name.
INDEX_DIGITS_MAX = 9


# A parameter's place, and what may hold a question mark that is none.
_PLACES = re.compile(r"\?|'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`", re.DOTALL)


def _spark_literal(value: Any) -> str:
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return f"{value!r}D"
        case float():
            return f"double('{value}')"
        case _:
            return spark_text(str(value))


_DUCKDB_PLACES = re.compile(r"""\?|'(?:[^']|'')*'|"(?:[^"]|"")*\"""", re.DOTALL)


def _duckdb_literal(value: Any) -> str:
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case float():
            return f"CAST('{value!r}' AS DOUBLE)"
        case _:
            text = str(value)
            if "\x00" in text:
                raise Refused("SQL holds no text with a character 0", code=2)
            return "'" + text.replace("'", "''") + "'"


def duckdb_text(text: str, parameters: Sequence[Any]) -> str:
    """A statement for DuckDB with its parameters written into it. Raises Refused where one cannot be written."""
    values = iter(parameters)
    return _DUCKDB_PLACES.sub(lambda found: _duckdb_literal(next(values)) if found[0] == "?" else found[0], text)


class SqlFilter(msgspec.Struct, frozen=True):
    """A condition. Unless `exact`, rows that pass it are to be checked with `matches`."""

    text: str
    parameters: tuple[Any, ...]
    exact: bool

    @property
    def spark_text(self) -> str:
        """A condition for Spark with its parameters written into it.

        For sessions with Delta's extension: its parser (4.4) forgets what is given to `spark.sql` beside the text.
        """
        values = iter(self.parameters)
        return _PLACES.sub(lambda found: _spark_literal(next(values)) if found[0] == "?" else found[0], self.text)


def to_duckdb(filter: Mapping[str, Any] | Node, columns: Columns) -> SqlFilter:
    """The condition for DuckDB; its parameters go into `execute(text, parameters)`."""
    return _to_sql(filter, columns, DUCKDB)


def to_spark(filter: Mapping[str, Any] | Node, columns: Columns) -> SqlFilter:
    """The condition for Spark; its parameters go into `spark.sql(text, args=list(parameters))`, or see `spark_text`."""
    return _to_sql(filter, columns, SPARK)


def predicate_sql(predicate: Predicate, columns: Columns, dialect: Dialect) -> Sql:
    """A neutral predicate as a condition."""
    match predicate:
        case Always(value):
            return constant(value)
        case AllOf(children):
            return all_sql(predicate_sql(child, columns, dialect) for child in children)
        case AnyOf(children):
            return any_sql(predicate_sql(child, columns, dialect) for child in children)
        case Null(column, negated):
            return Sql(f"{dialect.identifier(column)} IS {'NOT ' if negated else ''}NULL")
        case Nan(column, negated):
            return Sql(f"{'NOT ' if negated else ''}{dialect.is_nan(dialect.identifier(column))}")
        case Relates(column, relation, value):
            name = dialect.identifier(column)
            right = dialect.constant(value, columns[column])
            compared = Sql(f"{name} {relation.value} {right.text}", right.parameters)
            # Engines sort NaN above every number and equal to itself.
            if isinstance(value, float) and relation in (Relation.GT, Relation.GTE, Relation.NE):
                return all_sql([compared, Sql(f"NOT {dialect.is_nan(name)}")])
            return compared
        case Within(column, values, negated):
            name = dialect.identifier(column)
            items = [dialect.constant(value, columns[column]) for value in values]
            listed = ", ".join(item.text for item in items)
            parameters = tuple(itertools.chain.from_iterable(item.parameters for item in items))
            among = Sql(f"{name} {'NOT ' if negated else ''}IN ({listed})", parameters)
            if negated and isinstance(values[0], float):
                return all_sql([among, Sql(f"NOT {dialect.is_nan(name)}")])
            return among


def _to_sql(filter: Mapping[str, Any] | Node, columns: Columns, dialect: Dialect) -> SqlFilter:
    node = parse_filter(filter) if isinstance(filter, Mapping) else filter
    compiler = _Compiler(columns, dialect)
    text, parameters = compiler.node(node, upper=True)
    return SqlFilter(text, parameters, compiler.exact)


class _Compiler:
    """One per filter: remembers whether anything was approximated."""

    def __init__(self, columns: Columns, dialect: Dialect) -> None:
        self.columns = columns
        self.dialect = dialect
        self.exact = True
        self._variables = itertools.count()

    def variable(self, letter: str) -> str:
        # Unique over the whole condition: nested lambdas see the variables of the outer ones.
        return f"{letter}{next(self._variables)}"

    def approximate(self, upper: Sql, *, is_upper: bool) -> Sql:
        self.exact = False
        return upper if is_upper else constant(False)

    def node(self, node: Node, *, upper: bool) -> Sql:
        match node:
            case And(children):
                return all_sql(self.node(child, upper=upper) for child in children)
            case Or(children):
                return any_sql(self.node(child, upper=upper) for child in children)
            case Not(child):
                return not_sql(self.node(child, upper=not upper))
            case Expr(expression):
                predicate, exact = expression_bound(expression, self.columns)
                rendered = predicate_sql(predicate, self.columns, self.dialect)
                return rendered if exact else self.approximate(rendered, is_upper=upper)
            case Schema():
                return self.approximate(constant(True), is_upper=upper)
            case Field():
                return self._column(node, upper=upper)

    def _column(self, field: Field, *, upper: bool) -> Sql:
        name, rest = field.path[0], field.path[1:]
        column = self.columns.get(name)
        passes_missing = single(field.test)(MISSING)
        if column is None or (rest and not column.is_opaque):
            return constant(passes_missing)
        if column.kind is Kind.OTHER:
            present = Sql(f"{self.dialect.identifier(name)} IS NOT NULL")
            return self.approximate(constant(True) if passes_missing else present, is_upper=upper)
        if not column.is_json:
            return self._typed(name, column, field.test, upper=upper)
        tests = NodeTests(self, extended=column.kind is Kind.EXTENDED_JSON)
        root = self.dialect.list_of(self.dialect.node(self.dialect.identifier(name)))
        try:
            anywhere = self._reached(tests, root, rest, field.test, upper=upper)
            return self._straight_first(tests, name, rest, field.test, anywhere, upper=upper)
        except Unsayable:
            return self.approximate(constant(True), is_upper=upper)

    def _straight_first(
        self, tests: NodeTests, name: str, rest: Path, test: Test, anywhere: Sql, *, upper: bool
    ) -> Sql:
        """Most paths lead through objects to one value, which is found many times faster than by looking everywhere."""
        if not rest or any(map(is_index, rest)):
            return anywhere
        found = self.dialect.straight(self.dialect.identifier(name), rest)
        if found is None:
            return anywhere
        leaf, is_straight = found
        direct = tests.test(leaf, test, upper=upper)
        text = f"CASE WHEN {is_straight} THEN {direct.text} ELSE {anywhere.text} END"
        exact = Sql(text, (*direct.parameters, *anywhere.parameters))
        sieve = self._sieve(self.dialect.identifier(name), rest, test)
        if sieve is None:
            return exact
        return Sql(f"CASE WHEN {sieve.text} THEN {exact.text} ELSE FALSE END", (*sieve.parameters, *exact.parameters))

    def _sieve(self, column: str, path: Path, test: Test) -> Sql | None:
        """Leaves out most rows by one look at a number or a text; what is neither passes."""
        if not isinstance(test, Compare):
            return None
        rank = rank_of(test.operand)
        if rank is Rank.STRING:
            relation = Relation[test.op.name].value if test.op is not Op.EQ else "="
            return self.dialect.sieve(column, path, relation, str(test.operand))
        if rank is Rank.NUMBER and not is_nan(number := number_of(test.operand)):
            bound = nearest_double(test.op, number)
            if bound is not None and abs(bound[1]) < EXACT_INTEGER_MAX:
                return self.dialect.sieve(column, path, bound[0].value, bound[1])
        return None

    def _typed(self, name: str, column: Column, test: Test, *, upper: bool) -> Sql:
        expression = self.dialect.identifier(name)
        match test:
            case Pattern() if column.kind is Kind.STRING and (part := literal_text(test)) is not None:
                return self.dialect.contains(expression, self.dialect.text_constant(part))
            case Modulo(divisor, remainder) if column.kind is Kind.INTEGER:
                return Sql(f"{expression} % CAST(? AS BIGINT) = CAST(? AS BIGINT)", (divisor, remainder))
            case Modulo(divisor, remainder) if column.kind is Kind.DOUBLE:
                whole = self.dialect.truncated(expression)
                return Sql(f"{whole} % CAST(? AS BIGINT) = CAST(? AS BIGINT)", (divisor, remainder))
        predicate, exact = column_test(name, column, test)
        rendered = predicate_sql(predicate, self.columns, self.dialect)
        return rendered if exact else self.approximate(rendered, is_upper=upper)

    def inside(self, tests: NodeTests, node: Node, element: str, *, upper: bool) -> Sql:
        """A filter on an element of an array, which a lambda's variable names."""
        match node:
            case And(children):
                return all_sql(self.inside(tests, child, element, upper=upper) for child in children)
            case Or(children):
                return any_sql(self.inside(tests, child, element, upper=upper) for child in children)
            case Not(child):
                return not_sql(self.inside(tests, child, element, upper=not upper))
            case Expr() | Schema():
                raise Unsayable
            case Field(path, test):
                if not path:
                    return tests.test(element, test, upper=upper)
                first = self.dialect.list_of(self._child(element, path[0]))
                return self._reached(tests, first, path[1:], test, upper=upper)

    def _child(self, node: str, name: str) -> str:
        child = self.dialect.child(node, name)
        if child is None:
            raise Unsayable
        return child

    def _reached(self, tests: NodeTests, start: str, path: Path, test: Test, *, upper: bool) -> Sql:
        """Any node that the path reaches from the nodes of a list passes the test."""
        nodes, named = start, None
        for at, name in enumerate(path):
            last = at == len(path) - 1
            if last and self._index(name) is not None:
                named = self._named(nodes, int(name))
            nodes = self._step(tests, nodes, name, last=last)
        if spreads(test):
            nodes = self._spread(nodes)
        parts = [self._any(tests, nodes, test, upper=upper)]
        if named is not None:
            # An element that the path names is not spread.
            parts.append(self._any(tests, named, test, upper=upper))
        return any_sql(parts)

    def _any(self, tests: NodeTests, nodes: str, test: Test, *, upper: bool) -> Sql:
        variable = self.variable("n")
        condition = tests.test(variable, test, upper=upper)
        return Sql(self.dialect.any(nodes, variable, condition.text), condition.parameters)

    def _index(self, name: str) -> int | None:
        return int(name) if is_index(name) and len(name) <= INDEX_DIGITS_MAX else None

    def _step(self, tests: NodeTests, nodes: str, name: str, *, last: bool) -> str:
        """The children under a name: of a document, or of every document in an array.

        On the way to more, a number also reaches the element that it names, if that can hold more.
        """
        dialect, outer, inner = self.dialect, self.variable("v"), self.variable("e")
        documents = dialect.kept(dialect.elements(outer), inner, tests.is_object(inner))
        from_array = dialect.mapped(documents, inner, self._child(inner, name))
        index = self._index(name)
        if index is not None and not last:
            holds = f"({tests.is_object(inner)} OR {dialect.is_array(inner)})"
            item = dialect.kept(dialect.list_of(dialect.item(outer, index)), inner, holds)
            from_array = dialect.joined(from_array, item)
        chosen = (
            f"CASE WHEN {dialect.is_array(outer)} THEN {from_array} "
            f"ELSE {dialect.list_of(self._child(outer, name))} END"
        )
        return dialect.flattened(dialect.mapped(nodes, outer, chosen))

    def _named(self, nodes: str, index: int) -> str:
        """The elements that a number names in arrays, at the end of a path."""
        dialect, outer, inner = self.dialect, self.variable("v"), self.variable("e")
        item = dialect.kept(dialect.list_of(dialect.item(outer, index)), inner, f"{inner} IS NOT NULL")
        chosen = f"CASE WHEN {dialect.is_array(outer)} THEN {item} ELSE {dialect.no_nodes()} END"
        return dialect.flattened(dialect.mapped(nodes, outer, chosen))

    def _spread(self, nodes: str) -> str:
        dialect, outer = self.dialect, self.variable("v")
        chosen = (
            f"CASE WHEN {dialect.is_array(outer)} THEN {dialect.appended(dialect.elements(outer), outer)} "
            f"ELSE {dialect.list_of(outer)} END"
        )
        return dialect.flattened(dialect.mapped(nodes, outer, chosen))
