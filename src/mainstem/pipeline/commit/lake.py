"""Iceberg tables as the writer needs them: create, evolve, markers, branches. Through Iceberg's own Java API.

Everything goes through the session's catalog, so the code knows a catalog's name and nothing else of it. What a
table covers is read from its snapshots and never kept anywhere else.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaMember
from py4j.protocol import STATIC_PREFIX, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from mainstem.model.errors import Conflict, NotFound
from mainstem.model.names import TableName
from mainstem.pipeline.commit.changes import NameTaken
from mainstem.pipeline.commit.keyindex import DataFile
from mainstem.pipeline.commit.marks import APPLICATION, Marks
from mainstem.pipeline.commit.own_files import own_rows, refuse_beyond
from mainstem.pipeline.commit.syncing import staged_files
from mainstem.runtime import durable
from mainstem.sql import spark_name
from mainstem.tables.evolution import Column, Evolution, columns_of, kinds_of
from mainstem.tables.layout import KEY, KINDS_PROPERTY, LOG, STATE_COLUMNS, UNLOGGED_PROPERTY
from mainstem.tables.origins import unlogged_property
from mainstem.tables.partitions import KnownField, applicable, field_name, iceberg_transform, source_of
from mainstem.tables.settings import Transform
from mainstem.tables.since import Since
from mainstem.tables.types import STRING, ColumnType

CATALOG = "lake"
# What catalogs say where a view, or a table of another kind, has a name.
_OTHER_KIND = "with same name"
_OWN_STATE_COLUMNS = frozenset(name for name, _ in STATE_COLUMNS)
# Iceberg numbers partition fields from 1000 on.
_PARTITION_ID_BEFORE_FIRST = 999


class _Classes:
    """Iceberg's classes. Every dot of a name is a call into the JVM, so each is looked up once."""

    def __init__(self, jvm: Any) -> None:
        iceberg = jvm.org.apache.iceberg
        self.snapshot_json = iceberg.SnapshotParser.toJson
        self.schema_json = iceberg.SchemaParser.toJson
        self.spec_json = iceberg.PartitionSpecParser.toJson
        self.file_json = iceberg.ContentFileParser.toJson
        self.file_of = iceberg.ContentFileParser.fromJson
        self.commit_of = iceberg.catalog.TableCommit.create
        self.identifier_of = iceberg.catalog.TableIdentifier.of
        self.format_version = iceberg.TableUtil.formatVersion
        mapper = iceberg.util.JsonUtil.mapper()
        self.read_json = mapper.readTree
        self.write_json = mapper.writeValueAsString
        # By which Spark is told which files to read, and tells which it wrote. There is one of each.
        self.table_cache = static_method(iceberg.spark.SparkTableCache, "get")()
        self.task_sets = iceberg.spark.ScanTaskSetManager.get()
        self.written_files = iceberg.spark.FileRewriteCoordinator.get()


