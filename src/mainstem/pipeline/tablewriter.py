"""Carries the log into one logical table: its state, its history and its dead letters.

A pass takes the next run of segments past what the table covers, brings the schema up to date and commits. Each of
the three tables is filtered by its own mark, so that a pass may be repeated from any point: whatever is already in is
skipped, and where nothing is left nothing is committed.
"""

import json
from collections.abc import Sequence
from concurrent.futures import Executor

from pyspark.sql import DataFrame, SparkSession

from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.pipeline.catching import CatchingUp
from mainstem.pipeline.changes import as_dead_letters, as_history, judged, may_not_fit, of_table, read_segments
from mainstem.pipeline.declared import partition_state
from mainstem.pipeline.driver_sql import DriverSql
from mainstem.pipeline.driverpass import DriverPass
from mainstem.pipeline.keys import as_frame, keys_of_rows, keys_of_segments
from mainstem.pipeline.lake import Lake, LakeTable, Marks
from mainstem.pipeline.merge import DELETE, latest_rows, merged_rows
from mainstem.pipeline.plainrows import are_whole_and_newer
from mainstem.pipeline.rewrite import rewrite_columns
from mainstem.pipeline.segments import TableSlice
from mainstem.pipeline.turns import Turns
from mainstem.pipeline.upsert import Upsert, append
from mainstem.tables.evolution import Evolution, kinds_of, plan_evolution
from mainstem.tables.layout import (
    DEAD_LETTER_COLUMNS,
    HISTORY_COLUMNS,
    HLC,
    KEY,
    KINDS_PROPERTY,
    POSITION,
    SOURCE,
    STATE_COLUMNS,
    log_properties,
    state_properties,
)
from mainstem.tables.settings import TableSettings
from mainstem.tables.types import ColumnType

# Bounds the broadcast of winners too.
ROWS_PER_PASS_MAX = 4_000_000


