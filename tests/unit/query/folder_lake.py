"""A lake for tests that need real Iceberg tables and no server: pyiceberg writes them, a dict names them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties, Record

from mainstem.model import NotFound, TableName
from mainstem.query.ports import LoadedTable


class FolderCatalog(NoopCatalog, MetastoreCatalog):
    """The least of a catalog that `Table.append`, `overwrite` and `delete` need."""

    def __init__(self, folder: Path) -> None:
        super().__init__("lake", warehouse=str(folder))
        self.folder = folder
        self.locations: dict[tuple[str, ...], str] = {}

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        name = Catalog.identifier_to_tuple(identifier)
        iceberg = self._convert_schema_if_needed(schema, int(properties.get("format-version", 2)))  # type: ignore[arg-type]
        location = location or str(self.folder.joinpath(*name))
        metadata = new_table_metadata(
            location=location,
            schema=iceberg,
            partition_spec=partition_spec,
            sort_order=sort_order,
            properties=dict(properties),
        )
        file = load_location_provider(location, dict(properties)).new_table_metadata_file_location()
        self._write_metadata(metadata, load_file_io(self.properties, file), file)
        self.locations[name] = file
        return self.load_table(name)

    def load_table(self, identifier: str | Identifier) -> Table:
        name = Catalog.identifier_to_tuple(identifier)
        if name not in self.locations:
            raise NoSuchTableError(".".join(name))
        location = self.locations[name]
        io = load_file_io(self.properties, location)
        return Table(name, FromInputFile.table_metadata(io.new_input(location)), location, io, self)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        current = self.load_table(table.name())
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        self.locations[table.name()] = staged.metadata_location
        answer = {"metadata": staged.metadata, "metadata-location": staged.metadata_location}
        return CommitTableResponse.model_validate(answer)


class FolderLake:
    """What `mainstem.query` asks of a catalog, over a `FolderCatalog`."""

    def __init__(self, catalog: FolderCatalog) -> None:
        self.catalog = catalog

    async def tables(self) -> Sequence[TableName]:
        return sorted(TableName(".".join(name[:-1]), name[-1]) for name in self.catalog.locations)

    async def load(self, name: TableName) -> LoadedTable:
        location = self.catalog.locations.get((*name.levels, name.table))
        if location is None:
            raise NotFound(f"table does not exist. got={name}")
        metadata: dict[str, Any] = json.loads(await asyncio.to_thread(Path(location).read_bytes))
        return LoadedTable(name=name, metadata_location=location, metadata=metadata)


def append_partitioned(table: Table, rows: pa.Table, row_group_rows: int) -> None:
    """Append with any transform, one file per partition: pyiceberg's own writer needs a native package for that."""
    spec, schema = table.spec(), table.schema()
    rows = rows.cast(schema_to_pyarrow(schema))
    (field,) = spec.fields
    source = schema.find_field(field.source_id)
    transform = field.transform.transform(source.field_type)
    values = rows[source.name].combine_chunks()
    numbers = pc.cast(values, pa.int64()).to_pylist()
    by_value: dict[Any, list[int]] = {}
    for index, number in enumerate(numbers):
        by_value.setdefault(transform(number), []).append(index)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for value, indices in by_value.items():
            path = Path(table.location()) / "data" / f"{field.name}={value}-{len(rows)}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows.take(indices), path, row_group_size=row_group_rows)
            append.append_data_file(_data_file(table, path, Record(value)))


def _data_file(table: Table, path: Path, partition: Record) -> DataFile:
    footer = pq.read_metadata(path)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(table.schema(), table.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(table.schema()),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=str(path),
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=path.stat().st_size,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