class LakeTable:
    """One Iceberg table. `begin` or `refresh` before reading what another writer may have changed."""

    def __init__(self, lake: "Lake", name: TableName, java_table: Any) -> None:
        self.lake = lake
        self.name = name
        self.java = java_table
        # What `begin` began.
        self.transaction: Any = None
        # What was read of schemas and specs, by their ids: those never change.
        self._schemas: dict[int, dict[str, Any]] = {}
        self._specs: dict[int, dict[str, Any]] = {}

    @property
    def identifier(self) -> str:
        """Its name in SQL."""
        return self.lake.identifier(self.name)

    def begin(self) -> None:
        """Begin a transaction on the newest metadata, which is what is looked at from now on."""
        self.transaction = self.java.newTransaction()

    def stage(self, update: Any) -> None:
        """Put an update into the transaction. Its manifests last when this returns, and no reader sees them."""
        commit(update)
        durable.sync_files(self.staged_files())

    def staged_files(self) -> list[Path]:
        """The manifests of what the transaction holds, where they are on a local disk."""
        return staged_files(self.transaction.currentMetadata().currentSnapshot())

    def commit_staged(self) -> None:
        """Commit the transaction, on what it began with or not at all.

        The transaction's own commit would put the same files on top of whatever was committed meanwhile: those of
        another pipeline that has just carried the same changes, say.
        """
        try:
            commit(
                self.java.operations(), "commit", self.transaction.startMetadata(), self.transaction.currentMetadata()
            )
        except Py4JJavaError as error:
            raise_if_gone(error)
            raise

    def refresh(self) -> None:
        """Load the current metadata."""
        self.java.refresh()

    def snapshot(self) -> dict[str, Any] | None:
        """The head of main, as Iceberg's metadata has it."""
        head = self.java.currentSnapshot()
        return None if head is None else json.loads(self.lake.classes.snapshot_json(head))

    @property
    def snapshot_id(self) -> int | None:
        """The head of main."""
        snapshot = self.java.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    @property
    def rows(self) -> int:
        """How many rows the table's files have, deleted ones included."""
        head = self.java.currentSnapshot()
        return 0 if head is None else int(head.summary().get("total-records") or 0)

    def committed(self) -> tuple[int | None, int]:
        """The snapshot that a commit of ours has just made, and the rows of its files."""
        head = json.loads(self.lake.classes.snapshot_json(self.transaction.currentMetadata().currentSnapshot()))
        return int(head["snapshot-id"]), int(head["summary"].get("total-records", 0))

    def properties(self) -> dict[str, str]:
        """All of the table's properties."""
        # As JSON in one call: a call per entry would take longer than the commit.
        found: dict[str, str] = json.loads(self.lake.classes.write_json(self.java.properties()))
        return found

    def property(self, name: str) -> str | None:
        """One of the table's properties."""
        value = self.java.properties().get(name)
        return None if value is None else str(value)

    def marks(self) -> Marks:
        """The marks of the newest snapshot in main's ancestry that has them: compactions in between have none."""
        document = self.snapshot()
        while document is not None:
            marks = Marks.of_summary(document.get("summary", {}))
            if marks.positions:
                return marks
            parent = document.get("parent-snapshot-id")
            java = None if parent is None else self.java.snapshot(parent)
            document = None if java is None else json.loads(self.lake.classes.snapshot_json(java))
        return Marks()

    def mark(self, marks: Marks) -> None:
        """Commit the marks alone."""
        self.begin()
        append = self.transaction.newFastAppend()
        for name, value in {**marks.summary(), APPLICATION: self.lake.application}.items():
            append.set(name, value)
        self.stage(append)
        self.commit_staged()

    def schema(self) -> dict[str, Any]:
        """The current schema, as Iceberg's metadata has it."""
        java = self.java.schema()
        number = int(java.schemaId())
        if number not in self._schemas:
            self._schemas[number] = json.loads(self.lake.classes.schema_json(java))
        return self._schemas[number]

    def spec(self) -> dict[str, Any]:
        """The current partition spec, as Iceberg's metadata has it."""
        java = self.java.spec()
        number = int(java.specId())
        if number not in self._specs:
            self._specs[number] = json.loads(self.lake.classes.spec_json(java))
        return self._specs[number]

    def fields(self) -> tuple[tuple[str, ColumnType, int], ...]:
        """Name, type and id of every column."""
        return tuple(
            (each["name"], ColumnType(str(each["type"]).replace(" ", "")), int(each["id"]))
            for each in self.schema()["fields"]
        )

    def names(self) -> set[str]:
        """Of all columns."""
        return {name for name, _, _ in self.fields()}

    def columns(self) -> tuple[Column, ...]:
        """The rows' own columns of a state table."""
        fields = [(name, column_type) for name, column_type, _ in self.fields() if name not in _OWN_STATE_COLUMNS]
        return columns_of(fields, json.loads(self.property(KINDS_PROPERTY) or "{}"))

    def transforms(self) -> dict[str, set[str]]:
        """By column, what partition fields are made of it, in the table's present spec or in an earlier one."""
        specs = self.java.specs()
        if int(specs.size()) == 1 and not self.spec()["fields"]:
            return {}
        names, found = {field_id: name for name, _, field_id in self.fields()}, dict[str, set[str]]()
        for spec in specs.values():
            for each in json.loads(self.lake.classes.spec_json(spec))["fields"]:
                column = names.get(each["source-id"])
                if column is not None:
                    found.setdefault(column, set()).add(str(each["transform"]).partition("[")[0])
        return found

    def columns_since(self) -> Since:
        """Columns that came later than the table, and which rows lack them."""
        return Since.of_properties(self.properties())

    def say_logs(self) -> None:
        """Give a history, or a table of dead letters, of before a column for the log of each position."""
        transaction = self.java.newTransaction()
        transaction.updateSchema().addColumn(None, LOG, self.lake.java_type(STRING)).commit()
        held = unlogged_property(self.marks().positions)
        transaction.updateProperties().set(UNLOGGED_PROPERTY, held).commit()
        commit(transaction, method="commitTransaction")

    def evolve(self, plan: Evolution, clock_max: int) -> None:
        """Apply everything of the plan that needs no rewrite, in one commit. No row has a clock above `clock_max`."""
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
            since = since.with_columns([column.name for column in plan.add], clock_max)
        properties = transaction.updateProperties()
        properties.set(KINDS_PROPERTY, json.dumps(kinds_of(plan.columns), sort_keys=True))
        for name, text in since.properties().items():
            properties.set(name, text)
        properties.commit()
        commit(transaction, method="commitTransaction")


