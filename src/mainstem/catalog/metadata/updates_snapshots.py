"""Updates of what a table holds: snapshots, branches and tags, statistics."""

from mainstem.catalog.errors import CommitFailed
from mainstem.catalog.metadata.draft import Draft, need
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.metadata.table import ROW_LINEAGE_VERSION
from mainstem.formats.iceberg.snapshots import MAIN, NO_SNAPSHOT
from mainstem.model import Invalid


def add_snapshot(draft: Draft, update: Document) -> None:
    doc, snapshot = draft.document, need(update, "snapshot", dict)
    snapshot_id = need(snapshot, "snapshot-id", int)
    timestamp_ms = need(snapshot, "timestamp-ms", int)
    for section, what in (("schemas", "schema"), ("partition-specs", "partition spec"), ("sort-orders", "sort order")):
        if not doc[section]:
            raise Invalid(f"Attempting to add a snapshot before a {what} is added")
    if draft.snapshot(snapshot_id) is not None:
        raise Invalid(f"Snapshot already exists for id: {snapshot_id}")
    if doc["format-version"] > 1:
        _advance_sequence_number(draft, snapshot)
    if doc["format-version"] >= ROW_LINEAGE_VERSION:
        _advance_row_id(draft, snapshot)
    draft.append("snapshots", snapshot)
    draft.snapshot_ids_added.add(snapshot_id)
    draft.updated_ms = timestamp_ms


def _advance_sequence_number(draft: Draft, snapshot: Document) -> None:
    number, last = need(snapshot, "sequence-number", int), draft.document["last-sequence-number"]
    if number <= last and snapshot.get("parent-snapshot-id") is not None:
        # The client numbered its snapshot before somebody else's commit: it can do that again.
        raise CommitFailed(f"Cannot add snapshot with sequence number {number} older than last sequence number {last}")
    draft.replace("last-sequence-number", max(number, last))


def _advance_row_id(draft: Draft, snapshot: Document) -> None:
    first, next_row_id = snapshot.get("first-row-id"), draft.document["next-row-id"]
    if not isinstance(first, int):
        raise Invalid("Cannot add a snapshot: first-row-id is null")
    if first < next_row_id:
        raise CommitFailed(f"Cannot add a snapshot, first-row-id is behind table next-row-id: {first} < {next_row_id}")
    added = snapshot.get("added-rows")
    if not isinstance(added, int) or added < 0:
        raise Invalid(f"Cannot add a snapshot: added-rows is not a count: {added!r}")
    draft.replace("next-row-id", first + added)


def set_snapshot_ref(draft: Draft, update: Document) -> None:
    doc, name = draft.document, need(update, "ref-name", str)
    snapshot_id = need(update, "snapshot-id", int)
    ref = {key: value for key, value in update.items() if key not in ("action", "ref-name") and value is not None}
    if ref.setdefault("type", "branch") not in ("branch", "tag"):
        raise Invalid(f"ref has an unknown type. expected=branch or tag got={ref['type']!r}")
    if doc["refs"].get(name) == ref:
        return
    snapshot = draft.snapshot(snapshot_id)
    if snapshot is None:
        raise Invalid(f"Cannot set {name} to unknown snapshot: {snapshot_id}")
    if snapshot_id in draft.snapshot_ids_added:
        draft.updated_ms = snapshot["timestamp-ms"]
    if name == MAIN:
        if ref["type"] != "branch":
            raise Invalid(f"main is a branch. expected=branch got={ref['type']}")
        _set_current_snapshot(draft, snapshot_id)
    draft.replace("refs", {**doc["refs"], name: ref})


def _set_current_snapshot(draft: Draft, snapshot_id: int) -> None:
    if draft.updated_ms is None:
        draft.updated_ms = draft.now_ms
    entry = {"timestamp-ms": draft.updated_ms, "snapshot-id": snapshot_id}
    if draft.document.get("current-snapshot-id") != snapshot_id:
        draft.append("snapshot-log", entry)
    draft.replace("current-snapshot-id", snapshot_id)


def remove_snapshot_ref(draft: Draft, update: Document) -> None:
    _remove_refs(draft, {need(update, "ref-name", str)})


def remove_snapshots(draft: Draft, update: Document) -> None:
    gone, doc = set(need(update, "snapshot-ids", list)), draft.document
    kept = [s for s in doc["snapshots"] if s["snapshot-id"] not in gone]
    if len(kept) == len(doc["snapshots"]):
        return
    draft.replace("snapshots", kept)
    draft.snapshots_removed = True
    for section in ("statistics", "partition-statistics"):
        if any(entry["snapshot-id"] in gone for entry in doc[section]):
            draft.replace(section, [entry for entry in doc[section] if entry["snapshot-id"] not in gone])
    left = {s["snapshot-id"] for s in kept}
    _remove_refs(draft, {name for name, ref in doc["refs"].items() if ref["snapshot-id"] not in left})


def _remove_refs(draft: Draft, names: set[str]) -> None:
    refs = draft.document["refs"]
    if not names & refs.keys():
        return
    if MAIN in names:
        draft.replace("current-snapshot-id", NO_SNAPSHOT)
    draft.replace("refs", {name: ref for name, ref in refs.items() if name not in names})


def set_statistics(draft: Draft, update: Document) -> None:
    _set_statistics(draft, "statistics", need(update, "statistics", dict), update)


def set_partition_statistics(draft: Draft, update: Document) -> None:
    _set_statistics(draft, "partition-statistics", need(update, "partition-statistics", dict), update)


def remove_statistics(draft: Draft, update: Document) -> None:
    _remove_statistics(draft, "statistics", need(update, "snapshot-id", int))


def remove_partition_statistics(draft: Draft, update: Document) -> None:
    _remove_statistics(draft, "partition-statistics", need(update, "snapshot-id", int))


def _set_statistics(draft: Draft, section: str, entry: Document, update: Document) -> None:
    # Older clients name the snapshot beside the statistics, newer ones inside of them.
    snapshot_id = entry.get("snapshot-id", update.get("snapshot-id"))
    if not isinstance(snapshot_id, int):
        raise Invalid(f"statistics name no snapshot. expected=snapshot-id got={snapshot_id!r}")
    others = [e for e in draft.document[section] if e["snapshot-id"] != snapshot_id]
    draft.replace(section, [*others, {**entry, "snapshot-id": snapshot_id}])


def _remove_statistics(draft: Draft, section: str, snapshot_id: int) -> None:
    kept = [e for e in draft.document[section] if e["snapshot-id"] != snapshot_id]
    if len(kept) != len(draft.document[section]):
        draft.replace(section, kept)


def trim_snapshot_log(draft: Draft, base_log: list[Document]) -> None:
    """Keep the log of `main` true: what was never current goes, and so does what came before a removed snapshot."""
    doc = draft.document
    current = doc.get("current-snapshot-id")
    # Within one commit `main` may pass over snapshots that no reader ever saw as current.
    passed = {e["snapshot-id"] for e in doc["snapshot-log"][len(base_log) :]} & draft.snapshot_ids_added - {current}
    if not passed and not draft.snapshots_removed:
        return
    kept: list[Document] = []
    for entry in doc["snapshot-log"]:
        if draft.snapshot(entry["snapshot-id"]) is None:
            # With a hole in it, time travel would find the wrong snapshot for the time of the hole.
            kept = []
        elif entry["snapshot-id"] not in passed:
            kept.append(entry)
    draft.replace("snapshot-log", kept)
