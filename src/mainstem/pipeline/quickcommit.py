"""Snapshots made on the driver: manifests by pyiceberg's writers, one commit to the catalog.

What a snapshot consists of is kept in mind between commits, so that nothing is read back that was just written. It is
believed only as long as main is where we left it. For unpartitioned tables of format version 2 on this machine.
"""

import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.typedef import Record

from mainstem.pipeline.driver_sql import local_path
from mainstem.pipeline.lake import Marks
from mainstem.pipeline.lookup import LiveFiles
from mainstem.pipeline.manifests import AVRO_COMPRESSION, MERGED_AT, Manifests, metadata_location, schema_of
from mainstem.pipeline.quickcatalog import QuickCatalog, QuickTable
from mainstem.runtime import durable
from mainstem.runtime.clock import Clock
from mainstem.tables.parquet import writer_options

_SNAPSHOT_ID_BITS = 63
_SYNCS_MAX = 8
# Of the two columns of a position delete file, by Iceberg's specification.
_PATH_ID, _POS_ID = 2147483546, 2147483545
DELETE_SCHEMA = pa.schema(
    [
        # Few paths and many rows: they are never written out one by one.
        pa.field(
            "file_path",
            pa.dictionary(pa.int32(), pa.string()),
            nullable=False,
            metadata={"PARQUET:field_id": str(_PATH_ID)},
        ),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(_POS_ID)}),
    ]
)
_Summary = dict[str, str]


@dataclass(slots=True)
class _Contents:
    """What a table consists of at one snapshot. `files` is None until someone asks."""

    snapshot_id: int | None
    manifests: list[ManifestFile] = field(default_factory=list)
    files: LiveFiles | None = None


class QuickCommits:
    """Makes the snapshots. To be used by one thread per table at a time."""

    def __init__(self, catalog: QuickCatalog, clock: Clock, merged_at: int = MERGED_AT) -> None:
        self._catalog = catalog
        self._clock = clock
        self._io: FileIO = PyArrowFileIO()
        self._manifests = Manifests(self._io, merged_at)
        self._syncs = ThreadPoolExecutor(_SYNCS_MAX, "sync")
        self._contents: dict[str, _Contents] = {}

    def live_files(self, table: QuickTable) -> LiveFiles:
        """The files of the current snapshot."""
        contents = self._contents_of(table)
        if contents.files is None:
            contents.files = self._read_files(contents)
        return contents.files

    def data_file(self, table: QuickTable, location: str, path: Path) -> DataFile:
        """Describe a Parquet file that was written for the table: its size and statistics."""
        schema = schema_of(table)
        statistics = data_file_statistics_from_parquet_metadata(
            pq.read_metadata(path),
            stats_columns=compute_statistics_plan(schema, dict(table.properties)),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=location,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=path.stat().st_size,
            sort_order_id=None,
            spec_id=table.metadata["default-spec-id"],
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def delete_file(self, table: QuickTable, places: pa.Table) -> DataFile:
        """Write places (`file_path`, `pos`, sorted) as a position delete file."""
        location = new_data_location(table, "-deletes")
        path = _path(location)
        path.parent.mkdir(parents=True, exist_ok=True)
        codec = str(writer_options(table.properties).codec)
        # Positions never repeat within a file's: to look for that would double the time.
        pq.write_table(
            places.cast(DELETE_SCHEMA), path, compression=codec, use_dictionary=["file_path"], store_schema=False
        )
        # Whole, so that a reader can tell which data files it is not about. The places are sorted.
        first, last = (places["file_path"][row].as_py().encode() for row in (0, -1))
        return DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=location,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=places.num_rows,
            file_size_in_bytes=path.stat().st_size,
            lower_bounds={_PATH_ID: first},
            upper_bounds={_PATH_ID: last},
            spec_id=table.metadata["default-spec-id"],
        )

    def discard(self, files: Sequence[DataFile]) -> None:
        """Remove files that no commit is to take."""
        for file in files:
            _path(file.file_path).unlink(missing_ok=True)

    def commit(
        self, table: QuickTable, added: Sequence[DataFile], deletes: Sequence[DataFile], marks: Marks
    ) -> QuickTable:
        """One snapshot with new data files and new position delete files. Raises Conflict where main has moved."""
        contents = self._contents_of(table)
        snapshot_id = uuid.uuid4().int >> (128 - _SNAPSHOT_ID_BITS)
        sequence_number = int(table.metadata["last-sequence-number"]) + 1
        new = [
            self._manifests.write(table, kind, snapshot_id, _added(files, snapshot_id))
            for kind, files in ((ManifestContent.DATA, added), (ManifestContent.DELETES, deletes))
            if files
        ]
        manifests = new + self._manifests.merged(table, contents.manifests, snapshot_id)
        location = metadata_location(table, f"snap-{snapshot_id}")
        with write_manifest_list(
            format_version=2,
            output_file=self._io.new_output(location),
            snapshot_id=snapshot_id,
            parent_snapshot_id=table.snapshot_id,
            sequence_number=sequence_number,
            avro_compression=AVRO_COMPRESSION,  # type: ignore[arg-type]
        ) as writer:
            # As the list has them: with the sequence number that new ones get by it.
            listed = [writer.prepare_manifest(manifest) for manifest in manifests]
            writer.add_manifests(listed)
        before = {manifest.manifest_path for manifest in contents.manifests}
        written = [manifest.manifest_path for manifest in manifests if manifest.manifest_path not in before]
        self._make_durable([location, *written, *(file.file_path for file in (*added, *deletes))])
        snapshot: dict[str, Any] = {
            "snapshot-id": snapshot_id,
            "sequence-number": sequence_number,
            "timestamp-ms": max(self._clock.now_ms(), int(table.metadata["last-updated-ms"])),
            "manifest-list": location,
            "schema-id": table.metadata["current-schema-id"],
            "summary": _summary(table, added, deletes) | marks.summary(),
        }
        if table.snapshot_id is not None:
            snapshot["parent-snapshot-id"] = table.snapshot_id
        self._contents.pop(str(table.name), None)
        after = self._catalog.commit(table, snapshot)
        if contents.files is not None:
            _note(contents.files, added, deletes)
            contents.files.snapshot_id = snapshot_id
        self._contents[str(table.name)] = _Contents(snapshot_id, listed, contents.files)
        return after

    def _make_durable(self, locations: Sequence[str]) -> None:
        """Before a commit speaks of files they must outlive a power cut: the log may let go of their changes after it.

        All at once: a disk that is asked to sync several files does it in about the time of one.
        """
        paths = [_path(location) for location in locations]
        for _ in self._syncs.map(durable.sync, (*paths, *{path.parent for path in paths})):
            pass

    def _contents_of(self, table: QuickTable) -> _Contents:
        known = self._contents.get(str(table.name))
        if known is None or known.snapshot_id != table.snapshot_id:
            snapshot = table.snapshot
            manifests = [] if snapshot is None else read_manifest_list(self._io.new_input(snapshot["manifest-list"]))
            known = self._contents[str(table.name)] = _Contents(table.snapshot_id, list(manifests))
        return known

    def _read_files(self, contents: _Contents) -> LiveFiles:
        found = LiveFiles(contents.snapshot_id)
        for manifest in contents.manifests:
            files = [entry.data_file for entry in self._manifests.entries(manifest)]
            is_data = manifest.content == ManifestContent.DATA
            _note(found, files if is_data else [], [] if is_data else files)
        return found


