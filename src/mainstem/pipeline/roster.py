"""The tables as the passes know them: who writes each, when it may be tried, and what a failure costs it.

A table that fails is left out, tried again with growing pauses, and holds back neither the others nor the stream; its
segments stay until it covers them.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession

from mainstem.model.errors import Conflict, NotFound
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.pipeline.breaker import Breaker, is_store_trouble
from mainstem.pipeline.job import Member
from mainstem.pipeline.plan.writer import Writer
from mainstem.pipeline.progress import Progress
from mainstem.pipeline.session.spark import join_pool, join_session
from mainstem.pipeline.source.segments import Segment, slice_for, tables_of
from mainstem.pipeline.turns import Turns
from mainstem.runtime.backoff import doubled
from mainstem.runtime.clock import Clock

log = logging.getLogger(__name__)

BACKOFF_S_MIN = 1.0
BACKOFF_S_MAX = 60.0
# Lost races in a row until a table counts as failing.
RACES_MAX = 5
# Tables that are planned for side by side.
PLANNED_AT_ONCE = 4
# Tables that are prepared side by side: see `Writer.preparation`. Each is a Spark job over a whole table.
PREPARED_AT_ONCE = 2
# How soon a table is looked at again whose turn it was not.
TURN_S = 0.1
# How soon tables are looked at again after the breaker was open, and segments after their place was not reached.
LOOK_AGAIN_S = 1.0
_MESSAGE_LENGTH_MAX = 500


class Roster:
    """Used by one pass at a time, and by the threads that plan and prepare for it."""

    def __init__(
        self,
        spark: SparkSession,
        writer_for: Callable[[TableName], Writer],
        progress: Progress,
        clock: Clock,
        breaker: Breaker,
        turns: Turns,
        rows_max: int,
    ) -> None:
        self._writer_for = writer_for
        self._progress = progress
        self._clock = clock
        self._breaker = breaker
        self._turns = turns
        self._rows_max = rows_max
        self._threads = ThreadPoolExecutor(PLANNED_AT_ONCE, "plan", join_session, (spark,))
        self._beside = ThreadPoolExecutor(PREPARED_AT_ONCE, "prepare", join_pool, (spark, "prepare"))
        self._writers: dict[TableName, Writer] = {}
        # The most that each table has held in the life of this process: should it be dropped, that does not come back.
        self._held: dict[TableName, LogPosition] = {}
        self._retry_at_s: dict[TableName, float] = {}
        self._races: dict[TableName, int] = {}
        # Tables that are being prepared: no pass takes them until that is done.
        self._preparing: set[TableName] = set()

    def due(self, wanted: Mapping[TableName, LogPosition]) -> list[TableName]:
        """The tables that are not where they are wanted, and may be tried now."""
        now_s = self._clock.monotonic_s()
        behind = [table for table, last in wanted.items() if self._progress.covered(table) < last]
        return [each for each in behind if self._retry_at_s.get(each, now_s) <= now_s and each not in self._preparing]

    def waiting(self) -> set[TableName]:
        """Tables that the stream may not come back to by itself, and that may be tried now."""
        now_s = self._clock.monotonic_s()
        return {table for table, at_s in list(self._retry_at_s.items()) if at_s <= now_s} - self._preparing

    def members(self, segments: Sequence[Segment]) -> list[Member]:
        """The next pass over some segments, in the turns of its tables. What cannot be planned for is left out."""
        now_s = self._clock.monotonic_s()
        due = self.due(tables_of(segments))
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

    def release(self, members: Sequence[Member]) -> None:
        """A pass is over: it is the next one's turn at its tables."""
        for member in members:
            self._turns.release(member.run.table)

    def _try_to_plan(self, table: TableName, segments: Sequence[Segment]) -> Member | None:
        try:
            planned = self._member(table, segments)
        except Exception as error:
            # The edge of one table: what is wrong with it stays with it, in the report and in the log.
            planned = None
            self.failed([table], error)
        if isinstance(planned, Member):
            return planned
        if planned is None:
            self._turns.release(table)
        else:
            self._preparing.add(table)
            self._beside.submit(self._prepare, table, planned)
        return None

    def _member(self, table: TableName, segments: Sequence[Segment]) -> Member | Callable[[], None] | None:
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
            self.succeeded(table, covered)
            return None
        return writer.preparation(run) or Member(writer, run, writer.plan(run))

    def _prepare(self, table: TableName, preparation: Callable[[], None]) -> None:
        """Work beside the passes, in the table's turn: maintenance waits for it."""
        log.info("a large table is prepared for its next pass", extra={"table": str(table)})
        try:
            preparation()
        except Exception as error:
            # The edge of one table, as when it is planned for.
            self.failed([table], error)
        else:
            # The stream does not hand its segments over again: the table is looked at again by itself.
            self._retry_at_s[table] = self._clock.monotonic_s()
        finally:
            self._preparing.discard(table)
            self._turns.release(table)

    def succeeded(self, table: TableName, covered: LogPosition) -> None:
        """A table covers the log up to a position."""
        self._races.pop(table, None)
        self._retry_at_s.pop(table, None)
        if self._breaker.succeeded():
            # The store is back: no table need wait for the end of a pause that its trouble caused.
            self._retry_at_s.clear()
        self._held[table] = max(covered, self._held.get(table, NOWHERE))
        self._progress.covers(table, covered)

    def failed(self, tables: Sequence[TableName], error: Exception) -> None:
        """Give tables a pause, the same for all: if one of them came back first, a reader would see it ahead of the
        others of its micro-batch."""
        if not tables:
            return
        pause_s = max([self._pause_s(table, error) for table in tables])
        self._retry_at_s |= dict.fromkeys(tables, self._clock.monotonic_s() + pause_s)
        if is_store_trouble(error):
            self._breaker.failed(message_of(error))
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
        attempts = self._progress.failed(table, message_of(error))
        # What it knows of its table may be what is wrong.
        self._writers.pop(table, None)
        return doubled(attempts, BACKOFF_S_MIN, BACKOFF_S_MAX)


def message_of(error: Exception) -> str:
    """What is told of an error."""
    return f"{type(error).__name__}: {error}"[:_MESSAGE_LENGTH_MAX]