class Lake:
    """The session's catalog."""

    def __init__(self, spark: SparkSession, catalog: str = CATALOG) -> None:
        self.spark = spark
        self.catalog = catalog
        self.jvm: Any = spark._jvm
        self.classes = _Classes(self.jvm)
        self.application = str(spark.sparkContext.applicationId)
        self._session = spark._jsparkSession
        self._catalog: Any = None

    def identifier(self, name: TableName) -> str:
        """A table's name in SQL."""
        return ".".join(spark_name(part) for part in (self.catalog, *name.levels, name.table))

    def java_type(self, column_type: ColumnType) -> Any:
        """A type of Iceberg's own."""
        return self.jvm.org.apache.iceberg.types.Types.fromTypeName(column_type)

    def load(self, name: TableName) -> LakeTable | None:
        """The table with its current metadata, or None where it does not exist."""
        try:
            java = self.java_catalog().loadTable(self.java_identifier(name))
        except Py4JJavaError as error:
            if is_a(error, "NoSuchTableException", "NoSuchNamespaceException"):
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
        """Create a table and its namespace. Someone else may have been faster; then theirs is taken.

        Raises NameTaken where what has its name is no Iceberg table.
        """
        self._create_namespace(name)
        schema = self._schema(columns)
        builder = self.java_catalog().buildTable(self.java_identifier(name), schema)
        now, _ = applicable(partition, dict(columns))
        builder = builder.withPartitionSpec(self.partition_spec(schema, now, {}, _PARTITION_ID_BEFORE_FIRST))
        try:
            java = builder.withProperties(_java_map(self.jvm, properties)).create()
        except Py4JJavaError as error:
            if not is_a(error, "AlreadyExistsException"):
                raise
            existing = self.load(name)
            if existing is None and _OTHER_KIND in str(error.java_exception):
                raise NameTaken(f"the name is taken in the catalog. {error.java_exception.getMessage()}") from error
            if existing is None:
                raise NotFound(f"table was created and dropped by someone else. table={name}") from error
            return existing
        return LakeTable(self, name, java)

    def frame(self, spark: SparkSession, table: LakeTable) -> DataFrame:
        """The rows of a table at the snapshot that is looked at, whatever is committed meanwhile."""
        rows = spark.read.option("versionAsOf", str(table.snapshot_id)).table(table.identifier)
        return own_rows(rows, str(table.java.location()))

    def data_files(self, table: LakeTable) -> list[DataFile]:
        """The data files of the current snapshot. Raises Denied where one lies beyond the table's location."""
        to_json = self.classes.file_json
        specs, found = table.java.specs(), list[DataFile]()
        tasks = table.java.newScan().planFiles()
        try:
            iterator = tasks.iterator()
            while iterator.hasNext():
                task = iterator.next()
                file = task.file()
                spec = specs.get(file.specId())
                described = json.loads(to_json(file, spec))
                known = DataFile(described["file-path"], described["spec-id"], json.dumps(described["partition"]))
                for delete in task.deletes():
                    if delete.format().toString() == "PUFFIN":
                        known.vector = str(to_json(delete, specs.get(delete.specId())))
                found.append(known)
        finally:
            tasks.close()
        refuse_beyond(table.name, str(table.java.location()), (file.path for file in found))
        return found

    def java_catalog(self) -> Any:
        """Iceberg's own object for the catalog."""
        if self._catalog is None:
            find = self.jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog
            self._catalog = find(self._session, self.catalog)
        return self._catalog

    def java_identifier(self, name: TableName) -> Any:
        """A table's name as Iceberg's own objects take it."""
        return self.classes.identifier_of(self._strings((*name.levels, name.table)))

    def _create_namespace(self, name: TableName) -> None:
        for depth in range(1, len(name.levels) + 1):
            path = ".".join(spark_name(level) for level in (self.catalog, *name.levels[:depth]))
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {path}")

    def _schema(self, columns: Sequence[tuple[str, ColumnType]]) -> Any:
        jvm = self.jvm
        fields = jvm.java.util.ArrayList()
        for field_id, (column, column_type) in enumerate(columns, start=1):
            fields.add(
                jvm.org.apache.iceberg.types.Types.NestedField.optional(field_id, column, self.java_type(column_type))
            )
        return jvm.org.apache.iceberg.Schema(fields)

    def partition_spec(
        self, schema: Any, partition: Sequence[Transform], known: Mapping[KnownField, int], last_id: int
    ) -> Any:
        """A partition spec as Iceberg's own object. Fields that the table has or had keep their ids.

        It is read from JSON: Iceberg's builder refuses a day and an hour of one column, which its format allows.
        """
        fields = []
        for transform in partition:
            key = (field_name(transform), source_of(transform), iceberg_transform(transform))
            if key not in known:
                last_id += 1
            fields.append(
                {
                    "name": key[0],
                    "transform": key[2],
                    "source-id": schema.findField(key[1]).fieldId(),
                    "field-id": known.get(key, last_id),
                }
            )
        document = json.dumps({"spec-id": 0, "fields": fields})
        return self.jvm.org.apache.iceberg.PartitionSpecParser.fromJson(schema, document)

    def _strings(self, values: Sequence[str]) -> Any:
        gateway = self.spark.sparkContext._gateway
        assert gateway is not None
        array = gateway.new_array(self.jvm.java.lang.String, len(values))
        for index, value in enumerate(values):
            array[index] = value
        return array


