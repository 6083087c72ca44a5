"""Order documents as MongoDB does: by BSON's order, with an array standing for its least or greatest element.

Owns how a document's sort key is taken out of it. Missing sorts as null, an empty array below null.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mainstem.documents.paths import Path, is_index, parse_path
from mainstem.documents.values import MISSING, Rank, is_array, is_document, is_number, number_of, order_key
from mainstem.model.errors import Invalid

SORT_KEYS_MAX = 32
# Documents whose arrays would make more keys than this are refused rather than expanded.
EXPANSIONS_MAX = 100_000

_NULL_KEY = order_key(None)
_EMPTY_KEY = (Rank.MISSING.value,)


class SortField(NamedTuple):
    """One field of a sort."""

    path: Path
    descending: bool


class _Descending:
    """A key that sorts the other way round."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __lt__(self, other: "_Descending") -> bool:
        return bool(other.key < self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class _Pending(NamedTuple):
    """A path on its way: the node it has reached, what is left of it, and where it is."""

    node: Any
    rest: Path
    place: Path


def parse_sort(source: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> tuple[SortField, ...]:
    """Read {"a.b": 1, "c": -1}, or the same as pairs."""
    pairs = list(source.items()) if isinstance(source, Mapping) else list(source)
    if len(pairs) > SORT_KEYS_MAX:
        raise Invalid(f"too many sort keys. expected=at most {SORT_KEYS_MAX} got={len(pairs)}", reason="bad_sort")
    fields = []
    for name, direction in pairs:
        if not is_number(direction) or number_of(direction) not in (1, -1):
            raise Invalid(f"a sort's direction is 1 or -1. got={name}: {direction!r}", reason="bad_sort")
        path = parse_path(name)
        if not all(path) or path[0].startswith("$"):
            raise Invalid(f"a sort's path has a name in each part. got={name!r}", reason="bad_sort")
        fields.append(SortField(path, descending=number_of(direction) == -1))
    if len({field.path for field in fields}) != len(fields):
        raise Invalid("a sort names a field twice", reason="bad_sort")
    return tuple(fields)


def sort_key(source: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> Callable[[Mapping[str, Any]], Any]:
    """A key for `sorted`, `heapq.nsmallest` and the like."""
    fields = parse_sort(source)
    plain = [(field.path[0], field.descending) for field in fields if len(field.path) == 1]

    def plain_key(document: Mapping[str, Any]) -> Any:
        """Most documents have no array in the fields of a sort: then there is one key, found without a walk."""
        if type(document) is not dict:
            return key(document)
        parts = []
        for name, descending in plain:
            value = document.get(name)
            if isinstance(value, list | tuple):
                return key(document)
            own = order_key(value)
            parts.append(_Descending(own) if descending else own)
        return tuple(parts)

    def key(document: Mapping[str, Any]) -> tuple[Any, ...]:
        tuples = _expanded([_Pending(document, field.path, ()) for field in fields])
        if len(tuples) > EXPANSIONS_MAX:
            raise Invalid(f"a document has too many sort keys. expected=at most {EXPANSIONS_MAX}", reason="bad_sort")
        return min(
            tuple(_Descending(part) if field.descending else part for part, field in zip(parts, fields, strict=True))
            for parts in tuples
        )

    return plain_key if len(plain) == len(fields) else key


def sort_documents(
    documents: Iterable[Mapping[str, Any]], source: Mapping[str, Any] | Sequence[tuple[str, Any]]
) -> list[Mapping[str, Any]]:
    """The documents in order; documents with equal keys keep theirs."""
    return sorted(documents, key=sort_key(source))


def _expanded(pending: list[_Pending]) -> list[tuple[Any, ...]]:
    """Every combination of keys: fields that walk through one array stay together, element by element."""
    walked = [_walked(item) for item in pending]
    at_array = [item for item in walked if isinstance(item, _Pending)]
    if not at_array:
        return [tuple(walked)]
    place = at_array[0].place
    if any(item.place != place for item in at_array):
        names = ["/".join(item.place) for item in at_array]
        raise Invalid(f"a sort cannot walk through two arrays of a document. got={names}", reason="parallel_arrays")
    array = at_array[0].node
    if not array:
        return [tuple(_of_empty(item) if isinstance(item, _Pending) else item for item in walked)]
    found: list[tuple[Any, ...]] = []
    for element in array:
        inside = [_entered(item, element) if isinstance(item, _Pending) else item for item in walked]
        found.extend(_completed(inside))
    return found


def _completed(items: list[Any]) -> list[tuple[Any, ...]]:
    pending = [item for item in items if isinstance(item, _Pending)]
    if not pending:
        return [tuple(items)]
    found = []
    for values in _expanded(pending):
        remaining = iter(values)
        found.append(tuple(next(remaining) if isinstance(item, _Pending) else item for item in items))
    return found


def _walked(item: _Pending) -> Any:
    """A key, where the path ends without an array; else the path, waiting at the array."""
    node, rest, place = item
    while True:
        if is_array(node):
            if rest and is_index(rest[0]):
                node = node[int(rest[0])] if int(rest[0]) < len(node) else None
                rest, place = rest[1:], (*place, rest[0])
                continue
            return _Pending(node, rest, place)
        if not rest:
            return _NULL_KEY if node is MISSING else order_key(node)
        if not is_document(node):
            return _NULL_KEY
        node, rest, place = node.get(rest[0], MISSING), rest[1:], (*place, rest[0])


def _of_empty(item: _Pending) -> tuple[Any, ...]:
    return _NULL_KEY if item.rest else _EMPTY_KEY


def _entered(item: _Pending, element: Any) -> Any:
    if not item.rest:
        # An array inside an array is compared as a whole.
        return order_key(element)
    return _Pending(element, item.rest, (*item.place, "*")) if is_document(element) else _NULL_KEY
