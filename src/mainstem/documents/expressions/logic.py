"""Comparison, boolean and conditional operators. Comparison is by the order of all values, without type bracketing."""

from collections.abc import Callable
from typing import Any

from mainstem.documents.errors import Refused
from mainstem.documents.expressions.compiling import truthy
from mainstem.documents.expressions.registry import ARGUMENTS_MAX, Evaluator, Scope, operator
from mainstem.documents.values import MISSING, order_key


def compare(left: Any, right: Any) -> int:
    """-1, 0 or 1, by the order of all values."""
    one, other = order_key(left), order_key(right)
    return (one > other) - (one < other)


def _relation(name: str, holds: Callable[[Any, Any], bool]) -> None:
    operator(name, "comparison", 2)(holds)


_relation("$eq", lambda left, right: order_key(left) == order_key(right))
_relation("$ne", lambda left, right: order_key(left) != order_key(right))
_relation("$lt", lambda left, right: order_key(left) < order_key(right))
_relation("$lte", lambda left, right: order_key(left) <= order_key(right))
_relation("$gt", lambda left, right: order_key(left) > order_key(right))
_relation("$gte", lambda left, right: order_key(left) >= order_key(right))
operator("$cmp", "comparison", 2)(compare)
operator("$not", "boolean", 1)(lambda value: not truthy(value))


@operator("$and", "boolean", 0, ARGUMENTS_MAX, lazy=True)
def _and(*parts: Evaluator) -> Evaluator:
    return lambda document, scope: all(truthy(part(document, scope)) for part in parts)


@operator("$or", "boolean", 0, ARGUMENTS_MAX, lazy=True)
def _or(*parts: Evaluator) -> Evaluator:
    return lambda document, scope: any(truthy(part(document, scope)) for part in parts)


@operator("$cond", "conditional", 3, lazy=True)
def _cond(test: Evaluator, then: Evaluator, otherwise: Evaluator) -> Evaluator:
    return lambda document, scope: (
        then(document, scope) if truthy(test(document, scope)) else otherwise(document, scope)
    )


@operator("$ifNull", "conditional", 2, ARGUMENTS_MAX, lazy=True)
def _if_null(*parts: Evaluator) -> Evaluator:
    def first_present(document: Any, scope: Scope) -> Any:
        value: Any = MISSING
        for part in parts:
            value = part(document, scope)
            if value is not None and value is not MISSING:
                break
        return value

    return first_present


@operator("$switch", "conditional", 2, ARGUMENTS_MAX, lazy=True)
def _switch(*parts: Evaluator) -> Evaluator:
    branches = list(zip(parts[0 : len(parts) - len(parts) % 2 : 2], parts[1::2], strict=True))
    default = parts[-1] if len(parts) % 2 else None

    def choose(document: Any, scope: Scope) -> Any:
        for test, value in branches:
            if truthy(test(document, scope)):
                return value(document, scope)
        if default is None:
            raise Refused("no branch of $switch holds, and it has no default", code=40066)
        return default(document, scope)

    return choose
