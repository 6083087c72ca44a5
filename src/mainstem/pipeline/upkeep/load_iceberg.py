"""A load into a table in Iceberg: Spark's own writer for the rows, one commit on the snapshot that was looked at."""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from mainstem.model.errors import Conflict
from mainstem.model.names import TableName
from mainstem.pipeline.commit.deletes import Deletes, write_deletes
from mainstem.pipeline.commit.keyindex import DataFile
from mainstem.pipeline.commit.lake import Lake, LakeTable
from mainstem.pipeline.commit.marks import APPLICATION, Marks
from mainstem.pipeline.commit.places import LiveRows
from mainstem.pipeline.passes.plan import IcebergTarget, TableTask
from mainstem.pipeline.passes.stores import for_spark, make_durable, remove_file
from mainstem.pipeline.plan.evidence import deletes_as_evidence, old_rows_as_evidence
from mainstem.pipeline.plan.iceberg import create_state, evolve_state, live_rows, target_of
from mainstem.pipeline.plan.loaded import is_long
from mainstem.pipeline.upkeep.load_one import Gone, Load, Loaded, Merge
from mainstem.tables.evolution import Column, Evolution
from mainstem.tables.parquet import writer_options


class IcebergLoad(Load[LakeTable]):
    """See `Load`."""

    def __init__(self, lake: Lake, *common: Any) -> None:
        super().__init__(*common)
        self._lake = lake

    def _load(self, name: TableName) -> LakeTable | None:
        return self._lake.load(name)

    def _create(self) -> LakeTable:
        return create_state(self._lake, self._name, self._settings)

    def _property(self, state: LakeTable, name: str) -> str | None:
        return state.property(name)

    def _transforms(self, state: LakeTable) -> Mapping[str, set[str]]:
        return state.transforms()

    def _evolve(self, state: LakeTable, plan: Evolution, marks: Marks) -> None:
        evolve_state(self._lake, state, plan, marks, self._settings)
        state.refresh()

    def _target(self, state: LakeTable) -> IcebergTarget:
        return target_of(state)

    def _write(self, state: LakeTable, rows: DataFrame) -> dict[str, Loaded]:
        spark = self._lake.classes
        set_id = str(uuid.uuid4())
        is_partitioned = bool(state.spec()["fields"])
        spark.table_cache.add(set_id, state.java)
        try:
            (
                rows.write.format("iceberg")
                # One partition's rows come to one task: else every task writes a file for each.
                .option("distribution-mode", "hash" if is_partitioned else "none")
                .option("fanout-enabled", "false")
                .mode("append")
                .save(set_id)
            )
            written = list(spark.written_files.fetchNewFiles(state.java, set_id))
        finally:
            spark.table_cache.remove(set_id)
            spark.written_files.clearRewrite(state.java, set_id)
        specs = state.java.specs()
        found = [json.loads(spark.file_json(file, specs.get(file.specId()))) for file in written]
        self._unnamed += [file["file-path"] for file in found]
        make_durable(file["file-path"] for file in found)
        return {file["file-path"].rsplit("/", 1)[1]: _loaded(file) for file in found}

    def _live_rows(self, state: LakeTable) -> LiveRows:
        return live_rows(self._lake, state)

    def _old_rows(self, state: LakeTable, task: TableTask) -> DataFrame:
        return old_rows_as_evidence(self._lake.frame(self._spark, state), task)

    def _deletes(self, history: LakeTable, task: TableTask) -> DataFrame:
        return deletes_as_evidence(self._lake.frame(self._spark, history).where("_op = 'delete'"), task)

    def _holds_long(self, state: LakeTable, file: Loaded, column: Column) -> bool:
        (number,) = [number for name, _, number in state.fields() if name == column.stored]
        return is_long(file.description, number, column.type)

    def _commit(
        self,
        state: LakeTable,
        began: int | None,
        marks: Marks,
        files: Sequence[Loaded],
        merge: Merge,
        noted: Mapping[str, str],
    ) -> None:
        deletes = [self._written_deletes(state, gone) for gone in (merge.of_loaded, merge.of_table) if gone is not None]
        state.begin()
        start = state.transaction.startMetadata().currentSnapshot()
        if (None if start is None else int(start.snapshotId())) != began:
            raise Conflict(f"the table was changed by somebody else. table={self._name}")
        properties = state.transaction.updateProperties()
        for name, value in noted.items():
            properties.set(name, value)
        properties.commit()
        classes, specs = self._lake.classes, state.java.specs()

        def file_of(text: str) -> Any:
            return classes.file_of(classes.read_json(text), specs)

        update = state.transaction.newRowDelta() if merge.collided else state.transaction.newFastAppend()
        if merge.collided and began is not None:
            # Earlier deletes of the same files are those that were looked at.
            update.validateFromSnapshot(began)
        add = update.addRows if merge.collided else update.appendFile
        for text in (*(json.dumps(file.description) for file in files), *merge.files):
            add(file_of(text))
        for found in deletes:
            for text in found.added:
                update.addDeletes(file_of(text))
            for text in found.replaced:
                update.removeDeletes(file_of(text))
        summary = marks.summary() if marks.positions else {}
        said = {APPLICATION: self._lake.application, "mainstem.load": self._source.identity}
        for name, value in {**summary, **said}.items():
            update.set(name, value)
        state.stage(update)
        state.commit_staged()

    def _written_deletes(self, state: LakeTable, gone: Gone) -> Deletes:
        found = write_deletes(
            gone.index,
            gone.places,
            location=target_of(state).location,
            version=int(self._lake.classes.format_version(state.java)),
            codec=str(writer_options(state.properties()).codec),
            store=self._around.store,
        )
        paths = [json.loads(text)["file-path"] for text in found.added]
        self._unnamed += paths
        make_durable(paths)
        return found

    def _place(self, description: Mapping[str, Any]) -> str:
        return str(description["file-path"])

    def _remove(self, place: str) -> None:
        remove_file(place, self._around.store)


def _loaded(file: Mapping[str, Any]) -> Loaded:
    path = str(file["file-path"])
    known = DataFile(path, int(file["spec-id"]), json.dumps(file["partition"]))
    return Loaded(for_spark(path), int(file["record-count"]), file, known)
