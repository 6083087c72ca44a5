"""Filters of the REST protocol as pyiceberg's expressions.

The protocol writes a predicate in two ways (`term` and `value`, or `child`, `left` and `right`), and may put functions
where pyiceberg has only columns. What pyiceberg has no word for makes the whole filter "everything": planning then
returns more files than needed, and never fewer, because clients filter the rows again.
"""

from typing import TYPE_CHECKING, Any

from mainstem.model import Invalid

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

DEPTH_MAX = 200

_UNARY = {"is-null": "IsNull", "not-null": "NotNull", "is-nan": "IsNaN", "not-nan": "NotNaN"}
_BINARY = {
    "lt": "LessThan",
    "lt-eq": "LessThanOrEqual",
    "gt": "GreaterThan",
    "gt-eq": "GreaterThanOrEqual",
    "eq": "EqualTo",
    "not-eq": "NotEqualTo",
    "starts-with": "StartsWith",
    "not-starts-with": "NotStartsWith",
}
_SETS = {"in": "In", "not-in": "NotIn"}


class _Unknown(Exception):
    """Something well-formed that cannot be said in pyiceberg's expressions."""


def parse_filter(document: object) -> "BooleanExpression":
    """The expression of a request's filter; everything, where there is none."""
    from pyiceberg.expressions import AlwaysTrue

    if document is None:
        return AlwaysTrue()
    try:
        return _parse(document, 0)
    except _Unknown:
        return AlwaysTrue()


def _parse(node: object, depth: int) -> "BooleanExpression":
    from pyiceberg import expressions

    if depth > DEPTH_MAX:
        raise Invalid(f"filter is nested too deeply. expected=at most {DEPTH_MAX} got=more")
    if isinstance(node, bool):
        return expressions.AlwaysTrue() if node else expressions.AlwaysFalse()
    if not isinstance(node, dict):
        raise Invalid(f"filter is not an expression. expected=an object or a boolean got={node!r:.100}")
    kind = node.get("type")
    match kind:
        case "true" | "false":
            return _parse(kind == "true", depth)
        case "literal":
            return _parse(node.get("value"), depth + 1)
        case "not":
            return expressions.Not(_parse(node.get("child"), depth + 1))
        case "and" | "or":
            both = _parse(node.get("left"), depth + 1), _parse(node.get("right"), depth + 1)
            return expressions.And(*both) if kind == "and" else expressions.Or(*both)
        case str():
            return _predicate(kind, node)
        case _:
            raise Invalid(f"filter has no type. expected=a predicate got={kind!r:.100}")


def _predicate(kind: str, node: dict[str, Any]) -> "BooleanExpression":
    if kind in _UNARY:
        return _make(_UNARY[kind], _column(_either(node, "child", "term")))
    if kind in _BINARY:
        column, value = _column(_either(node, "left", "term")), _literal(_either(node, "right", "value"))
        return _make(_BINARY[kind], column, value)
    if kind in _SETS:
        values = node.get("values")
        values = values.get("values") if isinstance(values, dict) else values
        if not isinstance(values, list):
            raise Invalid(f"filter has no values. expected=a list got={values!r:.100}")
        return _make(_SETS[kind], _column(_either(node, "child", "term")), {_literal(value) for value in values})
    raise Invalid(f"filter has an unknown type. expected=a predicate got={kind!r:.100}")


def _make(name: str, *arguments: Any) -> "BooleanExpression":
    from pyiceberg import expressions

    made: BooleanExpression = getattr(expressions, name)(*arguments)
    return made


def _either(node: dict[str, Any], *names: str) -> Any:
    for name in names:
        if name in node:
            return node[name]
    raise Invalid(f"filter is incomplete. expected={' or '.join(names)} got={node!r:.200}")


def _column(term: object) -> str:
    if isinstance(term, str):
        return term
    if isinstance(term, dict) and term.get("type") == "reference" and isinstance(term.get("name"), str):
        return str(term["name"])
    if isinstance(term, dict):
        # A transform or a function.
        raise _Unknown
    raise Invalid(f"filter names no column. expected=a name got={term!r:.100}")


def _literal(value: object) -> Any:
    if isinstance(value, dict):
        if value.get("type") != "literal":
            raise _Unknown
        value = value.get("value")
    if value is None or isinstance(value, dict | list):
        raise Invalid(f"filter compares with no literal. expected=a value got={value!r:.100}")
    return value
