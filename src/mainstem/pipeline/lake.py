"""Iceberg tables as the writer needs them: create, evolve, markers, branches. Through Iceberg's own Java API.

Everything goes through the session's catalog, so the code knows a catalog's name and nothing else of it. What a
table covers is read from its snapshots and never kept anywhere else.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from mainstem.model.errors import Conflict, NotFound
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.tables.evolution import Column, Evolution, columns_of, kinds_of
from mainstem.tables.layout import (
    HLC_MARK,
    KEY,
    KINDS_PROPERTY,
    POSITION_MARK,
    SINCE_PROPERTY,
    STATE_COLUMNS,
)
from mainstem.tables.partitions import applicable, field_name, source_of
from mainstem.tables.settings import Transform
from mainstem.tables.types import ColumnType

CATALOG = "lake"
MAIN = "main"
STAGE_ID = "mainstem"
_OWN_STATE_COLUMNS = frozenset(name for name, _ in STATE_COLUMNS)


@dataclass(frozen=True, slots=True)
class Marks:
    """What the newest marked snapshot of a table says: covered position, and the highest clock ever seen."""

    position: LogPosition = NOWHERE
    hlc_max: int = 0

    def advanced(self, position: LogPosition, hlc_max: int) -> "Marks":
        """The marks after changes up to a position, with clocks up to another."""
        return Marks(position, max(self.hlc_max, hlc_max))

    def options(self) -> dict[str, str]:
        """As options of a Spark write, which puts them into the commit's snapshot summary."""
        return {f"snapshot-property.{name}": value for name, value in self.summary().items()}

    def summary(self) -> dict[str, str]:
        """As entries of a snapshot summary."""
        return {POSITION_MARK: str(self.position), HLC_MARK: str(self.hlc_max)}


class LakeTable:
    """One Iceberg table. `refresh` before reading what another writer may have changed."""

    def __init__(self, lake: "Lake", name: TableName, java_table: Any) -> None:
        self.lake = lake
        self.name = name
        self.java = java_table

    @property
    def identifier(self) -> str:
        """Its name in SQL."""
        return self.lake.identifier(self.name)

    def refresh(self) -> None:
        """Load the current metadata."""
        self.java.refresh()

    @property
    def snapshot_id(self) -> int | None:
        """The head of main."""
        snapshot = self.java.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    def property(self, name: str) -> str | None:
        """One of the table's properties."""
        value = self.java.properties().get(name)
        return None if value is None else str(value)

    def marks(self) -> Marks:
        """The marks of the newest snapshot in main's ancestry that has them: compactions in between have none."""
        snapshot = self.java.currentSnapshot()
        while snapshot is not None:
            summary = snapshot.summary()
            position = summary.get(POSITION_MARK)
            if position is not None:
                return Marks(LogPosition(int(position)), int(summary.get(HLC_MARK) or 0))
            parent = snapshot.parentId()
            snapshot = None if parent is None else self.java.snapshot(parent)
        return Marks()

    def mark(self, marks: Marks) -> None:
        """Commit the marks alone, where a batch leaves nothing to write."""
        append = self.java.newFastAppend()
        for name, value in marks.summary().items():
            append.set(name, value)
        commit(append)

    def columns(self) -> tuple[Column, ...]:
        """The rows' own columns of a state table."""
        # As JSON in one call: a call per field would take longer than the commit.
        schema = json.loads(self.lake.jvm.org.apache.iceberg.SchemaParser.toJson(self.java.schema()))
        fields = [
            (field["name"], ColumnType(str(field["type"]).replace(" ", "")))
            for field in schema["fields"]
            if field["name"] not in _OWN_STATE_COLUMNS
        ]
        return columns_of(fields, json.loads(self.property(KINDS_PROPERTY) or "{}"))

    def transforms(self) -> dict[str, set[str]]:
        """By column, what partition fields are made of it, in the table's present spec or in an earlier one."""
        schema, found = self.java.schema(), dict[str, set[str]]()
        for spec in self.java.specs().values():
            for field in spec.fields():
                column = schema.findColumnName(field.sourceId())
                if column is not None:
                    found.setdefault(str(column), set()).add(str(field.transform().toString()).partition("[")[0])
        return found

    def columns_since(self) -> dict[str, LogPosition]:
        """Columns that came later than the table, with the position it covered then: rows up to it lack them."""
        return {
            name: LogPosition(position)
            for name, position in json.loads(self.property(SINCE_PROPERTY) or "{}").items()
        }

    def evolve(self, plan: Evolution, covered: LogPosition) -> None:
        """Apply everything of the plan that needs no rewrite, in one commit."""
        transaction = self.java.newTransaction()
        if plan.add or plan.retype or plan.widen:
            update = transaction.updateSchema()
            for column in plan.retype:
                update.deleteColumn(column.stored)
            for column in (*plan.retype, *plan.add):
                update.addColumn(None, column.stored, self.lake.java_type(column.type))
                # The row's own columns come first.
                update.moveBefore(column.stored, KEY)
            for column in plan.widen:
                update.updateColumn(column.stored, self.lake.java_type(column.type))
            update.commit()
        since = self.columns_since()
        if self.snapshot_id is not None:
            # A column that was dropped and added is a new one to Iceberg, but its rows had it, as a null.
            since |= {column.name: covered for column in plan.add}
        properties = transaction.updateProperties()
        properties.set(KINDS_PROPERTY, json.dumps(kinds_of(plan.columns), sort_keys=True))
        properties.set(SINCE_PROPERTY, json.dumps(since, sort_keys=True))
        properties.commit()
        commit(transaction, method="commitTransaction")


