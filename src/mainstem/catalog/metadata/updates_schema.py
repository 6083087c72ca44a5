"""Updates of what a table looks like: format version, schemas, partition specs, sort orders."""

from typing import NamedTuple

from mainstem.catalog.metadata.draft import LAST_ADDED, Draft, need
from mainstem.catalog.metadata.schemas import Document, field_ids, highest_field_id
from mainstem.catalog.metadata.table import PARTITION_ID_START, ROW_LINEAGE_VERSION, by_id, check_format_version
from mainstem.model import Invalid


class _Choice(NamedTuple):
    """A section of which a table has one entry as its own: by which key, named where, and called what."""

    section: str
    key: str
    place: str
    role: str
    kind: str


_SCHEMA = _Choice("schemas", "schema-id", "current-schema-id", "current", "schema")
_SPEC = _Choice("partition-specs", "spec-id", "default-spec-id", "default partition", "spec")
_ORDER = _Choice("sort-orders", "order-id", "default-sort-order-id", "default", "sort order")


def upgrade_format_version(draft: Draft, update: Document) -> None:
    version = check_format_version(need(update, "format-version", int))
    current = draft.document["format-version"]
    if version < current:
        raise Invalid(f"Cannot downgrade v{current} table to v{version}")
    if version > current:
        draft.replace("format-version", version)
        if version >= ROW_LINEAGE_VERSION:
            # A snapshot may follow in the same commit.
            draft.document.setdefault("next-row-id", 0)


def add_schema(draft: Draft, update: Document) -> None:
    doc, schema = draft.document, need(update, "schema", dict)
    last_column_id = max(doc["last-column-id"], highest_field_id(schema), update.get("last-column-id") or 0)
    known = next((s for s in doc["schemas"] if same_schema(s, schema)), None)
    if known is not None:
        draft.schema_id_added = known["schema-id"]
    else:
        schema_id = max((s["schema-id"] for s in doc["schemas"]), default=-1) + 1
        draft.replace("schemas", [*doc["schemas"], {**schema, "schema-id": schema_id}])
        draft.schema_id_added = schema_id
    if last_column_id != doc["last-column-id"]:
        draft.replace("last-column-id", last_column_id)


def set_current_schema(draft: Draft, update: Document) -> None:
    _choose(draft, need(update, "schema-id", int), draft.schema_id_added, _SCHEMA)


def remove_schemas(draft: Draft, update: Document) -> None:
    gone = set(need(update, "schema-ids", list))
    if draft.document["current-schema-id"] in gone:
        raise Invalid("Cannot remove the current schema")
    _remove(draft, "schemas", "schema-id", gone)


def add_spec(draft: Draft, update: Document) -> None:
    doc, spec = draft.document, need(update, "spec", dict)
    fields = _fields(spec, "partition spec")
    known = next((s for s in doc["partition-specs"] if _same_spec(s["fields"], fields)), None)
    if known is not None:
        draft.spec_id_added = known["spec-id"]
        return
    _check_sources(draft, fields, "partition")
    numbered, last_id = _number_partition_fields(doc, fields)
    if doc["format-version"] == 1 and any(f["field-id"] != PARTITION_ID_START + i for i, f in enumerate(numbered)):
        raise Invalid(f"Spec does not use sequential IDs that are required in v1: {numbered!r:.200}")
    spec_id = max((s["spec-id"] for s in doc["partition-specs"]), default=-1) + 1
    draft.replace("partition-specs", [*doc["partition-specs"], {**spec, "spec-id": spec_id, "fields": numbered}])
    draft.replace("last-partition-id", max(doc["last-partition-id"], last_id))
    draft.spec_id_added = spec_id


def set_default_spec(draft: Draft, update: Document) -> None:
    _choose(draft, need(update, "spec-id", int), draft.spec_id_added, _SPEC)


def remove_partition_specs(draft: Draft, update: Document) -> None:
    gone = set(need(update, "spec-ids", list))
    if draft.document["default-spec-id"] in gone:
        raise Invalid("Cannot remove the default partition spec")
    _remove(draft, "partition-specs", "spec-id", gone)


