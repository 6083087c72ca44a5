"""What an update changed, as a change stream tells it: fields set, fields removed, arrays cut.

Made of the document before and the one after, so that it is the same whichever way the update was written.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from bson import encode

from mainstem.documents.values import identical, is_array, is_document


class Difference(msgspec.Struct, frozen=True):
    """Dotted paths with their new values, paths that are gone, and arrays with their new lengths."""

    updated: dict[str, Any]
    removed: list[str]
    truncated: list[tuple[str, int]]

    def description(self) -> dict[str, Any]:
        """As `updateDescription` of a change event."""
        return {
            "updatedFields": self.updated,
            "removedFields": self.removed,
            "truncatedArrays": [{"field": path, "newSize": size} for path, size in self.truncated],
        }


class _Step(NamedTuple):
    path: str
    kind: str
    value: Any


def difference(before: Any, after: Any) -> Difference:
    """What has to be done to the document before to come to the one after."""
    steps = list(_documents(before, after, ""))
    return Difference(
        {step.path: step.value for step in steps if step.kind == "set"},
        [step.path for step in steps if step.kind == "removed"],
        [(step.path, step.value) for step in steps if step.kind == "cut"],
    )


def _documents(before: Any, after: Any, prefix: str) -> Iterator[_Step]:
    for name in before:
        if name not in after:
            yield _Step(prefix + name, "removed", None)
    for name, value in after.items():
        if name not in before:
            yield _Step(prefix + name, "set", value)
        elif not identical(before[name], value):
            yield from _values(before[name], value, prefix + name)


def _values(before: Any, after: Any, path: str) -> Iterator[_Step]:
    """Steps inside a value, where they are shorter than the value and leave its fields in their order."""
    steps: list[_Step] | None = None
    if is_document(before) and is_document(after) and before and _in_order(before, after):
        steps = list(_documents(before, after, f"{path}."))
    elif is_array(before) and is_array(after) and before and after:
        steps = list(_arrays(before, after, path))
    whole = _Step(path, "set", after)
    if steps is None or _size(steps) >= _size([whole]):
        yield whole
    else:
        yield from steps


def _in_order(before: Any, after: Any) -> bool:
    """Whether removing, changing in place and appending lead to the new order of fields."""
    kept = [name for name in before if name in after]
    # A name with a dot cannot be told from a path.
    return list(after)[: len(kept)] == kept and not any("." in name for name in (*before, *after))


def _arrays(before: Any, after: Any, path: str) -> Iterator[_Step]:
    for at, (old, new) in enumerate(zip(before, after, strict=False)):
        if not identical(old, new):
            yield from _values(old, new, f"{path}.{at}")
    if len(after) < len(before):
        yield _Step(path, "cut", len(after))
    for at in range(len(before), len(after)):
        yield _Step(f"{path}.{at}", "set", after[at])


def _size(steps: list[_Step]) -> int:
    return sum(len(step.path) + len(encode({"": step.value})) for step in steps)
