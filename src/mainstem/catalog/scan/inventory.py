"""What a table consists of, partition by partition: files, rows, bytes, deletes. Read from the manifests alone.

Manifests never change, so what was read of one is kept. Every method blocks and may be called from any thread.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.catalog.files import FileIoOf
from mainstem.catalog.metadata.boundaries import refuse_beyond
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.metadata.table import by_id
from mainstem.formats.iceberg.manifests import data_path, live_entries, manifests_of, partition_of
from mainstem.formats.iceberg.snapshots import current_snapshot_id
from mainstem.model import Conflict
from mainstem.tables.deletes import Content, DeleteFile, DeleteIndex, PartitionKey
from mainstem.tables.maintenance import FileFacts
from mainstem.tables.partitions import PartitionField, partition_path

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile

ENTRIES_CACHED_MAX = 500_000


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """As much of a manifest's entry as counts."""

    path: str
    content: Content
    sequence: int
    partition: PartitionKey
    data_path: str | None
    is_vector: bool
    size_bytes: int
    rows: int
    snapshot_id: int | None


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """One partition, in numbers."""

    partition: str
    spec_id: int
    files: int
    rows: int
    size_bytes: int
    delete_files: int
    deleted_rows: int
    file_bytes_min: int
    file_bytes_max: int
    updated_ms: int | None


@dataclass(frozen=True, slots=True)
class Inventory:
    """A table at its current snapshot."""

    snapshot_id: int | None
    files: tuple[FileFacts, ...]
    deleted_by_partition: dict[str, int]
    partitions: tuple[PartitionCounts, ...]
    manifests: int
    delete_files: int


@dataclass(frozen=True, slots=True)
class OtherInventory:
    """A table of another format at its current version, and the fields that it is partitioned by."""

    fields: tuple[PartitionField, ...]
    inventory: Inventory


class Inventories:
    """Takes inventories, and keeps what it read of manifests."""

    def __init__(self, file_io: FileIoOf) -> None:
        self._file_io = file_io
        self._lock = threading.Lock()
        self._manifests: OrderedDict[str, tuple[ManifestEntry, ...]] = OrderedDict()
        self._kept = 0

    def take(self, document: Document) -> Inventory:
        """The table that the document describes, now."""
        snapshot_id = current_snapshot_id(document)
        if snapshot_id is None:
            return Inventory(None, (), {}, (), 0, 0)
        snapshot = by_id(document["snapshots"], "snapshot-id", snapshot_id)
        assert snapshot is not None, "main points to a snapshot that is there"
        manifests, io = self._manifests_of(document, snapshot)
        entries = self._entries_in(manifests, io)
        return _counted(document, snapshot_id, entries, len(manifests))

    def entries_of(self, document: Document, snapshot: Any) -> "tuple[list[ManifestEntry], FileIO]":
        """The files of a snapshot, and what reads them."""
        manifests, io = self._manifests_of(document, snapshot)
        return self._entries_in(manifests, io), io

    def _manifests_of(self, document: Document, snapshot: Any) -> "tuple[list[ManifestFile], FileIO]":
        path = snapshot.get("manifest-list")
        refuse_beyond(document["location"], [path])
        io = self._file_io(str(path))
        try:
            manifests = manifests_of(str(path), io)
        except FileNotFoundError as error:
            raise _expired() from error
        refuse_beyond(document["location"], (manifest.manifest_path for manifest in manifests))
        return manifests, io

    def _entries_in(self, manifests: "Sequence[ManifestFile]", io: "FileIO") -> list[ManifestEntry]:
        try:
            return [entry for manifest in manifests for entry in self._entries(manifest, io)]
        except FileNotFoundError as error:
            raise _expired() from error

    def _entries(self, manifest: "ManifestFile", io: "FileIO") -> tuple[ManifestEntry, ...]:
        path = str(manifest.manifest_path)
        with self._lock:
            if path in self._manifests:
                self._manifests.move_to_end(path)
                return self._manifests[path]
        entries = tuple(_entry(entry) for entry in live_entries(manifest, io))
        with self._lock:
            if path not in self._manifests:
                self._manifests[path] = entries
                self._kept += len(entries)
            while self._kept > ENTRIES_CACHED_MAX and len(self._manifests) > 1:
                self._kept -= len(self._manifests.popitem(last=False)[1])
        return entries


def _expired() -> Conflict:
    return Conflict("a manifest could not be read: the snapshot may have expired")


