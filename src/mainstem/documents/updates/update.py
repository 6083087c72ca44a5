"""Updates: what was read and checked, applied to a document. `update_syntax` reads them, `update_operators` computes.

Owns paths inside updates: what `$`, `$[]` and `$[name]` stand for in one document, which paths are created on the
way, and that two operators never touch one place. Applying gives a whole new document or an error, never half of it.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mainstem.documents.aggregation.running import Run
from mainstem.documents.expressions import Scope
from mainstem.documents.filters.ast import And, Compare, Field, Node, OneOf, Op, Or
from mainstem.documents.filters.parse import parse_filter
from mainstem.documents.paths import Path, is_index
from mainstem.documents.updates.operators import REMOVE, Instruction, Moment, invalid
from mainstem.documents.updates.syntax import Operators, Replacement, Stages, Update, parse_update, place_key
from mainstem.documents.values import DEPTH_MAX, MISSING, date_of_ms, identical, is_array, is_document, same, type_name
from mainstem.model.errors import Invalid

# MongoDB's bound on the nulls that writing past an array's end may add.
PADDING_MAX = 1_500_000


class Updated(msgspec.Struct, frozen=True):
    """The new document and what changed: dotted paths that were set with their new values, and those removed."""

    document: dict[str, Any]
    modified: bool
    set: Mapping[str, Any] = {}
    removed: tuple[str, ...] = ()


def apply_update(
    update: Mapping[str, Any] | Sequence[Mapping[str, Any]] | Update,
    document: Mapping[str, Any],
    *,
    now_ms: int,
    array_filters: Sequence[Mapping[str, Any]] = (),
    offset: int | None = None,
    inserting: bool = False,
    scope: Scope | None = None,
) -> Updated:
    """Apply an update to one document, which stays as it is.

    `offset` is what the positional `$` stands for (`positional.matched_offset`). `inserting`: the document is being
    made by an upsert, so `$setOnInsert` counts. `scope` has the variables that a pipeline may use.
    """
    parsed = _parsed(update, array_filters, scope)
    if isinstance(parsed, Replacement):
        return _replaced(document, parsed)
    if isinstance(parsed, Stages):
        run = Run({"NOW": date_of_ms(now_ms), **(scope or {})})
        return _replaced(document, Replacement(next(parsed.pipeline.run([document], run))), by_pipeline=True)
    work = _Work(copied(document), Moment(now_ms, inserting), offset, parsed)
    work.run()
    if not same(work.document.get("_id"), document.get("_id", work.document.get("_id"))):
        raise Invalid("the field _id cannot change", reason="immutable_field")
    if "_id" in document and "_id" not in work.document:
        raise Invalid("the field _id cannot be removed", reason="immutable_field")
    return Updated(work.document, bool(work.set or work.removed), work.set, tuple(work.removed))


def upsert_seed(filter: Mapping[str, Any] | Node) -> dict[str, Any]:
    """The document that an upsert starts from: what the filter says a field equals."""
    said = sorted(
        _equalities(parse_filter(filter) if isinstance(filter, Mapping) else filter),
        key=lambda item: place_key(item[0]),
    )
    for (path, _), (other, _) in itertools.pairwise(said):
        if other[: len(path)] == path:
            raise invalid(f"the filter says twice what to insert. got={'.'.join(other)}")
    seed: dict[str, Any] = {}
    for path, value in said:
        _created(seed, path, copied(value))
    return seed


def _equalities(node: Node) -> Iterator[tuple[Path, Any]]:
    match node:
        case And(children):
            for child in children:
                yield from _equalities(child)
        case Or((only,)):
            yield from _equalities(only)
        case Field(path, Compare(Op.EQ, value)) | Field(path, OneOf((value,), ())):
            yield path, value
        case _:
            pass


def _parsed(
    update: Mapping[str, Any] | Sequence[Mapping[str, Any]] | Update,
    array_filters: Sequence[Mapping[str, Any]],
    scope: Scope | None,
) -> Update:
    if isinstance(update, Replacement | Operators | Stages):
        return update
    return parse_update(update, array_filters, frozenset(scope or ()))


def upsert_document(
    filter: Mapping[str, Any] | Node,
    update: Mapping[str, Any] | Sequence[Mapping[str, Any]] | Update,
    *,
    now_ms: int,
    new_id: Any,
    array_filters: Sequence[Mapping[str, Any]] = (),
    scope: Scope | None = None,
) -> dict[str, Any]:
    """The document that an upsert inserts where nothing matched. `new_id` is for one that has no _id of its own."""
    update = _parsed(update, array_filters, scope)
    seed = upsert_seed(parse_filter(filter, scope=scope) if isinstance(filter, Mapping) else filter)
    if isinstance(update, Replacement):
        seed = {name: value for name, value in seed.items() if name == "_id"}
    made = apply_update(update, seed, now_ms=now_ms, inserting=True, scope=scope).document
    return {"_id": made.get("_id", new_id), **{name: value for name, value in made.items() if name != "_id"}}


def _replaced(document: Mapping[str, Any], replacement: Replacement, *, by_pipeline: bool = False) -> Updated:
    new = copied(replacement.document)
    if by_pipeline and "_id" in document and "_id" not in new:
        raise Invalid("the field _id cannot be removed", reason="immutable_field")
    _check_depth(new, 0)
    if "_id" in document and not by_pipeline:
        new = {"_id": document["_id"], **new, **({"_id": new["_id"]} if "_id" in new else {})}
    if "_id" in document and not same(new["_id"], document["_id"]):
        raise Invalid("the field _id cannot change", reason="immutable_field")
    modified = not identical(new, dict(document))
    changed = {name: value for name, value in new.items() if name not in document or document[name] is not value}
    removed = tuple(name for name in document if name not in new)
    return Updated(new, modified, changed if modified else {}, removed)


def copied(value: Any) -> Any:
    """A copy that shares no document and no array with the original."""
    if type(value) in _LEAVES:
        return value
    if is_document(value):
        return {name: copied(item) for name, item in value.items()}
    return [copied(item) for item in value] if is_array(value) else value


_LEAVES = frozenset({str, int, float, bool, type(None)})


class _Work:
    """One document on its way through one update."""

    def __init__(self, document: dict[str, Any], moment: Moment, offset: int | None, update: Operators) -> None:
        self.document = document
        self.moment = moment
        self.offset = offset
        self.update = update
        self.set: dict[str, Any] = {}
        self.removed: list[str] = []

    def run(self) -> None:
        steps: list[tuple[Path, Instruction]] = []
        for instruction in self.update.instructions:
            if instruction.only_inserting and not self.moment.inserting:
                continue
            steps += [(path, instruction) for path in self._places(instruction.path)]
        # Fields that do not exist yet are added in this order, whatever the order in the update.
        steps.sort(key=lambda step: place_key(step[0]))
        _check_places(steps)
        for path, instruction in steps:
            if instruction.target is not None:
                self._rename(path, instruction.target)
            else:
                self._change(path, instruction)

    def _places(self, path: Path) -> list[Path]:
        """The path without wildcards: every place in this document that it stands for."""
        places: list[Path] = [()]
        for part in path:
            if part == "$":
                if self.offset is None:
                    raise invalid("the positional $ has no element. expected=a filter that matches inside an array", 2)
                places = [(*place, str(self.offset)) for place in places]
            elif part.startswith("$["):
                places = [(*place, str(index)) for place in places for index in self._elements(place, part)]
            else:
                places = [(*place, part) for place in places]
        return places

    def _elements(self, place: Path, part: str) -> list[int]:
        array, rest = _descend(self.document, place)
        if rest:
            raise invalid(f"the path must exist for array updates. got={'.'.join(place)}", 2)
        if not is_array(array):
            raise invalid(f"array updates need an array. got={'.'.join(place)}: {type_name(array)}", 2)
        name = part[2:-1]
        passes: Callable[[Any], bool] = self.update.array_filters[name] if name else lambda _: True
        return [index for index, element in enumerate(array) if passes({name: element})]

    def _change(self, path: Path, instruction: Instruction) -> None:
        parent, rest = _descend(self.document, path[:-1])
        before: Any = MISSING
        if not rest:
            before = _member(parent, path[-1])
        after = instruction.compute(before, self.moment)
        if after is before or (after is not REMOVE and before is not MISSING and identical(after, before)):
            return
        if after is REMOVE:
            if before is not MISSING:
                self._remove(parent, path)
            return
        _check_depth(after, len(path))
        # A copy: one operand may go to many places, and the update must stay as it was read.
        _created(self.document, path, copied(after))
        self.set[".".join(path)] = after

    def _remove(self, parent: Any, path: Path) -> None:
        if is_array(parent):
            # An element leaves a hole, so that the others keep their places.
            parent[int(path[-1])] = None
            self.set[".".join(path)] = None
        else:
            del parent[path[-1]]
            self.removed.append(".".join(path))

    def _rename(self, path: Path, target: Path) -> None:
        for end in (path, target):
            for length in range(1, len(end)):
                node, rest = _descend(self.document, end[:length])
                if not rest and is_array(node):
                    raise invalid(f"$rename cannot reach into an array. got={'.'.join(end)}")
        parent, rest = _descend(self.document, path[:-1])
        if not is_document(parent):
            raise invalid(f"$rename goes through what is no document. got={'.'.join(path)}: {type_name(parent)}")
        value = MISSING if rest else _member(parent, path[-1])
        if value is MISSING:
            return
        self._remove(parent, path)
        _created(self.document, target, value)
        self.set[".".join(target)] = value


def _check_places(steps: list[tuple[Path, Instruction]]) -> None:
    # Sorted, so a place and one inside it are neighbours up to other places inside it.
    for (path, _), (other, _) in itertools.pairwise(steps):
        if other[: len(path)] == path:
            raise Invalid(f"two operators would change one place. got={'.'.join(path)}", reason="conflicting_update")


def _member(parent: Any, part: str) -> Any:
    if is_document(parent):
        return parent.get(part, MISSING)
    if is_array(parent) and is_index(part) and int(part) < len(parent):
        return parent[int(part)]
    return MISSING


def _descend(root: Any, path: Path) -> tuple[Any, Path]:
    """As far along the path as the document goes, and the rest."""
    node = root
    for at, part in enumerate(path):
        below = _member(node, part)
        if below is MISSING:
            return node, path[at:]
        node = below
    return node, ()


def _created(root: dict[str, Any], path: Path, value: Any) -> None:
    """Set a value, and make the documents that are missing on the way."""
    node, rest = _descend(root, path[:-1])
    for part in rest:
        below: dict[str, Any] = {}
        _put(node, part, below, path)
        node = below
    _put(node, path[-1], value, path)


def _put(node: Any, part: str, value: Any, path: Path) -> None:
    if isinstance(node, dict):
        node[part] = value
        return
    if not isinstance(node, list) or not is_index(part):
        raise invalid(f"cannot create a field. expected=a document at {'.'.join(path)} got={type_name(node)}", 28)
    index = int(part) if len(part) <= 9 else PADDING_MAX + len(node) + 1
    if index - len(node) > PADDING_MAX:
        raise invalid(f"cannot write that far past an array's end. expected=at most {PADDING_MAX} got={part}")
    node.extend([None] * (index + 1 - len(node)))
    node[index] = value


def _check_depth(value: Any, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise Invalid(f"document is nested too deep. expected=at most {DEPTH_MAX} levels", reason="too_deep")
    if isinstance(value, Mapping):
        value = value.values()
    elif not is_array(value):
        return
    for item in value:
        _check_depth(item, depth + 1)