def add_sort_order(draft: Draft, update: Document) -> None:
    doc, order = draft.document, need(update, "sort-order", dict)
    fields = _fields(order, "sort order")
    known = next((o for o in doc["sort-orders"] if o["fields"] == fields), None)
    if known is not None:
        draft.order_id_added = known["order-id"]
        return
    _check_sources(draft, fields, "sort")
    # Order 0 means "unsorted" everywhere.
    order_id = max((o["order-id"] for o in doc["sort-orders"]), default=0) + 1 if fields else 0
    draft.replace("sort-orders", [*doc["sort-orders"], {**order, "order-id": order_id}])
    draft.order_id_added = order_id


def set_default_sort_order(draft: Draft, update: Document) -> None:
    _choose(draft, need(update, "sort-order-id", int), draft.order_id_added, _ORDER)


def _choose(draft: Draft, chosen: int, added: int | None, choice: _Choice) -> None:
    """Make one of a section the table's own, by its id or as the last one that was added."""
    if chosen == LAST_ADDED:
        if added is None:
            raise Invalid(f"Cannot set last added {choice.kind}: no {choice.kind} has been added")
        chosen = added
    if by_id(draft.document[choice.section], choice.key, chosen) is None:
        raise Invalid(f"Cannot set {choice.role} {choice.kind} to unknown {choice.kind}: {chosen}")
    if chosen != draft.document[choice.place]:
        draft.replace(choice.place, chosen)


def same_schema(one: Document, other: Document) -> bool:
    """Whether two schemas are the same but for their ids."""
    return _schema_content(one) == _schema_content(other)


def _schema_content(schema: Document) -> Document:
    content = {key: value for key, value in schema.items() if key not in ("schema-id", "identifier-field-ids", "type")}
    content["identifier-field-ids"] = sorted(schema.get("identifier-field-ids") or [])
    return content


def _same_spec(one: list[Document], other: list[Document]) -> bool:
    """Partition fields are the same whatever their ids are."""
    return [_without_id(f) for f in one] == [_without_id(f) for f in other]


def _without_id(field: Document) -> Document:
    return {key: value for key, value in field.items() if key != "field-id"}


def _number_partition_fields(doc: Document, fields: list[Document]) -> tuple[list[Document], int]:
    """Give ids to the fields that come without: the one such a field had in an earlier spec, or a new one."""
    earlier = {
        (f.get("source-id"), f.get("transform")): f["field-id"]
        for spec in doc["partition-specs"]
        for f in spec["fields"]
        if "field-id" in f
    }
    last_id = doc["last-partition-id"]
    numbered = []
    for field in fields:
        field_id = field.get("field-id")
        if not isinstance(field_id, int):
            field_id = earlier.get((field.get("source-id"), field.get("transform")))
        if field_id is None:
            field_id = last_id + 1
        last_id = max(last_id, field_id)
        numbered.append({**field, "field-id": field_id})
    return numbered, last_id


def _check_sources(draft: Draft, fields: list[Document], what: str) -> None:
    schema = by_id(draft.document["schemas"], "schema-id", draft.document["current-schema-id"])
    known = set() if schema is None else field_ids(schema)
    for field in fields:
        # A void field stays in a v1 spec after its column is gone.
        if "source-id" in field and field.get("transform") != "void" and field["source-id"] not in known:
            raise Invalid(f"Cannot find source column for {what} field: {field!r:.200}")


def _fields(holder: Document, what: str) -> list[Document]:
    fields = holder.get("fields")
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise Invalid(f"{what} has no fields. expected=a list of objects got={fields!r:.200}")
    return fields


def _remove(draft: Draft, section: str, key: str, gone: set[int]) -> None:
    kept = [entry for entry in draft.document[section] if entry[key] not in gone]
    if len(kept) != len(draft.document[section]):
        draft.replace(section, kept)
