"""A Delta table as maintenance and insight look at Iceberg's: its files counted, its latest commits as snapshots."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from mainstem.catalog.scan.inventory import Inventory, OtherInventory, PartitionCounts
from mainstem.formats.delta.files.zones import row_count
from mainstem.formats.delta.log import AddFile, DeltaLog, Removed
from mainstem.formats.delta.storage import Storage
from mainstem.model import LogId, LogPosition, NotFound
from mainstem.query.delta import DeltaVersion
from mainstem.query.ports import LoadedTable
from mainstem.tables.maintenance import FileFacts
from mainstem.tables.marks import position_mark, positions_of
from mainstem.tables.partitions import PartitionField


def inventory_of(version: DeltaVersion) -> Inventory:
    """What the table holds at a version. A deletion vector counts as a delete file of its data file."""
    files = []
    deleted_by_partition: dict[str, int] = {}
    for file in version.state.files.values():
        deleted = 0 if file.deletionVector is None else file.deletionVector.cardinality
        deleted_by_partition[file.partition] = deleted_by_partition.get(file.partition, 0) + deleted
        rows = row_count(file) or 0
        files.append(FileFacts(file.path, file.partition, file.size, rows, deleted, int(deleted > 0)))
    return Inventory(
        snapshot_id=version.state.version,
        files=tuple(files),
        deleted_by_partition=deleted_by_partition,
        partitions=_partitions(version),
        manifests=0,
        delete_files=sum(file.delete_files for file in files),
    )


def other_inventory(version: DeltaVersion) -> OtherInventory:
    """The same, with the columns that the table is partitioned by: Delta has them as they are."""
    columns = version.state.metadata.partitionColumns
    return OtherInventory(
        fields=tuple(PartitionField(name, "identity", name, "") for name in columns), inventory=inventory_of(version)
    )


def _partitions(version: DeltaVersion) -> tuple[PartitionCounts, ...]:
    by_name: dict[str, list[AddFile]] = {}
    for file in version.state.files.values():
        by_name.setdefault(file.partition, []).append(file)
    return tuple(_counts(name, files) for name, files in sorted(by_name.items()))


def _counts(name: str, files: Sequence[AddFile]) -> PartitionCounts:
    vectors = [file.deletionVector for file in files if file.deletionVector is not None]
    return PartitionCounts(
        partition=name,
        spec_id=0,
        files=len(files),
        rows=sum(row_count(file) or 0 for file in files),
        size_bytes=sum(file.size for file in files),
        delete_files=len(vectors),
        deleted_rows=sum(vector.cardinality for vector in vectors),
        file_bytes_min=min(file.size for file in files),
        file_bytes_max=max(file.size for file in files),
        updated_ms=max(file.modificationTime for file in files),
    )


class _Written(NamedTuple):
    """What one commit did."""

    at_ms: int
    operation: str
    marks: Mapping[LogId, LogPosition]
    files_added: int
    bytes_added: int
    rows_added: int
    files_removed: int
    bytes_removed: int
    vectors_added: int
    vectors_removed: int
    # By how many rows the table changed; None where a file went: a commit does not say how many rows it took along.
    rows_changed: int | None


def described(table: LoadedTable, commits_max: int) -> dict[str, Any]:
    """The table's document with partitions, and with its latest commits as snapshots, the oldest first.

    Totals of older versions are reckoned back from the newest; their rows as long as commits say what they did to them.
    """
    version = table.delta
    assert version is not None, "a table in Delta"
    state = version.state
    (schema,) = table.metadata["schemas"]
    ids = {field["name"]: field["id"] for field in schema["fields"]}
    fields = [{"transform": "identity", "source-id": ids[name]} for name in state.metadata.partitionColumns]
    return {
        **table.metadata,
        "format-version": state.protocol.minReaderVersion,
        "partition-specs": [{"spec-id": 0, "fields": fields}],
        "default-spec-id": 0,
        "snapshots": _snapshots(version, commits_max),
    }


def _snapshots(version: DeltaVersion, commits_max: int) -> list[dict[str, Any]]:
    files = list(version.state.files.values())
    counts = [len(files), sum(file.size for file in files), sum(file.deletionVector is not None for file in files)]
    rows: int | None = sum(_live_rows(file) for file in files)
    found: list[dict[str, Any]] = []
    for number in range(version.state.version, max(-1, version.state.version - commits_max), -1):
        try:
            written = _written(version.storage, version.path, version.state.metadata.id, number)
        except NotFound:
            # The log is cleaned up behind a checkpoint.
            break
        summary = {
            "operation": written.operation.lower(),
            "total-data-files": str(counts[0]),
            "total-files-size": str(counts[1]),
            "total-delete-files": str(counts[2]),
            "added-data-files": str(written.files_added),
            "added-files-size": str(written.bytes_added),
            "added-records": str(written.rows_added),
        }
        summary |= {} if rows is None else {"total-records": str(rows)}
        summary |= {position_mark(log): str(position) for log, position in written.marks.items()}
        found.append({"snapshot-id": number, "timestamp-ms": written.at_ms, "summary": summary})
        counts[0] += written.files_removed - written.files_added
        counts[1] += written.bytes_removed - written.bytes_added
        counts[2] += written.vectors_removed - written.vectors_added
        changed = written.rows_changed
        rows = None if rows is None or changed is None else rows - changed
    return found[::-1]


# A commit never changes, and a table that was made anew has another id.
@lru_cache(maxsize=20_000)
def _written(storage: Storage, path: str, table_id: str, number: int) -> _Written:
    del table_id
    added: list[AddFile] = []
    removed = []
    info: Mapping[str, Any] = {}
    transactions: dict[str, int] = {}
    for action in DeltaLog(storage, path).actions(number):
        if action.add is not None:
            added.append(action.add)
        elif action.remove is not None:
            removed.append(action.remove)
        elif action.commitInfo is not None:
            info = action.commitInfo
        elif action.txn is not None:
            transactions[action.txn.appId] = action.txn.version
    # A file that stays, under another vector, is neither new nor gone.
    stays = {file.path for file in added} & {file.path for file in removed}
    new = [file for file in added if file.path not in stays]
    gone = [file for file in removed if file.path not in stays]
    return _Written(
        at_ms=int(info.get("timestamp") or max((file.modificationTime for file in added), default=0)),
        operation=str(info.get("operation") or ""),
        marks=positions_of(transactions),
        files_added=len(new),
        bytes_added=sum(file.size for file in new),
        rows_added=sum(row_count(file) or 0 for file in new if file.dataChange),
        files_removed=len(gone),
        bytes_removed=sum(file.size or 0 for file in gone),
        vectors_added=sum(file.deletionVector is not None for file in added),
        vectors_removed=sum(file.deletionVector is not None for file in removed),
        rows_changed=_rows_changed(added, removed),
    )


def _rows_changed(added: Sequence[AddFile], removed: Sequence[Removed]) -> int | None:
    if not any(file.dataChange for file in added) and not any(file.dataChange for file in removed):
        # A compaction: other files, the same rows.
        return 0
    before = {file.path: file for file in removed}
    changed = 0
    for file in added:
        old = before.pop(file.path, None)
        changed += _live_rows(file) if old is None else _cardinality(old) - _cardinality(file)
    return None if before else changed


def _cardinality(file: AddFile | Removed) -> int:
    return 0 if file.deletionVector is None else file.deletionVector.cardinality


def _live_rows(file: AddFile) -> int:
    return (row_count(file) or 0) - _cardinality(file)
