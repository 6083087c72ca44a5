"""Equality deletes in a table, as LakeSync's compactor and Flink write them. pyiceberg has no way of its own to."""

import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, ListType, StructType


def delete_where_equal(table: Table, column: str, values: pa.Array) -> None:
    """Delete the rows with one of these values, in one snapshot, without looking for them. No partitions."""
    field = table.schema().find_field(column)
    path = f"{table.location()}/data/equality-{uuid.uuid4()}.parquet"
    named = pa.field(column, values.type, metadata={"PARQUET:field_id": str(field.field_id)})
    output = table.io.new_output(path)
    with output.create() as stream:
        pq.write_table(pa.table([values], schema=pa.schema([named])), stream)
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(values),
        file_size_in_bytes=len(output),
        equality_ids=[field.field_id],
        spec_id=table.spec().spec_id,
        sort_order_id=None,
        key_metadata=None,
    )
    with table.transaction() as transaction:
        snapshot = _Deletes(Operation.DELETE, transaction, table.io)
        snapshot.delete = file
        snapshot.commit()


class _DeleteManifest(ManifestWriterV2):
    def _with_partition(self, format_version: Any) -> Schema:
        """pyiceberg takes the ids for longs. They are ints, and Java's readers fail on anything else."""
        (*others, file) = super()._with_partition(format_version).fields
        assert isinstance(file.field_type, StructType)
        ids = ListType(element_id=136, element_type=IntegerType(), element_required=True)
        parts = [
            part.model_copy(update={"field_type": ids}) if part.name == "equality_ids" else part
            for part in file.field_type.fields
        ]
        return Schema(*others, file.model_copy(update={"field_type": StructType(*parts)}))

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Deletes(_FastAppendFiles):
    """What there is, and one delete file."""

    delete: DataFile

    def _manifests(self) -> list[ManifestFile]:
        table: Any = self._transaction.table_metadata
        output = self.new_manifest_output()
        with _DeleteManifest(table.spec(), table.schema(), output, self._snapshot_id, self._compression) as writer:
            writer.add(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=self.delete,
                )
            )
        return [*self._existing_manifests(), writer.to_manifest_file()]
