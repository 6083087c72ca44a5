"""How DuckDB spells what `dialects` asks for."""

import datetime as dt
from decimal import Decimal
from typing import Any

from mainstem.documents.columns import MARKS, Column
from mainstem.documents.filters.dialects import EXACT_INTEGER_MAX, Dialect, NumberBounds, Sql
from mainstem.documents.values import INT32_MAX, INT32_MIN, INT64_MAX
from mainstem.sql import duckdb_name, duckdb_text


def _pointer(path: tuple[str, ...]) -> str:
    return duckdb_text("".join("/" + name.replace("~", "~0").replace("/", "~1") for name in path))


_MARKED = ", ".join(map(duckdb_text, MARKS))


class _Leaf(str):
    """A node that is found in one step from its column: its type is then known without writing it out as text."""

    def __new__(cls, column: str, pointer: str) -> "_Leaf":
        leaf = super().__new__(cls, f"json_extract({column}, {pointer})")
        leaf.type = f"json_type({column}, {pointer})"
        return leaf

    type: str


def _json_type(node: str) -> str:
    return node.type if isinstance(node, _Leaf) else f"json_type({node})"


class DuckDb:
    """DuckDB 1.3 and later (lambdas in Python's spelling)."""

    name = "duckdb"

    def identifier(self, name: str) -> str:
        return duckdb_name(name)

    def constant(self, value: Any, column: Column) -> Sql:
        match value:
            case dt.datetime():
                kind = "TIMESTAMPTZ" if value.tzinfo is not None else "TIMESTAMP"
                return Sql(f"CAST(? AS {kind})", (value.isoformat(sep=" "),))
            case Decimal():
                return Sql(f"CAST(? AS DECIMAL(38,{column.scale}))", (format(value, "f"),))
            case dt.date():
                return Sql("CAST(? AS DATE)", (value.isoformat(),))
            case _:
                return Sql("?", (value,))

    def is_nan(self, expression: str) -> str:
        return f"isnan({expression})"

    def starts_with(self, text: str, prefix: Sql) -> Sql:
        return Sql(f"starts_with({text}, {prefix.text})", prefix.parameters)

    def contains(self, text: str, part: Sql) -> Sql:
        return Sql(f"contains({text}, {part.text})", part.parameters)

    def truncated(self, double: str) -> str:
        return f"TRY_CAST(trunc({double}) AS BIGINT)"

    def text_constant(self, value: str) -> Sql:
        return Sql("?", (value,))

    def node(self, column: str) -> str:
        return f"CAST({column} AS JSON)"

    def child(self, node: str, name: str) -> str | None:
        # A JSON pointer: any name can be written in one. On an array it takes an index, as documents do.
        return None if "\x00" in name else f"json_extract({node}, {_pointer((name,))})"

    def straight(self, column: str, path: tuple[str, ...]) -> tuple[str, str] | None:
        if "\x00" in "".join(path):
            return None
        leaf = _Leaf(column, _pointer(path))
        on_the_way = [f"json_type({column}, {_pointer(path[:length])})" for length in range(len(path) + 1)]
        no_array = " AND ".join(f"{node} IS DISTINCT FROM 'ARRAY'" for node in on_the_way)
        # Most rows have a plain value there, and need but one look: only objects lead to it.
        return leaf, f"{leaf.type} IN ('BIGINT', 'UBIGINT', 'DOUBLE', 'VARCHAR', 'BOOLEAN') OR ({no_array})"

    def sieve(self, column: str, path: tuple[str, ...], relation: str, value: float | str) -> Sql | None:
        # Null where there is nothing, or an array or an object: those are looked at in full.
        scalar = f"json_value({column}, {_pointer(path)})"
        if isinstance(value, str):
            # It gives a text as JSON writes it, which says as much where nothing in it is escaped.
            if relation != "=" or not value.isprintable() or set(value) & set('"\\'):
                return None
            return Sql(f"COALESCE({scalar} = ?, TRUE)", (f'"{value}"',))
        return Sql(f"COALESCE(TRY_CAST({scalar} AS DOUBLE) {relation} CAST(? AS DOUBLE), TRUE)", (value,))

    def item(self, node: str, index: int) -> str:
        return f"json_extract({node}, '$[{index}]')"

    def elements(self, node: str) -> str:
        return f"json_extract({node}, '$[*]')"

    def element_count(self, node: str) -> str:
        return f"json_array_length({node})"

    def keys_are(self, node: str, names: tuple[str, ...]) -> Sql | None:
        if not names:
            return Sql(f"len(json_keys({node})) = 0")
        return Sql(f"json_keys({node}) = [{', '.join('?' for _ in names)}]", names)

    def is_marked(self, node: str) -> str:
        return f"COALESCE(list_has_any(json_keys({node}), [{_MARKED}]), FALSE)"

    def is_array(self, node: str) -> str:
        return f"{_json_type(node)} = 'ARRAY'"

    def is_object(self, node: str) -> str:
        return f"{_json_type(node)} = 'OBJECT'"

    def is_null(self, node: str) -> str:
        return f"{_json_type(node)} = 'NULL'"

    def is_string(self, node: str) -> str:
        return f"{_json_type(node)} = 'VARCHAR'"

    def is_boolean(self, node: str, value: bool) -> str:
        return f"CAST({node} AS VARCHAR) = '{str(value).lower()}'"

    def any_boolean(self, node: str) -> str:
        return f"{_json_type(node)} = 'BOOLEAN'"

    def is_number(self, node: str) -> str:
        return f"{_json_type(node)} IN ('BIGINT', 'UBIGINT', 'DOUBLE')"

    def is_number_of(self, node: str, code: str) -> str | None:
        whole = f"TRY_CAST({node} AS HUGEINT)"
        integer = f"{_json_type(node)} IN ('BIGINT', 'UBIGINT')"
        match code:
            case "int":
                return f"({integer} AND {whole} BETWEEN {INT32_MIN} AND {INT32_MAX})"
            case "long":
                return f"({integer} AND {whole} NOT BETWEEN {INT32_MIN} AND {INT32_MAX} AND {whole} <= {INT64_MAX})"
            case _:
                return f"({_json_type(node)} = 'DOUBLE' OR ({integer} AND {whole} > {INT64_MAX}))"

    def text(self, node: str) -> str:
        return f"json_extract_string({node}, '$')"

    def compare_number(self, node: str, bounds: NumberBounds) -> Sql | None:
        if bounds.double is not None and abs(bounds.double[1]) < EXACT_INTEGER_MAX:
            # No two integers that a double cannot tell apart are on different sides of it.
            relation, value = bounds.double
            compared = f"TRY_CAST({node} AS DOUBLE) {relation.value} CAST(? AS DOUBLE)"
            return Sql(f"({self.is_number(node)} AND {compared})", (value,))
        # The engine would compare a BIGINT with a double as doubles and round; each sort has its own constant instead.
        double = Sql("FALSE")
        if bounds.double is not None:
            relation, value = bounds.double
            double = Sql(f"TRY_CAST({node} AS DOUBLE) {relation.value} CAST(? AS DOUBLE)", (value,))
        if isinstance(bounds.integer, bool):
            integer = Sql(f"TRY_CAST({node} AS BIGINT) IS NOT NULL") if bounds.integer else Sql("FALSE")
        else:
            by, whole = bounds.integer
            integer = Sql(f"TRY_CAST({node} AS BIGINT) {by.value} CAST(? AS BIGINT)", (whole,))
        # An integer beyond 64 bits is a double in a document.
        text = (
            f"CASE {_json_type(node)} WHEN 'DOUBLE' THEN {double.text} WHEN 'BIGINT' THEN {integer.text} "
            f"WHEN 'UBIGINT' THEN CASE WHEN TRY_CAST({node} AS BIGINT) IS NULL THEN {double.text} "
            f"ELSE {integer.text} END ELSE FALSE END"
        )
        return Sql(text, (*double.parameters, *integer.parameters, *double.parameters, *integer.parameters))

    def modulo(self, node: str, divisor: int, remainder: int) -> Sql | None:
        # Halves of integers are cut off, not rounded, and what does not fit 64 bits does not pass.
        whole = (
            f"CASE {_json_type(node)} WHEN 'DOUBLE' THEN TRY_CAST(trunc(TRY_CAST({node} AS DOUBLE)) AS BIGINT) "
            f"WHEN 'BIGINT' THEN TRY_CAST({node} AS BIGINT) WHEN 'UBIGINT' THEN TRY_CAST({node} AS BIGINT) END"
        )
        return Sql(f"CAST({whole} AS HUGEINT) % CAST(? AS HUGEINT) = CAST(? AS HUGEINT)", (divisor, remainder))

    def list_of(self, *nodes: str) -> str:
        return f"[{', '.join(nodes)}]"

    def no_nodes(self) -> str:
        return "CAST([] AS JSON[])"

    def appended(self, nodes: str, node: str) -> str:
        return f"list_append({nodes}, {node})"

    def joined(self, nodes: str, more: str) -> str:
        return f"list_concat({nodes}, {more})"

    def flattened(self, lists: str) -> str:
        return f"flatten({lists})"

    def mapped(self, nodes: str, variable: str, expression: str) -> str:
        return f"list_transform({nodes}, lambda {variable}: {expression})"

    def kept(self, nodes: str, variable: str, condition: str) -> str:
        return f"list_filter({nodes}, lambda {variable}: {condition})"

    def any(self, nodes: str, variable: str, condition: str) -> str:
        return f"len(list_filter({nodes}, lambda {variable}: {condition})) > 0"


DUCKDB: Dialect = DuckDb()
