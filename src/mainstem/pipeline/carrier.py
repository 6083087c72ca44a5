"""Carries segments into all their tables, pass by pass: plan on the driver, one job on the executors, one commit.

A pass takes the rows that Structured Streaming hands over, and older segments for tables that were left behind. What
a table needs is decided by the folder's segments and by what the table covers, never by which files a trigger names:
file times may tie or go backwards, positions do not. A table that fails is left out, tried again with growing pauses,
and holds back neither the others nor the stream; its segments stay until it covers them.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from mainstem.model.errors import Conflict, Corrupt, NotFound
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.pipeline.breaker import Breaker, is_store_trouble, is_worker_loss
from mainstem.pipeline.commit.iceberg import IcebergCommits, TableChange
from mainstem.pipeline.passes.kernel import run_task
from mainstem.pipeline.passes.plan import DESCRIPTIONS, PassPlan, TableTask
from mainstem.pipeline.plan.evidence import changes_as_rows, latest_as_rows
from mainstem.pipeline.plan.writer import Writer, Written, sorted_by_table
from mainstem.pipeline.progress import PassReport, Progress
from mainstem.pipeline.session.spark import join_pool, join_session
from mainstem.pipeline.source.rows import latest_of_each_key, of_table, read_segments, without_tables
from mainstem.pipeline.source.segments import Segment, SegmentFolder, TableSlice, slice_for, tables_of
from mainstem.pipeline.turns import Turns
from mainstem.runtime.clock import Clock

log = logging.getLogger(__name__)

BACKOFF_S_MIN = 1.0
BACKOFF_S_MAX = 60.0
# Lost races in a row until a table counts as failing.
RACES_MAX = 5
# How often a job is run whose workers die: every worker that died idle fails one of its tasks.
JOBS_MAX = 3
# Changes of one table in one pass: bounds what a pass holds, and how much a crash repeats.
ROWS_PER_PASS_MAX = 2_000_000
# From so many changes on, a table's rows are spread over all tasks.
SPREAD_ROWS_MIN = 50_000
# With fewer, up to so many tables share one task.
TABLES_PER_TASK_MAX = 8
# Tables that are planned for side by side.
PLANNED_AT_ONCE = 4
# Tables that are prepared side by side: see `Writer.preparation`. Each is a Spark job over a whole table.
PREPARED_AT_ONCE = 2
# How soon a table is looked at again whose turn it was not.
TURN_S = 0.1
# How soon the segments are looked for again where their place could not be reached.
LOOK_AGAIN_S = 1.0
_MESSAGE_LENGTH_MAX = 500
_DESCRIPTIONS = from_arrow_schema(DESCRIPTIONS)


@dataclass(slots=True)
class _Member:
    """One table of a pass."""

    writer: Writer
    run: TableSlice
    task: TableTask
    written: Written = field(default_factory=Written)
    changes: list[object] = field(default_factory=list)

    @property
    def is_committed(self) -> bool:
        """Whether all that was staged is known to be visible."""
        return all(getattr(change, "is_committed", False) for change in self.changes)


class Carrier:
    """Runs the passes, one at a time."""

    def __init__(
        self,
        spark: SparkSession,
        folder: SegmentFolder,
        writer_for: Callable[[TableName], Writer],
        commits: IcebergCommits,
        progress: Progress,
        clock: Clock,
        *,
        store: dict[str, str] | None = None,
        breaker: Breaker | None = None,
        turns: Turns | None = None,
        rows_max: int = ROWS_PER_PASS_MAX,
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._writer_for = writer_for
        self._commits = commits
        self._progress = progress
        self._clock = clock
        self._store = store or {}
        self._breaker = breaker or Breaker(clock)
        self._turns = turns or Turns()
        self._rows_max = rows_max
        self._tasks = max(2, spark.sparkContext.defaultParallelism)
        self._one_at_a_time = threading.Lock()
        self._threads = ThreadPoolExecutor(PLANNED_AT_ONCE, "plan", join_session, (spark,))
        self._beside = ThreadPoolExecutor(PREPARED_AT_ONCE, "prepare", join_pool, (spark, "prepare"))
        self._writers: dict[TableName, Writer] = {}
        # The most that each table has held in the life of this process: should it be dropped, that does not come back.
        self._held: dict[TableName, LogPosition] = {}
        self._retry_at_s: dict[TableName, float] = {}
        self._races: dict[TableName, int] = {}
        # Tables that are being prepared: no pass takes them until that is done.
        self._preparing: set[TableName] = set()
        # When to look for segments again, after their place could not be reached.
        self._look_at_s: float | None = None
        self._stopping = False

    def carry(self, changes: DataFrame | None, files: Sequence[str], batch_id: str) -> LogPosition:
        """Bring every table to the end of some segments, whose rows `changes` are; returns that end.

        Without changes, tables that were left behind are brought to the end of what is there. Raises OSError where the
        place of the segments cannot be reached: `is_behind` says then when to try again.
        """
        with self._one_at_a_time:
            segments = self._segments()
            if changes is not None:
                ends = [segment.last for segment in segments if segment.name in set(files)]
                segments = tuple(segment for segment in segments if segment.last <= max(ends, default=NOWHERE))
            while not self._stopping and (members := self._plan(segments)):
                try:
                    self._pass(members, changes, frozenset(files), batch_id)
                finally:
                    for member in members:
                        self._turns.release(member.run.table)
            return segments[-1].last if segments else NOWHERE

    def is_behind(self) -> bool:
        """Whether a table waits for a segment that the stream will not hand over again, and may be tried now."""
        now_s = self._clock.monotonic_s()
        if self._look_at_s is not None:
            return self._look_at_s <= now_s
        # This is asked all the time, and to list a folder on S3 costs time and money: only where a table waits at all.
        due = {table for table, at_s in list(self._retry_at_s.items()) if at_s <= now_s} - self._preparing
        if not due:
            return False
        last = tables_of(self._segments())
        return any(self._progress.covered(table) < last.get(table, NOWHERE) for table in due)

    def stop(self) -> None:
        """Start no other pass. The one in hand is finished."""
        self._stopping = True

    def _segments(self) -> tuple[Segment, ...]:
        try:
            segments = self._folder.list()
        except OSError as error:
            self._look_at_s = self._clock.monotonic_s() + LOOK_AGAIN_S
            self._breaker.failed(_message(error))
            raise
        self._look_at_s = None
        return segments

    def _plan(self, segments: Sequence[Segment]) -> list[_Member]:
        """The tables that are behind, and may be tried now. One that cannot be planned for is left out."""
        now_s = self._clock.monotonic_s()
        due = []
        for table, last in tables_of(segments).items():
            if self._progress.covered(table) >= last or self._retry_at_s.get(table, now_s) > now_s:
                continue
            if table not in self._preparing:
                due.append(table)
        if not due:
            return []
        if not self._breaker.allow():
            # The stream does not hand these segments over again: the tables are looked at again by themselves.
            self._retry_at_s |= dict.fromkeys(due, now_s + LOOK_AGAIN_S)
            return []
        ready = [table for table in due if self._turns.take(table, wait=False)]
        # Maintenance is about to commit to these: the others go on without them.
        self._retry_at_s |= {table: now_s + TURN_S for table in due if table not in ready}
        # Each plan waits for the catalog's answers: several tables ask side by side.
        planned = self._threads.map(lambda table: self._try_to_plan(table, segments), ready)
        members = [member for member in planned if member is not None]
        if not members:
            self._breaker.undecided()
        return members

    def _try_to_plan(self, table: TableName, segments: Sequence[Segment]) -> _Member | None:
        try:
            planned = self._member(table, segments)
        except Exception as error:
            # The edge of one table: what is wrong with it stays with it, in the report and in the log.
            planned = None
            self._failed([table], error)
        if isinstance(planned, _Member):
            return planned
        if planned is None:
            self._turns.release(table)
        else:
            self._preparing.add(table)
            self._beside.submit(self._prepare, table, planned)
        return None

    def _member(self, table: TableName, segments: Sequence[Segment]) -> _Member | Callable[[], None] | None:
        """The table's part of the next pass, or what must be done before it; None where it holds everything."""
        writer = self._writers.get(table)
        if writer is None:
            writer = self._writers[table] = self._writer_for(table)
            if table in self._held:
                # What the last writer failed of may be that the table is gone.
                writer.dropped(self._held[table])
        covered = self._progress.covered(table)
        if covered == NOWHERE:
            covered = writer.covered()
            self._held[table] = max(covered, self._held.get(table, NOWHERE))
        run = slice_for(table, segments, covered, self._rows_max)
        if run is None:
            self._succeeded(table, covered)
            return None
        return writer.preparation(run) or _Member(writer, run, writer.plan(run))

    def _prepare(self, table: TableName, preparation: Callable[[], None]) -> None:
        """Work beside the passes, in the table's turn: maintenance waits for it."""
        log.info("a large table is prepared for its next pass", extra={"table": str(table)})
        try:
            preparation()
        except Exception as error:
            # The edge of one table, as when it is planned for.
            self._failed([table], error)
        else:
            # The stream does not hand its segments over again: the table is looked at again by itself.
            self._retry_at_s[table] = self._clock.monotonic_s()
        finally:
            self._preparing.discard(table)
            self._turns.release(table)

    def _pass(self, members: list[_Member], changes: DataFrame | None, files: frozenset[str], batch_id: str) -> None:
        """One job for all tables, then one commit. Where that fails for one of them, the others go without it."""
        began_s = self._clock.monotonic_s()
        members = self._write(members, changes, files)
        if not members:
            return
        written_s = self._clock.monotonic_s()
        staged = [member for member in members if self._stage(member)]
        self._commit(staged, batch_id)
        self._progress.passed(
            PassReport(
                batch=batch_id,
                tables=len(members),
                rows_read=sum(member.written.read for member in members),
                rows_written=sum(file.rows for member in members for file in member.written.files),
                files=sum(len(member.written.files) for member in members),
                job_s=written_s - began_s,
                commit_s=self._clock.monotonic_s() - written_s,
            )
        )

    def _write(self, members: list[_Member], changes: DataFrame | None, files: frozenset[str]) -> list[_Member]:
        """The members whose files are written. They are committed together, however many jobs that took."""
        for attempt in range(1, JOBS_MAX + 1):
            try:
                described = self._run_job(members, changes, files)
                break
            except Exception as error:
                if is_worker_loss(error) and attempt < JOBS_MAX:
                    # No table is at fault. If each were tried by itself, one might be left out.
                    log.warning("workers died in a pass, which is run again", extra={"attempt": attempt})
                    continue
                if len(members) > 1:
                    # One table's rows may be what fails: each is tried by itself.
                    return [member for each in members for member in self._write([each], changes, files)]
                # What was given a name before the job ran is nobody's now.
                _discard(members[0])
                self._failed([members[0].run.table], error)
                return []
        for member in members:
            member.written = described.get(member.run.table, Written())
        return members

    def _run_job(
        self, members: list[_Member], changes: DataFrame | None, files: frozenset[str]
    ) -> dict[TableName, Written]:
        """Everything between the segments' rows and files of the tables. The driver gets descriptions back."""
        wanted = {segment.location: segment for member in members for segment in member.run.segments}
        missing = [path for path, segment in wanted.items() if segment.name not in files]
        frames = [] if changes is None or len(missing) == len(wanted) else [changes]
        frames += [read_segments(self._spark, missing)] if missing else []
        source = reduce(DataFrame.unionByName, frames)
        names = {segment.name for segment in wanted.values()} | (set(files) if frames[0] is changes else set())
        narrow = [member for member in members if member.task.latest_only and member.run.count >= SPREAD_ROWS_MIN]
        shared = [self._winners(member, source, names) for member in narrow]
        others = [member for member in members if member not in narrow]
        if others:
            whole = changes_as_rows(without_tables(source, [member.run.table for member in narrow]))
            for member in others:
                for evidence in member.writer.evidence(of_table(source, member.run.table, None)):
                    whole = whole.unionByName(evidence)
            shared.append(self._shared_out(whole, [member.run.count for member in others]))
        rows = reduce(DataFrame.unionByName, shared)
        tasks = {member.run.table: member.task for member in others}
        tasks |= {member.run.table: replace(member.task, segments=tuple(member.run.paths)) for member in narrow}
        plan = PassPlan(tasks, self._store, self._clock.now_ms())
        return sorted_by_table(rows.mapInArrow(partial(run_task, plan), _DESCRIPTIONS).toArrow())

    def _winners(self, member: _Member, source: DataFrame, names: set[str]) -> DataFrame:
        """The positions of the last change of each of a table's keys: no two of them have to meet in a task."""
        run = member.run
        changes = source
        if not names <= {segment.name for segment in run.segments}:
            # The source also has segments before or beyond this pass over the table.
            changes = of_table(source, run.table, None)
            changes = changes.where(f"position > {int(member.task.after)}L AND position <= {int(run.last)}L")
        elif any(len(segment.tables) > 1 for segment in run.segments):
            changes = of_table(source, run.table, None)
        return latest_as_rows(latest_of_each_key(changes, self._tasks), run.table)

    def _shared_out(self, rows: DataFrame, counts: Sequence[int]) -> DataFrame:
        """Bring all rows of a key to one task. A shuffle takes longer than one task needs for a small pass."""
        if max(counts) >= SPREAD_ROWS_MIN:
            return rows.repartition(self._tasks, "namespace", "table", "key")
        if len(counts) > TABLES_PER_TASK_MAX:
            return rows.repartition(self._tasks, "namespace", "table")
        return rows.coalesce(1)

    def _stage(self, member: _Member) -> bool:
        """Whether a table can be committed with the others."""
        run = member.run
        try:
            if run.first > member.task.after and member.written.read != run.count:
                raise Corrupt(
                    f"rows of segments are missing. expected={run.count} got={member.written.read}",
                    place=str(run.table),
                )
            member.changes = list(member.writer.stage(member.written))
        except Exception as error:
            _discard(member)
            self._failed([run.table], error)
            return False
        return True

    def _commit(self, members: list[_Member], batch_id: str) -> None:
        """All Iceberg tables at once. Every Delta table has a log, and so a commit, of its own."""
        together = [member for member in members if all(isinstance(each, TableChange) for each in member.changes)]
        changes = [each for member in together for each in member.changes if isinstance(each, TableChange)]
        if together:
            self._try(together, lambda: self._commits.commit(changes, batch_id))
        for member in members:
            if member not in together:
                self._try([member], partial(_commit_one_by_one, member.changes))

    def _try(self, members: list[_Member], commit: Callable[[], object]) -> None:
        try:
            commit()
        except Exception as error:
            lost = [member for member in members if not member.is_committed]
            if isinstance(error, Conflict | NotFound):
                # They are not committed. Where the outcome is unknown, files stay: they may be in the table.
                for member in lost:
                    _discard(member)
            self._failed([member.run.table for member in lost], error)
            members = [member for member in members if member not in lost]
        for member in members:
            member.writer.committed()
            self._succeeded(member.run.table, member.run.last)

    def _succeeded(self, table: TableName, covered: LogPosition) -> None:
        self._races.pop(table, None)
        self._retry_at_s.pop(table, None)
        if self._breaker.succeeded():
            # The store is back: nobody need wait for the end of a pause that its trouble caused.
            self._retry_at_s.clear()
        self._held[table] = max(covered, self._held.get(table, NOWHERE))
        self._progress.covers(table, covered)

    def _failed(self, tables: Sequence[TableName], error: Exception) -> None:
        """Give tables a pause, the same for all: if one of them came back first, a reader would see it ahead of the
        others of its micro-batch."""
        if not tables:
            return
        pause_s = max([self._pause_s(table, error) for table in tables])
        self._retry_at_s |= dict.fromkeys(tables, self._clock.monotonic_s() + pause_s)
        if is_store_trouble(error):
            self._breaker.failed(_message(error))
        else:
            self._breaker.undecided()
        if pause_s:
            names = ", ".join(str(table) for table in tables)
            log.error("tables are behind", exc_info=error, extra={"tables": names, "pause_s": pause_s})

    def _pause_s(self, table: TableName, error: Exception) -> float:
        """How long a table waits that failed. A lost race is run again at once, several in a row are a failure."""
        if isinstance(error, NotFound) and table in self._writers:
            self._writers[table].dropped(self._held.get(table, NOWHERE))
        if isinstance(error, Conflict | NotFound):
            self._progress.forget(table)
            self._races[table] = self._races.get(table, 0) + 1
            if self._races[table] < RACES_MAX:
                return 0.0
        attempts = self._progress.failed(table, _message(error))
        # What it knows of its table may be what is wrong.
        self._writers.pop(table, None)
        return float(min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(attempts - 1, 16)))


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MESSAGE_LENGTH_MAX]


def _discard(member: _Member) -> None:
    try:
        member.writer.discard(member.written)
    except Exception:
        # The store may be what is in trouble. What stays in it is an orphan, and goes as such.
        log.warning("files of a pass that failed stay", exc_info=True, extra={"table": str(member.run.table)})


def _commit_one_by_one(changes: Sequence[object]) -> None:
    for change in changes:
        change.commit()  # type: ignore[attr-defined]
