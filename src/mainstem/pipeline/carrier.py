"""Carries segments into all their tables, pass by pass: plan on the driver, one job on the executors, one commit.

A pass takes the rows that Structured Streaming hands over, and older segments for tables that were left behind. What
a table needs is decided by the folder's segments and by what the table covers, never by which files a trigger names:
file times may tie or go backwards, positions do not. Which tables a pass takes, and when one that failed is tried
again, is decided in `roster`; what the executors do is in `job`.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from mainstem.model.errors import Conflict, Corrupt, NotFound
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.pipeline.breaker import Breaker, is_worker_loss
from mainstem.pipeline.commit.changes import TableChange
from mainstem.pipeline.commit.iceberg import IcebergChange, IcebergCommits
from mainstem.pipeline.job import Member, write_files
from mainstem.pipeline.plan.writer import Writer, Written
from mainstem.pipeline.progress import Progress
from mainstem.pipeline.roster import LOOK_AGAIN_S, Roster, message_of
from mainstem.pipeline.source.segments import Segment, SegmentFolder, tables_of
from mainstem.pipeline.turns import Turns
from mainstem.runtime.clock import Clock
from mainstem.wire.reports import PassStatus

log = logging.getLogger(__name__)

# How often a job is run whose workers die: every worker that died idle fails one of its tasks.
JOBS_MAX = 3
# Changes of one table in one pass: bounds what a pass holds, and how much a crash repeats.
ROWS_PER_PASS_MAX = 2_000_000


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
        self._commits = commits
        self._progress = progress
        self._clock = clock
        self._store = store or {}
        self._breaker = breaker or Breaker(clock)
        self._roster = Roster(spark, writer_for, progress, clock, self._breaker, turns or Turns(), rows_max)
        self._tasks = max(2, spark.sparkContext.defaultParallelism)
        self._one_at_a_time = threading.Lock()
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
            wanted, end = tables_of(segments), segments[-1].last if segments else NOWHERE
            while not self._stopping and self._roster.due(wanted) and (members := self._roster.members(segments)):
                try:
                    self._pass(members, changes, frozenset(files), batch_id)
                finally:
                    self._roster.release(members)
                if self._roster.due(wanted):
                    # A table with much to carry takes many passes. What comes meanwhile for others goes with the next.
                    segments = self._segments()
            return end

    def _pass(self, members: list[Member], changes: DataFrame | None, files: frozenset[str], batch_id: str) -> None:
        """One job for all tables, then one commit. Where that fails for one of them, the others go without it."""
        began_s = self._clock.monotonic_s()
        members = self._write(members, changes, files)  # on the executors
        if not members:
            return
        written_s = self._clock.monotonic_s()
        staged = [member for member in members if self._stage(member)]
        self._commit(staged, batch_id)
        self._progress.passed(
            PassStatus(
                batch=batch_id,
                tables=len(members),
                rows_read=sum(member.written.read for member in members),
                rows_written=sum(file.rows for member in members for file in member.written.files),
                files=sum(len(member.written.files) for member in members),
                job_s=written_s - began_s,
                commit_s=self._clock.monotonic_s() - written_s,
            )
        )

    def _write(self, members: list[Member], changes: DataFrame | None, files: frozenset[str]) -> list[Member]:
        """The members whose files are written. They are committed together, however many jobs that took."""
        run = partial(write_files, self._spark, members, changes, files, store=self._store, tasks=self._tasks)
        for attempt in range(1, JOBS_MAX + 1):
            try:
                described = run(now_ms=self._clock.now_ms())
                break
            except Exception as error:
                if is_worker_loss(error) and attempt < JOBS_MAX:
                    # No table is at fault. If each were tried by itself, one might be left out.
                    log.warning("workers died in a pass, which is run again", extra={"attempt": attempt})
                    continue
                if len(members) > 1:
                    # One table's rows may be what fails: each is tried by itself.
                    return [member for each in members for member in self._write([each], changes, files)]
                # What was given a name before the job ran belongs to no table now.
                _discard(members[0])
                self._roster.failed([members[0].run.table], error)
                return []
        for member in members:
            member.written = described.get(member.run.table, Written())
        return members

    def _stage(self, member: Member) -> bool:
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
            self._roster.failed([run.table], error)
            return False
        return True

    def _commit(self, members: list[Member], batch_id: str) -> None:
        """All Iceberg tables at once. Every Delta table has a log, and so a commit, of its own."""
        together = [member for member in members if all(isinstance(each, IcebergChange) for each in member.changes)]
        changes = [each for member in together for each in member.changes if isinstance(each, IcebergChange)]
        if together:
            self._try(together, lambda: self._commits.commit(changes, batch_id))
        for member in members:
            if member not in together:
                self._try([member], partial(_commit_one_by_one, member.changes))

    def _try(self, members: list[Member], commit: Callable[[], object]) -> None:
        try:
            commit()
        except Exception as error:
            lost = [member for member in members if not member.is_committed]
            if isinstance(error, Conflict | NotFound):
                # They are not committed. Where the outcome is unknown, files stay: they may be in the table.
                for member in lost:
                    _discard(member)
            self._roster.failed([member.run.table for member in lost], error)
            members = [member for member in members if member not in lost]
        for member in members:
            member.writer.committed()
            self._roster.succeeded(member.run.table, member.run.last)

    def is_behind(self) -> bool:
        """Whether a table waits for a segment that the stream will not hand over again, and may be tried now."""
        if self._look_at_s is not None:
            return self._look_at_s <= self._clock.monotonic_s()
        # This is asked all the time, and to list a folder on S3 costs time and money: only where a table waits at all.
        waiting = self._roster.waiting()
        if not waiting:
            return False
        last = tables_of(self._segments())
        return any(self._progress.covered(table) < last.get(table, NOWHERE) for table in waiting)

    def stop(self) -> None:
        """Start no other pass. The one in hand is finished."""
        self._stopping = True

    def _segments(self) -> tuple[Segment, ...]:
        try:
            segments = self._folder.list()
        except OSError as error:
            self._look_at_s = self._clock.monotonic_s() + LOOK_AGAIN_S
            self._breaker.failed(message_of(error))
            raise
        self._look_at_s = None
        return segments


def _discard(member: Member) -> None:
    try:
        member.writer.discard(member.written)
    except Exception:
        # The store may be what is in trouble. What stays in it is an orphan, and goes as such.
        log.warning("files of a pass that failed stay", exc_info=True, extra={"table": str(member.run.table)})


def _commit_one_by_one(changes: Sequence[TableChange[Any]]) -> None:
    for change in changes:
        change.commit()