class TableWriter(CatchingUp):
    """The only writer of one logical table. Not to be used from two threads at once."""

    rows_per_pass_max = ROWS_PER_PASS_MAX

    def __init__(
        self,
        lake: Lake,
        name: TableName,
        settings: TableSettings,
        *,
        upsert: Upsert,
        sql: DriverSql,
        side_jobs: Executor,
        turns: Turns | None = None,
        driver: DriverPass | None = None,
    ) -> None:
        super().__init__(name, turns)
        self._lake = lake
        self._sql = sql
        self._settings = settings
        self._upsert = upsert
        # Where the history is written while this thread writes the state.
        self._side_jobs = side_jobs
        # Takes what needs no Spark job; None leaves everything to Spark.
        self._driver = driver

    def covered(self) -> LogPosition:
        """What the table holds: the less of its state and its history."""
        names = []
        if self._settings.state:
            names.append(self._name)
        if self._settings.history:
            names.append(self._name.history)
        if self._driver is not None:
            return min(self._driver.marks(name).position for name in names)
        return min(_marks(self._lake.load(name)).position for name in names)

    def _write(self, run: TableSlice) -> None:
        """One pass: on the driver where the tables are ready for it, or the long way."""
        if self._driver is None:
            self._write_with_spark(run)
            return
        try:
            if not self._driver.write(run, self._settings):
                # Whoever creates, alters or writes through Spark leaves what the driver knows behind.
                self._driver.forget(self._name)
                self._write_with_spark(run)
                self._driver.forget(self._name)
        except BaseException:
            self._driver.forget(self._name)
            raise

    def _write_with_spark(self, run: TableSlice) -> None:
        """Create or alter the tables as needed; then part by part, on the driver where that can be done."""
        state = self._state() if self._settings.state else None
        history = self._log_table(self._name.history, HISTORY_COLUMNS) if self._settings.history else None
        plan = self._evolve(state, run) if state is not None else plan_evolution((), {}, self._settings)
        rows = _Rows(self._lake.spark, run)
        if run.errors or may_not_fit(plan):
            rows.judge(plan)
            self._write_dead_letters(rows.spark, run)
            rows.drop_errors()
        if state is None:
            assert history is not None
            self._write_history(history, rows, run)
        elif history is None:
            self._write_state(state, None, rows, run, plan)
        else:
            self._write_both(state, history, rows, run, plan)

    def _write_both(
        self, state: LakeTable, history: LakeTable, rows: "_Rows", run: TableSlice, plan: Evolution
    ) -> None:
        if history.marks().position < state.marks().position:
            # A crash left the history behind. The state looks for deletes in it, so it comes first.
            self._write_history(history, rows, run)
        beside = self._side_jobs.submit(self._write_history, history, rows, run)
        try:
            self._write_state(state, history, rows, run, plan)
        finally:
            # Never leave a writer running behind a failure: the next attempt would race it.
            failure = beside.exception()
        if failure is not None:
            raise failure

    def _write_history(self, history: LakeTable, rows: "_Rows", run: TableSlice) -> None:
        before = history.marks()
        if before.position >= run.last:
            return
        after = before.advanced(run.last, run.hlc_max)
        if run.count == run.errors:
            history.mark(after)
            return
        if rows.judged or self._driver is None or not self._driver.append_history(run):
            append(history, as_history(of_table(rows.spark, self._name, run.past(before.position))), after)

    def _write_dead_letters(self, rows: DataFrame, run: TableSlice) -> None:
        existing = self._lake.load(self._name.dead_letters)
        before = _marks(existing)
        if before.position >= run.last:
            return
        letters = of_table(rows, self._name, run.past(before.position)).where("error IS NOT NULL")
        if letters.isEmpty():
            return
        table = existing or self._log_table(self._name.dead_letters, DEAD_LETTER_COLUMNS)
        append(table, as_dead_letters(letters), before.advanced(run.last, run.hlc_max))

    def _write_state(
        self, state: LakeTable, history: LakeTable | None, rows: "_Rows", run: TableSlice, plan: Evolution
    ) -> None:
        before = state.marks()
        if before.position >= run.last:
            return
        after = before.advanced(run.last, run.hlc_max)
        if run.count == run.errors or not plan.columns:
            # Only dead letters, or only deletes and empty rows for a table that never had a column.
            state.mark(after)
            return
        if not rows.judged and self._driver is not None and self._driver.replace_rows(run, plan):
            return
        changes = of_table(rows.spark, self._name, run.past(before.position))
        keys = None if rows.judged else keys_of_segments(self._sql, run, before.position)
        if keys is None:
            keys = keys_of_rows(changes)
        if are_whole_and_newer(run, plan.columns, before):
            new_rows = latest_rows(changes, as_frame(self._lake.spark, keys, POSITION), plan.columns)
        else:
            every_key = as_frame(self._lake.spark, keys, KEY)
            earlier = self._tombstones(history, every_key, run, before) if history is not None else None
            old_rows = self._lake.spark.table(state.identifier).join(every_key, KEY, "left_semi")
            new_rows = merged_rows(changes, old_rows, earlier, plan.columns, state.columns_since())
        self._upsert.apply(state, keys, new_rows, after)

    def _tombstones(
        self, history: LakeTable, keys: DataFrame, run: TableSlice, before: Marks
    ) -> DataFrame | None:
        """Deletes of the keys that a late change may be older than. None where no change is late."""
        if run.hlc_min > before.hlc_max:
            return None
        later = f"_op = '{DELETE}' AND {HLC} >= {run.hlc_min}L AND {POSITION} <= {int(before.position)}L"
        deletes = self._lake.spark.table(history.identifier).where(later)
        return deletes.select(KEY, HLC, SOURCE).join(keys, KEY, "left_semi")

    def _evolve(self, state: LakeTable, run: TableSlice) -> Evolution:
        before = state.marks()
        seen = run.columns if before.position < run.last else {}
        plan = plan_evolution(state.columns(), seen, self._settings, state.transforms())
        if plan.rewrite:
            rewrite_columns(self._lake, state, plan.rewrite, before)
            state.refresh()
        if plan.touches_schema:
            state.evolve(plan, before.position)
            partition_state(state, self._settings)
        return plan

    def _state(self) -> LakeTable:
        existing = self._lake.load(self._name)
        if existing is not None:
            return existing
        columns = plan_evolution((), {}, self._settings).columns
        properties = state_properties(self._settings) | dict(self._upsert.table_properties)
        properties[KINDS_PROPERTY] = json.dumps(kinds_of(columns))
        fields = [(column.stored, column.type) for column in columns]
        return self._lake.create(self._name, [*fields, *STATE_COLUMNS], properties, self._settings.partition or ())

    def _log_table(self, name: TableName, columns: Sequence[tuple[str, ColumnType]]) -> LakeTable:
        partition = self._settings.history_partition or ()
        return self._lake.load(name) or self._lake.create(name, columns, log_properties(self._settings), partition)


class _Rows:
    """The slice's rows as Spark reads them, made when first asked for: most passes have no need of them."""

    def __init__(self, spark: SparkSession, run: TableSlice) -> None:
        self._session = spark
        self._run = run
        self._frame: DataFrame | None = None
        # Whether columns were looked at one by one: then the segments alone do not tell which rows are good.
        self.judged = False

    @property
    def spark(self) -> DataFrame:
        """The frame."""
        if self._frame is None:
            self._frame = read_segments(self._session, self._run.paths)
        return self._frame

    def judge(self, plan: Evolution) -> None:
        """Let Spark say of every row whether it fits."""
        self._frame = judged(self.spark, plan.columns, plan.refused)
        self.judged = may_not_fit(plan)

    def drop_errors(self) -> None:
        """Keep what fits."""
        self._frame = self.spark.where("error IS NULL")


def _marks(table: LakeTable | None) -> Marks:
    return Marks(NOWHERE) if table is None else table.marks()
