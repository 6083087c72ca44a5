"""Applying the updates of a commit to a metadata document. Pure: no I/O, the time and ids are arguments.

Each action of the protocol is one function on a `Draft`. An unknown action is refused, as the protocol
demands: half of a commit is worse than none.
"""

from collections.abc import Callable, Sequence

from mainstem.catalog.metadata import updates_properties, updates_schema, updates_snapshots
from mainstem.catalog.metadata.draft import Draft, need, run
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.metadata.table import (
    FORMAT_VERSION_DEFAULT,
    by_id,
    empty_document,
    fit_format_version,
    normalized,
)
from mainstem.model import Invalid

PREVIOUS_VERSIONS_PROPERTY = "write.metadata.previous-versions-max"
PREVIOUS_VERSIONS_DEFAULT = 100


def apply(base: Document, updates: Sequence[Document], *, base_location: str, now_ms: int) -> Document:
    """The document after the updates. The very same object where they change nothing."""
    draft = Draft(normalized(base), now_ms)
    run(draft, updates, _ACTIONS)
    if not draft.changed:
        return base
    updates_snapshots.trim_snapshot_log(draft, base.get("snapshot-log") or [])
    entry = {"timestamp-ms": base.get("last-updated-ms", now_ms), "metadata-file": base_location}
    log = [*draft.document["metadata-log"], entry]
    return _finish(draft, log[-_previous_versions_max(draft.document) :])


def create(updates: Sequence[Document], *, uuid: str, now_ms: int) -> Document:
    """The first document of a table that a create transaction describes by updates alone."""
    versions = [u["format-version"] for u in updates if u.get("action") == "upgrade-format-version"]
    draft = Draft(empty_document(versions[0] if versions else FORMAT_VERSION_DEFAULT, uuid), now_ms)
    run(draft, updates, _ACTIONS)
    updates_snapshots.trim_snapshot_log(draft, [])
    return _finish(draft, [])


def _finish(draft: Draft, metadata_log: list[Document]) -> Document:
    doc = draft.document
    if not isinstance(doc.get("location"), str):
        raise Invalid("table has no location. expected=set-location got=none")
    for section, key, chosen in (
        ("schemas", "schema-id", "current-schema-id"),
        ("partition-specs", "spec-id", "default-spec-id"),
        ("sort-orders", "order-id", "default-sort-order-id"),
    ):
        if by_id(doc[section], key, doc[chosen]) is None:
            raise Invalid(f"table is incomplete. expected={chosen} among its {section} got={doc[chosen]}")
    doc["last-updated-ms"] = draft.now_ms if draft.updated_ms is None else draft.updated_ms
    doc["metadata-log"] = metadata_log
    return fit_format_version(doc)


def _previous_versions_max(doc: Document) -> int:
    text = str(doc["properties"].get(PREVIOUS_VERSIONS_PROPERTY, ""))
    return max(1, int(text)) if text.isdecimal() else PREVIOUS_VERSIONS_DEFAULT


def _assign_uuid(draft: Draft, update: Document) -> None:
    uuid = need(update, "uuid", str)
    if draft.document.get("table-uuid") != uuid:
        draft.replace("table-uuid", uuid)


def _add_encryption_key(draft: Draft, update: Document) -> None:
    key = need(update, "encryption-key", dict)
    keys = draft.document.get("encryption-keys") or []
    if by_id(keys, "key-id", need(key, "key-id", str)) is None:
        draft.replace("encryption-keys", [*keys, key])


def _remove_encryption_key(draft: Draft, update: Document) -> None:
    key_id, keys = need(update, "key-id", str), draft.document.get("encryption-keys") or []
    if by_id(keys, "key-id", key_id) is not None:
        draft.replace("encryption-keys", [key for key in keys if key.get("key-id") != key_id])


_ACTIONS: dict[str, Callable[[Draft, Document], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": updates_schema.upgrade_format_version,
    "add-schema": updates_schema.add_schema,
    "set-current-schema": updates_schema.set_current_schema,
    "remove-schemas": updates_schema.remove_schemas,
    "add-spec": updates_schema.add_spec,
    "set-default-spec": updates_schema.set_default_spec,
    "remove-partition-specs": updates_schema.remove_partition_specs,
    "add-sort-order": updates_schema.add_sort_order,
    "set-default-sort-order": updates_schema.set_default_sort_order,
    "add-snapshot": updates_snapshots.add_snapshot,
    "set-snapshot-ref": updates_snapshots.set_snapshot_ref,
    "remove-snapshot-ref": updates_snapshots.remove_snapshot_ref,
    "remove-snapshots": updates_snapshots.remove_snapshots,
    "set-statistics": updates_snapshots.set_statistics,
    "remove-statistics": updates_snapshots.remove_statistics,
    "set-partition-statistics": updates_snapshots.set_partition_statistics,
    "remove-partition-statistics": updates_snapshots.remove_partition_statistics,
    "set-location": updates_properties.set_location,
    "set-properties": updates_properties.set_properties,
    "remove-properties": updates_properties.remove_properties,
    "add-encryption-key": _add_encryption_key,
    "remove-encryption-key": _remove_encryption_key,
}
