"""Delta tables as the pipeline's writer needs them: create, evolve, marks, commits of files. No Spark, no rows.

What a table covers is kept as Delta's own transaction identifiers, in the same commit as the rows: they stay in the
log's checkpoints for ever, and a second writer with the same marks loses.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from mainstem.formats.delta import DeltaTable, Storage
from mainstem.formats.delta.files.engine import PLACES, deleted_rows, engine_of
from mainstem.formats.delta.files.vectors import inline
from mainstem.formats.delta.files.zones import row_count, zone_map
from mainstem.formats.delta.log import AddFile, DeltaLog, Metadata, State
from mainstem.formats.delta.schema import KIND, VARIANT, arrow_field, delta_schema, schema_of
from mainstem.formats.delta.transaction import VECTORS, Commit, Replacement, Transaction, rows_by_file
from mainstem.model.errors import Invalid
from mainstem.model.names import TableName
from mainstem.pipeline.commit.marks import APPLICATION, Marks
from mainstem.pipeline.delta.partitions import PartitionColumn, derived, partition_columns
from mainstem.pipeline.passes.delta_scan import DeltaScan
from mainstem.pipeline.passes.plan import DeltaTarget, PartitionField
from mainstem.pipeline.passes.values import ARROW_TYPES
from mainstem.runtime.clock import Clock
from mainstem.tables.evolution import Column, Evolution, columns_of, kinds_of, plan_evolution
from mainstem.tables.layout import (
    DEAD_LETTER_COLUMNS,
    KEY,
    KINDS_PROPERTY,
    LOG,
    PARTITIONS_PROPERTY,
    STATE_COLUMNS,
    TYPES_PROPERTY,
    UNLOGGED_PROPERTY,
    delta_path,
)
from mainstem.tables.origins import unlogged_property
from mainstem.tables.settings import TableSettings
from mainstem.tables.since import Since
from mainstem.tables.types import STRING, ColumnType, decimal_of
from mainstem.tables.types import VARIANT as VARIANT_TYPE

CHECKPOINT_EVERY = 20
NO_PLACES = PLACES.empty_table()
# Writes groups of files anew, on the executors; returns `add` actions.
Rewrite = Callable[[DeltaScan, Sequence[Sequence[AddFile]]], list[dict[str, Any]]]
# As Iceberg's files keep them, but for what Delta has another type for.
_ARROW_TYPES = {**ARROW_TYPES, "uuid": pa.string(), "variant": VARIANT}


def arrow_type(column_type: ColumnType) -> pa.DataType:
    """How Delta stores a type."""
    decimal = decimal_of(column_type)
    return pa.decimal128(*decimal) if decimal else _ARROW_TYPES[column_type]


def _field(name: str, column_type: ColumnType) -> pa.Field:
    metadata = {KIND: "variant"} if column_type == VARIANT_TYPE else None
    return pa.field(name, arrow_type(column_type), True, metadata)


class DeltaLakeTable:
    """One Delta table, at the version it was loaded or refreshed at."""

    def __init__(self, lake: "DeltaLake", name: TableName, log: DeltaLog) -> None:
        self.lake = lake
        self.name = name
        self.log = log
        self._state: State = log.newest()

    def refresh(self) -> None:
        """Look at the newest version."""
        self._state = self.log.newest()

    @property
    def version(self) -> int:
        """The version that is looked at."""
        return self._state.version

    @property
    def snapshot_id(self) -> int | None:
        """The version that is looked at; None where it has no files."""
        return self._state.version if self._state.files else None

    @property
    def rows(self) -> int:
        """How many rows the table's files have, deleted ones included."""
        return sum(row_count(file) or 0 for file in self._state.files.values())

    def committed(self) -> tuple[int | None, int]:
        """The version that a commit of ours has just made, and the rows of its files."""
        return self.snapshot_id, self.rows

    @property
    def files(self) -> list[AddFile]:
        """The data files."""
        return list(self._state.files.values())

    def may_hold(self, file: AddFile, low: str, high: str) -> bool:
        """Whether a file of a state may have rows with keys of a range, by its statistics."""
        schema = schema_of(self._state.metadata)
        zones, _ = zone_map(file, [schema.fields[KEY]], schema)
        bounds = zones[KEY]
        return (bounds.minimum is None or bounds.minimum <= high) and (bounds.maximum is None or bounds.maximum >= low)

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return {name: value for name, value in self._state.metadata.configuration.items() if value is not None}

    def derived_by(self, declared: Sequence[PartitionColumn]) -> list[PartitionField]:
        """What the columns are made from that only partitions have, as it was when the table was made.

        Delta's partitions never change, so a declaration that does changes nothing here.
        """
        noted = self.properties.get(PARTITIONS_PROPERTY)
        if noted is not None:
            return [PartitionField(*each) for each in json.loads(noted)]
        # A table from before this was noted: then what is declared must be what it was made with.
        by = self._state.metadata.partitionColumns
        made = [column.field for column in declared if column.is_derived and column.name in by]
        others = set(by) - {each.name for each in made} - self._column_types().keys()
        if others:
            raise Invalid(f"the table was made with other partitions. table={self.name} expected={by} declared")
        return made

    def marks(self) -> Marks:
        """What the table covers."""
        return Marks.of_summary({name: str(value) for name, value in self._state.transactions.items()})

    def names(self) -> set[str]:
        """Of all columns."""
        return set(schema_of(self._state.metadata).fields)

    def columns(self) -> tuple[Column, ...]:
        """The rows' own columns of a state table."""
        types = self._json(TYPES_PROPERTY)
        names = [name for name in schema_of(self._state.metadata).fields if name in types]
        return columns_of([(name, ColumnType(types[name])) for name in names], self._json(KINDS_PROPERTY))

    def columns_since(self) -> Since:
        """Columns that came later than the table, and which rows lack them."""
        return Since.of_properties(self._state.metadata.configuration)

    def say_logs(self) -> None:
        """Give a history, or a table of dead letters, of before a column for the log of each position."""
        known = schema_of(self._state.metadata).fields.values()
        fields = [*(arrow_field(field) for field in known), _field(LOG, STRING)]
        held = unlogged_property(self.marks().positions)
        metadata = msgspec.structs.replace(
            self._state.metadata,
            schemaString=delta_schema(pa.schema(fields)).to_json(),
            configuration={**self._state.metadata.configuration, UNLOGGED_PROPERTY: held},
        )
        self._commit(Replacement([], NO_PLACES, metadata=metadata, moved=True), self.marks(), "ADD COLUMNS")

    def transforms(self) -> dict[str, set[str]]:
        """None that bind a type: a partition that is made of a column is a column of its own."""
        return {}

    def _json(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self._state.metadata.configuration.get(name) or "{}"))

    def target(self, derived: Sequence[PartitionField] = ()) -> DeltaTarget:
        """What the executors have to know to write files for it."""
        return _target(self.lake, self.name, self._state.metadata, self._column_types(), derived)

    def commit(
        self,
        marks: Marks,
        added: Sequence[Mapping[str, Any]] = (),
        places: pa.Table = NO_PLACES,
        dropped: Sequence[AddFile] = (),
        noted: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Add files that were written, and take rows or whole files out of the table. A newer version is a Conflict.

        `noted` are properties that the table has from then on.
        Rows leave by deletion vectors. Of a table without them, see `without`: the driver writes no row.
        """
        assert not places.num_rows or self.keeps_vectors
        operation = "MERGE" if places.num_rows or dropped else "WRITE"
        known = self._state.metadata
        metadata = msgspec.structs.replace(known, configuration={**known.configuration, **noted}) if noted else None
        change = Replacement(self.files, places, metadata=metadata, added=added, dropped=dropped)
        self._commit(change, marks, operation)

    @property
    def keeps_vectors(self) -> bool:
        """Whether rows may leave a file by a deletion vector. Otherwise the file is written anew without them."""
        return schema_of(self._state.metadata).has(VECTORS)

    def without(self, places: pa.Table, rewritten: Rewrite) -> tuple[list[AddFile], list[dict[str, Any]]]:
        """Files that lose rows, and `add` actions of those that the executors wrote in their place."""
        touched = rows_by_file(self.files, places)
        lighter = [carrying(file, gone | (self._deleted(file) or BitMap64())) for file, gone in touched]
        return [file for file, _ in touched], rewritten(self.scan(), [[file] for file in lighter])

    def _deleted(self, file: AddFile) -> BitMap64 | None:
        return deleted_rows(self.lake.storage, self.log.table, file)

    def scan(self, columns: Sequence[Column] = ()) -> DeltaScan:
        """What the executors have to know to read its files."""
        return DeltaScan(self.target(), self.lake.store, self.name.logical, tuple(columns))

    def _column_types(self) -> dict[str, ColumnType]:
        own = {name: ColumnType(text) for name, text in self._json(TYPES_PROPERTY).items()}
        return {**dict(DEAD_LETTER_COLUMNS), **dict(STATE_COLUMNS), **own}

    def evolve(self, plan: Evolution, clock_max: int, rewritten: Rewrite) -> None:
        """Bring the schema up to the plan, in one commit. Where a type changes, all rows are cast and written anew.

        No row has a clock above `clock_max`.
        """
        changed = {column.stored: column for column in (*plan.retype, *plan.widen, *plan.rewrite)}
        known = schema_of(self._state.metadata).fields
        rows_own = self._json(TYPES_PROPERTY)
        others = [field for name, field in known.items() if name not in rows_own]
        if taken := sorted({field.name for field in others} & {column.stored for column in plan.add}):
            raise Invalid(f"a column has the name of a partition: name that by `as`. table={self.name} got={taken}")
        fields = [_field(column.stored, column.type) for column in plan.columns]
        fields += [arrow_field(field) for field in others]
        since = self.columns_since()
        if self._state.files:
            since = since.with_columns([column.name for column in plan.add], clock_max)
        metadata = msgspec.structs.replace(
            self._state.metadata,
            schemaString=delta_schema(pa.schema(fields)).to_json(),
            configuration={**self._state.metadata.configuration, **_properties(plan.columns, since)},
        )
        added: Sequence[Mapping[str, Any]] = ()
        dropped: Sequence[AddFile] = ()
        if changed and self._state.files:
            dropped = self.files
            added = rewritten(self._cast_scan(metadata, set(changed)), [[file] for file in dropped])
        # The same rows in other types: a reader of the table's change feed sees no change.
        change = Replacement([], NO_PLACES, added=added, metadata=metadata, dropped=dropped, moved=True)
        self._commit(change, self.marks(), "CHANGE COLUMNS")

    def _cast_scan(self, metadata: Metadata, changed: set[str]) -> DeltaScan:
        """The files as the new schema has them. A Variant that becomes text is read as what it was."""
        before = schema_of(self._state.metadata)
        texts = frozenset(name for name in changed if name in before.fields and before.fields[name].is_variant)
        target = _target(self.lake, self.name, metadata, self._column_types(), ())
        target = replace(target, before=self._state.metadata.schemaString)
        return DeltaScan(target, self.lake.store, self.name.logical, texts=texts)

    def rewrite(self, groups: Sequence[Sequence[AddFile]], rewritten: Rewrite) -> tuple[int, int]:
        """Write the live rows of each group of files together; returns how many files went, and how many came."""
        there = [[file for file in group if file.key in self._state.files] for group in groups]
        dropped = [file for group in there for file in group]
        if not dropped:
            return 0, 0
        added = rewritten(self.scan(), [group for group in there if group])
        self._commit(Replacement([], NO_PLACES, added=added, dropped=dropped, moved=True), self.marks(), "OPTIMIZE")
        return len(dropped), len(added)

    def _commit(self, change: Replacement, marks: Marks, operation: str) -> None:
        writer = Transaction(engine_of(self.lake.storage), self.log, self._state)
        progress = {name: int(text) for name, text in marks.summary().items()}
        about = Commit(operation, transactions=progress, metadata={APPLICATION: self.lake.application})
        version = writer.commit(change, about, self.lake.clock.now_ms())
        self.refresh()
        if (version + 1) % CHECKPOINT_EVERY == 0:
            self.lake.table(self.name).checkpoint()


def carrying(file: AddFile, gone: BitMap64) -> AddFile:
    """A file that tells those who rewrite it which rows to leave out."""
    return msgspec.structs.replace(file, deletionVector=inline(gone))


class DeltaLake:
    """The folder, or the bucket, of the pipeline's Delta tables."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        enter: Callable[[TableName, str], None] = lambda *_: None,
        store: Mapping[str, str] | None = None,
        application: str = "",
    ) -> None:
        """`enter` is told of every table, and where it is, before it is used; `store` is how executors reach it."""
        self.storage = storage
        self.store = dict(store or {})
        self.application = application
        self.clock = clock
        self._enter = enter

    def path(self, name: TableName) -> str:
        """Where a table is, below the storage's root."""
        return delta_path(name)

    def table(self, name: TableName) -> DeltaTable:
        """The table as the client has it."""
        return DeltaTable(self.storage, self.path(name), clock=self.clock)

    def load(self, name: TableName) -> DeltaLakeTable | None:
        """The table at its newest version, or None where there is none."""
        log = DeltaLog(self.storage, self.path(name))
        if not log.exists():
            return None
        self._enter(name, self.storage.uri(log.table))
        return DeltaLakeTable(self, name, log)

    def create(
        self,
        name: TableName,
        columns: Sequence[tuple[str, ColumnType]],
        *,
        of_rows: Sequence[Column] = (),
        partition: Sequence[PartitionColumn] = (),
        vectors: bool = False,
    ) -> DeltaLakeTable:
        """Create a table. Someone else may have been faster; then theirs is taken."""
        noted = [[column.name, column.source, column.transform] for column in partition if column.is_derived]
        properties = {"delta.checkpointInterval": str(CHECKPOINT_EVERY), PARTITIONS_PROPERTY: json.dumps(noted)}
        if vectors:
            properties |= {VECTORS: "true", **_properties(of_rows, Since())}
        self.table(name).create(
            pa.schema([_field(column, column_type) for column, column_type in (*columns, *derived(partition))]),
            partition_by=[column.name for column in partition],
            properties=properties,
        )
        created = self.load(name)
        assert created is not None
        return created


