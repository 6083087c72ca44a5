"""One try at one load without the log, in its table's turn: read, write, merge with what the table knows, commit.

The same in every format: what differs are the last methods of `Load`. Files belong to no table until the commit, which
is made on what was looked at or not at all.
"""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from mainstem.model.errors import Conflict, Invalid
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, Lineage, LogPosition
from mainstem.pipeline.commit.changes import PhysicalTable
from mainstem.pipeline.commit.keyindex import DataFile, KeyHashes, KeyIndex, Places
from mainstem.pipeline.commit.marks import Marks
from mainstem.pipeline.commit.places import LiveRows, build_index
from mainstem.pipeline.passes.kernel import run_task
from mainstem.pipeline.passes.plan import DESCRIPTIONS, DeltaTarget, IcebergTarget, Part, PassPlan, TableTask
from mainstem.pipeline.passes.repeated import REPEATED, repeated
from mainstem.pipeline.plan.writer import Written, sorted_by_table
from mainstem.pipeline.upkeep.load_rows import FileRows, Source, read_rows
from mainstem.pipeline.upkeep.load_watch import OnLoaded, Watched
from mainstem.pipeline.upkeep.steps import Done
from mainstem.runtime.clock import Clock
from mainstem.sql import spark_text
from mainstem.tables.evolution import Column, Evolution, kinds_of, plan_evolution
from mainstem.tables.layout import CLOCKS, HLC, KEY, KINDS_PROPERTY, POSITION, SOURCE, STATE_COLUMNS
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

T = TypeVar("T", bound=PhysicalTable)


@dataclass(frozen=True, slots=True)
class Around:
    """What every load needs."""

    spark: SparkSession
    clock: Clock
    lineage: Lineage
    # What a table holds of the log.
    covered: Callable[[TableName], LogPosition]
    # How executors reach the store.
    store: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file of loaded rows: how Spark reads it, its rows, and what its commit says of it."""

    path: str
    rows: int
    description: Mapping[str, Any]
    # As an index knows it.
    file: DataFile


class Gone:
    """Rows that a load's commit takes away: where an index found them."""

    def __init__(self, index: KeyIndex, places: Places) -> None:
        self.index = index
        self.places = places


@dataclass(slots=True)
class Merge:
    """What becomes of loaded rows whose keys the table knows already."""

    # Descriptions of files that the pass over both wrote.
    files: list[str] = field(default_factory=list)
    # Rows of the table, and of the loaded files.
    of_table: Gone | None = None
    of_loaded: Gone | None = None
    collided: int = 0


