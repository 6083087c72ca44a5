"""Delta tables as the pipeline's writer needs them: create, evolve, marks, append, replace by key. No Spark.

What a table covers is kept as Delta's own transaction identifiers, in the same commit as the rows: they stay in the
log's checkpoints for ever, and a second writer with the same marks loses.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from mainstem.client.delta import DeltaTable, Storage, variant
from mainstem.client.delta.engine import FILE, PLACES, ROW, Source, engine_of, quoted, read_errors
from mainstem.client.delta.log import AddFile, DeltaLog, Metadata, State
from mainstem.client.delta.schema import KIND, VARIANT, arrow_field, delta_schema, schema_of
from mainstem.client.delta.transaction import VECTORS, Commit, Replacement, Transaction
from mainstem.model.errors import Invalid
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.pipeline.deltapartitions import PartitionColumn, derived
from mainstem.pipeline.lake import Marks
from mainstem.runtime.clock import Clock
from mainstem.tables.evolution import Column, Evolution, columns_of, kinds_of
from mainstem.tables.layout import (
    HLC_MARK,
    KEY,
    KINDS_PROPERTY,
    POSITION_MARK,
    SINCE_PROPERTY,
    delta_path,
)
from mainstem.tables.types import VARIANT as VARIANT_TYPE
from mainstem.tables.types import ColumnType, decimal_of

# The declared types: Delta has no uuid, and what is text to it need not be text to us.
TYPES_PROPERTY = "mainstem.column-types"
CHECKPOINT_EVERY = 20
_NO_PLACES = PLACES.empty_table()
_ARROW_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
    "uuid": pa.string(),
    "variant": VARIANT,
}


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
    def files(self) -> list[AddFile]:
        """The data files."""
        return list(self._state.files.values())

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return {name: value for name, value in self._state.metadata.configuration.items() if value is not None}

    def partitions_of(self, wanted: Sequence[PartitionColumn]) -> list[PartitionColumn]:
        """Those that the table was made with: a later declaration does not change the files that are there."""
        return [column for column in wanted if column.name in self._state.metadata.partitionColumns]

    def marks(self) -> Marks:
        """What the table covers."""
        found = self._state.transactions
        return Marks(LogPosition(found.get(POSITION_MARK, NOWHERE)), found.get(HLC_MARK, 0))

    def columns(self) -> tuple[Column, ...]:
        """The rows' own columns of a state table."""
        types = self._json(TYPES_PROPERTY)
        names = [name for name in schema_of(self._state.metadata).fields if name in types]
        return columns_of([(name, ColumnType(types[name])) for name in names], self._json(KINDS_PROPERTY))

    def columns_since(self) -> dict[str, LogPosition]:
        """Columns that came later than the table, with the position it covered then."""
        return {name: LogPosition(at) for name, at in self._json(SINCE_PROPERTY).items()}

    def _json(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self._state.metadata.configuration.get(name) or "{}"))

    def mark(self, marks: Marks) -> None:
        """Commit the marks alone."""
        self._commit(Replacement([], _NO_PLACES), marks, "WRITE")

    def append(self, rows: pa.Table, marks: Marks) -> None:
        """Add rows, with the marks in the commit."""
        self._commit(Replacement([], _NO_PLACES, rows), marks, "WRITE")

    def old_rows(self, keys: pa.Table, names: Sequence[str]) -> pa.Table:
        """Columns of the rows that some keys have now, and where those are."""
        storage, schema = self.lake.storage, schema_of(self._state.metadata)
        files = list(self._state.files.values())
        every = [*dict.fromkeys([*names, KEY])]
        with engine_of(storage).cursor() as cursor, read_errors(storage, self.log.table, files):
            cursor.register("wanted", keys.select([KEY]))
            source = Source(cursor, storage, self.log.table, schema, files)
            return cursor.execute(
                f"SELECT {', '.join([*map(quoted, every), FILE, ROW])} FROM {source.relation(every, places=True)}"
                f" SEMI JOIN wanted USING ({KEY})"
            ).to_arrow_table()

    def select(self, names: Sequence[str], condition: str, keys: pa.Table) -> pa.Table:
        """Columns of the rows of some keys that meet a condition."""
        storage, schema = self.lake.storage, schema_of(self._state.metadata)
        files = list(self._state.files.values())
        with engine_of(storage).cursor() as cursor, read_errors(storage, self.log.table, files):
            cursor.register("wanted", keys.select([KEY]))
            every = list(schema.fields)
            relation = Source(cursor, storage, self.log.table, schema, files).relation(every)
            return cursor.execute(
                f"SELECT {', '.join(map(quoted, names))} FROM {relation} SEMI JOIN wanted USING ({KEY})"
                f" WHERE {condition}"
            ).to_arrow_table()

    def replace(self, places: pa.Table, rows: pa.Table, marks: Marks) -> None:
        """Put rows in the place of others. `places` are of this version's files: a newer version is a Conflict."""
        files = list(self._state.files.values())
        self._commit(Replacement(files, places.select([FILE, ROW]).cast(PLACES), rows), marks, "MERGE")

    def evolve(self, plan: Evolution, covered: LogPosition) -> None:
        """Bring the schema up to the plan, in one commit. Where a type changes, all rows are cast and written anew."""
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
            since |= {column.name: covered for column in plan.add}
        metadata = msgspec.structs.replace(
            self._state.metadata,
            schemaString=delta_schema(pa.schema(fields)).to_json(),
            configuration={**self._state.metadata.configuration, **_properties(plan.columns, since)},
        )
        rows = self._cast_rows(metadata, set(changed)) if changed and self._state.files else None
        dropped = tuple(self._state.files.values()) if rows is not None else ()
        change = Replacement([], _NO_PLACES, rows, metadata=metadata, dropped=dropped)
        self._commit(change, self.marks(), "CHANGE COLUMNS")

    def rewrite(self, file: AddFile) -> bool:
        """Write a file's rows anew, without those that are gone. False where it is not of the table any more."""
        if file.key not in self._state.files:
            return False
        storage, schema = self.lake.storage, schema_of(self._state.metadata)
        names = list(schema.fields)
        with engine_of(storage).cursor() as cursor, read_errors(storage, self.log.table, [file]):
            relation = Source(cursor, storage, self.log.table, schema, [file]).relation(names)
            rows = cursor.execute(f"SELECT {', '.join(map(quoted, names))} FROM {relation}").to_arrow_table()
        self._commit(Replacement([], _NO_PLACES, rows, dropped=[file], moved=True), self.marks(), "OPTIMIZE")
        return True

    def _cast_rows(self, metadata: Metadata, changed: set[str]) -> pa.Table:
        """Every row, as the new schema has it."""
        storage = self.lake.storage
        before, after = schema_of(self._state.metadata), schema_of(metadata)
        files = list(self._state.files.values())
        # DuckDB casts while it reads; a Variant that becomes text is ours to read.
        texts = {name for name in changed if name in before.fields and before.fields[name].is_variant}
        known = [name for name in after.fields if name not in texts]
        with engine_of(storage).cursor() as cursor, read_errors(storage, self.log.table, files):
            relation = Source(cursor, storage, self.log.table, after, files).relation(known)
            rows = cursor.execute(f"SELECT {', '.join(map(quoted, known))} FROM {relation}").to_arrow_table()
            for name in texts:
                relation = Source(cursor, storage, self.log.table, before, files).relation([name])
                found = cursor.execute(f"SELECT {quoted(name)} FROM {relation}").to_arrow_table()
                rows = rows.append_column(name, from_variants(found[name]))
        return rows

    def _commit(self, change: Replacement, marks: Marks, operation: str) -> None:
        writer = Transaction(engine_of(self.lake.storage), self.log, self._state)
        progress = {POSITION_MARK: int(marks.position), HLC_MARK: marks.hlc_max}
        version = writer.commit(change, Commit(operation, transactions=progress), self.lake.clock.now_ms())
        self.refresh()
        if (version + 1) % CHECKPOINT_EVERY == 0:
            self.lake.table(self.name).checkpoint()


