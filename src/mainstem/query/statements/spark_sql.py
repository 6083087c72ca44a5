"""A checked statement in Spark's SQL. What does not mean the same there is refused, and stays with DuckDB.

Two parsers that disagree about a text would be a way around the checks: what is a string to one may be code to the
other. So the text never goes over as it came. It is DuckDB's own rendering of the checked tree, read token by token;
strings and names are written anew in Spark's form, and every node, function and operator is on a list of those that
both engines have alike. Tables stand in it under the names of views that the pipeline makes for this query alone.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mainstem.model import DEFAULT_NAMESPACE, Invalid, TableName
from mainstem.query.statements.statement import Kind, Parser, Statement, nodes_of
from mainstem.sql import spark_name, spark_text

VIEW_PREFIX = "mainstem_view_"
NOT_PORTABLE = "not_portable"

_SOURCES = frozenset({"BASE_TABLE", "SUBQUERY", "JOIN", "EMPTY"})
_JOINS = frozenset({"INNER", "LEFT", "RIGHT", "OUTER"})
_JOIN_FORMS = frozenset({"REGULAR", "CROSS", "NATURAL"})
_CLASSES = frozenset(
    {
        "COLUMN_REF", "CONSTANT", "FUNCTION", "CAST", "COMPARISON", "CONJUNCTION", "OPERATOR", "CASE", "BETWEEN",
        "STAR", "SUBQUERY", "WINDOW",
    }
)  # fmt: skip
_CONSTANTS = frozenset(
    {
        "NULL", "SQLNULL", "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "DECIMAL", "DOUBLE",
        "FLOAT", "VARCHAR",
    }
)  # fmt: skip
_OPERATORS = frozenset({"+", "-", "*", "/", "//", "%", "||", "~~", "!~~", "~~*", "!~~*"})
# By the same name, with the same meaning.
_SAME_NAMES = """
abs acos approx_count_distinct asin atan atan2 avg bit_length bool_and bool_or cbrt ceil ceiling coalesce contains cos
count count_if cot cume_dist date_part date_trunc day dayofmonth dayofyear degrees dense_rank exp first_value floor
greatest hour ifnull lag last_value lead least left length ln lower lpad ltrim max max_by median min min_by minute mod
month nth_value ntile nullif percent_rank pow power quarter radians rank repeat replace reverse right round row_number
rpad rtrim second sign sin sqrt stddev stddev_pop stddev_samp string_agg substr substring sum tan tanh translate trim
trunc upper var_pop var_samp variance year
"""
_SAME = frozenset(_SAME_NAMES.split())
_TESTS = frozenset(
    {
        "OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "COMPARE_IN", "COMPARE_NOT_IN",
        "OPERATOR_COALESCE",
    }
)  # fmt: skip
_RENAMED = {
    "count_star": "count", "arg_max": "max_by", "arg_min": "min_by", "lcase": "lower", "ucase": "upper",
    "starts_with": "startswith", "ends_with": "endswith", "now": "now", "mean": "avg", "len": "length",
}  # fmt: skip
# Made by multiplication: a call with one argument becomes a product with it.
_INTERVALS = {
    "to_years": "YEAR", "to_months": "MONTH", "to_days": "DAY", "to_hours": "HOUR", "to_minutes": "MINUTE",
    "to_seconds": "SECOND",
}  # fmt: skip
_CALLS = _SAME | _RENAMED.keys() | _INTERVALS.keys()
_TYPES = {
    "BOOLEAN": "BOOLEAN", "TINYINT": "TINYINT", "SMALLINT": "SMALLINT", "INTEGER": "INT", "BIGINT": "BIGINT",
    "FLOAT": "FLOAT", "DOUBLE": "DOUBLE", "VARCHAR": "STRING", "DATE": "DATE", "TIMESTAMP": "TIMESTAMP_NTZ",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP", "DECIMAL": "DECIMAL", "HUGEINT": "DECIMAL(38, 0)",
}  # fmt: skip
_LIKES = {"~~": "LIKE", "!~~": "NOT LIKE", "~~*": "ILIKE", "!~~*": "NOT ILIKE", "//": "DIV"}
_PARTS = frozenset({"year", "quarter", "month", "week", "day", "doy", "hour", "minute"})
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<string>'(?:[^']|'')*')|(?P<quoted>\"(?:[^\"]|\"\")*\")"
    r"|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<word>[A-Za-z_][A-Za-z0-9_$]*)"
    r"|(?P<mark>!~~\*|!~~|~~\*|~~|//|\|\||<>|!=|<=|>=|[-+*/%<>=(),.])"
)
_NAME = re.compile(r"[^\x00-\x1f]{1,4000}")


@dataclass(frozen=True, slots=True)
class SparkStatement:
    """The text, and which table each of its views stands for."""

    sql: str
    views: Mapping[str, TableName]


class Unportable(Invalid):
    """The statement does not mean the same on Spark."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the statement cannot run on Spark as it is. got={what}", reason=NOT_PORTABLE)