def state_partition(settings: TableSettings) -> tuple[PartitionColumn, ...]:
    """The partition columns of a state."""
    declared = {column.stored: column.type for column in plan_evolution((), {}, settings).columns}
    return partition_columns(settings.partition or (), {**declared, **dict(STATE_COLUMNS)})


def create_state(lake: DeltaLake, name: TableName, settings: TableSettings) -> DeltaLakeTable:
    """Create the table of the current rows, with what is declared of it."""
    columns = plan_evolution((), {}, settings).columns
    fields = [(column.stored, column.type) for column in columns]
    return lake.create(
        name, [*fields, *STATE_COLUMNS], of_rows=columns, partition=state_partition(settings), vectors=True
    )


def _properties(columns: Sequence[Column], since: Since) -> dict[str, str]:
    types = {column.stored: str(column.type) for column in columns}
    return {
        TYPES_PROPERTY: json.dumps(types, sort_keys=True),
        KINDS_PROPERTY: json.dumps(kinds_of(columns), sort_keys=True),
        **since.properties(),
    }


def _target(
    lake: "DeltaLake",
    name: TableName,
    metadata: Metadata,
    types: Mapping[str, ColumnType],
    derived: Sequence[PartitionField],
) -> DeltaTarget:
    return DeltaTarget(
        url=lake.storage.root,
        path=lake.path(name),
        metadata=msgspec.to_builtins(metadata),
        derived=tuple(derived),
        types=dict(types),
    )
