"""Positions in the log, and which log they are of.

A position is the number of one change: 1 for the first one ever accepted, dense, never reused. `NOWHERE` comes
before the first change. A table that covers position 41 holds the effect of the changes 1 to 41.

A position means something only together with the log that issued it. Every log has an identity, and takes a new one
when it can no longer vouch for the positions of the old one (a restored backup: the tables are ahead of it). Its
positions go on growing then, so a folder's log is a sequence of spans, each with an identity of its own: a `Lineage`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NewType

LogPosition = NewType("LogPosition", int)
LogId = NewType("LogId", str)

NOWHERE = LogPosition(0)
# The log of marks and segments that were written before logs had identities.
UNNAMED = LogId("")


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a log from one position on that was written under one identity."""

    log: LogId
    first: LogPosition


@dataclass(frozen=True, slots=True)
class Lineage:
    """The spans of one folder's log, oldest first. Marks of any other log mean nothing here."""

    spans: tuple[Span, ...] = (Span(UNNAMED, LogPosition(1)),)

    @property
    def log(self) -> LogId:
        """The identity under which the log writes now."""
        return self.spans[-1].log

    def log_at(self, position: LogPosition) -> LogId:
        """The identity under which a position was issued."""
        for span in reversed(self.spans):
            if position >= span.first:
                return span.log
        return self.spans[0].log

    def covered(self, marks: Mapping[LogId, LogPosition]) -> LogPosition:
        """How much of this log a table holds, by its marks. A mark beyond the end of its span counts up to the end."""
        ends: Sequence[LogPosition | None] = [LogPosition(span.first - 1) for span in self.spans[1:]] + [None]
        for span, end in zip(reversed(self.spans), reversed(ends), strict=True):
            mark = marks.get(span.log)
            if mark is not None:
                return mark if end is None else min(mark, end)
        return NOWHERE
