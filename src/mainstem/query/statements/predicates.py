"""What each scan of a statement asks for, as pyiceberg expressions: the ground for pruning files and row groups.

DuckDB itself says it: the statement is planned over empty tables of the same schemas, so joins, WITH, views and
subqueries are resolved by the engine that will run them, and nothing is read. The filters that it pushed down are then
read back. What cannot be read back counts as "may match": an estimate may be too high, never too low.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec

from mainstem.model import Invalid, TableName
from mainstem.query.statements.statement import WAREHOUSE, Parser
from mainstem.sql import duckdb_name, duckdb_text

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

# Without them the empty tables would be optimised away, or show scans and filters that only exist at run time.
_DISABLED = "statistics_propagation,late_materialization,join_filter_pushdown,compressed_materialization"
_DYNAMIC = re.compile(r"(optional: )?Dynamic Filter \([^)]*\)")
_COMPARISONS = {
    "COMPARE_EQUAL": "EqualTo",
    "COMPARE_NOTEQUAL": "NotEqualTo",
    "COMPARE_LESSTHAN": "LessThan",
    "COMPARE_LESSTHANOREQUALTO": "LessThanOrEqual",
    "COMPARE_GREATERTHAN": "GreaterThan",
    "COMPARE_GREATERTHANOREQUALTO": "GreaterThanOrEqual",
}


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """One scan of a table: the columns it reads, and its filters as text and as a tree."""

    table: TableName
    columns: tuple[str, ...]
    filters: tuple[str, ...]
    trees: tuple[dict[str, Any], ...]


def scans(parser: Parser, sql: str, tables: Mapping[TableName, Mapping[str, str]]) -> tuple[Scan, ...]:
    """Plan a checked statement over empty tables with these columns. Blocks for some milliseconds."""
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": "1",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "python_enable_replacements": "false",
            "enable_external_access": "false",
        },
    )
    try:
        connection.execute(f"SET disabled_optimizers = {duckdb_text(_DISABLED)}")
        connection.execute(f"ATTACH ':memory:' AS {WAREHOUSE}")
        connection.execute(f'CREATE SCHEMA {WAREHOUSE}."default"')
        connection.execute(f'USE {WAREHOUSE}."default"')
        connection.execute("SET lock_configuration = true")
        for name, columns in tables.items():
            schema = f"{WAREHOUSE}.{duckdb_name(name.namespace)}"
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            listed = ", ".join(f"{duckdb_name(column)} {kind}" for column, kind in columns.items())
            connection.execute(f"CREATE TABLE {schema}.{duckdb_name(name.table)} ({listed})")
        row = connection.execute(f"EXPLAIN (FORMAT json) {sql}").fetchone()
    except duckdb.Error as error:
        text = str(error).split("\n", 1)[0]
        raise Invalid(f"the query cannot be planned. got={text}", reason="sql_error") from error
    finally:
        connection.close()
    assert row is not None
    return tuple(_scans(parser, msgspec.json.decode(row[1])))


def _scans(parser: Parser, plan: list[dict[str, Any]]) -> list[Scan]:
    found = []
    stack: list[tuple[dict[str, Any], str]] = [(node, "") for node in plan]
    while stack:
        node, above = stack.pop()
        info = node.get("extra_info") or {}
        if "Table" in info:
            texts = (*_listed(info.get("Filters")), *((above,) if above else ()))
            trees = tuple(tree for text in texts if (tree := _tree(parser, text)) is not None)
            columns = dict.fromkeys(_listed(info.get("Projections")))
            columns.update(dict.fromkeys(name for tree in trees for name in _columns(tree)))
            found.append(Scan(table=_table(parser, info["Table"]), columns=tuple(columns), filters=texts, trees=trees))
        # What DuckDB could not push into the scan stands right above it.
        expression = info.get("Expression", "") if node["name"].strip() == "FILTER" else ""
        text = " AND ".join(f"({each})" for each in _listed(expression))
        stack.extend((child, text) for child in node["children"])
    return found


def _listed(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else (value,) if value else ()


def _table(parser: Parser, text: str) -> TableName:
    source = parser.tree(f"FROM {text}")["node"]["from_table"]
    return TableName(source["schema_name"], source["table_name"])


def _tree(parser: Parser, text: str) -> dict[str, Any] | None:
    text = _DYNAMIC.sub("true", text).replace("optional: ", "")
    try:
        tree: dict[str, Any] = parser.tree(f"SELECT 1 WHERE {text}")["node"]["where_clause"]
    except Invalid:
        # A column whose name needs quotes is shown without them.
        return None
    return tree


def _columns(tree: Any) -> list[str]:
    stack, names = [tree], []
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if value.get("class") == "COLUMN_REF":
                names.append(value["column_names"][-1])
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
    return names


def expression_of(tree: dict[str, Any]) -> "BooleanExpression | None":
    """The tree as an expression that is true wherever the tree is; None where it cannot be said."""
    kind = str(tree.get("type"))
    children = tree.get("children") or []
    if kind == "CONJUNCTION_AND":
        return _fold("And", [each for each in map(expression_of, children) if each is not None])
    if kind == "CONJUNCTION_OR":
        sides = [expression_of(child) for child in children]
        return None if None in sides else _fold("Or", sides)
    if kind == "COMPARE_BETWEEN":
        lower = _predicate("GreaterThanOrEqual", tree["input"], tree["lower"])
        upper = _predicate("LessThanOrEqual", tree["input"], tree["upper"])
        return _fold("And", [each for each in (lower, upper) if each is not None])
    return _leaf(kind, tree, children)


def _leaf(kind: str, tree: dict[str, Any], children: list[dict[str, Any]]) -> "BooleanExpression | None":
    result: BooleanExpression | None = None
    if kind in _COMPARISONS:
        result = _predicate(_COMPARISONS[kind], tree["left"], tree["right"])
    elif kind == "OPERATOR_IS_NULL":
        result = _predicate("IsNull", children[0])
    elif kind == "OPERATOR_IS_NOT_NULL":
        result = _predicate("NotNull", children[0])
    elif kind == "COMPARE_IN":
        result = _fold("Or", sides) if None not in (sides := _equals(children[0], children[1:])) else None
    elif kind == "COLUMN_REF":
        result = _build("EqualTo", _column(tree), True)
    return result


def _equals(column: dict[str, Any], values: list[dict[str, Any]]) -> list[Any]:
    return [_predicate("EqualTo", column, value) for value in values]


def _predicate(name: str, term: dict[str, Any], *values: dict[str, Any]) -> "BooleanExpression | None":
    column = _column(term)
    constants = [_value(value) for value in values]
    return None if column is None or None in constants else _build(name, column, *constants)


def _build(name: str, *arguments: Any) -> "BooleanExpression":
    # By name: these classes take positional arguments that their declared types do not show.
    from pyiceberg import expressions

    built: BooleanExpression = getattr(expressions, name)(*arguments)
    return built


def _fold(name: str, parts: list[Any]) -> "BooleanExpression | None":
    if not parts:
        return None
    result: BooleanExpression = parts[0]
    for part in parts[1:]:
        result = _build(name, result, part)
    return result


def _column(tree: dict[str, Any]) -> str | None:
    return tree["column_names"][-1] if tree.get("class") == "COLUMN_REF" else None


def _value(tree: dict[str, Any]) -> Any:
    """A constant as pyiceberg takes it; times as ISO text, which binding turns into the column's type."""
    if tree.get("class") == "CAST":
        inner = _value(tree["child"])
        kind = (tree.get("cast_type") or {}).get("id", "")
        if not isinstance(inner, str):
            return inner
        if kind.startswith("TIMESTAMP"):
            text = inner.replace(" ", "T")
            return re.sub(r"([+-]\d\d)$", r"\1:00", text)
        return inner if kind in {"DATE", "VARCHAR", "TIME", "UUID"} else None
    if tree.get("class") != "CONSTANT" or tree["value"].get("is_null"):
        return None
    value, kind = tree["value"].get("value"), tree["value"]["type"]
    if kind["id"] == "DECIMAL":
        from decimal import Decimal

        scale = kind["type_info"]["scale"]
        return Decimal(int(value)).scaleb(-scale) if isinstance(value, int) else None
    return value if isinstance(value, int | float | str | bool) else None