def spark_statement(parser: Parser, statement: Statement, bound: Collection[TableName] = frozenset()) -> SparkStatement:
    """Write a checked SELECT for Spark. `bound` are the tables that it reads. Raises Unportable."""
    if statement.kind is not Kind.SELECT:
        raise Unportable(str(statement.kind))
    if statement.shadowed & frozenset(bound):
        raise Unportable("a WITH query named like a table")
    tree = parser.tree(statement.sql)
    views: dict[str, TableName] = {}
    aliases: dict[tuple[str, str], str] = {}
    nodes = list(nodes_of(tree))
    ctes = {entry["key"].lower() for node in nodes for entry in (node.get("cte_map") or {}).get("map") or []}
    for node in nodes:
        _check(node)
        if node.get("type") == "BASE_TABLE":
            _point_at_view(node, ctes, views, aliases)
    for node in nodes:
        _settle(node, aliases)
    _name_columns(parser, tree)
    text = parser.text(tree)
    return SparkStatement("".join(_spark_tokens(text)), views)


def _check(node: dict[str, Any]) -> None:
    source = node.get("from_table")
    if isinstance(source, dict) and source.get("type") not in _SOURCES:
        raise Unportable(f"a source of the kind {source.get('type')}")
    kind = node.get("type")
    if kind == "JOIN" and (node.get("join_type") not in _JOINS or node.get("ref_type") not in _JOIN_FORMS):
        raise Unportable(f"a join of the kind {node.get('ref_type')} {node.get('join_type')}")
    if kind in ("JOIN", "BASE_TABLE", "SUBQUERY") and node.get("sample"):
        raise Unportable("a sample")
    if kind in ("RECURSIVE_CTE_NODE", "CTE_NODE", "PIVOT", "TABLE_FUNCTION", "EXPRESSION_LIST"):
        raise Unportable(f"a node of the kind {kind}")
    if kind == "SELECT_NODE" and (node.get("qualify") or node.get("sample")):
        raise Unportable("QUALIFY or a sample")
    if kind == "DISTINCT_MODIFIER" and node.get("distinct_on_targets"):
        raise Unportable("DISTINCT ON")
    if kind == "LIMIT_PERCENT_MODIFIER":
        raise Unportable("a limit in percent")
    if "class" in node:
        _check_expression(node)


def _check_expression(node: dict[str, Any]) -> None:
    kind = node["class"]
    if kind not in _CLASSES:
        raise Unportable(f"an expression of the kind {kind}")
    if kind == "CONSTANT" and node["value"]["type"]["id"] not in _CONSTANTS:
        raise Unportable(f"a constant of the type {node['value']['type']['id']}")
    if kind == "STAR" and (node.get("replace_list") or node.get("columns") or node.get("rename_list")):
        raise Unportable("a star with more than EXCLUDE")
    if kind == "OPERATOR" and node.get("type") not in _TESTS:
        raise Unportable(f"an operator of the kind {node.get('type')}")
    if kind == "CAST" and node["cast_type"]["id"] not in _TYPES.keys() | {"INTERVAL"}:
        raise Unportable(f"the type {node['cast_type']['id']}")
    if kind in ("FUNCTION", "WINDOW"):
        _check_function(node)


def _check_function(node: dict[str, Any]) -> None:
    name = str(node["function_name"]).lower()
    if node.get("is_operator") or name in _OPERATORS:
        if name not in _OPERATORS:
            raise Unportable(f"the operator {name}")
    elif name not in _CALLS:
        raise Unportable(f"the function {name}")
    if (node.get("order_bys") or {}).get("orders") or node.get("ignore_nulls"):
        raise Unportable("an order or IGNORE NULLS within a function")
    if name in ("trim", "ltrim", "rtrim") and len(node["children"]) > 1:
        raise Unportable(f"the characters of {name}")
    if name == "date_part" and _constant(node["children"][0]) not in _PARTS:
        raise Unportable("a part of a date that the two count differently")


def _constant(node: dict[str, Any]) -> Any:
    return node["value"]["value"] if node.get("class") == "CONSTANT" else None


def _point_at_view(
    node: dict[str, Any], ctes: set[str], views: dict[str, TableName], aliases: dict[tuple[str, str], str]
) -> None:
    schema, table = node.get("schema_name") or "", node["table_name"]
    if not schema and not node.get("catalog_name") and table.lower() in ctes:
        return
    name = TableName(schema or DEFAULT_NAMESPACE, table)
    view = next((view for view, known in views.items() if known == name), f"{VIEW_PREFIX}{len(views)}")
    views[view] = name
    alias = node.get("alias") or table
    aliases[(schema.lower(), table.lower())] = alias
    node.update(alias=alias, table_name=view, schema_name="", catalog_name="")


