"""One try at one load without the log, in its table's turn: read, write, merge with what the table knows, commit.

Files belong to no table until the commit, which is made on what was looked at or not at all.
"""

import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from mainstem.model.errors import Conflict, Invalid
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, Lineage, LogPosition
from mainstem.pipeline.commit.deletes import Deletes, write_deletes
from mainstem.pipeline.commit.keyindex import DataFile, KeyHashes, KeyIndex
from mainstem.pipeline.commit.lake import Lake, LakeTable
from mainstem.pipeline.commit.marks import APPLICATION, Marks
from mainstem.pipeline.commit.places import LiveRows, build_index
from mainstem.pipeline.passes.kernel import run_task
from mainstem.pipeline.passes.plan import DESCRIPTIONS, Part, PassPlan, TableTask
from mainstem.pipeline.passes.stores import for_spark, make_durable, remove_file
from mainstem.pipeline.plan.evidence import deletes_as_evidence, old_rows_as_evidence
from mainstem.pipeline.plan.iceberg import create_state, evolve_state, live_rows, target_of
from mainstem.pipeline.plan.loaded import is_long
from mainstem.pipeline.plan.writer import Written, sorted_by_table
from mainstem.pipeline.upkeep.load_rows import FileRows, Source, read_rows
from mainstem.pipeline.upkeep.load_watch import OnLoaded, Watched
from mainstem.pipeline.upkeep.steps import Done
from mainstem.runtime.clock import Clock
from mainstem.sql import spark_text
from mainstem.tables.evolution import Evolution, kinds_of, plan_evolution
from mainstem.tables.layout import CLOCKS, HLC, KEY, KINDS_PROPERTY, POSITION, SOURCE, STATE_COLUMNS
from mainstem.tables.parquet import writer_options
from mainstem.tables.settings import TableSettings
from mainstem.tables.since import Since
from mainstem.wire.jobs import LoadOrder

log = logging.getLogger(__name__)

# The table's own list of what was loaded into it, and how much of it is remembered.
LOADS_PROPERTY = "mainstem.loads"
LOADS_KEPT_MAX = 100
LOAD_SOURCE = "load"
ROWS_PER_TASK = 250_000
_DESCRIPTIONS = from_arrow_schema(DESCRIPTIONS)


@dataclass(frozen=True, slots=True)
class Around:
    """What every load needs."""

    lake: Lake
    clock: Clock
    lineage: Lineage
    # What a table holds of the log.
    covered: Callable[[TableName], LogPosition]
    # How executors reach the store.
    store: Mapping[str, str]


@dataclass(slots=True)
class _Merge:
    """What becomes of loaded rows whose keys the table knows already."""

    files: list[str] = field(default_factory=list)
    deletes: Deletes = field(default_factory=Deletes)
    of_loaded: Deletes = field(default_factory=Deletes)
    collided: int = 0


