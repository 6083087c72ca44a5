"""How the documents of a filter are found: by id, by an index, or one after another. Decides; `reading` does it.

What is chosen may bring more documents than the filter lets through, never fewer: every one is matched afterwards.
"""

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from mainstem.documents.filters.ast import And, Compare, Exists, Field, Node, OneOf, Op, Test
from mainstem.documents.filters.parse import parse_filter
from mainstem.documents.paths import Path
from mainstem.documents.values import is_array
from mainstem.feeds.documents.indexes import Entries, Index, IndexField
from mainstem.feeds.documents.state import Collection
from mainstem.model.errors import Invalid
from mainstem.wire.mongo.ordered import after, ordered, reversed_order

RANGES_MAX = 2_000
_ID: Path = ("_id",)
_RANGE_OPS = (Op.GT, Op.GTE, Op.LT, Op.LTE)


class Range(NamedTuple):
    """low <= bytes < high."""

    low: bytes
    high: bytes


_ALL = Range(b"", b"\xff" * 8)


class Access(msgspec.Struct, frozen=True):
    """A way to the documents. Without ranges it is a scan; with an index they are of its entries, else of ids."""

    index: Index | None = None
    ranges: tuple[Range, ...] | None = None
    backwards: bool = False
    # Whether the documents come in the order that was asked for.
    is_sorted: bool = False

    @property
    def stage(self) -> str:
        """As `explain` calls it."""
        if self.index is not None:
            return "IXSCAN"
        if self.ranges is None:
            return "COLLSCAN"
        return "IDHACK" if len(self.ranges) == 1 and self.ranges[0].high == self.ranges[0].low + b"\x00" else "IXSCAN"


def choose(collection: Collection, node: Node, sort: Mapping[str, Any] | None = None, hint: Any = None) -> Access:
    """The best way there is. Raises Invalid (`bad_hint`) for a hint that names none."""
    conditions = _conditions(node)
    wants_id = list(sort) == ["_id"] if sort else False
    backwards = wants_id and sort is not None and sort["_id"] == -1
    if hint is not None:
        return _hinted(collection, hint, conditions, backwards and wants_id, wants_id)
    ids = _id_ranges(conditions)
    if ids is not None:
        in_order = wants_id and len(ids) == 1
        return Access(None, ids, in_order and backwards, in_order)
    best: Access | None = None
    best_score = (0, 0, False)
    for entries in collection.indexes:
        found = _by_index(entries, conditions)
        if found is not None:
            access = _ordered(collection, found[1], found[0][0], sort)
            score = (*found[0], access.is_sorted)
            if score > best_score:
                best_score, best = score, access
    if best is not None:
        return best
    for entries in collection.indexes if sort else ():
        # Every document has an entry in it, unless it is sparse or partial.
        if entries.index.partial is None and not entries.index.sparse:
            walked = _ordered(collection, Access(entries.index, (_ALL,)), 0, sort)
            if walked.is_sorted:
                return walked
    if wants_id:
        return Access(None, (Range(b"", b"\xff"),), backwards, True)
    natural = sort.get("$natural") if sort else None
    return Access(backwards=natural == -1, is_sorted=natural is not None)


def _ordered(collection: Collection, access: Access, points: int, sort: Mapping[str, Any] | None) -> Access:
    """The same access in the direction of the sort, where walking the index gives its order: the sort's fields follow
    those that have one value each, all in the index's directions or all in the other, and none holds an array."""
    index = access.index
    if not sort or index is None or access.ranges is None or len(access.ranges) != 1:
        return access
    fields = index.fields[points : points + len(sort)]
    if len(fields) < len(sort) or index.is_hashed or may_repeat(collection, index):
        return access
    flipped = set()
    for field, (name, direction) in zip(fields, sort.items(), strict=True):
        if field.name != name or direction not in (1, -1):
            return access
        flipped.add(field.descending == (direction == 1))
    if len(flipped) != 1:
        return access
    return Access(index, access.ranges, flipped.pop(), is_sorted=True)


def may_repeat(collection: Collection, index: Index) -> bool:
    """Whether a document may have several entries in an index, by the types that its fields have had."""
    known = collection.fields
    types = [known.types.get(field.path[0], set()) for field in index.fields]
    is_plain = all(len(field.path) == 1 for field in index.fields)
    return not known.is_known or not is_plain or any("array" in each for each in types)


def _hinted(
    collection: Collection, hint: Any, conditions: dict[Path, list[Test]], backwards: bool, wants_id: bool
) -> Access:
    if isinstance(hint, Mapping) and "$natural" in hint:
        return Access(backwards=hint["$natural"] == -1)
    if hint in ("_id_", {"_id": 1}):
        ranges = _id_ranges(conditions) or (Range(b"", b"\xff"),)
        in_order = wants_id and len(ranges) == 1
        return Access(None, ranges, in_order and backwards, in_order)
    for entries in collection.indexes:
        index = entries.index
        keys = list(index.document["key"].items())
        if hint == index.name or (isinstance(hint, Mapping) and list(hint.items()) == keys):
            found = _by_index(entries, conditions)
            if found is not None:
                return found[1]
            # MongoDB walks all of a sparse or partial index then, and leaves out what that does not have.
            return Access(index, (_ALL,))
    raise Invalid(f"planner returned error: bad hint. got={hint!r}", reason="bad_hint")


