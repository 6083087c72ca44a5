"""One logical table in Iceberg: how a pass is planned for it, and what of it is committed."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from mainstem.model.errors import Conflict, NotFound
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, Lineage, LogPosition
from mainstem.pipeline.commit.deletes import Deletes, write_deletes
from mainstem.pipeline.commit.iceberg import TableChange
from mainstem.pipeline.commit.keyindex import DataFile, KeyHashes, KeyIndex
from mainstem.pipeline.commit.lake import Lake, LakeTable, Marks, is_a
from mainstem.pipeline.commit.linking import link_segments
from mainstem.pipeline.commit.places import KeyRange, LiveRows, PlaceFinder, build_index, move
from mainstem.pipeline.passes.plan import IcebergTarget, Part, PartitionField, TableTask
from mainstem.pipeline.passes.stores import remove_file
from mainstem.pipeline.plan.declared import partition_state
from mainstem.pipeline.plan.evidence import deletes_as_evidence, old_rows_as_evidence
from mainstem.pipeline.plan.rewrite import rewrite_columns
from mainstem.pipeline.plan.writer import PREPARED_ROWS_MIN, Written, refuse_dropped
from mainstem.pipeline.source.rows import keys_of
from mainstem.pipeline.source.segments import TableSlice, clocks_are_ordered
from mainstem.sql import spark_text
from mainstem.tables.evolution import Evolution, kinds_of, plan_evolution
from mainstem.tables.layout import (
    DEAD_LETTER_COLUMNS,
    HISTORY_COLUMNS,
    KEY,
    KINDS_PROPERTY,
    STATE_COLUMNS,
    log_properties,
    state_properties,
)
from mainstem.tables.parquet import writer_options
from mainstem.tables.settings import TableSettings
from mainstem.tables.types import ColumnType

_DATA_PATH = "write.data.path"


@dataclass(slots=True)
class _Planned:
    """What one pass over the table is about."""

    run: TableSlice
    task: TableTask
    marks: Marks
    linked: list[str]


class IcebergWriter:
    """See `Writer`."""

    def __init__(
        self,
        lake: Lake,
        name: TableName,
        settings: TableSettings,
        *,
        lineage: Lineage,
        finder: PlaceFinder,
        store: Mapping[str, str],
        refuses_dropped: bool = False,
        prepared_rows_min: int = PREPARED_ROWS_MIN,
    ) -> None:
        self._lake = lake
        self._name = name
        self._settings = settings
        self._lineage = lineage
        self._finder = finder
        self._store = store
        self._refuses_dropped = refuses_dropped
        self._prepared_rows_min = prepared_rows_min
        self._tables: dict[TableName, LakeTable] = {}
        self._planned: _Planned | None = None
        # What `committed` does once the commit is in.
        self._moves: tuple[TableChange, KeyIndex, Deletes, Written] | None = None
        self._staged: list[TableChange] = []
        self._has_no_letters = False
        # What the table has held in the life of this process. One that is made in the place of a dropped one starts
        # from there: changes that the dropped one held do not come back.
        self._held = NOWHERE

    @property
    def table(self) -> TableName:
        return self._name

    def covered(self) -> LogPosition:
        names = [self._name] if self._settings.state else []
        names += [self._name.history] if self._settings.history else []
        return min(self._covered(self._expected(name)) for name in names)

    def preparation(self, run: TableSlice) -> Callable[[], None] | None:
        if not self._settings.state:
            return None
        state = self._tables.get(self._name) or self._begin(self._name)
        if state is None or state.snapshot_id is None or self._rows(state) < self._prepared_rows_min:
            return None
        # Maintenance may have committed since: then the index is of another snapshot, and is read beside the pass.
        state = self._begin(self._name) or state
        is_needed = self._lacks_index(state) or bool(self._evolution(state, run).rewrite)
        return partial(self._prepare, run) if is_needed else None

    def _prepare(self, run: TableSlice) -> None:
        """Plan as a pass does, which rewrites rows where their types changed, and read the keys."""
        self.plan(run)
        self._forget_pass()
        state = self._tables[self._name]
        if self._lacks_index(state):
            rows = self._live_rows(state)
            self._finder.keep(self._name, state.snapshot_id, build_index(rows), rows.rows)

    def _lacks_index(self, state: LakeTable) -> bool:
        return self._finder.lacks(self._name, state.snapshot_id, self._rows(state))

    def plan(self, run: TableSlice) -> TableTask:
        state = self._state() if self._settings.state else None
        history = self._log_table(self._name.history, HISTORY_COLUMNS) if self._settings.history else None
        letters = self._letters()
        plan = plan_evolution((), {}, self._settings)
        marks = Marks()
        if state is not None:
            marks = state.marks()
            plan = self._evolve(state, marks, run)
        history_part, linked = None, list[str]()
        if history is not None:
            history_part, linked = self._history_part(history, run, plan)
        merges = not is_whole_and_newer(run, plan, marks)
        task = TableTask(
            table=self._name,
            last=run.last,
            columns=plan.columns,
            seen={name: frozenset(types) for name, types in run.columns.items()},
            refused=plan.refused,
            merges=merges,
            latest_only=not merges
            and state is not None
            and run.first > self._covered(state)
            and _is_clean(run, plan)
            and (history is None or len(linked) == len(run.segments)),
            since=state.columns_since() if state is not None else {},
            state=None if state is None else Part(target_of(state), self._covered(state)),
            history=history_part,
            dead_letters=None if letters is None else Part(target_of(letters), self._covered(letters)),
        )
        self._planned = _Planned(run, task, marks, linked)
        return task

    def evidence(self, changes: DataFrame) -> list[DataFrame]:
        planned = self._now()
        state = self._tables.get(self._name)
        if not planned.task.merges or state is None or state.snapshot_id is None:
            return []
        keys = sf.broadcast(changes.select("key").distinct())
        spark = changes.sparkSession
        old = self._lake.frame(spark, state)
        found = [old_rows_as_evidence(old.join(keys, old[KEY] == keys["key"], "left_semi"), planned.task)]
        history = self._tables.get(self._name.history)
        if history is not None and history.snapshot_id is not None and planned.run.hlc_min <= planned.marks.hlc_max:
            # A change may be older than a delete that only the history still knows.
            log = self._lake.frame(spark, history)
            deletes = log.where(f"_op = 'delete' AND _hlc >= {planned.run.hlc_min}L")
            found.append(
                deletes_as_evidence(deletes.join(keys, deletes[KEY] == keys["key"], "left_semi"), planned.task)
            )
        return found

    def stage(self, written: Written) -> list[TableChange]:
        planned = self._now()
        run, task = planned.run, planned.task
        if written.homeless:
            self._log_table(self._name.dead_letters, DEAD_LETTER_COLUMNS)
            raise Conflict(f"a table for dead letters was made. table={self._name.dead_letters}")
        changes = self._staged
        if written.dead_letters:
            changes.append(self._appended(self._name.dead_letters, run, [f.description for f in written.dead_letters]))
        if task.history is not None and task.history.after < run.last:
            files = [*planned.linked, *(file.description for file in written.history)]
            changes.append(self._appended(self._name.history, run, files))
        if task.state is not None and task.state.after < run.last:
            changes.append(self._replaced(written))
        return changes

    def committed(self) -> None:
        if self._moves is not None:
            change, index, deletes, written = self._moves
            for number, (vector, positions) in deletes.vectors.items():
                index.files[number].vector, index.files[number].deleted = vector, positions
            move(index, [(_data_file(file.description), file.hashes) for file in written.state], written.gone)
            head = json.loads(
                self._lake.classes.snapshot_json(change.table.transaction.currentMetadata().currentSnapshot())
            )
            rows = int(head["summary"].get("total-records", 0))
            self._finder.keep(self._name, head["snapshot-id"], index, rows)
        self._forget_pass()

    def discard(self, written: Written) -> None:
        descriptions = {file.description for file in written.files}
        if self._planned is not None:
            descriptions.update(self._planned.linked)
        for change in self._staged:
            if change.is_committed:
                descriptions.difference_update(change.files)
            else:
                descriptions.update(change.deletes)
        self._finder.forget(self._name)
        self._forget_pass()
        for description in descriptions:
            remove_file(json.loads(description)["file-path"], self._store)

    def _forget_pass(self) -> None:
        self._moves, self._planned, self._staged = None, None, []

    def dropped(self, covered: LogPosition) -> None:
        self._tables.clear()
        self._finder.forget(self._name)
        self._held = max(self._held, covered)

    def _now(self) -> _Planned:
        assert self._planned is not None, "a pass is planned first"
        return self._planned

    def _covered(self, table: LakeTable | None) -> LogPosition:
        marked = NOWHERE if table is None else self._lineage.covered(table.marks().positions)
        # A table without marks was just made, maybe in the place of a dropped one.
        return marked if marked > NOWHERE else self._held

    def _expected(self, name: TableName) -> LakeTable | None:
        """A table that must be there if the logical table has held anything; None where it has to be made."""
        found = self._begin(name)
        if found is None:
            refuse_dropped(name, self._held, refuses=self._refuses_dropped)
        return found

    def _letters(self) -> LakeTable | None:
        """The table for dead letters. Most tables never have one: whether there is one is asked once."""
        name = self._name.dead_letters
        if name not in self._tables and self._has_no_letters:
            return None
        found = self._begin(name)
        self._has_no_letters = found is None
        return found

    def _begin(self, name: TableName) -> LakeTable | None:
        """The table at its newest metadata, with a transaction begun; None where there is none."""
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

    def _evolve(self, state: LakeTable, before: Marks, run: TableSlice) -> Evolution:
        plan = self._evolution(state, run)
        if plan.rewrite:
            rewrite_columns(self._lake, state, plan.rewrite, before)
            state.refresh()
        if plan.touches_schema:
            state.evolve(plan, self._covered(state))
            partition_state(state, self._settings)
            state.begin()
        return plan

    def _evolution(self, state: LakeTable, run: TableSlice) -> Evolution:
        seen = run.columns if self._covered(state) < run.last else {}
        return plan_evolution(state.columns(), seen, self._settings, state.transforms())

    def _history_part(self, history: LakeTable, run: TableSlice, plan: Evolution) -> tuple[Part, list[str]]:
        covered = self._covered(history)
        target = target_of(history)
        linked = link_segments(target, run, covered) if _is_clean(run, plan) else []
        ranges = tuple((segment.first, segment.last) for segment, _ in linked)
        return Part(target, covered, ranges), [description for _, description in linked]

    def _appended(self, name: TableName, run: TableSlice, files: Sequence[str]) -> TableChange:
        table = self._tables[name]
        marks = table.marks().advanced(self._lineage.log_at(run.last), run.last, run.hlc_max)
        return TableChange(table, marks, list(files))

    def _replaced(self, written: Written) -> TableChange:
        """New rows in the place of old ones."""
        planned, state = self._now(), self._tables[self._name]
        touched = KeyHashes.of_bytes(b"".join(file.hashes for file in written.state) + written.gone)
        index = self._finder.index_for(
            self._name,
            state.snapshot_id,
            lambda: self._live_rows(state),
            lambda: keys_of(self._lake.spark, planned.run),
        )
        deletes = write_deletes(
            index,
            index.find(touched),
            location=target_of(state).location,
            version=int(self._lake.classes.format_version(state.java)),
            codec=str(writer_options(state.properties()).codec),
            store=self._store,
        )
        run = planned.run
        change = TableChange(
            state,
            planned.marks.advanced(self._lineage.log_at(run.last), run.last, run.hlc_max),
            [file.description for file in written.state],
            deletes.added,
            deletes.replaced,
            deletes.paths,
            is_state=True,
        )
        self._moves = (change, index, deletes, written)
        return change

    def _live_rows(self, state: LakeTable) -> LiveRows:
        files = self._lake.data_files(state)

        def rows(keys: KeyRange | None) -> DataFrame:
            every = self._lake.frame(self._lake.spark, state)
            # Iceberg leaves out files by the bounds of their keys.
            some = every
            if keys is not None:
                some = every.where(f"{KEY} BETWEEN {spark_text(keys.low)} AND {spark_text(keys.high)}")
            return some.selectExpr(KEY, "_file AS path", "_pos AS row")

        return LiveRows(state.snapshot_id, files, self._rows(state), rows)

    def _rows(self, state: LakeTable) -> int:
        """How many rows the table's files have, deleted ones included."""
        return int(state.java.currentSnapshot().summary().get("total-records") or 0)

    def _state(self) -> LakeTable:
        existing = self._expected(self._name)
        if existing is not None:
            return existing
        columns = plan_evolution((), {}, self._settings).columns
        properties = state_properties(self._settings) | {KINDS_PROPERTY: json.dumps(kinds_of(columns))}
        fields = [(column.stored, column.type) for column in columns]
        return self._created(self._name, [*fields, *STATE_COLUMNS], properties, self._settings.partition or ())

    def _log_table(self, name: TableName, columns: Sequence[tuple[str, ColumnType]]) -> LakeTable:
        existing = self._begin(name) if name == self._name.dead_letters else self._expected(name)
        if existing is not None:
            return existing
        partition = self._settings.history_partition or ()
        return self._created(name, columns, log_properties(self._settings), partition)

    def _created(self, name: TableName, columns: Sequence[tuple[str, ColumnType]], *more: object) -> LakeTable:
        table = self._tables[name] = self._lake.create(name, columns, *more)  # type: ignore[arg-type]
        table.begin()
        return table


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


def is_whole_and_newer(run: TableSlice, plan: Evolution, before: Marks) -> bool:
    """Whether every row is whole and newer than all before: then the last row per key is the new row."""
    whole = run.always >= {column.name for column in plan.columns}
    return whole and run.hlc_min > before.hlc_max and clocks_are_ordered(run)


def _is_clean(run: TableSlice, plan: Evolution) -> bool:
    """Whether every row is known to fit. A row that the sealer let pass may still not fit a declared type."""
    return not run.errors and not plan.refused and all(column.kind is not None for column in plan.columns)


def _data_file(description: str) -> DataFile:
    file = json.loads(description)
    return DataFile(file["file-path"], file["spec-id"], json.dumps(file["partition"]))
