"""From the update language to instructions. Owns its syntax, array filters, and conflicts seen without a document."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from mainstem.documents.aggregation.pipeline import Pipeline, compile_pipeline
from mainstem.documents.errors import Refused
from mainstem.documents.expressions import NO_NAMES, Names
from mainstem.documents.filters.match import matcher
from mainstem.documents.paths import Path, is_index, parse_path
from mainstem.documents.updates.operators import OPERATORS, Instruction, invalid
from mainstem.documents.values import order_key
from mainstem.model.errors import Invalid

INSTRUCTIONS_MAX = 10_000
_FILTERED = re.compile(r"\$\[([a-z][A-Za-z0-9]*)?\]")
_NAME = re.compile(r"[a-z][A-Za-z0-9]*")


class Replacement(msgspec.Struct, frozen=True):
    """A whole new document."""

    document: Mapping[str, Any]


class Operators(msgspec.Struct, frozen=True):
    """Operators on paths."""

    instructions: tuple[Instruction, ...]
    array_filters: Mapping[str, Callable[[Any], bool]]


class Stages(msgspec.Struct, frozen=True):
    """An update by a pipeline: the document goes in, the new one comes out."""

    pipeline: Pipeline


Update = Replacement | Operators | Stages
UPDATE_STAGES = frozenset({"$addFields", "$set", "$project", "$unset", "$replaceRoot", "$replaceWith"})


def parse_update(
    source: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    array_filters: Sequence[Mapping[str, Any]] = (),
    names: Names = NO_NAMES,
) -> Update:
    """Read an update: all names are operators, or none is and it is a replacement; an array is a pipeline.

    `names` are the variables that a pipeline may use.
    """
    if isinstance(source, list | tuple):
        if array_filters:
            raise invalid("a pipeline takes no array filters")
        for item in source:
            if isinstance(item, Mapping) and len(item) == 1 and not UPDATE_STAGES & set(item):
                raise Refused(f"an update's pipeline has no such stage. got={next(iter(item))}", code=72)
        return Stages(compile_pipeline(source, names))
    if not isinstance(source, Mapping):
        raise invalid(f"an update is a document. got={type(source).__name__}")
    marked = [name.startswith("$") for name in source]
    if not any(marked):
        if array_filters:
            raise invalid("a replacement takes no array filters")
        order_key(source)
        return Replacement(source)
    if not all(marked):
        raise invalid(f"an update has operators or fields. got={list(source)[:5]}")
    instructions = [item for name, fields in source.items() for item in _instructions(name, fields)]
    if len(instructions) > INSTRUCTIONS_MAX:
        raise invalid(f"update is too large. expected=at most {INSTRUCTIONS_MAX} got={len(instructions)}")
    _check_conflicts(instructions)
    return Operators(tuple(instructions), _array_filters(array_filters, instructions))


def _instructions(operator: str, fields: Any) -> list[Instruction]:
    if operator != "$rename" and operator not in OPERATORS:
        raise invalid(f"unknown update operator. got={operator}")
    if not isinstance(fields, Mapping):
        raise invalid(f"{operator} takes a document of fields. got={type(fields).__name__}")
    if operator == "$rename":
        return [_renaming(name, target) for name, target in fields.items()]
    return [
        Instruction(_path(name), OPERATORS[operator](operator, operand), only_inserting=operator == "$setOnInsert")
        for name, operand in fields.items()
    ]


def _renaming(name: str, target: Any) -> Instruction:
    if not isinstance(target, str):
        raise invalid(f"$rename takes the new path. got={type(target).__name__}")
    path, new = _path(name), _path(target)
    if any(part.startswith("$") for part in (*path, *new)):
        raise invalid(f"$rename takes no array updates. got={name} to {target}")
    if path == new:
        raise invalid(f"$rename needs another name. got={name}")
    return Instruction(path, lambda before, moment: before, target=new)


def _path(name: str) -> Path:
    path = parse_path(name)
    for at, part in enumerate(path):
        if not part:
            raise invalid(f"an update's path has a name in each part. got={name!r}", 56)
        if part.startswith("$") and (at == 0 or (part != "$" and not _FILTERED.fullmatch(part))):
            raise invalid(f"an update's path has $, $[] or $[name] after a field. got={name!r}", 2 if at == 0 else 52)
    if path.count("$") > 1:
        raise invalid(f"an update's path has one positional $. got={name!r}")
    return path


def place_key(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Paths in the order in which new fields appear: numbers by value, before names."""
    return tuple((0, int(part), part) if is_index(part) else (1, 0, part) for part in path)


def _check_conflicts(instructions: list[Instruction]) -> None:
    paths = [item.path for item in instructions]
    paths += [item.target for item in instructions if item.target is not None]
    paths.sort(key=place_key)
    for path, other in itertools.pairwise(paths):
        if other[: len(path)] == path:
            raise Invalid(f"two operators would change one place. got={'.'.join(other)}", reason="conflicting_update")


def _array_filters(
    sources: Sequence[Mapping[str, Any]], instructions: list[Instruction]
) -> dict[str, Callable[[Any], bool]]:
    found: dict[str, Callable[[Any], bool]] = {}
    for source in sources:
        names = _roots(source)
        if len(names) != 1:
            raise invalid(f"an array filter is about one name. got={sorted(names)}")
        name = names.pop()
        if not _NAME.fullmatch(name):
            raise invalid(f"an array filter's name starts with a small letter, then letters and digits. got={name!r}")
        if name in found:
            raise invalid(f"two array filters have one name. got={name}")
        found[name] = matcher(source)
    used = {part[2:-1] for item in instructions for part in item.path if part.startswith("$[")} - {""}
    if missing := used - found.keys():
        raise invalid(f"no array filter for a name in a path. got={sorted(missing)}", 2)
    if unused := found.keys() - used:
        raise invalid(f"an array filter is not used in any path. got={sorted(unused)}")
    return found


def _roots(source: Any) -> set[str]:
    """The first parts of all the paths in a filter, whose syntax the filter's own parser checks."""
    if not isinstance(source, Mapping):
        raise invalid(f"an array filter is a document. got={type(source).__name__}")
    names: set[str] = set()
    for name, value in source.items():
        if name in ("$and", "$or", "$nor"):
            names.update(*(_roots(item) for item in value)) if isinstance(value, list | tuple) else None
        else:
            names.add(name.partition(".")[0])
    return names
