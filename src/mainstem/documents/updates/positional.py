"""Which element of an array made a document match: what the positional `$` of an update stands for."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from mainstem.documents.filters.ast import And, AnyElement, Field, Node, Or
from mainstem.documents.filters.match import matcher, single, spreads
from mainstem.documents.filters.parse import parse_filter
from mainstem.documents.paths import reach
from mainstem.documents.values import is_array


class _Outcome(NamedTuple):
    matched: bool
    offset: int | None


def matched_offset(filter: Mapping[str, Any] | Node, document: Mapping[str, Any]) -> int | None:
    """The index of the element that matched, of the last condition that walked through an array; None without one."""
    node = parse_filter(filter) if isinstance(filter, Mapping) else filter
    outcome = _outcome(node, document)
    return outcome.offset if outcome.matched else None


def _outcome(node: Node, document: Any) -> _Outcome:
    match node:
        case And(children):
            offset = None
            for child in children:
                outcome = _outcome(child, document)
                if not outcome.matched:
                    return outcome
                offset = offset if outcome.offset is None else outcome.offset
            return _Outcome(True, offset)
        case Or(children):
            return next((found for child in children if (found := _outcome(child, document)).matched), _NO)
        case Field():
            return _field(node, document)
        case _:
            # What must not match has no element to point at.
            return _Outcome(matcher(node)(document), None)


_NO = _Outcome(False, None)


def _field(field: Field, document: Any) -> _Outcome:
    passes = single(field.test)
    for value, offset in reach(document, field.path, spread=spreads(field.test)):
        if passes(value):
            return _Outcome(True, offset if offset is not None else _element(field, value))
    return _NO


def _element(field: Field, value: Any) -> int | None:
    if not isinstance(field.test, AnyElement) or not is_array(value):
        return None
    passes = single(field.test)
    return next((index for index, element in enumerate(value) if passes([element])), None)