def static_method(owner: Any, name: str) -> Any:
    """A static method of a class whose objects have one of the same name.

    py4j looks at the first of that name that Java lists, and says that there is none where that is the objects'. Java's
    order differs from start to start.
    """
    return JavaMember(name, None, STATIC_PREFIX + owner._fqn, owner._gateway_client)


def commit(operation: Any, method: str = "commit", *arguments: Any) -> None:
    """Commit one of Iceberg's pending updates; a lost race is a Conflict, so that the batch is done again."""
    try:
        getattr(operation, method)(*arguments)
    except Py4JJavaError as error:
        if is_conflict(error):
            raise Conflict(f"commit lost a race: {error.java_exception}") from error
        raise


def is_conflict(error: BaseException) -> bool:
    """Whether the table changed under a commit: nothing was written, and doing it again may succeed."""
    if isinstance(error, Py4JJavaError):
        return is_a(error, "CommitFailedException", "ValidationException", "AlreadyExistsException")
    return any(name in str(error) for name in ("CommitFailedException", "ValidationException"))


def is_gone(error: Py4JJavaError) -> bool:
    """Whether the catalog does not know the table: somebody has dropped it."""
    return is_a(error, "NoSuchTableException", "NoSuchNamespaceException")


def raise_if_gone(error: Py4JJavaError) -> None:
    """Raise NotFound in the place of an error of a table that was dropped."""
    if is_gone(error):
        raise NotFound(f"the table was dropped: {error.java_exception}") from error


def is_a(error: Py4JJavaError, *names: str) -> bool:
    """Whether an error, or one that caused it, is of one of these Java classes."""
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
