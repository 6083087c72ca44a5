"""How Spark spells what `dialects` asks for."""

import datetime as dt
from decimal import Decimal
from typing import Any

from mainstem.documents.columns import MARKS, Column, Kind
from mainstem.documents.filters.dialects import EXACT_INTEGER_MAX, Dialect, NumberBounds, Sql
from mainstem.sql import duckdb_text, spark_name

# Names without quotes or backslashes: both engines write such a text the same way.
_MARKED = ", ".join(map(duckdb_text, MARKS))


class Spark:
    """Spark 4.0 and later (Variant). Parameters go into `spark.sql(text, args=[…])`."""

    name = "spark"

    def identifier(self, name: str) -> str:
        return spark_name(name)

    def constant(self, value: Any, column: Column) -> Sql:
        match value:
            case dt.datetime():
                # As text: Spark's own conversion of a Python time depends on the session's zone.
                kind = "TIMESTAMP" if value.tzinfo is not None else "TIMESTAMP_NTZ"
                return Sql(f"CAST(? AS {kind})", (value.isoformat(sep=" "),))
            case Decimal():
                return Sql(f"CAST(? AS DECIMAL(38,{column.scale}))", (format(value, "f"),))
            case dt.date():
                return Sql("CAST(? AS DATE)", (value.isoformat(),))
            case bool() | str():
                return Sql("?", (value,))
            case bytes():
                return Sql("unhex(?)", (value.hex(),))
            case _:
                return Sql(f"CAST(? AS {'DOUBLE' if column.kind is Kind.DOUBLE else 'BIGINT'})", (value,))

    def is_nan(self, expression: str) -> str:
        return f"isnan({expression})"

    def starts_with(self, text: str, prefix: Sql) -> Sql:
        return Sql(f"startswith({text}, {prefix.text})", prefix.parameters)

    def contains(self, text: str, part: Sql) -> Sql:
        return Sql(f"contains({text}, {part.text})", part.parameters)

    def truncated(self, double: str) -> str:
        # NaN is above every number here.
        fits = f"{double} >= -9223372036854775808D AND {double} < 9223372036854775808D"
        return f"CASE WHEN {fits} THEN CAST({double} AS BIGINT) END"

    def text_constant(self, value: str) -> Sql:
        return Sql("?", (value,))

    def node(self, column: str) -> str:
        return f"parse_json({column})"

    def child(self, node: str, name: str) -> str | None:
        # Variant paths have no escapes inside a quoted name, take no empty one and no question mark.
        if not name or set(name) & set("\"'?\\\x00"):
            return None
        found = f"""try_variant_get({node}, '$["{name}"]', 'variant')"""
        if name.isascii() and name.isdigit() and len(name) < 9:
            return f"COALESCE({found}, {self.item(node, int(name))})"
        return found

    def straight(self, column: str, path: tuple[str, ...]) -> tuple[str, str] | None:
        del column, path
        return None

    def sieve(self, column: str, path: tuple[str, ...], relation: str, value: float | str) -> Sql | None:
        del column, path, relation, value
        return None

    def item(self, node: str, index: int) -> str:
        return f"try_variant_get({node}, '$[{index}]', 'variant')"

    def elements(self, node: str) -> str:
        return f"try_variant_get({node}, '$', 'array<variant>')"

    def element_count(self, node: str) -> str:
        return f"size(try_variant_get({node}, '$', 'array<variant>'))"

    def keys_are(self, node: str, names: tuple[str, ...]) -> Sql | None:
        # A Variant keeps an object's names sorted, so the document's order is gone.
        return None if names else Sql(f"schema_of_variant({node}) = 'OBJECT<>'")

    def is_marked(self, node: str) -> str:
        keys = f"map_keys(try_variant_get({node}, '$', 'map<string,variant>'))"
        return f"COALESCE(arrays_overlap({keys}, array({_MARKED})), FALSE)"

    def is_array(self, node: str) -> str:
        return f"schema_of_variant({node}) LIKE 'ARRAY<%'"

    def is_object(self, node: str) -> str:
        return f"schema_of_variant({node}) LIKE 'OBJECT<%'"

    def is_null(self, node: str) -> str:
        return f"is_variant_null({node})"

    def is_string(self, node: str) -> str:
        return f"schema_of_variant({node}) = 'STRING'"

    def is_boolean(self, node: str, value: bool) -> str:
        return f"({self.any_boolean(node)} AND try_variant_get({node}, '$', 'boolean') = {str(value).lower()})"

    def any_boolean(self, node: str) -> str:
        return f"schema_of_variant({node}) = 'BOOLEAN'"

    def is_number(self, node: str) -> str:
        return f"schema_of_variant({node}) RLIKE '^(BIGINT|DOUBLE|FLOAT|DECIMAL)'"

    def is_number_of(self, node: str, code: str) -> str | None:
        return None

    def text(self, node: str) -> str:
        return f"try_variant_get({node}, '$', 'string')"

    def compare_number(self, node: str, bounds: NumberBounds) -> Sql | None:
        # Only as doubles: right as long as no two integers that the cast makes equal straddle the constant.
        if bounds.double is None:
            return None if not isinstance(bounds.integer, bool) else Sql("FALSE")
        relation, value = bounds.double
        if not abs(value) < EXACT_INTEGER_MAX:
            return None
        text = f"{self.is_number(node)} AND try_variant_get({node}, '$', 'double') {relation.value} CAST(? AS DOUBLE)"
        return Sql(f"({text})", (value,))

    def modulo(self, node: str, divisor: int, remainder: int) -> Sql | None:
        return None

    def list_of(self, *nodes: str) -> str:
        return f"array({', '.join(nodes)})"

    def no_nodes(self) -> str:
        return "CAST(array() AS ARRAY<VARIANT>)"

    def appended(self, nodes: str, node: str) -> str:
        return f"array_append({nodes}, {node})"

    def joined(self, nodes: str, more: str) -> str:
        return f"concat({nodes}, {more})"

    def flattened(self, lists: str) -> str:
        return f"flatten({lists})"

    def mapped(self, nodes: str, variable: str, expression: str) -> str:
        return f"transform({nodes}, {variable} -> {expression})"

    def kept(self, nodes: str, variable: str, condition: str) -> str:
        return f"filter({nodes}, {variable} -> {condition})"

    def any(self, nodes: str, variable: str, condition: str) -> str:
        return f"exists({nodes}, {variable} -> COALESCE({condition}, FALSE))"


SPARK: Dialect = Spark()
