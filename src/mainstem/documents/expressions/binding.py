"""Puts the values of variables into an expression, so that what it says of columns and indexes can be seen."""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

from collections.abc import Mapping
from typing import Any

from mainstem.documents.expressions.compiling import value_at
from mainstem.documents.filters.ast import Call, Compound, Each, Expression, Fold, Let, Literal, Variable


def bound(expression: Expression, values: Mapping[str, Any]) -> Expression:
    """The same expression with constants in place of these variables, but where an inner one has the same name."""
    match expression:
        case Variable(name, path) if name in values:
            return Literal(value_at(values[name], path))
        case Let(names, inside, body):
            return Let(names, tuple([bound(item, values) for item in inside]), bound(body, _without(values, *names)))
        case Each(source, name, body, keeps, limit):
            return Each(bound(source, values), name, bound(body, _without(values, name)), keeps, bound(limit, values))
        case Fold(source, initial, body):
            inner = bound(body, _without(values, "this", "value"))
            return Fold(bound(source, values), bound(initial, values), inner)
        case Call(name, arguments):
            return Call(name, tuple([bound(item, values) for item in arguments]))
        case Compound(names, items):
            return Compound(names, tuple([bound(item, values) for item in items]))
        case _:
            return expression


def _without(values: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