class Load:
    """One try at one load, in the table's turn."""

    def __init__(
        self,
        around: Around,
        name: TableName,
        settings: TableSettings,
        order: LoadOrder,
        source: Source,
        look_again: Callable[[], Source],
        on_progress: OnLoaded,
        go_on: Callable[[], bool],
    ) -> None:
        """`look_again` tells what the files are now."""
        self._around = around
        self._lake = around.lake
        self._spark = around.lake.spark
        self._look_again = look_again
        self._name = name
        self._settings = settings
        self._order = order
        self._source = source
        self._on_progress = on_progress
        self._go_on = go_on
        # Files that nothing refers to as long as there is no commit.
        self._unnamed: list[str] = []

    def run(self) -> Done:
        """Do it, and say what was done."""
        state, marks = self._state()
        loads = json.loads(state.property(LOADS_PROPERTY) or "[]")
        known = next((each for each in loads if each["id"] == self._source.identity), None)
        if known is not None:
            return {"rows": int(known["rows"]), "files": 0, "merged": 0, "repeated": 1}
        hlc = 1 + max((int(each["hlc"]) for each in loads), default=0)
        rows = self._read(state)
        plan = self._evolved(state, rows.seen, marks)
        began = state.snapshot_id
        loaded = self._projected(rows, plan, hlc, has_since=state.columns_since() != Since())
        files = self._write(state, loaded)
        count = sum(int(file["record-count"]) for file in files.values())
        self._check_once(files, count)
        history = self._lake.load(self._name.history)
        merge = self._merge(state, history, plan, partial(rows.as_changes, own=_own(hlc)), files, count)
        if self._look_again().identity != self._source.identity:
            raise Conflict(f"the files changed while they were loaded. got={self._order.place}")
        if not self._go_on():
            raise Invalid("the load was cancelled")
        kinds = self._kinds(state, plan, rows, files)
        done = {"id": self._source.identity, "rows": count, "hlc": hlc, "at_ms": self._around.clock.now_ms()}
        self._commit(state, began, marks, list(files.values()), merge, kinds, [*loads, done])
        return {"rows": count, "files": len(files), "merged": merge.collided, "repeated": 0}

    def discard(self) -> None:
        """Remove what was written: no commit has it."""
        for location in self._unnamed:
            try:
                remove_file(location, self._around.store)
            except OSError:
                log.warning("a file of a load that failed stays, as an orphan", extra={"file": location})

    # Before anything is written

    def _state(self) -> tuple[LakeTable, Marks]:
        """The table, made where it is not there, and what it covers of the log."""
        state = self._lake.load(self._name)
        history = self._lake.load(self._name.history)
        is_new = state is None
        if state is None:
            state = create_state(self._lake, self._name, self._settings)
        if not state.names() >= {name for name, _ in STATE_COLUMNS}:
            raise Invalid(f"the table of this name is not Mainstem's. table={self._name}")
        marks = state.marks()
        if not is_new or marks.positions:
            return state, marks
        # In the place of a dropped one: changes that that one held do not come back.
        before = Marks() if history is None else history.marks()
        covered = max(self._around.covered(self._name), self._around.lineage.covered(before.positions))
        if covered > NOWHERE:
            marks = before.advanced(self._around.lineage.log_at(covered), covered, before.hlc_max)
        return state, marks

    def _read(self, state: LakeTable) -> FileRows:
        key = self._order.key or self._settings.key
        if not key:
            raise Invalid(f"the rows have no key. table={self._name} expected=--key COLUMN", reason="no_key")
        known = {*self._settings.columns, *(column.name for column in state.columns() if column.kind is None)}
        infers_times = bool(self._settings.infer_times)
        with self._watched():
            return read_rows(self._spark, self._source, self._name, key, known=known, infers_times=infers_times)

    def _watched(self) -> Watched:
        return Watched(self._spark, self._source.bytes, self._on_progress, self._go_on)

    def _evolved(self, state: LakeTable, seen: Mapping[str, frozenset[str]], marks: Marks) -> Evolution:
        plan = plan_evolution(state.columns(), seen, self._settings, state.transforms())
        if plan.refused:
            raise Invalid(f"the table cannot have these columns. got={dict(plan.refused)}")
        if plan.rewrite:
            now = {column.name: column.type for column in state.columns()}
            both = {
                column.name: f"{now[column.name]} in the table, {'/'.join(sorted(seen[column.name]))} here"
                for column in plan.rewrite
            }
            raise Invalid(f"columns would change their type: load the files through the log. got={both}")
        evolve_state(self._lake, state, plan, marks, self._settings)
        state.refresh()
        return plan

    def _projected(self, rows: FileRows, plan: Evolution, hlc: int, *, has_since: bool) -> DataFrame:
        """The files' rows as the state has them."""
        own = _own(hlc)
        if has_since:
            # Columns are missing in rows up to a clock, and a loaded row's clock is below those of all changes.
            text = json.dumps({column.name: [hlc, LOAD_SOURCE] for column in plan.columns}, ensure_ascii=False)
            own = _own(hlc, spark_text(text))
        return rows.as_columns(plan.columns).selectExpr("*", *own)

    # Rows

    def _write(self, state: LakeTable, rows: DataFrame) -> dict[str, dict[str, Any]]:
        """Spark's own writer; the files belong to no table yet. Returns their descriptions by their names."""
        spark = self._lake.classes
        set_id = str(uuid.uuid4())
        is_partitioned = bool(state.spec()["fields"])
        spark.table_cache.add(set_id, state.java)
        try:
            with self._watched():
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
        specs, to_json = state.java.specs(), self._lake.classes.file_json
        found = [json.loads(to_json(file, specs.get(file.specId()))) for file in written]
        self._unnamed += [file["file-path"] for file in found]
        make_durable(file["file-path"] for file in found)
        if not found:
            raise Invalid(f"the files have no rows. got={self._order.place}", reason="no_rows")
        return {file["file-path"].rsplit("/", 1)[1]: file for file in found}

    def _keys(self, files: Mapping[str, Mapping[str, Any]]) -> DataFrame:
        """The written keys, with their files' names and their rows in them."""
        paths = [for_spark(str(file["file-path"])) for file in files.values()]
        rows = self._spark.read.schema(f"{KEY} string").parquet(*paths)
        return rows.selectExpr(
            KEY, "element_at(split(_metadata.file_path, '/'), -1) AS path", "_metadata.row_index AS row"
        )

    def _check_once(self, files: Mapping[str, Mapping[str, Any]], count: int) -> None:
        """A key that stands twice would have two rows. Hashes are compared: most loads have none that are the same."""
        self._spark.conf.set("spark.sql.shuffle.partitions", str(self._tasks(count, 4_000_000)))
        keys = self._keys(files)
        hashes = keys.selectExpr(f"xxhash64({KEY}) AS hash").groupBy("hash").count().where("count > 1")
        suspects = [row["hash"] for row in hashes.limit(1_000).collect()]
        if not suspects:
            return
        some = keys.where(sf.expr(f"xxhash64({KEY})").isin(suspects)).groupBy(KEY).count().where("count > 1")
        twice = [row[KEY] for row in some.limit(3).collect()]
        if twice:
            raise Invalid(
                f"keys stand more than once in the files. expected=each once got={twice}: load them through the log, "
                "where the last one counts",
                reason="no_key",
            )

    def _merge(
        self,
        state: LakeTable,
        history: LakeTable | None,
        plan: Evolution,
        as_changes: Callable[[TableTask], DataFrame],
        files: Mapping[str, Mapping[str, Any]],
        count: int,
    ) -> _Merge:
        """What the table knows of the loaded keys: rows stay as they are, or get the columns that they lack."""
        known = [] if state.snapshot_id is None else [self._lake.frame(self._spark, state).select(KEY)]
        deletes: DataFrame | None = None
        if history is not None and history.snapshot_id is not None:
            deletes = self._lake.frame(self._spark, history).where("_op = 'delete'")
            known.append(deletes.select(KEY))
        elif state.snapshot_id is not None and not self._settings.history:
            raise Invalid(f"the table has no history: its deletes are not known. table={self._name}")
        if not known:
            return _Merge()
        self._spark.conf.set("spark.sql.shuffle.partitions", str(self._tasks(count, 1_000_000)))
        every = known[0] if len(known) == 1 else known[0].unionByName(known[1])
        collisions = self._keys(files).join(every, KEY, "left_semi")
        named = [DataFile(name, int(file["spec-id"]), json.dumps(file["partition"])) for name, file in files.items()]
        index = build_index(LiveRows(None, named, count, lambda _: collisions))
        for file in index.files:
            file.path = str(files[file.path]["file-path"])
        places = index.places()
        merge = _Merge(collided=len(places.files))
        if not merge.collided:
            return merge
        merge.of_loaded = self._written_deletes(state, index, places)
        self._fill(state, deletes, plan, as_changes, collisions.select(KEY), merge)
        return merge

    def _fill(
        self,
        state: LakeTable,
        deletes: DataFrame | None,
        plan: Evolution,
        as_changes: Callable[[TableTask], DataFrame],
        collided: DataFrame,
        merge: _Merge,
    ) -> None:
        """Merge loaded rows with rows that may lack columns, and with rows of an earlier load."""
        if state.snapshot_id is None:
            return
        since = state.columns_since()
        # Rows of an earlier load have the position 0.
        last = max([0, *map(int, since.positions.values())])
        lacking = f"{CLOCKS} IS NOT NULL OR {POSITION} <= {last}L OR {HLC} <= {since.clock_max}L"
        old = self._lake.frame(self._spark, state).where(lacking).join(collided, KEY, "left_semi")
        keys = old.select(KEY)
        wanted = old.count()
        if not wanted:
            return
        task = TableTask(
            table=self._name,
            last=NOWHERE,
            columns=plan.columns,
            merges=True,
            since=since,
            state=Part(target_of(state), LogPosition(NOWHERE - 1)),
        )
        named = keys.withColumnRenamed(KEY, "key")
        rows = as_changes(task).join(named, "key", "left_semi").unionByName(old_rows_as_evidence(old, task))
        if deletes is not None:
            rows = rows.unionByName(deletes_as_evidence(deletes.join(keys, KEY, "left_semi"), task))
        pass_plan = PassPlan({self._name: task}, self._around.store, self._around.clock.now_ms())
        parted = rows.repartition(self._tasks(wanted, ROWS_PER_TASK), "key")
        described = parted.mapInArrow(partial(run_task, pass_plan), _DESCRIPTIONS).toArrow()
        written = sorted_by_table(described).get(self._name, Written())
        merge.files = [file.description for file in written.state]
        self._unnamed += [json.loads(text)["file-path"] for text in merge.files]
        if written.read != wanted or written.homeless:
            raise Conflict(f"rows of the files are not what they were. expected={wanted} got={written.read}")
        touched = KeyHashes.of_bytes(b"".join(file.hashes for file in written.state) + written.gone)
        index = build_index(live_rows(self._lake, state), named)
        merge.deletes = self._written_deletes(state, index, index.find(touched))

    def _written_deletes(self, state: LakeTable, index: KeyIndex, places: Any) -> Deletes:
        found = write_deletes(
            index,
            places,
            location=target_of(state).location,
            version=int(self._lake.classes.format_version(state.java)),
            codec=str(writer_options(state.properties()).codec),
            store=self._around.store,
        )
        paths = [json.loads(text)["file-path"] for text in found.added]
        self._unnamed += paths
        make_durable(paths)
        return found

    # The commit

    def _kinds(
        self, state: LakeTable, plan: Evolution, rows: FileRows, files: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, str]:
        """What the columns' values have been: whole numbers may be beyond what a double keeps."""
        ids = {name: number for name, _, number in state.fields()}
        columns = {column.name: column for column in plan.columns}
        found = {name: set(kinds) for name, kinds in rows.seen.items()}
        for name, kinds in found.items():
            column = columns[name]
            if (
                rows.is_vague
                and kinds == {"int"}
                and any(is_long(file, ids[column.stored], column.type) for file in files.values())
            ):
                kinds.add("long")
        after = plan_evolution(plan.columns, found, self._settings)
        if after.rewrite or after.widen or after.retype:
            names = [column.name for column in (*after.rewrite, *after.widen, *after.retype)]
            raise Invalid(f"whole numbers are beyond 2**53, which the column cannot hold. columns={names}")
        return kinds_of(after.columns)

    def _commit(
        self,
        state: LakeTable,
        began: int | None,
        marks: Marks,
        files: Sequence[Mapping[str, Any]],
        merge: _Merge,
        kinds: Mapping[str, str],
        loads: Sequence[Mapping[str, Any]],
    ) -> None:
        """Everything at once, on what was looked at or not at all."""
        state.begin()
        start = state.transaction.startMetadata().currentSnapshot()
        if (None if start is None else int(start.snapshotId())) != began:
            raise Conflict(f"the table was changed by somebody else. table={self._name}")
        properties = state.transaction.updateProperties()
        properties.set(LOADS_PROPERTY, json.dumps(loads[-LOADS_KEPT_MAX:]))
        properties.set(KINDS_PROPERTY, json.dumps(kinds, sort_keys=True))
        properties.commit()
        classes, specs = self._lake.classes, state.java.specs()

        def file_of(text: str) -> Any:
            return classes.file_of(classes.read_json(text), specs)

        update = state.transaction.newRowDelta() if merge.collided else state.transaction.newFastAppend()
        if merge.collided and began is not None:
            # Earlier deletes of the same files are those that were looked at.
            update.validateFromSnapshot(began)
        add = update.addRows if merge.collided else update.appendFile
        for text in (*(json.dumps(file) for file in files), *merge.files):
            add(file_of(text))
        for deletes in (merge.of_loaded, merge.deletes):
            for text in deletes.added:
                update.addDeletes(file_of(text))
            for text in deletes.replaced:
                update.removeDeletes(file_of(text))
        summary = marks.summary() if marks.positions else {}
        for name, value in {**summary, APPLICATION: self._lake.application, "mainstem.load": loads[-1]["id"]}.items():
            update.set(name, value)
        state.stage(update)
        state.commit_staged()

    def _tasks(self, rows: int, rows_per_task: int) -> int:
        return max(int(self._spark.sparkContext.defaultParallelism), -(-rows // rows_per_task))


def _own(hlc: int, clocks: str = "CAST(NULL AS string)") -> list[str]:
    """Mainstem's own columns of a loaded row, but for its key."""
    return [
        f"{hlc}L AS {HLC}",
        f"'{LOAD_SOURCE}' AS {SOURCE}",
        f"{int(NOWHERE)}L AS {POSITION}",
        f"{clocks} AS {CLOCKS}",
    ]