def _entry(entry: Any) -> ManifestEntry:
    file = entry.data_file
    content = Content(int(file.content))
    return ManifestEntry(
        path=str(file.file_path),
        content=content,
        sequence=entry.sequence_number or 0,
        partition=partition_of(file),
        data_path=None if content is Content.DATA else data_path(file),
        is_vector=file.file_format.value == "PUFFIN",
        size_bytes=file.file_size_in_bytes,
        rows=file.record_count,
        snapshot_id=entry.snapshot_id,
    )


def partition_fields(document: Document, spec_id: int) -> tuple[PartitionField, ...]:
    """The fields of one of the table's partition specs. A column that is gone leaves its type unknown."""
    spec = by_id(document["partition-specs"], "spec-id", spec_id) or {"fields": []}
    columns: dict[int, tuple[str, str]] = {}
    for schema in document["schemas"]:
        columns |= {field["id"]: (field["name"], str(field["type"])) for field in schema["fields"]}
    found = []
    for field in spec["fields"]:
        source, kind = columns.get(field.get("source-id", -1), ("", ""))
        found.append(PartitionField(field["name"], str(field["transform"]), source, kind))
    return tuple(found)


def _counted(document: Document, snapshot_id: int, entries: Sequence[ManifestEntry], manifests: int) -> Inventory:
    deletes = [entry for entry in entries if entry.content is not Content.DATA]
    data = [entry for entry in entries if entry.content is Content.DATA]
    index = DeleteIndex()
    for number, entry in enumerate(deletes):
        index.add(DeleteFile(number, entry.content, entry.sequence, entry.partition, entry.data_path, entry.is_vector))
    specs = {spec["spec-id"]: partition_fields(document, spec["spec-id"]) for spec in document["partition-specs"]}
    names: dict[PartitionKey, str] = {}
    for entry in entries:
        if entry.partition not in names:
            spec_id, values = entry.partition
            fields = specs.get(spec_id, ())
            names[entry.partition] = partition_path(fields, values[: len(fields)])
    files = tuple(_facts(entry, deletes, index, names[entry.partition]) for entry in data)
    deleted: dict[str, int] = {}
    for entry in deletes:
        if entry.content is Content.POSITION_DELETES and entry.data_path is None:
            name = names[entry.partition]
            deleted[name] = deleted.get(name, 0) + entry.rows
    times = {snapshot["snapshot-id"]: snapshot["timestamp-ms"] for snapshot in document["snapshots"]}
    return Inventory(
        snapshot_id=snapshot_id,
        files=files,
        deleted_by_partition=deleted,
        partitions=_partitions(data, deletes, names, times),
        manifests=manifests,
        delete_files=len(deletes),
    )


def _facts(entry: ManifestEntry, deletes: Sequence[ManifestEntry], index: DeleteIndex, partition: str) -> FileFacts:
    applied = [deletes[number] for number in index.of(entry.path, entry.sequence, entry.partition)]
    return FileFacts(
        path=entry.path,
        partition=partition,
        size_bytes=entry.size_bytes,
        rows=entry.rows,
        deleted_rows=sum(
            delete.rows
            for delete in applied
            if delete.content is Content.POSITION_DELETES and delete.data_path is not None
        ),
        delete_files=len(applied),
        equality=any(delete.content is Content.EQUALITY_DELETES for delete in applied),
    )


def _partitions(
    data: Sequence[ManifestEntry],
    deletes: Sequence[ManifestEntry],
    names: dict[PartitionKey, str],
    times: dict[int, int],
) -> tuple[PartitionCounts, ...]:
    by_key: dict[PartitionKey, tuple[list[ManifestEntry], list[ManifestEntry]]] = {}
    for entry in data:
        by_key.setdefault(entry.partition, ([], []))[0].append(entry)
    for entry in deletes:
        by_key.setdefault(entry.partition, ([], []))[1].append(entry)
    found = []
    for key, (files, removed) in by_key.items():
        sizes = [file.size_bytes for file in files] or [0]
        updated = [times[e.snapshot_id] for e in (*files, *removed) if e.snapshot_id in times]
        found.append(
            PartitionCounts(
                partition=names[key],
                spec_id=key[0],
                files=len(files),
                rows=sum(file.rows for file in files),
                size_bytes=sum(file.size_bytes for file in files),
                delete_files=len(removed),
                deleted_rows=sum(e.rows for e in removed if e.content is Content.POSITION_DELETES),
                file_bytes_min=min(sizes),
                file_bytes_max=max(sizes),
                updated_ms=max(updated, default=None),
            )
        )
    return tuple(sorted(found, key=lambda each: (each.partition, each.spec_id)))