def new_data_location(table: QuickTable, suffix: str = "") -> str:
    """Where a new file of the table's goes."""
    folder = table.properties.get("write.data.path") or f"{table.metadata['location']}/data"
    return f"{folder}/{uuid.uuid4()}{suffix}.parquet"


def _path(location: str) -> Path:
    path = local_path(location)
    assert path is not None, location
    return Path(path)


def _added(files: Sequence[DataFile], snapshot_id: int) -> list[ManifestEntry]:
    return [
        ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=snapshot_id,
            sequence_number=None,
            file_sequence_number=None,
            data_file=file,
        )
        for file in files
    ]


def _note(files: LiveFiles, data: Sequence[DataFile], deletes: Sequence[DataFile]) -> None:
    """Take note of files that are part of a snapshot."""
    for file in data:
        files.add(file.file_path, None, file.record_count)
        files.only_spark = files.only_spark or file.file_format != FileFormat.PARQUET
    for file in deletes:
        files.deletes.append(file.file_path)
        is_plain = file.content == DataFileContent.POSITION_DELETES and file.file_format == FileFormat.PARQUET
        files.only_spark = files.only_spark or not is_plain


def _summary(table: QuickTable, added: Sequence[DataFile], deletes: Sequence[DataFile]) -> _Summary:
    """Counts and totals as Iceberg's own library has them."""
    operation = "append" if not deletes else "delete" if not added else "overwrite"
    counts = {
        "added-data-files": len(added),
        "added-records": sum(file.record_count for file in added),
        "added-delete-files": len(deletes),
        "added-position-delete-files": len(deletes),
        "added-position-deletes": sum(file.record_count for file in deletes),
        "added-files-size": sum(file.file_size_in_bytes for file in (*added, *deletes)),
    }
    before: Mapping[str, str] = (table.snapshot or {}).get("summary") or {}
    totals = {
        "total-data-files": counts["added-data-files"],
        "total-records": counts["added-records"],
        "total-delete-files": counts["added-delete-files"],
        "total-position-deletes": counts["added-position-deletes"],
        "total-equality-deletes": 0,
        "total-files-size": counts["added-files-size"],
    }
    summary = {name: str(count) for name, count in counts.items() if count}
    for name, count in totals.items():
        # A total that somebody left out cannot be known from then on.
        if table.snapshot is None or name in before:
            summary[name] = str(int(before.get(name, 0)) + count)
    return {"operation": operation, **summary}
