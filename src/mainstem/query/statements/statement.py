"""What SQL from outside may say. Checks a statement before any engine with access to data sees it.

Owns the first wall of the sandbox: DuckDB's own parser turns the text into a tree (`json_serialize_sql` only parses:
it neither binds nor runs, and takes nothing but SELECT), and every node of the tree is held against an allow list.
The second wall is `sandbox`: a session without file system, network or settings. Must not touch data.
"""

import re
import threading
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import duckdb
import msgspec

from mainstem.model import DEFAULT_NAMESPACE, Denied, Invalid, TableName
from mainstem.query.statements.functions import FUNCTIONS, TABLE_FUNCTIONS
from mainstem.sql import duckdb_text

SQL_LENGTH_MAX = 100_000
TABLES_MAX = 64
# The name of the warehouse, as it may stand before a namespace: lake.default.orders.
WAREHOUSE = "lake"

_EXPLAIN = re.compile(r"\s*EXPLAIN(?P<analyze>\s+ANALYZE)?\s+(?=[A-Z(])", re.IGNORECASE)
_LISTINGS = frozenset({'"tables"', "__show_tables_expanded"})
_SOURCES = frozenset(
    {"BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EMPTY", "EXPRESSION_LIST", "SHOW_REF", "PIVOT"}
)
_FUNCTION_SCHEMAS = frozenset({"", "main"})
# A name that looks like a file makes DuckDB look for one where a table of that name is out of sight.
_CTE_NAME = re.compile(r"[^./\\:*?\[\]]+")


class Kind(StrEnum):
    """What the statement does."""

    SELECT = "select"
    EXPLAIN = "explain"
    EXPLAIN_ANALYZE = "explain_analyze"
    SHOW_TABLES = "show_tables"


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """A checked statement. `sql` is the SELECT itself; `names` are its tables as written, CTEs left out."""

    sql: str
    kind: Kind
    names: frozenset[TableName]
    # Written like a WITH query of the same statement: a table only where that query is out of sight.
    shadowed: frozenset[TableName] = frozenset()