class Lake:
    """The session's catalog."""

    def __init__(self, spark: SparkSession, catalog: str = CATALOG) -> None:
        self.spark = spark
        self.catalog = catalog
        self.jvm: Any = spark._jvm
        # Appends to tables that ask for it stay staged until a RowDelta takes their files.
        spark.conf.set("spark.wap.id", STAGE_ID)
        self._session = spark._jsparkSession

    def identifier(self, name: TableName) -> str:
        """A table's name in SQL."""
        return ".".join(quoted(part) for part in (self.catalog, *name.levels, name.table))

    def java_type(self, column_type: ColumnType) -> Any:
        """A type of Iceberg's own."""
        return self.jvm.org.apache.iceberg.types.Types.fromTypeName(column_type)

    def load(self, name: TableName) -> LakeTable | None:
        """The table with its current metadata, or None where it does not exist."""
        try:
            java = self._java_catalog().loadTable(self._java_identifier(name))
        except Py4JJavaError as error:
            if _is_a(error, "NoSuchTableException", "NoSuchNamespaceException"):
                return None
            raise
        java.refresh()
        return LakeTable(self, name, java)

    def create(
        self,
        name: TableName,
        columns: Sequence[tuple[str, ColumnType]],
        properties: Mapping[str, str],
        partition: Sequence[Transform] = (),
    ) -> LakeTable:
        """Create a table and its namespace. Someone else may have been faster; then theirs is taken."""
        self._create_namespace(name)
        schema = self._schema(columns)
        builder = self._java_catalog().buildTable(self._java_identifier(name), schema)
        now, _ = applicable(partition, dict(columns))
        builder = builder.withPartitionSpec(self._spec(schema, now))
        try:
            java = builder.withProperties(_java_map(self.jvm, properties)).create()
        except Py4JJavaError as error:
            if not _is_a(error, "AlreadyExistsException"):
                raise
            existing = self.load(name)
            if existing is None:
                raise NotFound(f"table was created and dropped by someone else. table={name}") from error
            return existing
        return LakeTable(self, name, java)

    def _java_catalog(self) -> Any:
        return self.jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(self._session, self.catalog)

    def _java_identifier(self, name: TableName) -> Any:
        return self.jvm.org.apache.iceberg.catalog.TableIdentifier.of(self._strings((*name.levels, name.table)))

    def _create_namespace(self, name: TableName) -> None:
        for depth in range(1, len(name.levels) + 1):
            path = ".".join(quoted(level) for level in (self.catalog, *name.levels[:depth]))
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {path}")

    def _schema(self, columns: Sequence[tuple[str, ColumnType]]) -> Any:
        jvm = self.jvm
        fields = jvm.java.util.ArrayList()
        for field_id, (column, column_type) in enumerate(columns, start=1):
            fields.add(
                jvm.org.apache.iceberg.types.Types.NestedField.optional(field_id, column, self.java_type(column_type))
            )
        return jvm.org.apache.iceberg.Schema(fields)

    def _spec(self, schema: Any, partition: Sequence[Transform]) -> Any:
        builder = self.jvm.org.apache.iceberg.PartitionSpec.builderFor(schema)
        for transform in partition:
            add = getattr(builder, transform.name)
            arguments = [source_of(transform)] if transform.size is None else [source_of(transform), transform.size]
            add(*arguments, field_name(transform))
        return builder.build()

    def _strings(self, values: Sequence[str]) -> Any:
        gateway = self.spark.sparkContext._gateway
        assert gateway is not None
        array = gateway.new_array(self.jvm.java.lang.String, len(values))
        for index, value in enumerate(values):
            array[index] = value
        return array


def quoted(part: str) -> str:
    """An identifier in Spark's SQL."""
    return "`" + part.replace("`", "``") + "`"


def commit(operation: Any, method: str = "commit") -> None:
    """Commit one of Iceberg's pending updates; a lost race is a Conflict, so that the batch is done again."""
    try:
        getattr(operation, method)()
    except Py4JJavaError as error:
        if is_conflict(error):
            raise Conflict(f"commit lost a race: {error.java_exception}") from error
        raise


def is_conflict(error: BaseException) -> bool:
    """Whether the table changed under a commit: nothing was written, and doing it again may succeed."""
    if isinstance(error, Py4JJavaError):
        return _is_a(error, "CommitFailedException", "ValidationException", "AlreadyExistsException")
    return any(name in str(error) for name in ("CommitFailedException", "ValidationException"))


def _is_a(error: Py4JJavaError, *names: str) -> bool:
    cause = error.java_exception
    while cause is not None:
        if cause.getClass().getSimpleName() in names:
            return True
        cause = cause.getCause()
    return False


def _java_map(jvm: Any, values: Mapping[str, str]) -> Any:
    java = jvm.java.util.HashMap()
    for name, value in values.items():
        java.put(name, value)
    return java
