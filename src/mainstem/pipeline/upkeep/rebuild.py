"""Makes a state table anew from its history: for tables that an older version damaged.

The executors read the whole history as the rows of one pass, merge it by the rule of every pass, and write new files.
One commit puts them in the place of all present files. The table's turn is held from the first look to the commit, so
its ingest waits meanwhile; other tables go on.
"""

import json
import logging
from collections.abc import Mapping
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from mainstem.model.errors import Conflict, Invalid, NotFound
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.pipeline.commit.lake import Lake, LakeTable
from mainstem.pipeline.passes.kernel import run_task
from mainstem.pipeline.passes.plan import CHANGE, DESCRIPTIONS, Part, PassPlan, TableTask
from mainstem.pipeline.passes.stores import remove_file
from mainstem.pipeline.plan.evidence import history_as_rows, old_rows_as_evidence
from mainstem.pipeline.plan.iceberg import target_of
from mainstem.pipeline.plan.writer import Written, sorted_by_table
from mainstem.pipeline.turns import Turns
from mainstem.pipeline.upkeep.compaction import repeat_marks
from mainstem.pipeline.upkeep.steps import Done
from mainstem.runtime.clock import Clock
from mainstem.tables.layout import KEY

log = logging.getLogger(__name__)

# A task holds its rows in memory: so many of the history's at most, if its keys are spread evenly.
ROWS_PER_TASK = 250_000
_EVERYWHERE = LogPosition(2**63 - 1)
_DESCRIPTIONS = from_arrow_schema(DESCRIPTIONS)


class Rebuild:
    """Rebuilds the states of a lake of its own."""

    def __init__(self, lake: Lake, turns: Turns, clock: Clock, store: Mapping[str, str]) -> None:
        self._lake = lake
        self._turns = turns
        self._clock = clock
        self._store = dict(store)

    def run(self, name: TableName, *, force: bool = False) -> Done:
        """Rebuild one state. Raises Invalid where the history does not have all of it, unless forced.

        Forced, rows of keys that the history does not know stay as they are, and changes that do not fit the present
        columns are left out.
        """
        if name != name.logical:
            raise Invalid(f"only a state can be rebuilt. got={name} expected={name.logical}")
        with self._turns.of(name):
            state, history = self._load(name), self._load(name.history)
            if state.snapshot_id is None or history.snapshot_id is None:
                raise Invalid(f"there is nothing to rebuild from, or nothing to rebuild. table={name}")
            return self._rebuild(name, state, history, force=force)

    def _load(self, name: TableName) -> LakeTable:
        found = self._lake.load(name)
        if found is None:
            raise NotFound(f"table does not exist. got={name}")
        return found

    def _rebuild(self, name: TableName, state: LakeTable, history: LakeTable, *, force: bool) -> Done:
        began = state.snapshot_id
        old = self._lake.frame(self._lake.spark, state)
        changes = self._lake.frame(self._lake.spark, history)
        unknown = old.join(changes.select(KEY).distinct(), KEY, "left_anti")
        before, kept = old.count(), unknown.count()
        if kept and not force:
            raise Invalid(
                f"the history does not know all keys of the state: it was shortened. table={name} rows={kept} "
                "expected=force, which keeps these rows as they are"
            )
        task = TableTask(
            table=name,
            last=_EVERYWHERE,
            columns=state.columns(),
            merges=True,
            state=Part(target_of(state), NOWHERE),
        )
        rows = history_as_rows(changes, name)
        if kept:
            evidence = old_rows_as_evidence(unknown, task)
            # As changes: the kernel writes no row for a key that nothing changed.
            rows = rows.unionByName(evidence.withColumn("evidence", sf.expr(f"CAST({CHANGE} AS tinyint)")))
        written = self._write(rows, task, history.rows)
        try:
            if written.homeless and not force:
                raise Invalid(
                    f"changes of the history do not fit the present columns. table={name} changes={written.homeless} "
                    "expected=force, which leaves them out"
                )
            files = self._commit(state, began, written)
        except (Invalid, Conflict):
            # Nothing refers to them. Where an outcome is unknown, files stay: they may be in the table.
            for file in written.files:
                remove_file(json.loads(file.description)["file-path"], self._store)
            raise
        return {
            "changes_read": written.read,
            "rows_before": before,
            "rows_written": sum(file.rows for file in written.state),
            "rows_kept": kept,
            "changes_left_out": written.homeless,
            "files_written": files,
        }

    def _write(self, rows: DataFrame, task: TableTask, count: int) -> Written:
        plan = PassPlan({task.table: task}, self._store, self._clock.now_ms())
        tasks = max(self._lake.spark.sparkContext.defaultParallelism, -(-count // ROWS_PER_TASK))
        described = rows.repartition(tasks, "key").mapInArrow(partial(run_task, plan), _DESCRIPTIONS).toArrow()
        return sorted_by_table(described).get(task.table, Written())

    def _commit(self, state: LakeTable, began: int | None, written: Written) -> int:
        """Put the new files in the place of all that the table had, if it still has just that."""
        state.refresh()
        classes, specs = self._lake.classes, state.java.specs()
        state.begin()
        overwrite = state.transaction.newOverwrite().validateFromSnapshot(began)
        overwrite.overwriteByRowFilter(self._lake.jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue())
        overwrite.validateNoConflictingData().validateNoConflictingDeletes()
        for file in written.state:
            overwrite.addFile(classes.file_of(classes.read_json(file.description), specs))
        repeat_marks(state, overwrite)
        state.stage(overwrite)
        state.commit_staged()
        return len(written.state)