class Parser:
    """DuckDB's parser in a database with nothing in it. One at a time: parsing takes well under a millisecond."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "threads": "1",
                "enable_external_access": "false",
                "autoload_known_extensions": "false",
                "autoinstall_known_extensions": "false",
                "python_enable_replacements": "false",
                "lock_configuration": "true",
            },
        )

    def tree(self, sql: str) -> dict[str, Any]:
        """The tree of the only statement in `sql`, which must be a SELECT."""
        try:
            with self._lock:
                # A duckdb_text, since binding a parameter makes DuckDB import pandas: a second, the first time.
                row = self._connection.execute(f"SELECT json_serialize_sql({duckdb_text(sql)})").fetchone()
        except duckdb.Error as error:
            raise Invalid(f"the statement cannot be parsed. got={_first_line(error)}", reason="sql_syntax") from error
        assert row is not None
        try:
            answer: dict[str, Any] = msgspec.json.decode(row[0])
        except RecursionError:
            raise Invalid("the statement is nested too deeply", reason="sql_syntax") from None
        if answer["error"]:
            if answer.get("error_type") == "not implemented":
                raise Denied("only reading is allowed. expected=one SELECT, WITH, DESCRIBE, SHOW TABLES or EXPLAIN")
            raise Invalid(f"the statement cannot be parsed. got={answer['error_message']}", reason="sql_syntax")
        statements = answer["statements"]
        if len(statements) != 1:
            raise Invalid(f"one statement at a time. expected=1 got={len(statements)}", reason="sql_syntax")
        tree: dict[str, Any] = statements[0]
        return tree

    def text(self, tree: dict[str, Any]) -> str:
        """A tree as DuckDB itself would write it: no comments, one form for everything."""
        document = msgspec.json.encode({"error": False, "statements": [tree]}).decode()
        try:
            with self._lock:
                row = self._connection.execute(f"SELECT json_deserialize_sql({duckdb_text(document)})").fetchone()
        except duckdb.Error as error:
            message = f"the statement cannot be written out. got={_first_line(error)}"
            raise Invalid(message, reason="sql_syntax") from error
        assert row is not None
        return str(row[0])

    def check(self, sql: str) -> Statement:
        """Parse and check a statement. Raises Invalid where it is no SQL, Denied where it would do more than read."""
        if len(sql) > SQL_LENGTH_MAX:
            raise Invalid(f"the statement is too long. expected=at most {SQL_LENGTH_MAX} got={len(sql)} characters")
        if "\x00" in sql:
            raise Invalid("the statement has a NUL character", reason="sql_syntax")
        if any("\ud800" <= character <= "\udfff" for character in sql):
            raise Invalid("the statement has half a character: a lone surrogate", reason="sql_syntax")
        sql = _quote_default(sql)
        kind = Kind.SELECT
        if explain := _EXPLAIN.match(sql):
            kind = Kind.EXPLAIN_ANALYZE if explain["analyze"] else Kind.EXPLAIN
            sql = sql[explain.end() :]
        tree = self.tree(sql)
        if _is_listing(tree):
            return Statement(sql=sql, kind=Kind.SHOW_TABLES, names=frozenset())
        names, shadowed = _check_tree(tree)
        return Statement(sql=sql, kind=kind, names=names, shadowed=shadowed)


def _is_listing(tree: dict[str, Any]) -> bool:
    source = tree["node"].get("from_table") or {}
    return bool(source.get("type") == "SHOW_REF" and source.get("table_name") in _LISTINGS)


def _check_tree(tree: dict[str, Any]) -> tuple[frozenset[TableName], frozenset[TableName]]:
    written: list[tuple[str, str, str]] = []
    ctes: set[str] = set()
    for node in nodes_of(tree):
        _check_node(node)
        if node.get("type") == "BASE_TABLE":
            written.append((node.get("catalog_name") or "", node.get("schema_name") or "", node["table_name"]))
        ctes.update(_cte_names(node))
    names: set[TableName] = set()
    shadowed: set[TableName] = set()
    for catalog, schema, table in written:
        if not catalog and not schema and table.lower() in ctes:
            shadowed.add(TableName(DEFAULT_NAMESPACE, table))
            continue
        if catalog and catalog.lower() != WAREHOUSE:
            raise Invalid(f"unknown warehouse. expected={WAREHOUSE} got={catalog}", reason="no_such_table")
        names.add(TableName(schema or DEFAULT_NAMESPACE, table))
    if len(names) > TABLES_MAX:
        raise Invalid(f"too many tables in one statement. expected=at most {TABLES_MAX} got={len(names)}")
    return frozenset(names), frozenset(shadowed)


def _cte_names(node: dict[str, Any]) -> Iterator[str]:
    entries = (node.get("cte_map") or {}).get("map") or []
    names = [entry["key"] for entry in entries]
    # A recursive CTE, and a lone one, are nodes with a name of their own.
    if isinstance(node.get("cte_name"), str) and node["cte_name"]:
        names.append(node["cte_name"])
    for name in names:
        if not _CTE_NAME.fullmatch(name) or name.startswith("__"):
            raise Denied(f"the name of a WITH query has a character that is not allowed. got={name[:64]!r}")
        yield name.lower()


def _check_node(node: dict[str, Any]) -> None:
    source = node.get("from_table")
    if isinstance(source, dict) and source.get("type") not in _SOURCES:
        raise Denied(f"this kind of source is not allowed. got={source.get('type')}")
    kind = node.get("type")
    if kind == "TABLE_FUNCTION":
        name = str((node.get("function") or {}).get("function_name", "")).lower()
        if name not in TABLE_FUNCTIONS:
            raise Denied(f"this table function is not allowed. got={name}")
    elif "function_name" in node:
        _check_function(node)
    elif kind == "SHOW_REF" and not node.get("query"):
        raise Denied(f"this SHOW is not allowed. expected=SHOW TABLES or DESCRIBE got={node.get('table_name')}")
    elif kind == "BASE_TABLE" and node.get("at_clause"):
        raise Invalid("AT is not supported: a query reads the newest snapshot", reason="unsupported")
    elif kind == "VALUE_PARAMETER":
        raise Invalid("the statement has a parameter. expected=a statement with its values in it", reason="unsupported")


def _check_function(node: dict[str, Any]) -> None:
    name = str(node["function_name"]).lower()
    if name not in FUNCTIONS and name not in TABLE_FUNCTIONS:
        raise Denied(f"this function is not allowed. got={name}")
    if node.get("catalog") or str(node.get("schema") or "").lower() not in _FUNCTION_SCHEMAS:
        raise Denied(f"a function is called by its plain name. got={node.get('schema')}.{name}")


def nodes_of(tree: Any) -> Iterator[dict[str, Any]]:
    """Every node of a parsed statement."""
    # A stack, not recursion: the depth of the tree is the caller's choice.
    stack = [tree]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield value
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)


def _quote_default(sql: str) -> str:
    # `default` is a keyword to DuckDB and the usual namespace here: default.orders must work without quotes.
    if "default" not in sql.lower():
        return sql
    try:
        tokens = duckdb.tokenize(sql)
    except duckdb.Error:
        return sql
    encoded = sql.encode()
    for start, kind in reversed(tokens):
        rest = encoded[start:]
        if kind == duckdb.token_type.keyword and re.match(rb"default\s*\.", rest, re.IGNORECASE):
            encoded = encoded[:start] + b'"' + DEFAULT_NAMESPACE.encode() + b'"' + rest[len("default") :]
    return encoded.decode()


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