class Load(ABC, Generic[T]):
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
        self._spark = around.spark
        self._look_again = look_again
        self._name = name
        self._settings = settings
        self._order = order
        self._source = source
        self._on_progress = on_progress
        self._go_on = go_on
        # Files that nothing refers to as long as there is no commit, as the format names them.
        self._unnamed: list[str] = []

    def run(self) -> Done:
        """Do it, and say what was done."""
        state, marks = self._state()
        loads = json.loads(self._property(state, LOADS_PROPERTY) or "[]")
        known = next((each for each in loads if each["id"] == self._source.identity), None)
        if known is not None:
            return {"rows": int(known["rows"]), "files": 0, "merged": 0, "repeated": 1}
        hlc = 1 + max((int(each["hlc"]) for each in loads), default=0)
        rows = self._read(state)
        plan = self._evolved(state, rows.seen, marks)
        began = state.snapshot_id
        loaded = self._projected(rows, plan, hlc, has_since=state.columns_since() != Since())
        with self._watched():
            files = self._write(state, loaded)
        if not files:
            raise Invalid(f"the files have no rows. got={self._order.place}", reason="no_rows")
        count = sum(file.rows for file in files.values())
        self._check_once(files, count)
        history = self._load(self._name.history)
        merge = self._merge(state, history, plan, partial(rows.as_changes, own=_own(hlc)), files, count)
        if self._look_again().identity != self._source.identity:
            raise Conflict(f"the files changed while they were loaded. got={self._order.place}")
        if not self._go_on():
            raise Invalid("the load was cancelled")
        kinds = self._kinds(state, plan, rows, files)
        done = {"id": self._source.identity, "rows": count, "hlc": hlc, "at_ms": self._around.clock.now_ms()}
        noted = {
            LOADS_PROPERTY: json.dumps([*loads, done][-LOADS_KEPT_MAX:]),
            KINDS_PROPERTY: json.dumps(kinds, sort_keys=True),
        }
        self._commit(state, began, marks, list(files.values()), merge, noted)
        return {"rows": count, "files": len(files), "merged": merge.collided, "repeated": 0}

    def discard(self) -> None:
        """Remove what was written: no commit has it."""
        for place in self._unnamed:
            try:
                self._remove(place)
            except OSError:
                log.warning("a file of a load that failed stays, as an orphan", extra={"file": place})

    # Before anything is written

    def _state(self) -> tuple[T, Marks]:
        """The table, made where it is not there, and what it covers of the log."""
        state = self._load(self._name)
        history = self._load(self._name.history)
        is_new = state is None
        if state is None:
            state = self._create()
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

    def _read(self, state: T) -> FileRows:
        key = self._order.key or self._settings.key
        if not key:
            raise Invalid(f"the rows have no key. table={self._name} expected=--key COLUMN", reason="no_key")
        known = {*self._settings.columns, *(column.name for column in state.columns() if column.kind is None)}
        infers_times = bool(self._settings.infer_times)
        with self._watched():
            return read_rows(self._spark, self._source, self._name, key, known=known, infers_times=infers_times)

    def _watched(self) -> Watched:
        return Watched(self._spark, self._source.bytes, self._on_progress, self._go_on)

    def _evolved(self, state: T, seen: Mapping[str, frozenset[str]], marks: Marks) -> Evolution:
        plan = plan_evolution(state.columns(), seen, self._settings, self._transforms(state))
        if plan.refused:
            raise Invalid(f"the table cannot have these columns. got={dict(plan.refused)}")
        if plan.rewrite:
            now = {column.name: column.type for column in state.columns()}
            both = {
                column.name: f"{now[column.name]} in the table, {'/'.join(sorted(seen[column.name]))} here"
                for column in plan.rewrite
            }
            raise Invalid(f"columns would change their type: load the files through the log. got={both}")
        self._evolve(state, plan, marks)
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

    def _keys(self, files: Mapping[str, Loaded]) -> DataFrame:
        """The written keys, with their files' names and their rows in them."""
        # These are files: no patterns, and no folders that Spark takes partitions from.
        reader = self._spark.read.option("recursiveFileLookup", "true").option("__globPaths__", "false")
        rows = reader.schema(f"{KEY} string").parquet(*(file.path for file in files.values()))
        return rows.selectExpr(
            KEY, "element_at(split(_metadata.file_path, '/'), -1) AS path", "_metadata.row_index AS row"
        )

    def _check_once(self, files: Mapping[str, Loaded], count: int) -> None:
        """A key that stands twice would have two rows. Hashes are compared: most loads have none that are the same."""
        self._spark.conf.set("spark.sql.shuffle.partitions", str(self._tasks(count, 4_000_000)))
        keys = self._keys(files)
        hashes = keys.selectExpr(f"xxhash64({KEY}) AS hash").repartition(self._tasks(count, 4_000_000), "hash")
        found = hashes.mapInArrow(repeated, from_arrow_schema(REPEATED)).limit(1_000)
        suspects = [row["hash"] for row in found.collect()]
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
        state: T,
        history: T | None,
        plan: Evolution,
        as_changes: Callable[[TableTask], DataFrame],
        files: Mapping[str, Loaded],
        count: int,
    ) -> Merge:
        """What the table knows of the loaded keys: rows stay as they are, or get the columns that they lack."""
        known = [] if state.snapshot_id is None else [self._live_rows(state).frame(None).select(KEY)]
        deletes: DataFrame | None = None
        since = state.columns_since()
        task = TableTask(
            table=self._name,
            last=NOWHERE,
            columns=plan.columns,
            merges=True,
            since=since,
            state=Part(self._target(state), LogPosition(NOWHERE - 1)),
        )
        if history is not None and history.snapshot_id is not None:
            deletes = self._deletes(history, task)
            known.append(deletes.select(sf.col("key").alias(KEY)))
        elif state.snapshot_id is not None and not self._settings.history:
            raise Invalid(f"the table has no history: its deletes are not known. table={self._name}")
        if not known:
            return Merge()
        self._spark.conf.set("spark.sql.shuffle.partitions", str(self._tasks(count, 1_000_000)))
        every = known[0] if len(known) == 1 else known[0].unionByName(known[1])
        collisions = self._keys(files).join(every, KEY, "left_semi")
        named = [DataFile(name, file.file.spec_id, file.file.partition) for name, file in files.items()]
        index = build_index(LiveRows(None, named, count, lambda _: collisions))
        for file in index.files:
            file.path = files[file.path].file.path
        places = index.places()
        merge = Merge(collided=len(places.files))
        if merge.collided:
            merge.of_loaded = Gone(index, places)
            self._fill(state, deletes, task, as_changes, collisions.select(KEY), merge)
        return merge

    def _fill(
        self,
        state: T,
        deletes: DataFrame | None,
        task: TableTask,
        as_changes: Callable[[TableTask], DataFrame],
        collided: DataFrame,
        merge: Merge,
    ) -> None:
        """Merge loaded rows with rows that may lack columns, and with rows of an earlier load."""
        if state.snapshot_id is None:
            return
        # Rows of an earlier load have the position 0.
        last = max([0, *map(int, task.since.positions.values())])
        lacking = f"clocks IS NOT NULL OR position <= {last}L OR hlc <= {task.since.clock_max}L"
        named = collided.withColumnRenamed(KEY, "key")
        old = self._old_rows(state, task).where(lacking).join(named, "key", "left_semi")
        keys = old.select("key")
        wanted = old.count()
        if not wanted:
            return
        rows = as_changes(task).join(keys, "key", "left_semi").unionByName(old)
        if deletes is not None:
            rows = rows.unionByName(deletes.join(keys, "key", "left_semi"))
        pass_plan = PassPlan({self._name: task}, self._around.store, self._around.clock.now_ms())
        parted = rows.repartition(self._tasks(wanted, ROWS_PER_TASK), "key")
        described = parted.mapInArrow(partial(run_task, pass_plan), _DESCRIPTIONS).toArrow()
        written = sorted_by_table(described).get(self._name, Written())
        merge.files = [file.description for file in written.state]
        self._unnamed += [self._place(json.loads(text)) for text in merge.files]
        if written.read != wanted or written.homeless:
            raise Conflict(f"rows of the files are not what they were. expected={wanted} got={written.read}")
        touched = KeyHashes.of_bytes(b"".join(file.hashes for file in written.state) + written.gone)
        index = build_index(self._live_rows(state), keys)
        merge.of_table = Gone(index, index.find(touched))

    # The commit

    def _kinds(self, state: T, plan: Evolution, rows: FileRows, files: Mapping[str, Loaded]) -> dict[str, str]:
        """What the columns' values have been: whole numbers may be beyond what a double keeps."""
        columns = {column.name: column for column in plan.columns}
        found = {name: set(kinds) for name, kinds in rows.seen.items()}
        for name, kinds in found.items():
            column = columns[name]
            if (
                rows.is_vague
                and kinds == {"int"}
                and any(self._holds_long(state, file, column) for file in files.values())
            ):
                kinds.add("long")
        after = plan_evolution(plan.columns, found, self._settings)
        if after.rewrite or after.widen or after.retype:
            names = [column.name for column in (*after.rewrite, *after.widen, *after.retype)]
            raise Invalid(f"whole numbers are beyond 2**53, which the column cannot hold. columns={names}")
        return kinds_of(after.columns)

    def _tasks(self, rows: int, rows_per_task: int) -> int:
        return max(int(self._spark.sparkContext.defaultParallelism), -(-rows // rows_per_task))

    # What a format has to say

    @abstractmethod
    def _load(self, name: TableName) -> T | None:
        """A table as it is now; None where there is none."""

    @abstractmethod
    def _create(self) -> T:
        """Make the state."""

    @abstractmethod
    def _property(self, state: T, name: str) -> str | None:
        """A property of the table."""

    @abstractmethod
    def _transforms(self, state: T) -> Mapping[str, set[str]]:
        """What the partitions are made of."""

    @abstractmethod
    def _evolve(self, state: T, plan: Evolution, marks: Marks) -> None:
        """Bring the columns up to the plan, and look at the table as it is then."""

    @abstractmethod
    def _target(self, state: T) -> IcebergTarget | DeltaTarget:
        """What the executors must know to write files for it."""

    @abstractmethod
    def _write(self, state: T, rows: DataFrame) -> dict[str, Loaded]:
        """Write durable files that are nobody's yet, by their names."""

    @abstractmethod
    def _live_rows(self, state: T) -> LiveRows:
        """The keys and places of the table's rows."""

    @abstractmethod
    def _old_rows(self, state: T, task: TableTask) -> DataFrame:
        """The table's rows as rows of a pass."""

    @abstractmethod
    def _deletes(self, history: T, task: TableTask) -> DataFrame:
        """The history's deletes as rows of a pass."""

    @abstractmethod
    def _holds_long(self, state: T, file: Loaded, column: Column) -> bool:
        """Whether a file has whole numbers in a column that a double does not keep."""

    @abstractmethod
    def _commit(
        self,
        state: T,
        began: int | None,
        marks: Marks,
        files: Sequence[Loaded],
        merge: Merge,
        noted: Mapping[str, str],
    ) -> None:
        """Everything at once, on what was looked at or not at all. `noted` are properties of the table."""

    @abstractmethod
    def _place(self, description: Mapping[str, Any]) -> str:
        """Where a file is, as `_remove` takes it."""

    @abstractmethod
    def _remove(self, place: str) -> None:
        """Remove a file that no commit names."""


def _own(hlc: int, clocks: str = "CAST(NULL AS string)") -> list[str]:
    """Mainstem's own columns of a loaded row, but for its key."""
    return [
        f"{hlc}L AS {HLC}",
        f"'{LOAD_SOURCE}' AS {SOURCE}",
        f"{int(NOWHERE)}L AS {POSITION}",
        f"{clocks} AS {CLOCKS}",
    ]
