"""Declaring a table's columns and partitions from outside, as changes of its metadata. Pure: documents in, updates out.

A document is Iceberg's table metadata, an update one of the REST protocol's. The pipeline finds what was declared in
the table itself: columns without a remembered kind have a declared type, and values that do not fit it are dead
letters.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mainstem.model.errors import Conflict, Invalid
from mainstem.tables.evolution import TABLE_COLUMNS_MAX
from mainstem.tables.layout import (
    KEY,
    KINDS_PROPERTY,
    STATE_COLUMNS,
    TYPES_PROPERTY,
    column_name,
    state_properties,
    stored_name,
)
from mainstem.tables.marks import positions_of
from mainstem.tables.partitions import (
    PARTITION_PROPERTY,
    Waiting,
    applicable,
    field_name,
    iceberg_transform,
    source_of,
)
from mainstem.tables.settings import TableSettings, Transform, parse_partition, parse_transform
from mainstem.tables.types import ColumnType, Kind, widens_in_place

Document = dict[str, Any]

_LAST_ADDED = -1
# A write of the pipeline's session to such a table is staged first.
_STAGED = {"write.wap.enabled": "true"}


@dataclass(frozen=True, slots=True)
class NewState:
    """A state table that does not exist yet."""

    schema: Document
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class Partitioning:
    """What was asked for, what of it the table has now, and what waits for its column."""

    wanted: tuple[Transform, ...]
    now: tuple[Transform, ...]
    waiting: tuple[Waiting, ...]


def new_state(columns: Mapping[str, ColumnType], settings: TableSettings) -> NewState:
    """A table with declared columns, as the pipeline would make it."""
    _check_count(len(columns))
    pairs = [(stored_name(name), kind) for name, kind in columns.items()] + list(STATE_COLUMNS)
    fields = [
        {"id": number, "name": name, "required": False, "type": str(kind)}
        for number, (name, kind) in enumerate(pairs, start=1)
    ]
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    staged = _STAGED if settings.format_version == 2 else {}
    return NewState(schema, {**state_properties(settings), **staged, KINDS_PROPERTY: "{}"})


def column_updates(document: Document, columns: Mapping[str, ColumnType]) -> list[Document]:
    """Add columns, or declare the types of some that are there. Raises Conflict where that would need a rewrite."""
    schema = _current_schema(document)
    fields = [dict(field) for field in schema["fields"]]
    places = {field["name"]: index for index, field in enumerate(fields)}
    kinds = _kinds(document)
    added = []
    next_id = document["last-column-id"]
    for name, wanted in columns.items():
        stored = stored_name(name)
        kinds.pop(name, None)
        if stored not in places:
            next_id += 1
            added.append({"id": next_id, "name": stored, "required": False, "type": str(wanted)})
            continue
        field = fields[places[stored]]
        there = ColumnType(str(field["type"]).replace(" ", ""))
        if there != wanted and not widens_in_place(there, wanted):
            raise Conflict(
                f"the column is there with another type. column={name} expected={there} got={wanted}; "
                "declared in the configuration, text and double are reached by a rewrite"
            )
        field["type"] = str(wanted)
    _check_count(len(fields) + len(added) - len(STATE_COLUMNS))
    # The row's own columns come first.
    at = places.get(KEY, len(fields))
    changed = {**schema, "fields": [*fields[:at], *added, *fields[at:]]}
    updates: list[Document] = [
        {"action": "set-properties", "updates": {KINDS_PROPERTY: json.dumps(kinds, sort_keys=True)}}
    ]
    if changed["fields"] != schema["fields"]:
        updates += [
            {"action": "add-schema", "schema": changed, "last-column-id": next_id},
            {"action": "set-current-schema", "schema-id": _LAST_ADDED},
        ]
    return updates


def partition_updates(document: Document, wanted: Sequence[Transform]) -> list[Document]:
    """Partition by what can be had now, and remember the rest for later."""
    fields = _current_schema(document)["fields"]
    ids = {field["name"]: field["id"] for field in fields}
    now = partitioning(document, wanted).now
    spec = [
        {"name": field_name(each), "transform": iceberg_transform(each), "source-id": ids[source_of(each)]}
        for each in now
    ]
    texts = json.dumps([str(each) for each in wanted])
    return [
        {"action": "set-properties", "updates": {PARTITION_PROPERTY: texts}},
        {"action": "add-spec", "spec": {"fields": spec}},
        {"action": "set-default-spec", "spec-id": _LAST_ADDED},
    ]


def partitioning(document: Document, wanted: Sequence[Transform] | None = None) -> Partitioning:
    """How a table's partitioning stands; what is wanted comes from its own properties where it is not given."""
    if wanted is None:
        text = document["properties"].get(PARTITION_PROPERTY)
        wanted = parse_partition(json.loads(text)) if text else ()
    fields = _current_schema(document)["fields"]
    types = {field["name"]: ColumnType(str(field["type"]).replace(" ", "")) for field in fields}
    undecided = frozenset(stored_name(name) for name, kind in _kinds(document).items() if kind == Kind.NULL)
    sources = {field["id"]: field["name"] for field in fields}
    known = {
        (field["name"], sources.get(field["source-id"], ""), field["transform"])
        for spec in document["partition-specs"]
        for field in spec["fields"]
        if "source-id" in field and field["transform"] != "void"
    }
    now, waiting = applicable(wanted, types, undecided, known)
    return Partitioning(tuple(wanted), now, waiting)


