"""The one Spark job of a pass: from the rows of segments to the files of all its tables.

The executors judge, merge and write (`passes/kernel`). The driver is given descriptions of files, and no row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from mainstem.model.names import TableName
from mainstem.pipeline.commit.changes import TableChange
from mainstem.pipeline.passes.kernel import run_task
from mainstem.pipeline.passes.plan import DESCRIPTIONS, PassPlan, TableTask
from mainstem.pipeline.plan.evidence import changes_as_rows, latest_as_rows
from mainstem.pipeline.plan.writer import Writer, Written, sorted_by_table
from mainstem.pipeline.source.rows import latest_of_each_key, of_table, read_segments, without_tables
from mainstem.pipeline.source.segments import TableSlice

# From so many changes on, a table's rows are spread over all tasks.
SPREAD_ROWS_MIN = 50_000
# With fewer, up to so many tables share one task.
TABLES_PER_TASK_MAX = 8
_DESCRIPTIONS = from_arrow_schema(DESCRIPTIONS)


@dataclass(slots=True)
class Member:
    """One table of a pass: what it is to cover, what the executors are to do, and what came of it."""

    writer: Writer
    run: TableSlice
    task: TableTask
    written: Written = field(default_factory=Written)
    changes: list[TableChange[Any]] = field(default_factory=list)

    @property
    def is_committed(self) -> bool:
        """Whether all that was staged is known to be visible."""
        return all(change.is_committed for change in self.changes)

    @property
    def is_narrow(self) -> bool:
        """Whether only the places of the winning changes are moved, and tasks read those rows out of the segments."""
        return self.task.latest_only and self.run.count >= SPREAD_ROWS_MIN


def write_files(
    spark: SparkSession,
    members: Sequence[Member],
    changes: DataFrame | None,
    files: frozenset[str],
    *,
    store: Mapping[str, str],
    tasks: int,
    now_ms: int,
) -> dict[TableName, Written]:
    """Run the job; returns what was written of each table. `changes` are the rows of `files`, which are segments."""
    wanted = {segment.location: segment for member in members for segment in member.run.segments}
    missing = [path for path, segment in wanted.items() if segment.name not in files]
    frames = [] if changes is None or len(missing) == len(wanted) else [changes]
    frames += [read_segments(spark, missing)] if missing else []
    source = reduce(DataFrame.unionByName, frames)
    names = {segment.name for segment in wanted.values()} | (set(files) if frames[0] is changes else set())
    narrow = [member for member in members if member.is_narrow]
    others = [member for member in members if not member.is_narrow]
    shared = [_winners(member, source, names, tasks) for member in narrow]
    if others:
        whole = changes_as_rows(without_tables(source, [member.run.table for member in narrow]))
        for member in others:
            for evidence in member.writer.evidence(of_table(source, member.run.table, None)):
                whole = whole.unionByName(evidence)
        shared.append(_shared_out(whole, [member.run.count for member in others], tasks))
    # A row that is nothing but a position lacks most columns: Spark would hand over as many nulls.
    rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), shared)
    to_do = {member.run.table: member.task for member in others}
    to_do |= {member.run.table: replace(member.task, segments=tuple(member.run.paths)) for member in narrow}
    plan = PassPlan(to_do, dict(store), now_ms)
    return sorted_by_table(rows.mapInArrow(partial(run_task, plan), _DESCRIPTIONS).toArrow())


def _winners(member: Member, source: DataFrame, names: set[str], tasks: int) -> DataFrame:
    """The positions of the last change of each of a table's keys: no two of them have to meet in a task."""
    run = member.run
    changes = source
    if not names <= {segment.name for segment in run.segments}:
        # The source also has segments before or beyond this pass over the table.
        changes = of_table(source, run.table, None)
        changes = changes.where(f"position > {int(member.task.after)}L AND position <= {int(run.last)}L")
    elif any(len(segment.tables) > 1 for segment in run.segments):
        changes = of_table(source, run.table, None)
    return latest_as_rows(latest_of_each_key(changes, tasks), run.table)


def _shared_out(rows: DataFrame, counts: Sequence[int], tasks: int) -> DataFrame:
    """Bring all rows of a key to one task. A shuffle takes longer than one task needs for a small pass."""
    if max(counts) >= SPREAD_ROWS_MIN:
        return rows.repartition(tasks, "namespace", "table", "key")
    if len(counts) > TABLES_PER_TASK_MAX:
        return rows.repartition(tasks, "namespace", "table")
    return rows.coalesce(1)
