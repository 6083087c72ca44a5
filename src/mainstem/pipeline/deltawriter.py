"""Carries the log into one logical table that is kept in Delta: its state, its history and its dead letters.

The same passes as `tablewriter`, and the same rows: the merge rule is Spark's to apply (`merge`), and so is the
reading of JSON. The rows of a pass, which is bounded, come to the driver in Arrow, and one commit of the driver's own
puts them in place. Each of the three tables is filtered by its own mark: a pass may be repeated from any point.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from mainstem.client.delta.engine import FILE, ROW
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.pipeline.catching import CatchingUp
from mainstem.pipeline.changes import (
    as_dead_letters,
    as_history,
    judged,
    may_not_fit,
    of_table,
    read_segments,
    spark_type,
)
from mainstem.pipeline.deltapartitions import PartitionColumn, partition_columns, with_partitions
from mainstem.pipeline.deltatable import DeltaLake, DeltaLakeTable, from_variants, to_variants
from mainstem.pipeline.driver_sql import DriverSql
from mainstem.pipeline.keys import as_frame, keys_of_rows, keys_of_segments
from mainstem.pipeline.lake import Marks, quoted
from mainstem.pipeline.merge import DELETE, latest_rows, merged_rows
from mainstem.pipeline.plainrows import are_whole_and_newer
from mainstem.pipeline.segments import TableSlice
from mainstem.pipeline.turns import Turns
from mainstem.tables.evolution import Column, Evolution, plan_evolution
from mainstem.tables.layout import (
    DEAD_LETTER_COLUMNS,
    HISTORY_COLUMNS,
    HLC,
    KEY,
    POSITION,
    SOURCE,
    STATE_COLUMNS,
)
from mainstem.tables.settings import TableSettings
from mainstem.tables.types import STRING, VARIANT, ColumnType, Kind

# Rows of one pass: they are all on the driver at once.
ROWS_PER_PASS_MAX = 500_000
_TOMBSTONES = f"{KEY} string, {HLC} long, {SOURCE} string"


class DeltaTableWriter(CatchingUp):
    """The only writer of one logical table in Delta. Not to be used from two threads at once."""

    rows_per_pass_max = ROWS_PER_PASS_MAX

    def __init__(
        self,
        lake: DeltaLake,
        spark: SparkSession,
        name: TableName,
        settings: TableSettings,
        *,
        sql: DriverSql,
        turns: Turns | None = None,
    ) -> None:
        super().__init__(name, turns)
        self._lake = lake
        self._spark = spark
        self._settings = settings
        self._sql = sql
        declared = {column.stored: column.type for column in plan_evolution((), {}, settings).columns}
        self._partition = partition_columns(settings.partition or (), {**declared, **dict(STATE_COLUMNS)})
        self._history_partition = partition_columns(settings.history_partition or (), dict(HISTORY_COLUMNS))

    def covered(self) -> LogPosition:
        """What the table holds: the less of its state and its history."""
        marks = []
        if self._settings.state:
            marks.append(_marks(self._lake.load(self._name)))
        if self._settings.history:
            marks.append(_marks(self._lake.load(self._name.history)))
        return min(mark.position for mark in marks)

    def _write(self, run: TableSlice) -> None:
        state = self._state() if self._settings.state else None
        history = None
        if self._settings.history:
            history = self._log_table(self._name.history, HISTORY_COLUMNS, self._history_partition)
        rows = read_segments(self._spark, run.paths)
        plan = self._evolve(state, run) if state is not None else plan_evolution((), {}, self._settings)
        if run.errors or may_not_fit(plan):
            rows = judged(rows, plan.columns, plan.refused)
            self._write_dead_letters(rows, run)
            rows = rows.where("error IS NULL")
        # The state looks for deletes in the history, up to where the state itself is: either may come first.
        if history is not None:
            self._write_history(history, rows, run)
        if state is not None:
            self._write_state(state, history, rows, run, plan)

    def _write_history(self, history: DeltaLakeTable, rows: DataFrame, run: TableSlice) -> None:
        before = history.marks()
        if before.position >= run.last:
            return
        after = before.advanced(run.last, run.hlc_max)
        if run.count == run.errors:
            history.mark(after)
            return
        changes = as_history(of_table(rows, self._name, run.past(before.position)))
        history.append(with_partitions(changes, history.partitions_of(self._history_partition)).toArrow(), after)

    def _write_dead_letters(self, rows: DataFrame, run: TableSlice) -> None:
        existing = self._lake.load(self._name.dead_letters)
        before = _marks(existing)
        if before.position >= run.last:
            return
        found = of_table(rows, self._name, run.past(before.position)).where("error IS NOT NULL")
        letters = as_dead_letters(found).toArrow()
        if not letters.num_rows:
            return
        table = existing or self._log_table(self._name.dead_letters, DEAD_LETTER_COLUMNS)
        table.append(letters, before.advanced(run.last, run.hlc_max))

    def _write_state(
        self, state: DeltaLakeTable, history: DeltaLakeTable | None, rows: DataFrame, run: TableSlice, plan: Evolution
    ) -> None:
        before = state.marks()
        if before.position >= run.last:
            return
        after = before.advanced(run.last, run.hlc_max)
        if run.count == run.errors or not plan.columns:
            state.mark(after)
            return
        changes = of_table(rows, self._name, run.past(before.position))
        keys = None if may_not_fit(plan) else keys_of_segments(self._sql, run, before.position)
        if keys is None:
            keys = keys_of_rows(changes)
        # Spark reads and merges nested values as JSON text; a Variant is made of it at the end.
        columns = [_as_text(column) for column in plan.columns]
        if are_whole_and_newer(run, plan.columns, before):
            old = state.old_rows(keys, [KEY])
            new_rows = latest_rows(changes, as_frame(self._spark, keys, POSITION), columns)
        else:
            old = state.old_rows(keys, [*(column.stored for column in columns), *dict(STATE_COLUMNS)])
            tombstones = self._tombstones(history, keys, run, before) if history is not None else None
            frame = self._old_frame(old, plan.columns)
            new_rows = merged_rows(changes, frame, tombstones, columns, state.columns_since())
        partitioned = with_partitions(new_rows, state.partitions_of(self._partition))
        state.replace(old, _stored_rows(partitioned.toArrow(), plan.columns), after)

    def _old_frame(self, old: pa.Table, columns: Sequence[Column]) -> DataFrame:
        """The rows that the keys have now, in Spark."""
        rows = old.drop_columns([FILE, ROW])
        for column in columns:
            if column.type == VARIANT:
                at = rows.column_names.index(column.stored)
                rows = rows.set_column(at, column.stored, from_variants(rows[column.stored]))
        types = {column.stored: spark_type(_as_text(column).type) for column in columns}
        types |= {name: spark_type(column_type) for name, column_type in STATE_COLUMNS}
        cast = [f"CAST({quoted(name)} AS {types[name]}) AS {quoted(name)}" for name in rows.column_names]
        return self._spark.createDataFrame(rows).selectExpr(*cast)

    def _tombstones(
        self, history: DeltaLakeTable, keys: pa.Table, run: TableSlice, before: Marks
    ) -> DataFrame | None:
        """Deletes of the keys that a late change may be older than. None where no change is late."""
        if run.hlc_min > before.hlc_max:
            return None
        later = f"_op = '{DELETE}' AND {HLC} >= {run.hlc_min} AND {POSITION} <= {int(before.position)}"
        return self._spark.createDataFrame(history.select([KEY, HLC, SOURCE], later, keys), _TOMBSTONES)

    def _evolve(self, state: DeltaLakeTable, run: TableSlice) -> Evolution:
        before = state.marks()
        plan = plan_evolution(state.columns(), run.columns if before.position < run.last else {}, self._settings)
        if plan.touches_schema:
            state.evolve(plan, before.position)
        return plan

    def _state(self) -> DeltaLakeTable:
        existing = self._lake.load(self._name)
        if existing is not None:
            return existing
        columns = plan_evolution((), {}, self._settings).columns
        fields = [(column.stored, column.type) for column in columns]
        return self._lake.create(
            self._name,
            [*fields, *STATE_COLUMNS],
            of_rows=columns,
            partition=self._partition,
            vectors=True,
        )

    def _log_table(
        self, name: TableName, columns: Sequence[tuple[str, ColumnType]], partition: Sequence[PartitionColumn] = ()
    ) -> DeltaLakeTable:
        return self._lake.load(name) or self._lake.create(name, columns, partition=partition)


def _as_text(column: Column) -> Column:
    return Column(column.name, STRING, column.kind or Kind.JSON) if column.type == VARIANT else column


def _stored_rows(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    for column in columns:
        if column.type == VARIANT:
            at = rows.column_names.index(column.stored)
            rows = rows.set_column(at, column.stored, to_variants(rows[column.stored]))
    return rows


def _marks(table: DeltaLakeTable | None) -> Marks:
    return Marks(NOWHERE) if table is None else table.marks()
