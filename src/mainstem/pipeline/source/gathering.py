"""Lets a flood gather between two micro-batches.

A pass writes each key once, however often it changed, and every micro-batch costs Spark a few tenths of a second. So
where changes come faster than they are sealed, few large passes take far less of the processor than many small ones. A
segment says whether the log was about to seal another one (`more`); it never does while somebody waits for a flush.
"""

import threading
from typing import Protocol

from mainstem.model.position import LogPosition
from mainstem.pipeline.source.segments import Segment
from mainstem.runtime.clock import Clock

# How long the next segment is waited for: about as long as the sealer takes for one of the last one's size.
WAIT_S_PER_ROW = 12e-6
WAIT_S_MAX = 3.0
_LOOK_S = 0.05


class Listing(Protocol):
    """The segments that are there, in log order: see `SegmentFolder`."""

    def list(self) -> tuple[Segment, ...]:
        """Raises OSError where their place cannot be reached."""


class Gathering:
    """Waits while a flood goes on, until a whole micro-batch is there."""

    def __init__(self, folder: Listing, clock: Clock, *, bytes_max: int, look_s: float = _LOOK_S) -> None:
        self._folder = folder
        self._clock = clock
        self._bytes_max = bytes_max
        self._look_s = look_s
        self._stop = threading.Event()

    def wait(self, after: LogPosition) -> None:
        """Return as soon as the segments past a position fill a micro-batch, or no other one is about to come."""
        newest, since_s = after, self._clock.monotonic_s()
        while True:
            try:
                segments = self._folder.list()
            except OSError:
                # The next micro-batch says so, and is tried again.
                return
            waiting = [segment for segment in segments if segment.last > after]
            last = segments[-1] if segments else None
            if last is None or not last.more or sum(segment.size_bytes for segment in waiting) >= self._bytes_max:
                return
            now_s = self._clock.monotonic_s()
            if last.last > newest:
                newest, since_s = last.last, now_s
            rows = sum(table.count for table in last.tables.values())
            if now_s - since_s >= min(WAIT_S_MAX, WAIT_S_PER_ROW * rows) or self._stop.wait(self._look_s):
                return

    def stop(self) -> None:
        """Wait no more."""
        self._stop.set()
