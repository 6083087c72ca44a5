"""A load into a table in Delta: the executors write its files, and the next version of its log names them all.

Delta's transaction identifiers, which say what the table covers of the log, go into that version as they were.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from mainstem.formats.delta.log import AddFile
from mainstem.formats.delta.transaction import rows_by_file, with_vectors
from mainstem.model.names import TableName
from mainstem.pipeline.commit.keyindex import DataFile
from mainstem.pipeline.commit.marks import Marks
from mainstem.pipeline.commit.places import LiveRows
from mainstem.pipeline.delta.table import (
    NO_PLACES,
    DeltaLake,
    DeltaLakeTable,
    carrying,
    create_state,
    state_partition,
)
from mainstem.pipeline.delta.writer import live_rows, over_files, places_of, rewrite_files
from mainstem.pipeline.passes.delta_load import WRITTEN, derive_task, derived_schema, write_task
from mainstem.pipeline.passes.delta_scan import deletes_task, old_rows_task
from mainstem.pipeline.passes.plan import DeltaTarget, TableTask
from mainstem.pipeline.passes.stores import for_spark
from mainstem.pipeline.plan.evidence import ROWS_SCHEMA
from mainstem.pipeline.upkeep.load_one import Gone, Load, Loaded, Merge
from mainstem.tables.evolution import Column, Evolution

# Of the files that are loaded, for each task that writes partitions.
PARTITIONED_BYTES_PER_TASK = 256 << 20
_ROWS = to_arrow_schema(ROWS_SCHEMA)
# In a loaded file's description, beside Delta's own words: see `write_task`.
_FAR = "far"


class DeltaLoad(Load[DeltaLakeTable]):
    """See `Load`."""

    def __init__(self, lake: DeltaLake, *common: Any) -> None:
        super().__init__(*common)
        self._lake = lake
        self._rewrite = partial(rewrite_files, self._spark, self._around.clock)

    def _load(self, name: TableName) -> DeltaLakeTable | None:
        return self._lake.load(name)

    def _create(self) -> DeltaLakeTable:
        return create_state(self._lake, self._name, self._settings)

    def _property(self, state: DeltaLakeTable, name: str) -> str | None:
        return state.properties.get(name)

    def _transforms(self, state: DeltaLakeTable) -> Mapping[str, set[str]]:
        return state.transforms()

    def _evolve(self, state: DeltaLakeTable, plan: Evolution, marks: Marks) -> None:
        if plan.touches_schema:
            state.evolve(plan, marks.hlc_max, self._rewrite)

    def _target(self, state: DeltaLakeTable) -> DeltaTarget:
        return state.target(state.derived_by(state_partition(self._settings)))

    def _write(self, state: DeltaLakeTable, rows: DataFrame) -> dict[str, Loaded]:
        target = self._target(state)
        if target.derived:
            schema = from_arrow_schema(derived_schema(target, to_arrow_schema(rows.schema)), prefer_timestamp_ntz=True)
            rows = rows.mapInArrow(partial(derive_task, target), schema)
            target = replace(target, derived=())
        if by := target.metadata["partitionColumns"]:
            # One partition's rows come to one task: else every task writes a file for each.
            tasks = max(self._tasks(0, 1), -(-self._source.bytes // PARTITIONED_BYTES_PER_TASK))
            rows = rows.repartition(tasks, *by)
        now_ms = self._around.clock.now_ms()
        task = partial(write_task, target, self._around.store, now_ms)
        written = rows.mapInArrow(task, from_arrow_schema(WRITTEN)).toArrow().to_pylist()
        found = [{**json.loads(each["file"]), _FAR: each["far"]} for each in written]
        self._unnamed += [self._place(file) for file in found]
        return {unquote(file["path"]).rsplit("/", 1)[-1]: self._loaded(file) for file in found}

    def _loaded(self, file: Mapping[str, Any]) -> Loaded:
        uri = self._lake.storage.uri(self._place(file))
        rows = int(json.loads(file["stats"])["numRecords"])
        return Loaded(uri if uri.startswith("file:") else for_spark(uri), rows, file, DataFile(file["path"]))

    def _live_rows(self, state: DeltaLakeTable) -> LiveRows:
        return live_rows(self._spark, state)

    def _old_rows(self, state: DeltaLakeTable, task: TableTask) -> DataFrame:
        return self._over(state, partial(old_rows_task, state.scan(task.columns), _ROWS))

    def _deletes(self, history: DeltaLakeTable, task: TableTask) -> DataFrame:
        return self._over(history, partial(deletes_task, history.scan(), 0, _ROWS))

    def _over(self, table: DeltaLakeTable, task: Any) -> DataFrame:
        return over_files(self._spark, [[file] for file in table.files]).mapInArrow(task, ROWS_SCHEMA)

    def _holds_long(self, state: DeltaLakeTable, file: Loaded, column: Column) -> bool:
        return column.stored in file.description[_FAR]

    def _commit(
        self,
        state: DeltaLakeTable,
        began: int | None,
        marks: Marks,
        files: Sequence[Loaded],
        merge: Merge,
        noted: Mapping[str, str],
    ) -> None:
        # The version that was looked at: a later one is a Conflict.
        added = [{name: value for name, value in file.description.items() if name != _FAR} for file in files]
        if merge.of_loaded is not None:
            added = self._lighter(state, added, merge.of_loaded)
        added += [json.loads(text) for text in merge.files]
        places = None if merge.of_table is None else places_of(state.files, merge.of_table.index, merge.of_table.places)
        dropped: Sequence[AddFile] = ()
        if places is not None and not state.keeps_vectors:
            dropped, rewritten = state.without(places, self._rewrite)
            self._unnamed += [self._place(add) for add in rewritten]
            added, places = [*added, *rewritten], None
        state.commit(marks, added, NO_PLACES if places is None else places, dropped, noted)

    def _lighter(self, state: DeltaLakeTable, added: list[dict[str, Any]], gone: Gone) -> list[dict[str, Any]]:
        """The loaded files without the rows that the table knows better."""
        files = [msgspec.convert(add, AddFile) for add in added]
        touched = rows_by_file(files, places_of(files, gone.index, gone.places))
        if state.keeps_vectors:
            vectors, lighter = with_vectors(self._lake.storage, state.log.table, touched)
            self._unnamed.append(vectors)
        else:
            lighter = self._rewrite(state.scan(), [[carrying(file, rows)] for file, rows in touched])
            self._unnamed += [self._place(add) for add in lighter]
        leaving = {file.path for file, _ in touched}
        return [*(add for add in added if add["path"] not in leaving), *lighter]

    def _place(self, description: Mapping[str, Any]) -> str:
        return f"{self._lake.path(self._name)}/{unquote(description['path'])}"

    def _remove(self, place: str) -> None:
        self._lake.storage.delete(place)
