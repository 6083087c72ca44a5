"""Which fields of a document come back: inclusion or exclusion by dotted paths, `$slice` and `$elemMatch`.

Owns MongoDB's rules for mixing them and for walking through arrays. Computed fields and the positional `$` are refused.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mainstem.documents.match import matcher
from mainstem.documents.parse import parse_filter
from mainstem.documents.paths import parse_path
from mainstem.documents.values import DEPTH_MAX, MISSING, is_array, is_document, is_number, number_of
from mainstem.model.errors import Invalid


class Keep(msgspec.Struct, frozen=True):
    """The whole field, or none of it."""

    wanted: bool


class Slice(msgspec.Struct, frozen=True):
    """A part of an array: `limit` elements from `skip`, counted from the end if negative."""

    skip: int
    limit: int | None


class FirstElement(msgspec.Struct, frozen=True):
    """Of an array the first element that passes."""

    passes: Callable[[Any], bool]


Tree = dict[str, "Keep | Slice | FirstElement | Tree"]


class Projection(msgspec.Struct, frozen=True):
    """A projection that was read and checked."""

    tree: Mapping[str, Any]
    inclusive: bool

    def apply(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The document as projected. Shares what it leaves whole with the document."""
        return _document(document, self.tree, self.inclusive)


def _invalid(message: str) -> Invalid:
    return Invalid(message, reason="bad_projection")


def project(source: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Project one document. For many, `parse_projection` once is faster."""
    return parse_projection(source).apply(document)


def parse_projection(source: Mapping[str, Any]) -> Projection:
    """Read a projection. Mixing inclusion and exclusion (but for `_id`), or a path inside another, is an error."""
    if not isinstance(source, Mapping):
        raise _invalid(f"a projection is a document. got={type(source).__name__}")
    leaves = _Leaves()
    leaves.read(source, (), 0)
    inclusive = leaves.inclusive
    if inclusive is None:
        # Only _id, $slice and $elemMatch are named: $elemMatch picks, $slice and _id: 0 leave the rest alone.
        identity = leaves.tree.get("_id")
        inclusive = leaves.picks or (isinstance(identity, Keep) and identity.wanted)
    if inclusive:
        leaves.tree.setdefault("_id", Keep(True))
    return Projection(leaves.tree, inclusive)


class _Leaves:
    """Collects the leaves of a projection and what they have in common."""

    def __init__(self) -> None:
        self.tree: Tree = {}
        self.inclusive: bool | None = None
        self.picks = False

    def read(self, source: Mapping[str, Any], prefix: tuple[str, ...], depth: int) -> None:
        if depth > DEPTH_MAX:
            raise _invalid(f"projection is nested too deep. expected=at most {DEPTH_MAX} levels")
        for name, value in source.items():
            path = (*prefix, *parse_path(name))
            if any(not part or part.startswith("$") for part in path):
                raise _invalid(f"a projection's path has a plain name in each part. got={name!r}")
            if isinstance(value, Mapping) and value and not next(iter(value)).startswith("$"):
                self.read(value, path, depth + 1)
            else:
                self._add(path, self._leaf(path, value))

    def _leaf(self, path: tuple[str, ...], value: Any) -> Keep | Slice | FirstElement:
        if isinstance(value, bool) or (not isinstance(value, Mapping | str) and value is not None and is_number(value)):
            wanted = bool(number_of(value))
            if path != ("_id",):
                if self.inclusive is not None and self.inclusive != wanted:
                    raise _invalid("a projection includes or excludes. got=both")
                self.inclusive = wanted
            return Keep(wanted)
        if isinstance(value, Mapping) and len(value) == 1:
            match next(iter(value.items())):
                case ("$slice", argument):
                    return _slice(argument)
                case ("$elemMatch", condition) if len(path) == 1:
                    self.picks = True
                    return _first_element(path[0], condition)
                case ("$elemMatch", _):
                    raise _invalid(f"$elemMatch takes a field of the top level. got={'.'.join(path)}")
                case (operator, _):
                    raise _invalid(f"unknown projection operator. got={operator}")
        raise _invalid(f"a projection takes 0, 1, $slice or $elemMatch. got={value!r}")

    def _add(self, path: tuple[str, ...], leaf: Keep | Slice | FirstElement) -> None:
        tree = self.tree
        for part in path[:-1]:
            below = tree.setdefault(part, {})
            if not isinstance(below, dict):
                raise _invalid(f"a projection names a path inside another. got={'.'.join(path)}")
            tree = below
        if path[-1] in tree:
            raise _invalid(f"a projection names a path inside another. got={'.'.join(path)}")
        tree[path[-1]] = leaf


def _slice(argument: Any) -> Slice:
    numbers = list(argument) if is_array(argument) else [argument]
    if not all(not isinstance(item, bool) and is_number(item) for item in numbers):
        raise _invalid(f"$slice takes numbers. got={argument!r}")
    whole = [int(number_of(item)) for item in numbers]
    if not is_array(argument):
        return Slice(0, whole[0]) if whole[0] >= 0 else Slice(whole[0], None)
    if len(whole) != 2 or whole[1] <= 0:
        raise _invalid(f"$slice takes a count or [skip, positive count]. got={argument!r}")
    return Slice(whole[0], whole[1])


def _first_element(name: str, condition: Any) -> FirstElement:
    # The same syntax as in filters, so the filter's parser reads it; here it is asked element by element.
    node = parse_filter({name: {"$elemMatch": condition}})
    passes = matcher(node)
    return FirstElement(lambda element: passes({name: [element]}))


def _document(document: Mapping[str, Any], tree: Mapping[str, Any], inclusive: bool) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in document.items():
        leaf = tree.get(name)
        projected = (MISSING if inclusive else value) if leaf is None else _value(value, leaf, inclusive)
        if projected is not MISSING:
            kept[name] = projected
    return kept


def _value(value: Any, leaf: Any, inclusive: bool) -> Any:
    match leaf:
        case Keep(wanted):
            return value if wanted else MISSING
        case Slice(skip, limit):
            return _sliced(value, skip, limit) if is_array(value) else value
        case FirstElement(passes):
            if not is_array(value):
                return MISSING
            found = next((element for element in value if passes(element)), MISSING)
            return MISSING if found is MISSING else [found]
        case _:
            return _below(value, leaf, inclusive)


def _below(value: Any, tree: Mapping[str, Any], inclusive: bool) -> Any:
    if is_document(value):
        return _document(value, tree, inclusive)
    if is_array(value):
        # Scalars have no such fields: an inclusion drops them, an exclusion has nothing to take away.
        projected = (_below(element, tree, inclusive) for element in value)
        return [element for element in projected if element is not MISSING]
    return MISSING if inclusive else value


def _sliced(array: Any, skip: int, limit: int | None) -> list[Any]:
    start = max(len(array) + skip, 0) if skip < 0 else skip
    return list(array[start:] if limit is None else array[start : start + limit])
