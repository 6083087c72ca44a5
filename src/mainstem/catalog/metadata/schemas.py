"""Column ids inside schema documents: numbering them, finding them, binding partition and sort fields to them.

Types are walked by their shape (struct, list, map). Anything else is a leaf, whatever it is called, so a type of a
later spec goes through untouched.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from mainstem.model import Invalid

Document = dict[str, Any]


def assign_fresh_ids(schema: Document) -> tuple[Document, dict[int, int], int]:
    """Number every field from 1 in Iceberg's order: the fields of a struct first, then what is inside of them.

    Returns the new schema, old id to new id, and the highest id.
    """
    numbers = count(1)
    renumbered: dict[int, int] = {}

    def fresh(old: object) -> int:
        new = next(numbers)
        if isinstance(old, int):
            renumbered[old] = new
        return new

    new_schema = {**schema, **_renumber_struct(schema, fresh)}
    if identifiers := schema.get("identifier-field-ids"):
        unknown = [i for i in identifiers if i not in renumbered]
        if unknown:
            raise Invalid(f"schema has unknown identifier fields. expected=ids of its columns got={unknown}")
        new_schema["identifier-field-ids"] = [renumbered[i] for i in identifiers]
    return new_schema, renumbered, next(numbers) - 1


def _renumber(kind: Any, fresh: Callable[[object], int]) -> Any:
    match kind:
        case {"type": "struct"}:
            return _renumber_struct(kind, fresh)
        case {"type": "list"}:
            new = {**kind, "element-id": fresh(kind.get("element-id"))}
            new["element"] = _renumber(kind.get("element"), fresh)
            return new
        case {"type": "map"}:
            new = {**kind, "key-id": fresh(kind.get("key-id")), "value-id": fresh(kind.get("value-id"))}
            new["key"] = _renumber(kind.get("key"), fresh)
            new["value"] = _renumber(kind.get("value"), fresh)
            return new
        case _:
            return kind


def _renumber_struct(struct: Document, fresh: Callable[[object], int]) -> Document:
    fields = _fields(struct)
    ids = [fresh(field.get("id")) for field in fields]
    return {
        **struct,
        "fields": [
            {**field, "id": new_id, "type": _renumber(field["type"], fresh)}
            for field, new_id in zip(fields, ids, strict=True)
        ],
    }


def highest_field_id(schema: Document) -> int:
    """The highest id in use anywhere in the schema, 0 for a schema without columns."""
    return max(_walk_struct(schema), default=0)


def field_ids(schema: Document) -> set[int]:
    """The ids of all fields at every depth."""
    return set(_walk_struct(schema))


def _walk_struct(struct: Document) -> Iterator[int]:
    for field in _fields(struct):
        if isinstance(field.get("id"), int):
            yield field["id"]
        yield from _walk(field["type"])


def _walk(kind: Any) -> Iterator[int]:
    match kind:
        case {"type": "struct"}:
            yield from _walk_struct(kind)
        case {"type": "list", "element-id": int(element_id)}:
            yield element_id
            yield from _walk(kind.get("element"))
        case {"type": "map", "key-id": int(key_id), "value-id": int(value_id)}:
            yield key_id
            yield value_id
            yield from _walk(kind.get("key"))
            yield from _walk(kind.get("value"))
        case _:
            return


def _fields(struct: Document) -> list[Document]:
    fields = struct.get("fields")
    if not isinstance(fields, list):
        raise Invalid(f"struct has no fields. expected=a list got={type(fields).__name__}")
    for field in fields:
        if not isinstance(field, dict) or "type" not in field or not isinstance(field.get("name"), str):
            raise Invalid(f"field is incomplete. expected=id, name and type got={field!r:.200}")
    return fields


def bind_fields(fields: list[Document], renumbered: dict[int, int], what: str) -> list[Document]:
    """Point partition or sort fields at the new column ids."""
    return [_bind(field, renumbered, what) for field in fields]


def _bind(field: Document, renumbered: dict[int, int], what: str) -> Document:
    bound = dict(field)
    sources = [field["source-id"]] if "source-id" in field else list(field.get("source-ids", []))
    if not sources or any(source not in renumbered for source in sources):
        raise Invalid(f"Cannot find source column for {what} field: {field!r:.200}")
    if "source-id" in field:
        bound["source-id"] = renumbered[field["source-id"]]
    if "source-ids" in field:
        # Transforms of several columns are a thing of v3.
        bound["source-ids"] = [renumbered.get(source, source) for source in field["source-ids"]]
    return bound
