"""The table of expression operators. The modules beside this one fill it; parser, compiler and guide read it."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from mainstem.documents.errors import Refused
from mainstem.documents.values import MISSING, type_name

ARGUMENTS_MAX: Final = 1_000

# Variables by name. The document itself is passed beside them.
Scope = dict[str, Any]
Evaluator = Callable[[Any, Scope], Any]


class Operator(msgspec.Struct, frozen=True):
    """An operator: how many arguments it takes, or which names they have, and what it does with them.

    `compute` gets the values of its arguments; of a lazy one, the evaluators, of which it makes one evaluator.
    """

    name: str
    group: str
    compute: Callable[..., Any]
    low: int
    high: int
    parameters: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    lazy: bool = False


OPERATORS: Final[dict[str, Operator]] = {}
# Known, and not run here: name and why.
NOT_RUN: Final[dict[str, str]] = {
    "$function": "server-side JavaScript is not run",
    "$accumulator": "server-side JavaScript is not run",
    "$meta": "there is no text or search score",
    "$toHashedIndexKey": "there is no hashed index of that form",
}


Function = Callable[..., Any]


def operator(
    name: str, group: str, low: int, high: int | None = None, *, lazy: bool = False
) -> Callable[[Function], Function]:
    """Register a function of `low` to `high` arguments."""

    def register(function: Function) -> Function:
        OPERATORS[name] = Operator(name, group, function, low, low if high is None else high, lazy=lazy)
        return function

    return register


def named(name: str, group: str, *parameters: str, lazy: bool = False) -> Callable[[Function], Function]:
    """Register a function of named arguments; those whose name ends in a question mark may be left out."""
    plain = tuple(item.rstrip("?") for item in parameters)
    optional = frozenset(item.rstrip("?") for item in parameters if item.endswith("?"))

    def register(function: Function) -> Function:
        OPERATORS[name] = Operator(name, group, function, len(plain), len(plain), plain, optional, lazy)
        return function

    return register


def absent(value: Any) -> bool:
    """Whether a value is null or missing."""
    return value is None or value is MISSING


def any_absent(*values: Any) -> bool:
    """Whether any value is null or missing."""
    return any(value is None or value is MISSING for value in values)


def wrong_type(name: str, wanted: str, value: Any, code: int) -> Refused:
    """An argument is not of the type that the operator takes."""
    return Refused(f"{name} takes {wanted}. got={type_name(value)}", code=code)