class DeltaLake:
    """The folder, or the bucket, of the pipeline's Delta tables."""

    def __init__(
        self, storage: Storage, clock: Clock, enter: Callable[[TableName, str], None] = lambda *_: None
    ) -> None:
        """`enter` is told of every table, and where it is, before it is used."""
        self.storage = storage
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
        properties: dict[str, str] = {"delta.checkpointInterval": str(CHECKPOINT_EVERY)}
        if vectors:
            properties |= {VECTORS: "true", **_properties(of_rows, {})}
        self.table(name).create(
            pa.schema([_field(column, column_type) for column, column_type in (*columns, *derived(partition))]),
            partition_by=[column.name for column in partition],
            properties=properties,
        )
        created = self.load(name)
        assert created is not None
        return created


def _properties(columns: Sequence[Column], since: Mapping[str, int]) -> dict[str, str]:
    types = {column.stored: str(column.type) for column in columns}
    return {
        TYPES_PROPERTY: json.dumps(types, sort_keys=True),
        KINDS_PROPERTY: json.dumps(kinds_of(columns), sort_keys=True),
        SINCE_PROPERTY: json.dumps(since, sort_keys=True),
    }


def to_variants(texts: pa.ChunkedArray) -> pa.Array:
    """JSON text as Variants."""
    pairs = [None if text is None else variant.encode(msgspec.json.decode(text)) for text in texts.to_pylist()]
    rows = [None if pair is None else {"metadata": pair[0], "value": pair[1]} for pair in pairs]
    return pa.array(rows, VARIANT)


def from_variants(column: pa.ChunkedArray) -> pa.Array:
    """Variants as JSON text."""
    return pa.array(
        [
            None if item is None else msgspec.json.encode(variant.decode(item["metadata"], item["value"])).decode()
            for item in column.to_pylist()
        ],
        pa.string(),
    )