def _conditions(node: Node) -> dict[Path, list[Test]]:
    """The tests that every document must pass, by path."""
    found: dict[Path, list[Test]] = {}
    for field in _fields(node):
        found.setdefault(field.path, []).append(field.test)
    return found


def _fields(node: Node) -> Iterator[Field]:
    if isinstance(node, Field):
        yield node
    elif isinstance(node, And):
        for child in node.children:
            yield from _fields(child)


def _id_ranges(conditions: dict[Path, list[Test]]) -> tuple[Range, ...] | None:
    tests = conditions.get(_ID)
    if tests is None:
        return None
    points = _points(tests)
    if points is not None:
        # Sorted, so that ids come in order; each is a single value.
        return tuple(Range(point, point + b"\x00") for point in sorted(set(points)))
    bounds = _bounds(tests)
    return None if bounds is None else (bounds,)


def _by_index(entries: Entries, conditions: dict[Path, list[Test]]) -> tuple[tuple[int, int], Access] | None:
    index = entries.index
    if index.partial is not None and not _implies(conditions, parse_filter(index.partial)):
        return None
    prefixes: list[list[bytes]] = []
    last: Range | None = None
    for field in index.fields:
        tests = conditions.get(field.path)
        if tests is None:
            break
        points = _points(tests)
        if points is not None and not (index.sparse and not prefixes and _allows_null(tests)):
            prefixes.append(sorted({_point(field, point) for point in points}))
            continue
        bounds = None if field.hashed else _bounds(tests)
        if bounds is not None:
            last = _reversed(bounds) if field.descending else bounds
        break
    if not prefixes and last is None:
        return None
    count = 1
    for points in prefixes:
        count *= len(points)
    if count > RANGES_MAX:
        return None
    ranges = []
    for parts in itertools.product(*prefixes):
        prefix = b"".join(parts)
        ranges.append(Range(prefix, after(prefix)) if last is None else Range(prefix + last.low, prefix + last.high))
    return (len(prefixes), int(last is not None)), Access(index, tuple(ranges))


def _point(field: IndexField, encoded: bytes) -> bytes:
    if field.hashed:
        return hashlib.blake2b(encoded, digest_size=8).digest()
    return reversed_order(encoded) if field.descending else encoded


def _points(tests: list[Test]) -> list[bytes] | None:
    """The values that a path may have, where the tests name them."""
    for test in tests:
        match test:
            case Compare(Op.EQ, operand) if _is_plain(operand):
                return [ordered(operand)]
            case OneOf(operands, ()) if len(operands) <= RANGES_MAX and all(map(_is_plain, operands)):
                return [ordered(operand) for operand in operands]
            case _:
                pass
    return None


def _allows_null(tests: list[Test]) -> bool:
    return any(
        (isinstance(test, Compare) and test.operand is None)
        or (isinstance(test, OneOf) and any(operand is None for operand in test.operands))
        for test in tests
    )


def _bounds(tests: list[Test]) -> Range | None:
    """The least range of one type that holds what the tests let through. Only one side may be used: an array may have
    one element for each."""
    for test in tests:
        if not isinstance(test, Compare) or test.op not in _RANGE_OPS or not _is_plain(test.operand):
            continue
        if test.operand is None:
            continue
        encoded = ordered(test.operand)
        kind = encoded[0]
        if kind in (0x01, 0xF0):
            # MinKey and MaxKey stand in relation to every type.
            continue
        if test.op in (Op.GT, Op.GTE):
            low, high = encoded, bytes([kind + 1])
        else:
            # No longer than the entry of the operand itself: `_reversed` would leave that out.
            low, high = bytes([kind]), after(encoded) if test.op is Op.LTE else encoded
        return Range(low, high)
    return None


def _reversed(bounds: Range) -> Range:
    return Range(reversed_order(bounds.high), after(reversed_order(bounds.low)))


def _is_plain(operand: Any) -> bool:
    return not is_array(operand) and not isinstance(operand, Mapping) and type(operand).__name__ != "Regex"


def _implies(conditions: dict[Path, list[Test]], partial: Node) -> bool:
    """Whether whatever passes the conditions is covered by a partial index: shown test by test, or not at all."""
    fields = list(_fields(partial))
    if not isinstance(partial, And | Field) or (isinstance(partial, And) and len(fields) != len(partial.children)):
        return False
    for field in fields:
        tests = conditions.get(field.path, [])
        if field.test in tests:
            continue
        wants_presence = isinstance(field.test, Exists)
        if wants_presence and any(isinstance(test, Compare) and test.operand is not None for test in tests):
            continue
        return False
    return True
