"""Tables in Delta: what is Delta's own in writing a table. Each physical table has a log, so a commit, of its own."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from mainstem.formats.delta.files.engine import FILE, PLACES, ROW
from mainstem.formats.delta.log import AddFile
from mainstem.model.errors import Conflict
from mainstem.model.names import TableName
from mainstem.pipeline.commit.changes import TableChange
from mainstem.pipeline.commit.keyindex import DataFile, KeyIndex, Places
from mainstem.pipeline.commit.places import KeyRange, LiveRows
from mainstem.pipeline.delta.partitions import partition_columns
from mainstem.pipeline.delta.table import DeltaLake, DeltaLakeTable, create_state, state_partition
from mainstem.pipeline.passes.delta_scan import DeltaScan, deletes_task, old_rows_task, places_task, rewrite_task
from mainstem.pipeline.passes.plan import DeltaTarget, TableTask
from mainstem.pipeline.plan.evidence import ROWS_SCHEMA
from mainstem.pipeline.plan.writer import TableWriter
from mainstem.pipeline.source.segments import Segment, TableSlice
from mainstem.runtime.clock import Clock
from mainstem.tables.evolution import Evolution
from mainstem.tables.layout import HISTORY_COLUMNS, KEY
from mainstem.tables.settings import TableSettings
from mainstem.tables.types import ColumnType

_ROWS = to_arrow_schema(ROWS_SCHEMA)
_PLACES = f"{KEY} string, path string, row long"


@dataclass(slots=True, kw_only=True)
class DeltaChange(TableChange[DeltaLakeTable]):
    """What one Delta table gets from a pass."""

    # The rows that are gone; of a table without deletion vectors, the files: `deletes` stand in their place.
    places: pa.Table = field(default_factory=PLACES.empty_table)
    dropped: Sequence[AddFile] = ()

    def commit(self) -> None:
        added = [json.loads(text) for text in (*self.files, *self.deletes)]
        self.table.commit(self.marks, added, self.places, self.dropped)
        self.is_committed = True


class DeltaWriter(TableWriter[DeltaLakeTable, DeltaChange]):
    """See `TableWriter`."""

    def __init__(
        self, lake: DeltaLake, spark: SparkSession, name: TableName, settings: TableSettings, **common: Any
    ) -> None:
        super().__init__(spark, name, settings, **common)
        self._lake = lake
        self._partitions = {
            name: state_partition(settings),
            name.history: partition_columns(settings.history_partition or (), dict(HISTORY_COLUMNS)),
            name.dead_letters: (),
        }

    def _load(self, name: TableName) -> DeltaLakeTable | None:
        found = self._lake.load(name)
        if found is not None:
            self._tables[name] = found
        return found

    def _create_state(self) -> DeltaLakeTable:
        return create_state(self._lake, self._name, self._settings)

    def _create_log(self, name: TableName, columns: Sequence[tuple[str, ColumnType]]) -> DeltaLakeTable:
        return self._lake.create(name, columns, partition=self._partitions[name])

    def _target(self, table: DeltaLakeTable) -> DeltaTarget:
        return table.target(table.derived_by(self._partitions[table.name]))

    def _rewrites(self, plan: Evolution) -> bool:
        # Every change of a type is a rewrite: Delta's readers do not widen.
        return bool(plan.rewrite or plan.widen or plan.retype)

    def _evolve(self, state: DeltaLakeTable, run: TableSlice) -> Evolution:
        plan = self._evolution(state, run)
        if plan.touches_schema:
            state.evolve(plan, state.marks().hlc_max, partial(rewrite_files, self._spark, self._lake.clock))
        return plan

    def _link(self, history: DeltaLakeTable, run: TableSlice) -> list[tuple[Segment, str]]:
        # A segment's columns have other names than a history's, and Delta reads by names.
        return []

    def _old_rows(self, state: DeltaLakeTable, task: TableTask, keys: DataFrame) -> DataFrame:
        return self._of_keys(state, partial(old_rows_task, state.scan(task.columns), _ROWS), keys)

    def _deletes(self, history: DeltaLakeTable, task: TableTask, keys: DataFrame, hlc_min: int) -> DataFrame:
        return self._of_keys(history, partial(deletes_task, history.scan(), hlc_min, _ROWS), keys)

    def _live_rows(self, state: DeltaLakeTable) -> LiveRows:
        return live_rows(self._spark, state)

    def _append(self, table: DeltaLakeTable, files: list[str]) -> DeltaChange:
        return DeltaChange(table=table, marks=self._marks_after(table), files=files)

    def _replace(self, state: DeltaLakeTable, files: list[str], index: KeyIndex, places: Places) -> DeltaChange:
        rows = places_of(state.files, index, places)
        change = self._append(state, files)
        if state.keeps_vectors:
            change.places = rows
        elif rows.num_rows:
            change.dropped, added = state.without(rows, partial(rewrite_files, self._spark, self._lake.clock))
            change.deletes = [json.dumps(add) for add in added]
            change.moves_rows = True
        return change

    def _data_file(self, description: str) -> DataFile:
        return DataFile(json.loads(description)["path"])

    def _remove(self, name: TableName, files: Iterable[str]) -> None:
        for description in files:
            self._lake.storage.delete(f"{self._lake.path(name)}/{unquote(json.loads(description)['path'])}")

    def _of_keys(self, table: DeltaLakeTable, task: Any, keys: DataFrame) -> DataFrame:
        """Rows of a pass that a task reads, file by file; those of some keys (`wanted`)."""
        rows = over_files(self._spark, [[file] for file in table.files]).mapInArrow(task, ROWS_SCHEMA)
        return rows.join(keys, rows["key"] == keys["wanted"], "left_semi")


def places_of(files: Sequence[AddFile], index: KeyIndex, places: Places) -> pa.Table:
    """Places that an index found, by the numbers of the files that a table has."""
    number_of = {file.path: number for number, file in enumerate(files)}
    numbers = np.array([number_of.get(file.path, -1) for file in index.files] or [0], np.int64)[places.files]
    if (numbers < 0).any():
        raise Conflict("rows of a pass are in files that the table does not have")
    return pa.table({FILE: numbers, ROW: places.rows.astype(np.int64)}, schema=PLACES)


def live_rows(spark: SparkSession, state: DeltaLakeTable) -> LiveRows:
    """The keys and places of a state's rows."""
    task = partial(places_task, state.scan())

    def found(keys: KeyRange | None) -> DataFrame:
        some = state.files if keys is None else [file for file in state.files if state.may_hold(file, *keys)]
        return over_files(spark, [[file] for file in some]).mapInArrow(task, _PLACES)

    return LiveRows(state.snapshot_id, [DataFile(file.path) for file in state.files], state.rows, found)


def rewrite_files(
    spark: SparkSession, clock: Clock, scan: DeltaScan, groups: Sequence[Sequence[AddFile]]
) -> list[dict[str, Any]]:
    """Write each group of files together, on the executors; returns `add` actions."""
    frame = over_files(spark, groups).mapInArrow(partial(rewrite_task, scan, clock.now_ms()), "file string")
    return [json.loads(text) for text in frame.toArrow()["file"].to_pylist()]


def over_files(spark: SparkSession, groups: Sequence[Sequence[AddFile]]) -> DataFrame:
    """A frame with a row (`files`) per group of files, for a job over them."""
    work = [(msgspec.json.encode(list(group)).decode(),) for group in groups]
    return spark.createDataFrame(work, "files string").repartition(max(1, min(len(work), 64)))
