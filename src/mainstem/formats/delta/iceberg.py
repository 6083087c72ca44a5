"""An append-only Delta table that Iceberg engines read too: metadata of their own over the same data files.

    mirror = IcebergMirror(table, "http://127.0.0.1:8181", "shop.events")
    table.after_commit(mirror.refresh)

Nothing is copied. The Iceberg table finds columns by their names, since Delta's files carry no field ids; the columns
that a table is partitioned by are not in its files at all, and engines take them from Iceberg's partitions. Each
snapshot says which Delta version it shows. A refresh that is repeated, or runs twice at once, changes nothing.
"""

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.formats.delta.files.zones import partition_value
from mainstem.formats.delta.log import AddFile, State, file_below
from mainstem.formats.delta.schema import TableSchema, schema_of
from mainstem.formats.delta.table import DeltaTable
from mainstem.model.errors import Conflict, Invalid

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

VERSION_PROPERTY = "mainstem.delta-version"
ATTEMPTS_MAX = 5
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NAME_MAPPING = "schema.name-mapping.default"


class IcebergMirror:
    """Shows one Delta table as an Iceberg table of a REST catalog."""

    def __init__(
        self, table: DeltaTable, url: str, identifier: str, *, warehouse: str = "lake", **properties: str
    ) -> None:
        """`identifier` is namespace and name; `properties` are those of pyiceberg's catalog, such as a token."""
        from pyiceberg.catalog import load_catalog

        options = table.storage.options
        storage = {name.replace("aws_", "s3.").replace("_", "-"): value for name, value in options.items()}
        settings = {"type": "rest", "uri": url, "warehouse": warehouse, **storage, **properties}
        self._catalog = load_catalog("mainstem", **settings)
        self._table = table
        self._identifier = identifier

    def refresh(self, _: int | None = None) -> int:
        """Bring the Iceberg table to the newest Delta version, which is returned."""
        from pyiceberg.exceptions import CommitFailedException

        for _attempt in range(ATTEMPTS_MAX):
            state = self._table.state()
            _check(state, self._table.name)
            try:
                self._publish(self._opened(state), state)
            except CommitFailedException:
                continue
            return state.version
        raise Conflict(f"the Iceberg table moved on again and again. table={self._identifier}")

    def _opened(self, state: State) -> "Table":
        from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError

        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            pass
        try:
            self._catalog.create_namespace(self._identifier.rpartition(".")[0])
        except NamespaceAlreadyExistsError:
            pass
        try:
            return self._create(state)
        except TableAlreadyExistsError:
            return self._catalog.load_table(self._identifier)

    def _create(self, state: State) -> "Table":
        from pyiceberg.transforms import IdentityTransform

        creation = self._catalog.create_table_transaction(self._identifier, _schema(state))
        with creation as transaction, transaction.update_spec() as spec:
            for name in state.metadata.partitionColumns:
                spec.add_field(name, IdentityTransform(), name)
        return self._catalog.load_table(self._identifier)

    def _publish(self, iceberg: "Table", state: State) -> None:
        snapshot = iceberg.current_snapshot()
        shown = int((snapshot.summary and snapshot.summary[VERSION_PROPERTY]) or -1) if snapshot is not None else -1
        if shown >= state.version:
            return
        storage, name = self._table.storage, self._table.name
        wanted = {storage.uri(file_below(name, file.path)): file for file in state.files.values()}
        there = {task.file.file_path: task.file for task in iceberg.scan().plan_files()}
        with iceberg.transaction() as transaction:
            self._evolve(iceberg, transaction, state)
            marks = {VERSION_PROPERTY: str(state.version)}
            gone = [file for path, file in there.items() if path not in wanted]
            new = {path: wanted[path] for path in sorted(wanted.keys() - there.keys())}
            update = transaction.update_snapshot(snapshot_properties=marks)
            with update.overwrite() if gone else update.fast_append() as files:
                for file in gone:
                    files.delete_data_file(file)
                for path, added in new.items():
                    files.append_data_file(_data_file(iceberg, transaction, path, added, schema_of(state.metadata)))

    def _evolve(self, iceberg: "Table", transaction: Any, state: State) -> None:
        """Columns that came, and the names by which the files' columns are found."""
        from pyiceberg.exceptions import ResolveError, ValidationError

        schema = _schema(state)
        try:
            # Nothing is committed where nothing differs.
            with transaction.update_schema() as update:
                update.union_by_name(schema)
        except (ValidationError, ResolveError) as error:
            raise Invalid(
                f"Iceberg has no such change of a column: make the mirror anew. table={self._table.name} {error}",
                reason="schema",
            ) from None
        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        if transaction.table_metadata.properties.get(_NAME_MAPPING) != mapping:
            transaction.set_properties(**{_NAME_MAPPING: mapping})


def _data_file(iceberg: "Table", transaction: Any, path: str, file: AddFile, schema: TableSchema) -> "DataFile":
    """What Iceberg keeps of a file: bounds by its footer, and its partition as Delta's log has it."""
    from pyiceberg.io import pyarrow as columns
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    metadata = transaction.table_metadata
    with iceberg.io.new_input(path).open() as source:
        footer = pq.read_metadata(source)
    statistics = columns.data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=columns.compute_statistics_plan(metadata.schema(), metadata.properties),
        parquet_column_mapping=columns.parquet_path_to_id_mapping(metadata.schema()),
    )
    values = [
        _stored(partition_value(file.partitionValues.get(schema.fields[name].physical), schema.fields[name]))
        for name in schema.partition_by
    ]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _stored(value: Any) -> Any:
    """A partition's value as Iceberg stores it: days and microseconds."""
    if isinstance(value, dt.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        return (moment - _EPOCH) // dt.timedelta(microseconds=1)
    return (value - _EPOCH.date()).days if isinstance(value, dt.date) else value


def _schema(state: State) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in schema_of(state.metadata).arrow])


def _check(state: State, name: str) -> None:
    """What Iceberg's metadata cannot say of Delta's files."""
    schema = schema_of(state.metadata)
    problem = None
    if any(file.deletionVector is not None for file in state.files.values()):
        problem = "deletion vectors"
    elif any(field.physical != field.name for field in schema.fields.values()):
        problem = "mapped columns"
    elif any(field.is_variant for field in schema.fields.values()):
        problem = "Variants"
    if problem is not None:
        raise Invalid(f"only plain append-only tables are shown as Iceberg. table={name} it has {problem}")
