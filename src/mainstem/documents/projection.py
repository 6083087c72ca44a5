"""Which fields of a document come back: inclusion or exclusion by dotted paths, computed fields, and what `find` has
beside them: `$slice`, `$elemMatch` and the positional `$`.

Owns MongoDB's rules for mixing them and for walking through arrays. The stages `$project`, `$addFields` and `$unset`
are projections too.
"""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mainstem.documents.errors import Refused
from mainstem.documents.expressions import NO_NAMES, Evaluator, Names, Scope, compiled, parse_expression
from mainstem.documents.filters.match import matcher
from mainstem.documents.filters.parse import parse_filter
from mainstem.documents.paths import parse_path
from mainstem.documents.values import DEPTH_MAX, MISSING, is_array, is_document, is_number, is_text, number_of


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


class Matched(msgspec.Struct, frozen=True):
    """Of an array the element by which the filter matched: the positional `$`."""


class Computed(msgspec.Struct, frozen=True):
    """The value of an expression, whatever the field held."""

    value: Evaluator


Leaf = Keep | Slice | FirstElement | Matched | Computed
Tree = dict[str, "Leaf | Tree"]
_NO_SCOPE: Scope = {}


class _Given(msgspec.Struct, frozen=True):
    """What leaves need beside their field: the whole document, the variables, and what `$` stands for."""

    root: Mapping[str, Any]
    scope: Scope
    offset: int | None


class Projection(msgspec.Struct, frozen=True):
    """A projection that was read and checked. `positional`: applying it needs the offset that the filter matched at."""

    tree: Mapping[str, Any]
    inclusive: bool
    positional: bool = False

    def apply(
        self, document: Mapping[str, Any], scope: Scope | None = None, offset: int | None = None
    ) -> dict[str, Any]:
        """The document as projected. Shares what it leaves whole with the document."""
        given = _Given(document, _NO_SCOPE if scope is None else scope, offset)
        return _document(document, self.tree, self.inclusive, given)

    def plain_fields(self) -> list[str] | None:
        """The names that it keeps, where it is an inclusion of whole fields of the top level; None otherwise."""
        if not self.inclusive or not all(isinstance(leaf, Keep) for leaf in self.tree.values()):
            return None
        return [name for name, leaf in self.tree.items() if leaf.wanted]


def _refused(message: str, code: int) -> Refused:
    return Refused(message, code=code, reason="bad_projection")


