"""One logical table in Delta: how a pass is planned for it, and what of it is committed.

The same passes as for Iceberg, and the same rows. Each of the physical tables has a log, and so a commit, of its own;
each is filtered by its own mark, so a pass may be repeated from any point.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema

from mainstem.formats.delta.engine import FILE, PLACES, ROW
from mainstem.formats.delta.log import AddFile
from mainstem.formats.delta.zones import row_count
from mainstem.model.errors import Conflict
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, Lineage, LogPosition
from mainstem.pipeline.commit.keyindex import DataFile, KeyHashes, KeyIndex
from mainstem.pipeline.commit.lake import Marks
from mainstem.pipeline.commit.places import KeyRange, LiveRows, PlaceFinder, build_index, move
from mainstem.pipeline.delta.partitions import PartitionColumn, partition_columns
from mainstem.pipeline.delta.table import DeltaLake, DeltaLakeTable
from mainstem.pipeline.passes.delta_scan import DeltaScan, deletes_task, old_rows_task, places_task, rewrite_task
from mainstem.pipeline.passes.plan import Part, TableTask
from mainstem.pipeline.plan.evidence import ROWS_SCHEMA
from mainstem.pipeline.plan.iceberg import is_whole_and_newer
from mainstem.pipeline.plan.writer import PREPARED_ROWS_MIN, Written, WrittenFile, refuse_dropped
from mainstem.pipeline.source.rows import keys_of
from mainstem.pipeline.source.segments import TableSlice
from mainstem.runtime.clock import Clock
from mainstem.tables.evolution import Evolution, plan_evolution
from mainstem.tables.layout import DEAD_LETTER_COLUMNS, HISTORY_COLUMNS, KEY, STATE_COLUMNS
from mainstem.tables.settings import TableSettings
from mainstem.tables.types import ColumnType

_PLACES = f"{KEY} string, path string, row long"


@dataclass(slots=True)
class DeltaChange:
    """What one physical table gets from a pass."""

    table: DeltaLakeTable
    marks: Marks
    files: list[WrittenFile]
    places: pa.Table = field(default_factory=PLACES.empty_table)
    is_committed: bool = False

    def commit(self) -> None:
        """Make it visible. Raises Conflict where somebody else has the next version."""
        added = [json.loads(file.description) for file in self.files]
        self.table.commit(self.marks, added, self.places, "MERGE" if self.places.num_rows else "WRITE")
        self.is_committed = True


@dataclass(slots=True)
class _Planned:
    run: TableSlice
    task: TableTask
    marks: Marks


class DeltaWriter:
    """See `Writer`."""

    def __init__(
        self,
        lake: DeltaLake,
        spark: SparkSession,
        name: TableName,
        settings: TableSettings,
        *,
        lineage: Lineage,
        finder: PlaceFinder,
        refuses_dropped: bool = False,
        prepared_rows_min: int = PREPARED_ROWS_MIN,
    ) -> None:
        self._lake = lake
        self._spark = spark
        self._name = name
        self._settings = settings
        self._lineage = lineage
        self._finder = finder
        self._refuses_dropped = refuses_dropped
        self._prepared_rows_min = prepared_rows_min
        # What the table has held in the life of this process: see `dropped`.
        self._held = NOWHERE
        declared = {column.stored: column.type for column in plan_evolution((), {}, settings).columns}
        self._partition = partition_columns(settings.partition or (), {**declared, **dict(STATE_COLUMNS)})
        self._history_partition = partition_columns(settings.history_partition or (), dict(HISTORY_COLUMNS))
        self._tables: dict[TableName, DeltaLakeTable] = {}
        self._planned: _Planned | None = None
        self._staged: list[DeltaChange] = []
        self._moves: tuple[KeyIndex, Written] | None = None

    @property
    def table(self) -> TableName:
        return self._name

    def covered(self) -> LogPosition:
        names = [self._name] if self._settings.state else []
        names += [self._name.history] if self._settings.history else []
        return min(self._covered(self._expected(name)) for name in names)

    def preparation(self, run: TableSlice) -> Callable[[], None] | None:
        state = (self._tables.get(self._name) or self._load(self._name)) if self._settings.state else None
        if state is None or _rows(state) < self._prepared_rows_min:
            return None
        # Maintenance may have committed since: then the index is of another version, and is read again beside the pass.
        state = self._load(self._name) or state
        plan = self._evolution(state, run)
        # Every change of a type is a rewrite: Delta's readers do not widen.
        is_needed = self._lacks_index(state) or bool(plan.rewrite or plan.widen or plan.retype)
        return partial(self._prepare, run) if is_needed else None

    def _prepare(self, run: TableSlice) -> None:
        """Plan as a pass does, which rewrites rows where their types changed, and read the keys."""
        self.plan(run)
        self._forget_pass()
        state = self._tables[self._name]
        if self._lacks_index(state):
            rows = self._live_rows(state)
            self._finder.keep(self._name, state.version, build_index(rows), rows.rows)

    def _lacks_index(self, state: DeltaLakeTable) -> bool:
        return self._finder.lacks(self._name, state.version, _rows(state))

    def plan(self, run: TableSlice) -> TableTask:
        state = self._state() if self._settings.state else None
        history = None
        if self._settings.history:
            history = self._log_table(self._name.history, HISTORY_COLUMNS, self._history_partition)
        letters = self._load(self._name.dead_letters)
        plan = plan_evolution((), {}, self._settings)
        marks = Marks()
        if state is not None:
            marks = state.marks()
            plan = self._evolve(state, run)
        task = TableTask(
            table=self._name,
            last=run.last,
            columns=plan.columns,
            seen={name: frozenset(types) for name, types in run.columns.items()},
            refused=plan.refused,
            merges=not self._settings.append and not is_whole_and_newer(run, plan, marks),
            appends=self._settings.append,
            since=state.columns_since() if state is not None else {},
            state=self._part(state, self._partition),
            history=self._part(history, self._history_partition),
            dead_letters=self._part(letters, ()),
        )
        self._planned = _Planned(run, task, marks)
        return task

    def evidence(self, changes: DataFrame) -> list[DataFrame]:
        planned = self._now()
        state = self._tables.get(self._name)
        if not planned.task.merges or state is None or not state.files:
            return []
        schema = to_arrow_schema(ROWS_SCHEMA)
        keys = sf.broadcast(changes.select(sf.col("key").alias("wanted")).distinct())
        scan = state.scan(planned.task.columns)
        frames = [self._frame(state, partial(old_rows_task, scan, schema))]
        history = self._tables.get(self._name.history)
        if history is not None and history.files and planned.run.hlc_min <= planned.marks.hlc_max:
            frames.append(self._frame(history, partial(deletes_task, history.scan(), planned.run.hlc_min, schema)))
        return [frame.join(keys, frame["key"] == keys["wanted"], "left_semi") for frame in frames]

    def stage(self, written: Written) -> list[DeltaChange]:
        run, task = self._now().run, self._now().task
        if written.homeless:
            self._log_table(self._name.dead_letters, DEAD_LETTER_COLUMNS)
            raise Conflict(f"a table for dead letters was made. table={self._name.dead_letters}")
        if written.dead_letters:
            self._staged.append(self._appended(self._name.dead_letters, run, written.dead_letters))
        if task.history is not None and task.history.after < run.last:
            self._staged.append(self._appended(self._name.history, run, written.history))
        if task.state is not None and task.state.after < run.last:
            if task.appends:
                self._staged.append(self._appended(self._name, run, written.state))
            else:
                self._staged.append(self._replaced(run, written))
        return self._staged

    def committed(self) -> None:
        if self._moves is not None:
            index, written = self._moves
            files = [(DataFile(json.loads(file.description)["path"]), file.hashes) for file in written.state]
            move(index, files, written.gone)
            state = self._tables[self._name]
            self._finder.keep(self._name, state.version, index, _rows(state))
        self._forget_pass()

    def discard(self, written: Written) -> None:
        descriptions = {file.description for file in written.files}
        for change in self._staged:
            if change.is_committed:
                descriptions.difference_update(file.description for file in change.files)
        # First of all: the store may fail below, and what was staged must not be committed with the next pass.
        self._finder.forget(self._name)
        self._forget_pass()
        paths = {self._lake.path(self._name): written.state, self._lake.path(self._name.history): written.history}
        paths[self._lake.path(self._name.dead_letters)] = written.dead_letters
        for table, files in paths.items():
            for file in files:
                if file.description in descriptions:
                    self._lake.storage.delete(f"{table}/{unquote(json.loads(file.description)['path'])}")

    def dropped(self, covered: LogPosition) -> None:
        self._tables.clear()
        self._finder.forget(self._name)
        self._held = max(self._held, covered)

    def _forget_pass(self) -> None:
        self._moves, self._planned, self._staged = None, None, []

    def _now(self) -> _Planned:
        assert self._planned is not None, "a pass is planned first"
        return self._planned

    def _covered(self, table: DeltaLakeTable | None) -> LogPosition:
        marked = self._lineage.covered({} if table is None else table.marks().positions)
        # A table without marks was just made, maybe in the place of a dropped one.
        return marked if marked > NOWHERE else self._held

    def _part(self, table: DeltaLakeTable | None, partition: Sequence[PartitionColumn]) -> Part | None:
        if table is None:
            return None
        return Part(table.target(table.partitions_of(partition)), self._covered(table))

    def _evolve(self, state: DeltaLakeTable, run: TableSlice) -> Evolution:
        plan = self._evolution(state, run)
        if plan.touches_schema:
            state.evolve(plan, self._covered(state), partial(rewrite_files, self._spark, self._lake.clock))
        return plan

    def _evolution(self, state: DeltaLakeTable, run: TableSlice) -> Evolution:
        seen = run.columns if self._covered(state) < run.last else {}
        return plan_evolution(state.columns(), seen, self._settings)

    def _appended(self, name: TableName, run: TableSlice, files: list[WrittenFile]) -> DeltaChange:
        table = self._tables[name]
        return DeltaChange(table, table.marks().advanced(self._lineage.log_at(run.last), run.last, run.hlc_max), files)

    def _replaced(self, run: TableSlice, written: Written) -> DeltaChange:
        state = self._tables[self._name]
        touched = KeyHashes.of_bytes(b"".join(file.hashes for file in written.state) + written.gone)
        head = state.version if state.files else None
        index = self._finder.index_for(
            self._name, head, lambda: self._live_rows(state), lambda: keys_of(self._spark, run)
        )
        places = index.find(touched)
        number_of = {file.path: number for number, file in enumerate(state.files)}
        numbers = np.array([number_of.get(file.path, -1) for file in index.files] or [0], np.int64)
        table = pa.table({FILE: numbers[places.files], ROW: places.rows.astype(np.int64)}, schema=PLACES)
        self._moves = (index, written)
        change = self._appended(self._name, run, written.state)
        change.places = table
        return change

    def _live_rows(self, state: DeltaLakeTable) -> LiveRows:
        files = [DataFile(file.path) for file in state.files]
        task = partial(places_task, state.scan())

        def found(keys: KeyRange | None) -> DataFrame:
            some = state.files if keys is None else [file for file in state.files if state.may_hold(file, *keys)]
            return _over_files(self._spark, [[file] for file in some]).mapInArrow(task, _PLACES)

        return LiveRows(state.version, files, _rows(state), found)

    def _frame(self, table: DeltaLakeTable, task: Any, schema: Any = ROWS_SCHEMA) -> DataFrame:
        """A job over the table's files: one unit of work each."""
        return _over_files(self._spark, [[file] for file in table.files]).mapInArrow(task, schema)

    def _load(self, name: TableName) -> DeltaLakeTable | None:
        found = self._lake.load(name)
        if found is not None:
            self._tables[name] = found
        return found

    def _expected(self, name: TableName) -> DeltaLakeTable | None:
        """A table that must be there if the logical table has held anything; None where it has to be made."""
        found = self._load(name)
        if found is None:
            refuse_dropped(name, self._held, refuses=self._refuses_dropped)
        return found

    def _state(self) -> DeltaLakeTable:
        existing = self._expected(self._name)
        if existing is not None:
            return existing
        columns = plan_evolution((), {}, self._settings).columns
        fields = [(column.stored, column.type) for column in columns]
        self._tables[self._name] = self._lake.create(
            self._name, [*fields, *STATE_COLUMNS], of_rows=columns, partition=self._partition, vectors=True
        )
        return self._tables[self._name]

    def _log_table(
        self, name: TableName, columns: Sequence[tuple[str, ColumnType]], partition: Sequence[PartitionColumn] = ()
    ) -> DeltaLakeTable:
        found = self._load(name) if name == self._name.dead_letters else self._expected(name)
        if found is None:
            found = self._tables[name] = self._lake.create(name, columns, partition=partition)
        return found


def _rows(table: DeltaLakeTable) -> int:
    """How many rows the table's files have, deleted ones included."""
    return sum(row_count(file) or 0 for file in table.files)


def rewrite_files(
    spark: SparkSession, clock: Clock, scan: DeltaScan, groups: Sequence[Sequence[AddFile]]
) -> list[dict[str, Any]]:
    """Write each group of files together, on the executors; returns `add` actions."""
    frame = _over_files(spark, groups).mapInArrow(partial(rewrite_task, scan, clock.now_ms()), "file string")
    return [json.loads(text) for text in frame.toArrow()["file"].to_pylist()]


def _over_files(spark: SparkSession, groups: Sequence[Sequence[AddFile]]) -> DataFrame:
    work = [(msgspec.json.encode(list(group)).decode(),) for group in groups]
    return spark.createDataFrame(work, "files string").repartition(max(1, min(len(work), 64)))
