"""Carries segments into all their tables at once: a lane per table, so that no table waits for another.

What to carry is decided by the folder's segments and what each table covers, never by which files a trigger names:
file times may tie or go backwards, positions do not. A table that fails is left behind, tried again with growing
pauses, and does not keep the others or the stream from going on; its segments stay until it covers them.

A pass costs by the keys that it writes, and a key that changes often is written once per pass. So while changes come
faster than they can be sealed, which segments tell, a table lets a few of them gather first.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.pipeline.breaker import Breaker, is_store_trouble
from mainstem.pipeline.progress import Progress
from mainstem.pipeline.segments import Segment, SegmentFolder, tables_of
from mainstem.runtime.clock import Clock

log = logging.getLogger(__name__)

BACKOFF_S_MIN = 1.0
BACKOFF_S_MAX = 60.0
_MESSAGE_LENGTH_MAX = 500
# How many changes gather for one pass while more are on their way.
GATHERED_CHANGES_MAX = 1_000_000
# How long the next segment is waited for: it is made in about the time of the last, also where others are busy.
GATHER_S_MAX = 3.0
GATHER_S_PER_CHANGE = 12e-6
# How long one batch of the stream may go on with newer segments: Spark's own part of each is not free.
BATCH_S_MAX = 10.0


class Writer(Protocol):
    """Whoever brings one table up to the log: `TableWriter`, or `DeltaTableWriter`."""

    def catch_up(
        self,
        segments: Sequence[Segment],
        *,
        on_pass: Callable[[LogPosition], None],
        go_on: Callable[[], bool],
    ) -> LogPosition:
        """Bring in everything that the segments have and the table has not; returns what it covers then."""


class Carrier:
    """Runs the lanes. `carry` is called by the stream for every batch, `tick` by a timer in between."""

    def __init__(
        self,
        folder: SegmentFolder,
        writer_for: Callable[[TableName], Writer],
        lanes: ThreadPoolExecutor,
        progress: Progress,
        clock: Clock,
        breaker: Breaker | None = None,
    ) -> None:
        self._breaker = breaker or Breaker(clock)
        self._folder = folder
        self._writer_for = writer_for
        self._lanes = lanes
        self._progress = progress
        self._clock = clock
        self._condition = threading.Condition()
        self._segments: tuple[Segment, ...] = ()
        # When the last of them was first seen.
        self._newest_s = clock.monotonic_s()
        self._busy: set[TableName] = set()
        self._retry_at_s: dict[TableName, float] = {}
        self._stopping = False

    def carry(self, poll_s: float) -> LogPosition:
        """Bring every table to the end of the segments that are there now; returns that end.

        Tables that are ready meanwhile go on with newer segments while one is still busy with these; and while more
        are known to be on their way, so does the batch.
        """
        until_s = self._clock.monotonic_s() + BATCH_S_MAX
        self.tick()
        goal = self._segments
        while not self._reached(goal) or (self._more_to_come() and self._clock.monotonic_s() < until_s):
            with self._condition:
                self._condition.wait(poll_s)
            self.tick()
            if self._reached(goal):
                goal = self._segments
        return goal[-1].last if goal else NOWHERE

    def _more_to_come(self) -> bool:
        if self._stopping or not self._segments:
            return False
        newest = self._segments[-1]
        wait_s = min(GATHER_S_MAX, GATHER_S_PER_CHANGE * (newest.last - newest.first + 1))
        return newest.more and self._clock.monotonic_s() - self._newest_s < wait_s

    def _gathers(self, table: TableName) -> bool:
        """Whether a table does better to wait for the next segment. One that has nothing yet does not wait."""
        covered = self._progress.covered(table)
        if covered == NOWHERE or not self._more_to_come():
            return False
        waiting = [part for segment in self._segments if (part := segment.tables.get(table)) and part.last > covered]
        return sum(part.count for part in waiting) < GATHERED_CHANGES_MAX

    def tick(self) -> None:
        """Look at the folder, and start the lane of every table that is behind, idle and due."""
        with self._condition:
            before, self._segments = self._segments, self._folder.list()
            if self._segments and self._segments[-1:] != before[-1:]:
                self._newest_s = self._clock.monotonic_s()
            if self._stopping:
                return
            now_s = self._clock.monotonic_s()
            for table, last in tables_of(self._segments).items():
                due = self._retry_at_s.get(table, now_s) <= now_s
                is_behind = self._progress.covered(table) < last
                if due and is_behind and table not in self._busy and not self._gathers(table):
                    if not self._breaker.allow():
                        break
                    self._busy.add(table)
                    self._lanes.submit(self._lane, table, self._segments)

    def stop(self) -> None:
        """Start nothing more, and wait until every lane has finished the pass in hand."""
        with self._condition:
            self._stopping = True
            self._condition.wait_for(lambda: not self._busy)

    def _reached(self, goal: tuple[Segment, ...]) -> bool:
        """Whether every table covers the goal, or is known to fail, or nothing more will be started."""
        with self._condition:
            if self._stopping:
                return not self._busy
            return all(
                self._progress.covered(table) >= last or (table in self._retry_at_s and table not in self._busy)
                for table, last in tables_of(goal).items()
            )

    def _lane(self, table: TableName, segments: tuple[Segment, ...]) -> None:
        try:
            writer = self._writer_for(table)
            covered = writer.catch_up(
                segments,
                on_pass=lambda position: self._passed(table, position),
                go_on=lambda: not self._stopping,
            )
            self._progress.covers(table, covered)
            self._breaker.undecided()
            retry_at_s = None
        except Exception as error:
            # The edge of a lane: whatever is wrong with one table stays with it, in the report and in the log.
            message = f"{type(error).__name__}: {error}"[:_MESSAGE_LENGTH_MAX]
            if is_store_trouble(error):
                self._breaker.failed(message)
            else:
                self._breaker.undecided()
            attempts = self._progress.failed(table, message)
            pause_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(attempts - 1, 16))
            retry_at_s = self._clock.monotonic_s() + pause_s
            log.exception("a table is behind", extra={"table": str(table), "attempts": attempts, "pause_s": pause_s})
        with self._condition:
            self._busy.discard(table)
            if retry_at_s is None:
                self._retry_at_s.pop(table, None)
            else:
                self._retry_at_s[table] = retry_at_s
            self._condition.notify_all()

    def _passed(self, table: TableName, position: LogPosition) -> None:
        if self._breaker.succeeded():
            # The store is back: nobody need wait for the end of a pause that its trouble caused.
            with self._condition:
                self._retry_at_s.clear()
        self._progress.covers(table, position)