def project(source: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Project one document. For many, `parse_projection` once is faster."""
    return parse_projection(source).apply(document)


def parse_projection(source: Mapping[str, Any], names: Names = NO_NAMES, *, stage: bool = False) -> Projection:
    """Read a projection. Mixing inclusion and exclusion (but for `_id`), or a path inside another, is an error.

    `stage`: of an aggregation, where all operators are expressions.
    """
    if not is_document(source):
        raise _refused(f"a projection is a document. got={type(source).__name__}", 15969 if stage else 14)
    if stage and not source:
        raise _refused("a projection has at least one field", 51272)
    leaves = _Leaves(names, stage=stage)
    leaves.read(source, (), 0)
    inclusive = leaves.inclusive
    if inclusive is None:
        # Only _id, $slice and $elemMatch are named: $elemMatch picks, $slice and _id: 0 leave the rest alone.
        identity = leaves.tree.get("_id")
        inclusive = leaves.picks or (isinstance(identity, Keep) and identity.wanted)
    if inclusive:
        # Computed or named below, _id is already there; kept fields come in the document's own order.
        leaves.tree.setdefault("_id", Keep(True))
    elif leaves.computes:
        raise _refused("an exclusion computes no fields", 31252)
    return Projection(leaves.tree, inclusive, leaves.positional)


def parse_additions(source: Any, names: Names = NO_NAMES, *, name: str = "$addFields") -> Projection:
    """Read what `$addFields` adds: every leaf is an expression, and all other fields stay."""
    if not is_document(source):
        raise _refused(f"{name} takes a document of fields", 40272)
    if not source:
        raise _refused(f"{name} takes at least one field", 40177)
    leaves = _Leaves(names, stage=True, additions=True)
    leaves.read(source, (), 0)
    return Projection(leaves.tree, inclusive=False)


def parse_removals(source: Any) -> Projection:
    """Read what `$unset` removes: a path or an array of paths."""
    paths = source if is_array(source) else [source]
    if not paths:
        raise _refused("$unset takes at least one path", 31119)
    if not all(map(is_text, paths)):
        raise _refused("$unset takes a path or an array of paths", 31120 if is_array(source) else 31002)
    return parse_projection(dict.fromkeys(paths, 0), stage=True)


class _Leaves:
    """Collects the leaves of a projection and what they have in common."""

    def __init__(self, names: Names, *, stage: bool, additions: bool = False) -> None:
        self.names = names
        self.stage = stage
        self.additions = additions
        self.tree: Tree = {}
        self.inclusive: bool | None = None
        self.picks = False
        self.computes = False
        self.positional = False

    def read(self, source: Mapping[str, Any], prefix: tuple[str, ...], depth: int) -> None:
        if depth > DEPTH_MAX:
            raise _refused(f"projection is nested too deep. expected=at most {DEPTH_MAX} levels", 15)
        for name, value in source.items():
            parts = parse_path(name)
            if parts[-1] == "$" and len(parts) > 1 and not self.stage and not prefix:
                self._add_positional(parts[:-1], value)
                continue
            path = (*prefix, *parts)
            for part in path:
                if not part:
                    code = 15998 if name else 40352
                    raise _refused(f"a projection's path has a name in each part. got={name!r}", code)
                if part.startswith("$"):
                    raise _refused(f"a projection's path has plain names. got={name!r}", 16410)
            if is_document(value) and value and not next(iter(value)).startswith("$"):
                self.read(value, path, depth + 1)
            else:
                self._add(path, self._leaf(path, value))

    def _leaf(self, path: tuple[str, ...], value: Any) -> Leaf:
        if not self.additions and (
            isinstance(value, bool) or (not is_document(value) and value is not None and is_number(value))
        ):
            return self._keep(path, bool(number_of(value)))
        if is_document(value) and len(value) == 1 and not self.stage:
            match next(iter(value.items())):
                case ("$slice", argument) if not is_array(argument) or all(map(_is_plain_number, argument)):
                    return _slice(argument)
                case ("$elemMatch", condition) if len(path) == 1:
                    self.picks = True
                    return _first_element(path[0], condition)
                case ("$elemMatch", _):
                    raise _refused(f"$elemMatch takes a field of the top level. got={'.'.join(path)}", 31275)
        if is_document(value) and not value:
            raise _refused("a projection has no empty document", 51270)
        self._mode(path, inclusive=True, computes=True)
        self.computes = True
        return Computed(compiled(parse_expression(value, self.names)))

    def _keep(self, path: tuple[str, ...], wanted: bool) -> Keep:
        if path != ("_id",):
            self._mode(path, inclusive=wanted, computes=False)
        return Keep(wanted)

    def _mode(self, path: tuple[str, ...], *, inclusive: bool, computes: bool) -> None:
        if self.additions:
            return
        if self.inclusive is not None and self.inclusive != inclusive:
            code = 31252 if computes else 31253 if inclusive else 31254
            raise _refused(f"a projection includes or excludes. got=both, at {'.'.join(path)}", code)
        self.inclusive = inclusive

    def _add_positional(self, path: tuple[str, ...], value: Any) -> None:
        if self.positional:
            raise _refused("a projection has one positional $", 31276)
        if is_document(value) or not (isinstance(value, bool) or is_number(value)) or not number_of(value):
            raise _refused("the positional $ of a projection is included", 31271)
        self.positional = True
        self._mode(path, inclusive=True, computes=False)
        self._add(path, Matched())

    def _add(self, path: tuple[str, ...], leaf: Leaf) -> None:
        tree = self.tree
        for part in path[:-1]:
            below = tree.setdefault(part, {})
            if not isinstance(below, dict):
                raise _refused(f"a projection names a path inside another. got={'.'.join(path)}", 31249)
            tree = below
        if path[-1] in tree:
            raise _refused(f"a projection names a path inside another. got={'.'.join(path)}", 31250)
        tree[path[-1]] = leaf


def _is_plain_number(value: Any) -> bool:
    return not isinstance(value, bool | str) and not is_document(value) and value is not None and is_number(value)


def _slice(argument: Any) -> Slice:
    numbers = list(argument) if is_array(argument) else [argument]
    if not all(_is_plain_number(item) and math.isfinite(number_of(item)) for item in numbers):
        raise _refused(f"$slice takes numbers. got={argument!r}", 28667)
    whole = [int(number_of(item)) for item in numbers]
    if not is_array(argument):
        return Slice(0, whole[0]) if whole[0] >= 0 else Slice(whole[0], None)
    if len(whole) != 2 or whole[1] <= 0:
        raise _refused(f"$slice takes a count or [skip, positive count]. got={argument!r}", 28724)
    return Slice(whole[0], whole[1])


def _first_element(name: str, condition: Any) -> FirstElement:
    # The same syntax as in filters, so the filter's parser reads it; here it is asked element by element.
    node = parse_filter({name: {"$elemMatch": condition}})
    passes = matcher(node)
    return FirstElement(lambda element: passes({name: [element]}))


def _document(document: Mapping[str, Any], tree: Mapping[str, Any], inclusive: bool, given: _Given) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in document.items():
        leaf = tree.get(name)
        if leaf is None:
            if not inclusive:
                kept[name] = value
        elif not inclusive or not isinstance(leaf, Computed):
            projected = _value(value, leaf, inclusive, given)
            if projected is not MISSING:
                kept[name] = projected
    # What is computed and was not there comes after what was, in the projection's order.
    for name, leaf in tree.items():
        if isinstance(leaf, Keep) or (not inclusive and name in document):
            continue
        if isinstance(leaf, Computed):
            projected = leaf.value(given.root, given.scope)
        elif name not in document and type(leaf) is dict and _computes(leaf):
            projected = _below(MISSING, leaf, inclusive, given)
        else:
            continue
        if projected is not MISSING:
            kept[name] = projected
    return kept


def _computes(tree: Any) -> bool:
    return any(isinstance(leaf, Computed) or (type(leaf) is dict and _computes(leaf)) for leaf in tree.values())


def _value(value: Any, leaf: Any, inclusive: bool, given: _Given) -> Any:
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
        case Matched():
            return _matched(value, given.offset)
        case Computed(compute):
            return compute(given.root, given.scope)
        case _:
            return _below(value, leaf, inclusive, given)


def _matched(value: Any, offset: int | None) -> Any:
    if not is_array(value):
        return value
    if offset is None or offset >= len(value):
        raise _refused("the positional $ has no element: the filter matched none of this array", 51246)
    return [value[offset]]


def _below(value: Any, tree: Mapping[str, Any], inclusive: bool, given: _Given) -> Any:
    if is_document(value):
        return _document(value, tree, inclusive, given)
    if is_array(value):
        # Scalars have no such fields: an inclusion drops them, an exclusion has nothing to take away.
        projected = (_below(element, tree, inclusive, given) for element in value)
        return [element for element in projected if element is not MISSING]
    if _computes(tree):
        return _document({}, tree, inclusive, given)
    return MISSING if inclusive else value


def _sliced(array: Any, skip: int, limit: int | None) -> list[Any]:
    start = max(len(array) + skip, 0) if skip < 0 else skip
    return list(array[start:] if limit is None else array[start : start + limit])