def _settle(node: dict[str, Any], aliases: Mapping[tuple[str, str], str]) -> None:
    """Say what DuckDB leaves unsaid, and shorten what only it can read."""
    if node.get("null_order") == "ORDER_DEFAULT":
        node["null_order"] = "NULLS LAST"
    if node.get("class") == "COLUMN_REF" and len(node["column_names"]) > 2:
        *schema, table, column = node["column_names"]
        alias = aliases.get((schema[-1].lower(), table.lower()))
        if alias is None:
            raise Unportable(f"the column {'.'.join(node['column_names'])}")
        node["column_names"] = [alias, column]


def _name_columns(parser: Parser, tree: dict[str, Any]) -> None:
    """Give the columns of the answer the names that DuckDB would give them."""
    node = tree["node"]
    if node.get("type") != "SELECT_NODE":
        return
    for item in node["select_list"]:
        if item.get("alias") or item.get("class") in ("COLUMN_REF", "STAR"):
            continue
        alone = {**tree, "node": {**node, "select_list": [item], "from_table": {"type": "EMPTY", "alias": ""}}}
        for key in ("where_clause", "having"):
            alone["node"][key] = None
        alone["node"] |= {"modifiers": [], "group_expressions": [], "group_sets": [], "cte_map": {"map": []}}
        alone["node"]["aggregate_handling"] = "STANDARD_HANDLING"
        item["alias"] = parser.text(alone).removeprefix("SELECT ")


def _spark_tokens(text: str) -> Iterator[str]:
    """DuckDB's rendering in Spark's words. An unknown token is refused."""
    tokens = list(_lex(text))
    likes = any(kind == "mark" and token in _LIKES and token != "//" for kind, token in tokens)
    at = 0
    while at < len(tokens):
        kind, token = tokens[at]
        if kind == "string":
            content = token[1:-1].replace("''", "'")
            if likes and "\\" in content:
                raise Unportable("a backslash beside LIKE, which escapes there and not here")
            yield spark_text(content)
        elif kind == "quoted":
            yield portable_name(token[1:-1].replace('""', '"'))
        elif kind == "mark":
            yield f" {_LIKES[token]} " if token in _LIKES else token
        elif kind == "word":
            spelled, at = _word(tokens, at)
            yield spelled
        else:
            yield token
        at += 1


def _word(tokens: list[tuple[str, str]], at: int) -> tuple[str, int]:
    """A keyword, a type, a function or a name; and the place of its last token."""
    token = tokens[at][1]
    following = tokens[at + 1] if at + 1 < len(tokens) else ("", "")
    if token == "main" and following[1] == ".":
        # DuckDB says so of functions that it wrote in by itself.
        return "", at + 1
    if following[1] == "(" and token.lower() in _CALLS:
        return _function(tokens, at)
    if token in _TYPES and _comes_after_as(tokens, at):
        longer = "".join(text for _, text in tokens[at : at + 7])
        if token == "TIMESTAMP" and longer.startswith("TIMESTAMP WITH TIME ZONE"):
            return _TYPES["TIMESTAMP WITH TIME ZONE"], at + 6
        return _TYPES[token], at
    if token == "EXCLUDE":
        return "EXCEPT", at
    return token, at


def _function(tokens: list[tuple[str, str]], at: int) -> tuple[str, int]:
    name = tokens[at][1].lower()
    if name == "count_star":
        return "count(*", at + 1
    if name == "trunc":
        before = "".join(text for _, text in tokens[max(0, at - 2) : at])
        if not before.endswith("CAST("):
            raise Unportable("the function trunc")
        # Casting to a whole number cuts off the fraction by itself; Spark's trunc is of dates.
        return "", at
    if name in _INTERVALS:
        return f"(INTERVAL '1' {_INTERVALS[name]} * ", at + 1
    return f"{_RENAMED.get(name, name)}(", at + 1


def _comes_after_as(tokens: list[tuple[str, str]], at: int) -> bool:
    before = [text for kind, text in tokens[:at] if kind != "space"]
    return bool(before) and before[-1] == "AS"


def _lex(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Unportable(f"the character {text[at]!r}")
        assert match.lastgroup is not None
        yield match.lastgroup, match[0]
        at = match.end()


def portable_name(name: str) -> str:
    """A name in Spark's SQL. Raises Unportable for one that Spark's catalogs would not take."""
    if not _NAME.fullmatch(name):
        raise Unportable(f"the name {name[:64]!r}")
    return spark_name(name)
