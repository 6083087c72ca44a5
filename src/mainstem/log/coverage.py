"""Coverage: how far the tables have come with the log.

It is told of segments (what each table has in them) and of covered positions (what each table has committed), and
knows the persisted watermark: the last position of the longest prefix of segments of which every table covers its
part. It reads nothing and writes nothing; a caller with several physical tables for one name folds them before.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from mainstem.log.seal.segments import SegmentInfo
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition


class TableLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far one table is behind the sealed log."""

    logged: LogPosition
    covered: LogPosition
    # In segments that the table does not cover; bytes are its share of their size.
    changes_behind: int
    bytes_behind: int


class _Part(NamedTuple):
    last: LogPosition
    changes: int
    bytes: int


class _Table:
    __slots__ = ("behind", "bytes_behind", "changes_behind", "covered", "logged")

    def __init__(self) -> None:
        self.covered = NOWHERE
        self.logged = NOWHERE
        self.behind: deque[_Part] = deque()
        self.changes_behind = 0
        self.bytes_behind = 0


class Coverage:
    """Lives on the event loop; bounded by the segments that the log keeps."""

    def __init__(self, *, start: LogPosition = NOWHERE) -> None:
        """`start` is the position before the first segment that the log still has."""
        self._watermark = start
        self._segments: deque[SegmentInfo] = deque()
        self._tables: dict[TableName, _Table] = {}
        self._bytes_behind = 0
        self._waiters: list[tuple[LogPosition, asyncio.Future[None]]] = []
        self._listeners: list[Callable[[LogPosition], None]] = []

    @property
    def watermark(self) -> LogPosition:
        """Every change up to here is committed in its table."""
        return self._watermark

    @property
    def bytes_behind(self) -> int:
        """Sealed, and not yet in the tables: of all of them together."""
        return self._bytes_behind

    def sealed(self, segment: SegmentInfo) -> None:
        """A segment was sealed. They come in log order, each once."""
        if segment.first <= (self._segments[-1].last if self._segments else self._watermark):
            raise ValueError(f"segments out of order. got={segment.first}")
        self._segments.append(segment)
        for name, part in segment.tables.items():
            table = self._tables.setdefault(name, _Table())
            table.logged = part.last
            if part.last > table.covered:
                share = segment.bytes * part.count // max(1, segment.changes)
                table.behind.append(_Part(part.last, part.count, share))
                table.changes_behind += part.count
                table.bytes_behind += share
                self._bytes_behind += share
        self._advance()

    def covered(self, name: TableName, position: LogPosition) -> None:
        """A table's newest commit covers the log up to `position`. An older one than before is ignored."""
        table = self._tables.setdefault(name, _Table())
        if position <= table.covered:
            return
        table.covered = position
        while table.behind and table.behind[0].last <= position:
            part = table.behind.popleft()
            table.changes_behind -= part.changes
            table.bytes_behind -= part.bytes
            self._bytes_behind -= part.bytes
        self._advance()

    def lag(self) -> dict[TableName, TableLag]:
        """Every table that the sealed log or a commit has named."""
        return {
            name: TableLag(
                logged=table.logged,
                covered=table.covered,
                changes_behind=table.changes_behind,
                bytes_behind=table.bytes_behind,
            )
            for name, table in self._tables.items()
        }

    def is_covered(self, segment: SegmentInfo) -> bool:
        """Whether every table covers its part of this segment."""
        known = self._tables
        return all(name in known and known[name].covered >= part.last for name, part in segment.tables.items())

    def on_advance(self, listener: Callable[[LogPosition], None]) -> Callable[[], None]:
        """Call `listener` with each new watermark; the answer takes it off again."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def wait_for(self, position: LogPosition, timeout_s: float) -> bool:
        """Wait until the watermark has come to `position`; False when the time is over first."""
        if self._watermark >= position:
            return True
        waiter = (position, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter[1]
        except TimeoutError:
            return False
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return True

    def _advance(self) -> None:
        before = self._watermark
        while self._segments and self.is_covered(self._segments[0]):
            self._watermark = self._segments.popleft().last
        if self._watermark == before:
            return
        for position, future in self._waiters:
            if position <= self._watermark and not future.done():
                future.set_result(None)
        for listener in list(self._listeners):
            listener(self._watermark)
