"""An upsert as one Iceberg RowDelta: new data files and position deletes in a single commit.

Spark writes the new rows through Iceberg's own writer into a staged snapshot, which no reader sees; at the same time
the old rows' places are looked up. One transaction then adds the files and the deletes to main and drops the staged
snapshot. Its cost follows the batch; of the table only the key column is read.

Position deletes are format version 2. Version 3 wants deletion vectors: such tables go the `BranchUpsert` way.
"""

import uuid
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from mainstem.model.errors import Conflict, OutcomeUnknown
from mainstem.model.names import TableName
from mainstem.pipeline.driver_sql import DriverSql
from mainstem.pipeline.lake import STAGE_ID, LakeTable, Marks, commit
from mainstem.pipeline.lookup import LiveFiles, find_places, live_files
from mainstem.pipeline.upsert import append
from mainstem.tables.layout import POSITION_MARK
from mainstem.tables.parquet import CODEC_PROPERTY, writer_options

# Of the two columns of a position delete file, by Iceberg's specification.
_DELETE_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


class RowDeltaUpsert:
    """Keeps in mind which files its tables consist of, as long as nobody else commits to them."""

    def __init__(self, sql: DriverSql, side_jobs: Executor) -> None:
        self._sql = sql
        self._side_jobs = side_jobs
        self._files: dict[TableName, LiveFiles] = {}

    # A write of our session to such a table is staged (see `Lake`).
    table_properties: ClassVar[Mapping[str, str]] = {"write.wap.enabled": "true"}

    def apply(self, table: LakeTable, keys: pa.Table, rows: DataFrame, marks: Marks) -> None:
        """Replace the keys' rows in one commit."""
        files = self._current_files(table)
        staging = self._side_jobs.submit(append, table, rows, marks)
        try:
            places = find_places(self._sql, table, files, keys)
        finally:
            failure = staging.exception()
        if failure is not None:
            raise failure
        table.refresh()
        if table.snapshot_id != files.snapshot_id:
            raise Conflict(f"main moved during an upsert. table={table.name} expected={files.snapshot_id}")
        staged = _staged_snapshot(table, marks)
        added = _added_files(table, staged)
        deletes = _write_deletes(table, files, places)
        self._files.pop(table.name, None)
        _commit(table, files, staged=staged, added=added, deletes=deletes, places=places, marks=marks)
        table.refresh()
        for file in added:
            files.add(file.location(), file, file.recordCount())
        files.deletes += [delete.location() for delete in deletes]
        files.snapshot_id = table.snapshot_id
        self._files[table.name] = files

    def _current_files(self, table: LakeTable) -> LiveFiles:
        known = self._files.get(table.name)
        if known is not None and known.snapshot_id == table.snapshot_id:
            return known
        return live_files(table)


def _staged_snapshot(table: LakeTable, marks: Marks) -> Any:
    """The snapshot that the append has just staged: the newest one, if it is what we wrote."""
    snapshots = table.java.snapshots()
    newest = snapshots[len(snapshots) - 1] if len(snapshots) else None
    summary = {} if newest is None else newest.summary()
    if summary.get("wap.id") != STAGE_ID or summary.get(POSITION_MARK) != str(marks.position):
        raise OutcomeUnknown(f"staged rows not found. table={table.name} position={marks.position}")
    return newest


def _added_files(table: LakeTable, snapshot: Any) -> list[Any]:
    files = []
    iterator = snapshot.addedDataFiles(table.java.io()).iterator()
    while iterator.hasNext():
        files.append(iterator.next())
    return files


def _write_deletes(table: LakeTable, files: LiveFiles, places: pa.Table) -> list[Any]:
    """One delete file per partition that loses rows."""
    if places.num_rows == 0:
        return []
    if table.java.spec().isUnpartitioned() and table.java.specs().size() == 1:
        return [_write_delete_file(table, next(iter(files.data.values())), places)]
    paths_by_partition: dict[tuple[int, str], list[str]] = {}
    for path in pc.unique(places["file_path"]).to_pylist():
        file = files.data[path]
        paths_by_partition.setdefault((int(file.specId()), str(file.partition())), []).append(path)
    return [
        _write_delete_file(
            table, files.data[paths[0]], places.filter(pc.is_in(places["file_path"], pa.array(paths)))
        )
        for paths in paths_by_partition.values()
    ]


def _write_delete_file(table: LakeTable, like: Any, places: pa.Table) -> Any:
    """Write a position delete file for the partition of a data file."""
    jvm = table.lake.jvm
    location = table.java.locationProvider().newDataLocation(f"{uuid.uuid4()}-deletes.parquet")
    sink = pa.BufferOutputStream()
    codec = writer_options({CODEC_PROPERTY: table.property(CODEC_PROPERTY) or ""}).codec
    pq.write_table(places.cast(_DELETE_SCHEMA), sink, compression=str(codec))
    content = sink.getvalue().to_pybytes()
    stream = table.java.io().newOutputFile(location).create()
    try:
        stream.write(content)
    finally:
        stream.close()
    spec = table.java.specs().get(like.specId())
    metrics = jvm.org.apache.iceberg.parquet.ParquetUtil.fileMetrics(
        table.java.io().newInputFile(location), jvm.org.apache.iceberg.MetricsConfig.forPositionDelete()
    )
    builder = (
        jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(spec)
        .ofPositionDeletes()
        .withPath(location)
        .withFormat("PARQUET")
        .withFileSizeInBytes(len(content))
        .withMetrics(metrics)
    )
    if spec.isPartitioned():
        builder = builder.withPartition(like.partition())
    return builder.build()


def _commit(
    table: LakeTable,
    files: LiveFiles,
    *,
    staged: Any,
    added: list[Any],
    deletes: list[Any],
    places: pa.Table,
    marks: Marks,
) -> None:
    transaction = table.java.newTransaction()
    delta = transaction.newRowDelta()
    for file in added:
        delta.addRows(file)
    for delete in deletes:
        delta.addDeletes(delete)
    if files.snapshot_id is not None:
        referenced = table.lake.jvm.java.util.ArrayList()
        for path in pc.unique(places["file_path"]).to_pylist():
            referenced.add(path)
        # Whoever compacted or deleted meanwhile was first: the places are to be looked up again.
        delta.validateFromSnapshot(files.snapshot_id).validateDataFilesExist(referenced).validateDeletedFiles()
        delta.validateNoConflictingDeleteFiles()
    for name, value in marks.summary().items():
        delta.set(name, value)
    commit(delta)
    # The staged snapshot's files live on in main; nothing is to be cleaned up, and nothing else to be expired.
    expire = transaction.expireSnapshots().expireSnapshotId(staged.snapshotId()).expireOlderThan(0)
    commit(expire.cleanExpiredFiles(False))
    commit(transaction, method="commitTransaction")