def transform_of(field: Any) -> Transform:
    """A partition field as a request writes it: `day(ts) as dt`, or `{"type": "day", "sourceField": "ts"}`."""
    if isinstance(field, str):
        return parse_transform(field)
    if not isinstance(field, dict):
        raise Invalid(f"partition field. expected=a text or an object got={type(field).__name__}")
    kind, source = field.get("type", "identity"), field.get("sourceField", field.get("source"))
    size = field.get("numBuckets", field.get("width", field.get("size")))
    if not isinstance(kind, str) or not isinstance(source, str):
        raise Invalid("partition field. expected=type and sourceField as texts")
    inner = source if size is None else f"{size}, {source}"
    name = field.get("name")
    return parse_transform(f"{kind}({inner})" + (f" as {name}" if name is not None else ""))


def schema_history(document: Document) -> list[Document]:
    """Every schema that the table has had, the newest first, with what changed and which snapshot first had it."""
    found = []
    before: dict[int, Document] = {}
    first: dict[int, Document] = {}
    for snapshot in sorted(document["snapshots"], key=lambda each: int(each["timestamp-ms"])):
        first.setdefault(snapshot.get("schema-id", -1), snapshot)
    declared = _declared(document)
    for schema in sorted(document["schemas"], key=lambda each: int(each["schema-id"])):
        fields = {field["id"]: field for field in schema["fields"]}
        is_current = schema["schema-id"] == document["current-schema-id"]
        snapshot = first.get(schema["schema-id"])
        entry: Document = {
            "schema-id": schema["schema-id"],
            "is-current": is_current,
            "fields": [
                {"id": field["id"], "name": field["name"], "type": field["type"]}
                | ({"is-declared": field["name"] in declared} if is_current else {})
                for field in schema["fields"]
            ],
            "changes": _changes(before, fields) if before else [],
        }
        if snapshot is not None:
            entry |= {
                "first-snapshot-id": str(snapshot["snapshot-id"]),
                "first-used-ms": snapshot["timestamp-ms"],
                "positions": dict(positions_of(snapshot.get("summary") or {})),
            }
        found.append(entry)
        before = fields
    return list(reversed(found))


def column_types(document: Document) -> dict[str, ColumnType | None] | None:
    """The types of a state table's columns, by the rows' own names; None for one that held only nulls so far, and for
    a table that is none of ours."""
    fields = {field["name"]: field["type"] for field in _current_schema(document)["fields"]}
    if KEY not in fields:
        return None
    own, kinds = {name for name, _ in STATE_COLUMNS}, _kinds(document)
    types = {column_name(name): str(kind).replace(" ", "") for name, kind in fields.items() if name not in own}
    return {name: None if kinds.get(name) == Kind.NULL else ColumnType(kind) for name, kind in types.items()}


def declared_types(document: Document) -> dict[str, ColumnType]:
    """The declared types of a state table's columns, by the rows' own names; nothing for a table that is none."""
    kinds = _kinds(document)
    return {name: kind for name, kind in stored_types(document).items() if name not in kinds}


def stored_types(document: Document) -> dict[str, ColumnType]:
    """The types of a state table's columns, by the rows' own names; nothing for a table that is none. A table in Delta
    is told of by a document of the same shape, and says its types itself."""
    fields = {field["name"]: field["type"] for field in _current_schema(document)["fields"]}
    if KEY not in fields:
        return {}
    own = {name for name, _ in STATE_COLUMNS}
    # Delta's own documents have no uuid: the property says nothing of a table in Iceberg.
    said = None if "table-uuid" in document else json.loads(document["properties"].get(TYPES_PROPERTY) or "{}")
    types = {name: kind for name, kind in fields.items() if name not in own} if said is None else said
    return {column_name(name): ColumnType(str(kind).replace(" ", "")) for name, kind in types.items()}


def _changes(before: Mapping[int, Document], after: Mapping[int, Document]) -> list[Document]:
    found: list[Document] = []
    for field_id, field in after.items():
        old = before.get(field_id)
        if old is None:
            found.append({"change": "added", "column": field["name"], "type": field["type"]})
            continue
        if old["type"] != field["type"]:
            found.append({"change": "widened", "column": field["name"], "from": old["type"], "type": field["type"]})
        if old["name"] != field["name"]:
            found.append({"change": "renamed", "column": field["name"], "from": old["name"]})
    gone = [old for field_id, old in before.items() if field_id not in after]
    return found + [{"change": "removed", "column": old["name"], "type": old["type"]} for old in gone]


def _declared(document: Document) -> set[str]:
    own = {name for name, _ in STATE_COLUMNS}
    kinds = _kinds(document)
    names = {str(field["name"]) for field in _current_schema(document)["fields"]}
    return {name for name in names - own if column_name(name) not in kinds}


def _current_schema(document: Document) -> Document:
    schema: Document = next(each for each in document["schemas"] if each["schema-id"] == document["current-schema-id"])
    return schema


def _kinds(document: Document) -> dict[str, str]:
    kinds: dict[str, str] = json.loads(document["properties"].get(KINDS_PROPERTY) or "{}")
    return kinds


def _check_count(columns: int) -> None:
    if columns > TABLE_COLUMNS_MAX:
        raise Invalid(f"too many columns. expected=at most {TABLE_COLUMNS_MAX} got={columns}")
