"""The writer of one logical table: how a pass is planned for it, and what of it is committed. The same in every format.

A format says what its physical tables are (`PhysicalTable`), and what differs: see the last methods of `TableWriter`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from mainstem.model.errors import Conflict, Denied
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, Lineage, LogPosition
from mainstem.pipeline.commit.changes import NameTaken, PhysicalTable, TableChange
from mainstem.pipeline.commit.keyindex import DataFile, KeyHashes, KeyIndex, Places
from mainstem.pipeline.commit.marks import Marks
from mainstem.pipeline.commit.places import LiveRows, PlaceFinder, build_index, move
from mainstem.pipeline.passes.plan import DEAD_LETTERS, HISTORY, STATE, DeltaTarget, IcebergTarget, Part, TableTask
from mainstem.pipeline.source.rows import keys_of
from mainstem.pipeline.source.segments import Segment, TableSlice, clocks_are_ordered
from mainstem.tables.evolution import Evolution, plan_evolution
from mainstem.tables.layout import DEAD_LETTER_COLUMNS, HISTORY_COLUMNS, HLC, KEY, LOG, POSITION, SOURCE
from mainstem.tables.settings import TableSettings
from mainstem.tables.since import Since
from mainstem.tables.types import ColumnType

# A table with fewer rows is rewritten, or has its keys read, within a pass: that takes a second or two.
PREPARED_ROWS_MIN = 500_000
# Columns that a state and a history of ours have, of any version.
_OURS = {KEY, HLC, SOURCE, POSITION}


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that the executors wrote: what its commit says of it, and the hashes of its keys, of a state."""

    description: str
    rows: int
    hashes: bytes = b""


@dataclass(slots=True)
class Written:
    """What the executors made of one table's changes."""

    read: int = 0
    state: list[WrittenFile] = field(default_factory=list)
    history: list[WrittenFile] = field(default_factory=list)
    dead_letters: list[WrittenFile] = field(default_factory=list)
    # Hashes of keys that have no row any more.
    gone: bytes = b""
    # Dead letters that have no table to go to.
    homeless: int = 0

    @property
    def files(self) -> list[WrittenFile]:
        """All of them."""
        return [*self.state, *self.history, *self.dead_letters]


log = logging.getLogger(__name__)

T = TypeVar("T", bound=PhysicalTable)
C = TypeVar("C", bound=TableChange[Any])


@dataclass(slots=True)
class Planned:
    """What one pass over the table is about."""

    run: TableSlice
    task: TableTask
    marks: Marks
    # Descriptions of the segments that become files of the history as they are.
    linked: list[str]


