"""Tables in Iceberg: what is Iceberg's own in writing a table."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame

from mainstem.model.errors import NotFound
from mainstem.model.names import TableName
from mainstem.pipeline.commit.deletes import write_deletes
from mainstem.pipeline.commit.iceberg import IcebergChange
from mainstem.pipeline.commit.keyindex import DataFile, KeyIndex, Places
from mainstem.pipeline.commit.lake import Lake, LakeTable, is_a
from mainstem.pipeline.commit.linking import link_segments
from mainstem.pipeline.commit.marks import Marks
from mainstem.pipeline.commit.places import KeyRange, LiveRows
from mainstem.pipeline.commit.syncing import sync_head
from mainstem.pipeline.passes.plan import IcebergTarget, PartitionField, TableTask
from mainstem.pipeline.passes.stores import remove_file
from mainstem.pipeline.plan.declared import partition_state
from mainstem.pipeline.plan.evidence import deletes_as_evidence, old_rows_as_evidence
from mainstem.pipeline.plan.rewrite import rewrite_columns
from mainstem.pipeline.plan.writer import TableWriter
from mainstem.pipeline.source.segments import Segment, TableSlice
from mainstem.sql import spark_text
from mainstem.tables.evolution import Evolution, kinds_of, plan_evolution
from mainstem.tables.layout import KEY, KINDS_PROPERTY, STATE_COLUMNS, log_properties, state_properties
from mainstem.tables.parquet import writer_options
from mainstem.tables.settings import TableSettings
from mainstem.tables.types import ColumnType

_DATA_PATH = "write.data.path"


class IcebergWriter(TableWriter[LakeTable, IcebergChange]):
    """See `TableWriter`."""

    def __init__(
        self, lake: Lake, name: TableName, settings: TableSettings, *, store: Mapping[str, str], **common: Any
    ) -> None:
        super().__init__(lake.spark, name, settings, **common)
        self._lake = lake
        self._store = store

    def _load(self, name: TableName) -> LakeTable | None:
        """The table at its newest metadata, with a transaction begun."""
        known = self._tables.get(name)
        if known is None:
            known = self._lake.load(name)
            if known is None:
                return None
            self._tables[name] = known
        try:
            known.begin()
        except Py4JJavaError as error:
            if not is_a(error, "NoSuchTableException", "NotFoundException"):
                raise
            self._tables.pop(name, None)
            raise NotFound(f"the table was dropped. table={name}") from error
        return known

    def _create_state(self) -> LakeTable:
        table = create_state(self._lake, self._name, self._settings)
        table.begin()
        return table

    def _create_log(self, name: TableName, columns: Sequence[tuple[str, ColumnType]]) -> LakeTable:
        partition = self._settings.history_partition or ()
        table = self._lake.create(name, columns, log_properties(self._settings), partition)
        table.begin()
        return table

    def _target(self, table: LakeTable) -> IcebergTarget:
        return target_of(table)

    def _rewrites(self, plan: Evolution) -> bool:
        return bool(plan.rewrite)

    def _evolve(self, state: LakeTable, run: TableSlice) -> Evolution:
        plan = self._evolution(state, run)
        evolve_state(self._lake, state, plan, state.marks(), self._settings)
        return plan

    def _link(self, history: LakeTable, run: TableSlice) -> list[tuple[Segment, str]]:
        return link_segments(target_of(history), run, self._covered(history))

    def _old_rows(self, state: LakeTable, task: TableTask, keys: DataFrame) -> DataFrame:
        rows = self._lake.frame(self._spark, state)
        return old_rows_as_evidence(rows.join(keys, rows[KEY] == keys["wanted"], "left_semi"), task)

    def _deletes(self, history: LakeTable, task: TableTask, keys: DataFrame, hlc_min: int) -> DataFrame:
        rows = self._lake.frame(self._spark, history).where(f"_op = 'delete' AND _hlc >= {hlc_min}L")
        return deletes_as_evidence(rows.join(keys, rows[KEY] == keys["wanted"], "left_semi"), task)

    def _live_rows(self, state: LakeTable) -> LiveRows:
        return live_rows(self._lake, state)

    def _append(self, table: LakeTable, files: list[str]) -> IcebergChange:
        return IcebergChange(table=table, marks=self._marks_after(table), files=files)

    def _replace(self, state: LakeTable, files: list[str], index: KeyIndex, places: Places) -> IcebergChange:
        deletes = write_deletes(
            index,
            places,
            location=target_of(state).location,
            version=int(self._lake.classes.format_version(state.java)),
            codec=str(writer_options(state.properties()).codec),
            store=self._store,
        )
        # An index whose commit fails is thrown away, so it may know of the new vectors before they are committed.
        for number, (vector, positions) in deletes.vectors.items():
            index.files[number].vector, index.files[number].deleted = vector, positions
        return IcebergChange(
            table=state,
            marks=self._marks_after(state),
            files=files,
            deletes=deletes.added,
            replaced=deletes.replaced,
            losing=deletes.paths,
            is_state=True,
        )

    def _data_file(self, description: str) -> DataFile:
        file = json.loads(description)
        return DataFile(file["file-path"], file["spec-id"], json.dumps(file["partition"]))

    def _remove(self, name: TableName, files: Iterable[str]) -> None:
        for description in files:
            remove_file(json.loads(description)["file-path"], self._store)


def create_state(lake: Lake, name: TableName, settings: TableSettings) -> LakeTable:
    """Create the table of the current rows, with what is declared of it."""
    columns = plan_evolution((), {}, settings).columns
    properties = state_properties(settings) | {KINDS_PROPERTY: json.dumps(kinds_of(columns))}
    fields = [(column.stored, column.type) for column in columns]
    return lake.create(name, [*fields, *STATE_COLUMNS], properties, settings.partition or ())


def evolve_state(lake: Lake, state: LakeTable, plan: Evolution, before: Marks, settings: TableSettings) -> None:
    """Bring a state up to a plan, and look at it as it is then. Where a type needs it, all rows are written anew."""
    if plan.rewrite:
        rewrite_columns(lake, state, plan.rewrite, before)
        state.refresh()
        sync_head(state.java)
    if plan.touches_schema:
        state.evolve(plan, before.hlc_max)
        partition_state(state, settings)
        state.begin()


def live_rows(lake: Lake, state: LakeTable) -> LiveRows:
    """The keys and places of a state's rows."""

    def rows(keys: KeyRange | None) -> DataFrame:
        some = lake.frame(lake.spark, state)
        if keys is not None:
            # Iceberg leaves out files by the bounds of their keys.
            some = some.where(f"{KEY} BETWEEN {spark_text(keys.low)} AND {spark_text(keys.high)}")
        return some.selectExpr(KEY, "_file AS path", "_pos AS row")

    return LiveRows(state.snapshot_id, lake.data_files(state), state.rows, rows)


def target_of(table: LakeTable) -> IcebergTarget:
    """What the executors must know to write files of a table."""
    properties = table.properties()
    folder = properties.get(_DATA_PATH) or f"{table.java.location()}/data"
    spec = table.spec()
    fields = table.fields()
    names = {field_id: name for name, _, field_id in fields}
    return IcebergTarget(
        location=folder.rstrip("/"),
        fields=fields,
        spec_id=int(spec["spec-id"]),
        partition=tuple(
            PartitionField(field["name"], names.get(field["source-id"], ""), field["transform"])
            for field in spec["fields"]
        ),
        options=writer_options(properties),
    )