class TableWriter(ABC, Generic[T, C]):
    """The only writer of one logical table. A pass calls the public methods in their order, from one thread at once.

    Every physical table is filtered by its own mark, so a pass may be repeated from any point.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: TableName,
        settings: TableSettings,
        *,
        lineage: Lineage,
        finder: PlaceFinder,
        refuses_dropped: bool = False,
        prepared_rows_min: int = PREPARED_ROWS_MIN,
    ) -> None:
        self._spark = spark
        self._name = name
        self._settings = settings
        self._lineage = lineage
        self._finder = finder
        self._refuses_dropped = refuses_dropped
        self._prepared_rows_min = prepared_rows_min
        self._tables: dict[TableName, T] = {}
        self._planned: Planned | None = None
        self._staged: list[C] = []
        # The index that `committed` moves along once the commit is in.
        self._moves: tuple[KeyIndex, Written] | None = None
        self._has_no_letters = False
        # What the table has held in the life of this process. One that is made in the place of a dropped one starts
        # from there: changes that the dropped one held do not come back.
        self._held = NOWHERE

    @property
    def table(self) -> TableName:
        """Its name."""
        return self._name

    def covered(self) -> LogPosition:
        """What the table holds of this log: the less of its state and its history. Looks at the store."""
        names = [self._name] if self._settings.state else []
        names += [self._name.history] if self._settings.history else []
        tables = [self._expected(name) for name in names]
        if any(map(_is_foreign, tables)):
            return self._covered(self._letters())
        return min(map(self._covered, tables))

    def preparation(self, run: TableSlice) -> Callable[[], None] | None:
        """Long work that a large table needs before its next pass: a rewrite of its rows, or an index of its keys.

        The carrier does it beside the passes, so that the other tables do not wait for it. None where there is none.
        """
        state = (self._tables.get(self._name) or self._load(self._name)) if self._settings.state else None
        if state is None or state.snapshot_id is None or state.rows < self._prepared_rows_min:
            return None
        # Maintenance may have committed since: then the index is of another snapshot, and is read beside the pass.
        state = self._load(self._name) or state
        is_needed = self._lacks_index(state) or self._rewrites(self._evolution(state, run))
        return partial(self._prepare, run) if is_needed else None

    def _prepare(self, run: TableSlice) -> None:
        """Plan as a pass does, which rewrites rows where their types changed, and read the keys."""
        self.plan(run)
        self._forget_pass()
        state = self._tables[self._name]
        if self._lacks_index(state):
            rows = self._live_rows(state)
            self._finder.keep(self._name, state.snapshot_id, build_index(rows), rows.rows)

    def _lacks_index(self, state: T) -> bool:
        return not self._settings.append and self._finder.lacks(self._name, state.snapshot_id, state.rows)

    def plan(self, run: TableSlice) -> TableTask:
        """Bring the schema up to date, and say what the executors are to do."""
        state, history = None, None
        try:
            state = self._state() if self._settings.state else None
            if self._settings.history and not _is_foreign(state):
                history = self._log_table(self._name.history)
        except NameTaken as error:
            return self._refuse(run, str(error))
        for table in (state, history):
            if table is not None and _is_foreign(table):
                lacks = sorted(_OURS - table.names())
                return self._refuse(run, f"the table of this name is not Mainstem's. table={table.name} lacks={lacks}")
        plan, marks, since = plan_evolution((), {}, self._settings), Marks(), Since()
        if state is not None:
            marks, plan, since = state.marks(), self._evolve(state, run), state.columns_since()
        linked = [] if history is None or not _is_clean(run, plan) else self._link(history, run)
        merges = not self._settings.append and not _is_whole_and_newer(run, plan, max(marks.hlc_max, since.clock_max))
        ranges = tuple((segment.first, segment.last) for segment, _ in linked)
        task = TableTask(
            table=self._name,
            last=run.last,
            columns=plan.columns,
            seen={name: frozenset(types) for name, types in run.columns.items()},
            refused=plan.refused,
            merges=merges,
            appends=self._settings.append,
            latest_only=not (merges or self._settings.append)
            and state is not None
            and run.first > self._covered(state)
            and _is_clean(run, plan)
            and (history is None or len(linked) == len(run.segments)),
            since=since,
            lineage=self._lineage,
            state=self._part(state),
            history=self._part(history, ranges),
            dead_letters=self._part(self._letters()),
        )
        self._planned = Planned(run, task, marks, [description for _, description in linked])
        return task

    def _refuse(self, run: TableSlice, reason: str) -> TableTask:
        """The changes cannot be held back until somebody renames what has the name: the log would grow without end."""
        log.warning("all changes of a table are dead letters: %s", reason, extra={"table": str(self._name)})
        letters = self._part(self._letters())
        task = TableTask(table=self._name, last=run.last, refusal=reason, dead_letters=letters, lineage=self._lineage)
        self._planned = Planned(run, task, Marks(), [])
        return task

    def evidence(self, changes: DataFrame) -> list[DataFrame]:
        """What a merge has to know besides the changes: old rows and earlier deletes of their keys."""
        planned = self._now()
        state = self._tables.get(self._name)
        if not planned.task.merges or state is None or state.snapshot_id is None:
            return []
        keys = sf.broadcast(changes.select(sf.col("key").alias("wanted")).distinct())
        found = [self._old_rows(state, planned.task, keys)]
        history = self._tables.get(self._name.history)
        if history is not None and history.snapshot_id is not None and planned.run.hlc_min <= planned.marks.hlc_max:
            # A change may be older than a delete that only the history still knows.
            found.append(self._deletes(history, planned.task, keys, planned.run.hlc_min))
        return found

    def stage(self, written: Written) -> Sequence[C]:
        """Make commits of what was written. Raises Conflict where the pass must be done again."""
        planned = self._now()
        run, task = planned.run, planned.task
        if written.homeless:
            self._log_table(self._name.dead_letters)
            raise Conflict(f"a table for dead letters was made. table={self._name.dead_letters}")
        if written.dead_letters:
            self._staged.append(self._appended(self._name.dead_letters, written.dead_letters))
        if task.history is not None and task.history.after < run.last:
            self._staged.append(self._appended(self._name.history, written.history, planned.linked))
        if task.state is not None and task.state.after < run.last:
            is_log = task.appends
            self._staged.append(self._appended(self._name, written.state) if is_log else self._replaced(written))
        return self._staged

    def committed(self) -> None:
        """What was staged is visible."""
        if self._moves is not None:
            index, written = self._moves
            move(index, [(self._data_file(file.description), file.hashes) for file in written.state], written.gone)
            snapshot_id, rows = self._tables[self._name].committed()
            self._finder.keep(self._name, snapshot_id, index, rows)
        self._forget_pass()

    def discard(self, written: Written) -> None:
        """What was written will not be committed: remove it."""
        names = self._name, self._name.history, self._name.dead_letters
        parts = written.state, written.history, written.dead_letters
        files = {name: {file.description for file in part} for name, part in zip(names, parts, strict=True)}
        if self._planned is not None:
            files[self._name.history].update(self._planned.linked)
        for change in self._staged:
            if change.is_committed:
                files[change.table.name].difference_update(change.files)
            else:
                files[change.table.name].update(change.deletes)
        # First of all: the store may fail below, and what was staged must not be committed with the next pass.
        self._finder.forget(self._name)
        self._forget_pass()
        for name, descriptions in files.items():
            self._remove(name, descriptions)

    def dropped(self, covered: LogPosition) -> None:
        """Somebody may have dropped the table, which has held the changes up to a position: look again.

        If it is gone, one that is made in its place starts after that. Raises nothing.
        """
        self._tables.clear()
        self._finder.forget(self._name)
        self._held = max(self._held, covered)

    def _forget_pass(self) -> None:
        self._moves, self._planned, self._staged = None, None, []

    def _now(self) -> Planned:
        assert self._planned is not None, "a pass is planned first"
        return self._planned

    def _covered(self, table: T | None) -> LogPosition:
        marked = NOWHERE if table is None else self._lineage.covered(table.marks().positions)
        # A table without marks was just made, maybe in the place of a dropped one.
        return marked if marked > NOWHERE else self._held

    def _expected(self, name: TableName) -> T | None:
        """A table that must be there if the logical table has held anything; None where it has to be made."""
        found = self._load(name)
        if found is None and self._refuses_dropped and self._held > NOWHERE:
            raise Denied(
                f"the table was dropped, and [pipeline] dropped_tables is refuse. table={name} held={self._held} "
                "expected=the table registered again, or dropped_tables = recreate"
            )
        return found

    def _state(self) -> T:
        found = self._expected(self._name)
        if found is None:
            found = self._tables[self._name] = self._create_state()
        return found

    def _log_table(self, name: TableName) -> T:
        is_history = name == self._name.history
        found = self._expected(name) if is_history else self._load(name)
        if found is None:
            columns = HISTORY_COLUMNS if is_history else DEAD_LETTER_COLUMNS
            found = self._tables[name] = self._create_log(name, columns)
        return self._with_logs(found)

    def _with_logs(self, table: T) -> T:
        """A history or dead letters whose rows can say of which log they are: older ones get the column."""
        names = table.names()
        if LOG in names or not names >= _OURS:
            return table
        table.say_logs()
        found = self._load(table.name)
        if found is None:
            raise Conflict(f"a table was dropped while it got a column. table={table.name}")
        return found

    def _letters(self) -> T | None:
        """The table for dead letters. Most tables never have one: whether there is one is asked once."""
        name = self._name.dead_letters
        if name not in self._tables and self._has_no_letters:
            return None
        found = self._load(name)
        self._has_no_letters = found is None
        return None if found is None else self._with_logs(found)

    def _part(self, table: T | None, linked: tuple[tuple[LogPosition, LogPosition], ...] = ()) -> Part | None:
        return None if table is None else Part(self._target(table), self._covered(table), linked)

    def _evolution(self, state: T, run: TableSlice) -> Evolution:
        seen = run.columns if self._covered(state) < run.last else {}
        return plan_evolution(state.columns(), seen, self._settings, state.transforms())

    def _marks_after(self, table: T) -> Marks:
        run = self._now().run
        return table.marks().advanced(self._lineage.log_at(run.last), run.last, run.hlc_max)

    def _appended(self, name: TableName, written: Sequence[WrittenFile], linked: Sequence[str] = ()) -> C:
        return self._append(self._tables[name], [*linked, *(file.description for file in written)])

    def _replaced(self, written: Written) -> C:
        """New rows in the place of old ones."""
        run, state = self._now().run, self._tables[self._name]
        touched = KeyHashes.of_bytes(b"".join(file.hashes for file in written.state) + written.gone)
        index = self._finder.index_for(
            self._name, state.snapshot_id, lambda: self._live_rows(state), lambda: keys_of(self._spark, run)
        )
        change = self._replace(state, [file.description for file in written.state], index, index.find(touched))
        # `index_for` has taken the index out of the cache: one that is not given back is built anew.
        self._moves = None if change.moves_rows else (index, written)
        return change

    # What a format has to say.

    @abstractmethod
    def _load(self, name: TableName) -> T | None:
        """A table as it is now, to be found in `_tables` from then on; None where there is none."""

    @abstractmethod
    def _create_state(self) -> T:
        """Make the table of the rows. Someone else may have been faster; then theirs is taken."""

    @abstractmethod
    def _create_log(self, name: TableName, columns: Sequence[tuple[str, ColumnType]]) -> T:
        """Make the history, or the table for dead letters."""

    @abstractmethod
    def _target(self, table: T) -> IcebergTarget | DeltaTarget:
        """What the executors must know to write files of a table."""

    @abstractmethod
    def _rewrites(self, plan: Evolution) -> bool:
        """Whether rows that are there would be written anew."""

    @abstractmethod
    def _evolve(self, state: T, run: TableSlice) -> Evolution:
        """Bring the columns up to what a pass needs."""

    @abstractmethod
    def _link(self, history: T, run: TableSlice) -> list[tuple[Segment, str]]:
        """Segments that can be files of the history as they are, with their descriptions."""

    @abstractmethod
    def _old_rows(self, state: T, task: TableTask, keys: DataFrame) -> DataFrame:
        """The rows that a state has for some keys (`wanted`), as rows of a pass."""

    @abstractmethod
    def _deletes(self, history: T, task: TableTask, keys: DataFrame, hlc_min: int) -> DataFrame:
        """The deletes of some keys that a history has from a clock on, as rows of a pass."""

    @abstractmethod
    def _live_rows(self, state: T) -> LiveRows:
        """What an index of a state is built from."""

    @abstractmethod
    def _append(self, table: T, files: list[str]) -> C:
        """A commit that adds files."""

    @abstractmethod
    def _replace(self, state: T, files: list[str], index: KeyIndex, places: Places) -> C:
        """A commit that adds files, and takes the rows at some places away."""

    @abstractmethod
    def _data_file(self, description: str) -> DataFile:
        """A file of a state, as an index knows it."""

    @abstractmethod
    def _remove(self, name: TableName, files: Iterable[str]) -> None:
        """Remove files that no commit names."""


Writer = TableWriter[Any, Any]


def _is_foreign(table: PhysicalTable | None) -> bool:
    """Whether somebody else made the table, for rows of their own: a mirror of a Delta table, say."""
    return table is not None and not table.names() >= _OURS


def _is_whole_and_newer(run: TableSlice, plan: Evolution, before: int) -> bool:
    """Whether every row is whole and newer than a clock: then the last row per key is the new row."""
    whole = run.always >= {column.name for column in plan.columns}
    return whole and run.hlc_min > before and clocks_are_ordered(run)


def _is_clean(run: TableSlice, plan: Evolution) -> bool:
    """Whether every row is known to fit. A row that the sealer let pass may still not fit a declared type."""
    return not run.errors and not plan.refused and all(column.kind is not None for column in plan.columns)


def sorted_by_table(described: pa.Table) -> dict[TableName, Written]:
    """The executors' descriptions, table by table."""
    found: dict[TableName, Written] = {}
    for row in described.to_pylist():
        written = found.setdefault(TableName(row["namespace"], row["table"]), Written())
        written.read += row["read"] or 0
        written.gone += row["gone"] or b""
        if row["file"] is None:
            written.homeless += row["rows"] if row["part"] == DEAD_LETTERS else 0
            continue
        files = {STATE: written.state, HISTORY: written.history, DEAD_LETTERS: written.dead_letters}[row["part"]]
        files.append(WrittenFile(row["file"], row["rows"], row["hashes"] or b""))
    return found
