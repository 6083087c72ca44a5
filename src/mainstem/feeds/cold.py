"""What is no longer in memory: read from the history tables, the segments and the files of the log that are not sealed.

Which of them to read is decided on the event loop in one step, so that nothing falls between two of them; the reading
is done in a thread. The tables cover everything before the first segment that is kept: segments are dropped only then.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from threading import Lock
from typing import Protocol

import pyarrow as pa

from mainstem.feeds.columns import KnownColumns
from mainstem.feeds.declared import NOTHING, Declared
from mainstem.feeds.entries import (
    Entry,
    StoredChange,
    changes_of_rows,
    columns_of_changes,
    delta_of_stored,
    entries_of_stored,
)
from mainstem.feeds.fitting import Columns, first_misfit
from mainstem.feeds.seen import Identified
from mainstem.formats.segments import read_rows
from mainstem.log import Log, SegmentInfo
from mainstem.log.frames import Frame
from mainstem.log.seal.expand import Expander
from mainstem.model.errors import Conflict
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.wire.sync import ColumnDelta

_READ = ("position", "hlc", "table", "op", "key", "columns", "source", "id")
_SEGMENTS_CACHED_MAX = 4
_SEGMENT_CACHED_BYTES_MAX = 64 * 1024 * 1024
_TRIES_MAX = 5
_CHANGES_STEP = 1_000


class History(Protocol):
    """The history tables of a namespace. The app provides it; this package knows no engine."""

    async def page(
        self, namespace: str, *, after: LogPosition, through: LogPosition, limit: int
    ) -> Sequence[StoredChange]:
        """The first `limit` changes at positions after < p <= through, in order.

        Raises Invalid (`cursor_expired`) where the tables no longer hold all of them.
        """
        ...

    def identified(self, through: LogPosition) -> AsyncIterator[list[Identified]]:
        """Every change that has an id, of every namespace, in any order: ours up to a position, all of other logs."""
        ...

    async def has_others(self, namespace: str) -> bool:
        """Whether the tables have changes of other logs, or of a part of ours that was lost."""
        ...

    async def lost_since(self, namespace: str, position: LogPosition) -> bool:
        """Whether the tables have changes of the log that a position is of which that log has lost."""
        ...

    def others(self, namespace: str) -> AsyncIterator[list[StoredChange]]:
        """Those changes, in any order, before our first position."""
        ...


class ColdFeed:
    """Arrivals by position, however old."""

    def __init__(self, log: Log, history: History, declared: Declared) -> None:
        self._log = log
        self._history = history
        self._declared = declared
        self._cache: OrderedDict[tuple[str, str], pa.Table] = OrderedDict()
        self._lock = Lock()

    async def known_columns(self, namespace: str) -> KnownColumns:
        """Which columns the tables will have, once they have all that is durable now."""
        for _ in range(_TRIES_MAX):
            declared = await self._declared.load(namespace)
            known = KnownColumns(declared, self._declared.begin_of(namespace))
            # Of one moment, as below.
            kept = self._log.segments()
            tail = self._log.tail(self._log.sealed)
            try:
                await asyncio.to_thread(_learn, known, namespace, kept, tail)
            except FileNotFoundError:
                continue
            return known
        raise Conflict("the log was sealed again and again while it was read: ask again")

    async def first_misfit(
        self, table: TableName, columns: Columns, after: LogPosition
    ) -> tuple[ColumnDelta | None, LogPosition]:
        """The first value that is not of its column's type, of a table's changes past a position; and how far was
        looked."""
        for _ in range(_TRIES_MAX):
            # Of one moment, as below.
            through = self._log.durable
            kept = [segment for segment in self._log.segments() if segment.last > after and table in segment.tables]
            tail = self._log.tail(LogPosition(max(after, self._log.sealed)))
            try:
                return await asyncio.to_thread(self._first_misfit, table, columns, after, kept, tail), through
            except FileNotFoundError:
                continue
        raise Conflict("segments were dropped again and again while they were read: ask again")

    async def page(
        self,
        namespace: str,
        *,
        after: LogPosition,
        through: LogPosition,
        limit: int,
        known: KnownColumns | None = None,
    ) -> list[Entry]:
        """The first `limit` arrivals of a namespace at positions after < p <= through. Fewer: there are no more."""
        for _ in range(_TRIES_MAX):
            first = self._first()
            found: list[Entry] = []
            if after + 1 < first:
                upto = LogPosition(min(through, first - 1))
                found = await self._of_history(namespace, after, upto, limit)
                if len(found) >= limit:
                    return found
                if self._first() != first:
                    # Segments were dropped meanwhile: what they held is in the tables by now.
                    continue
            # Of one moment, without a wait between them: a seal would take changes from the tail into a segment, and
            # they would be in neither.
            kept = self._log.segments()
            wanted = [
                segment
                for segment in kept
                if segment.last > after and segment.first <= through and _has(segment, namespace)
            ]
            tail = self._log.tail(LogPosition(max(after, self._log.sealed)))
            declared = self._declared.known(namespace)
            if declared is None:
                await self._declared.load(namespace)
                continue
            try:
                more = await asyncio.to_thread(
                    self._read, namespace, after, through, limit - len(found), wanted, tail, declared, known
                )
            except FileNotFoundError:
                continue
            return found + more
        raise Conflict("segments were dropped again and again while they were read: ask again")

    async def others(self, namespace: str) -> AsyncIterator[list[Entry]]:
        """What the tables have of other logs, or of a part of ours that was lost: it is in no page."""
        async for found in self._history.others(namespace):
            yield list(entries_of_stored(found, NOTHING))

    async def lost_since(self, namespace: str, position: LogPosition) -> bool:
        """Whether something of it came after a position."""
        return await self._history.lost_since(namespace, position)

    async def has_others(self, namespace: str) -> bool:
        """Whether there is anything of that kind."""
        return await self._history.has_others(namespace)

    async def identified(self, after: LogPosition) -> AsyncIterator[list[Identified]]:
        """Every change past a position that has an id, of every namespace. For a start: nothing is dropped yet."""
        kept = self._log.segments()
        # Of the same moment as the segments: a log that was just opened begins to seal at once, and what it takes out
        # of the tail would be in neither.
        tail = list(self._log.tail(LogPosition(max(after, self._log.sealed))))
        first = self._first()
        if after + 1 < first or after == NOWHERE:
            async for found in self._history.identified(LogPosition(first - 1)):
                yield found
        for segment in kept:
            if segment.last > after:
                yield await asyncio.to_thread(_identified_in_segment, segment, after)
        yield await asyncio.to_thread(_identified_in_frames, tail)

    def _read(
        self,
        namespace: str,
        after: LogPosition,
        through: LogPosition,
        limit: int,
        segments: Sequence[SegmentInfo],
        tail: Iterator[Frame],
        declared: Mapping[str, Columns],
        known: KnownColumns | None,
    ) -> list[Entry]:
        # All frames are taken first: the files behind them are open, and must not stay so.
        frames = list(tail)
        found: list[Entry] = []
        for segment in segments:
            changes = self._of_segment(segment, namespace, after, through, limit)
            found += islice(entries_of_stored(changes, declared, known), limit - len(found))
            if len(found) >= limit:
                return found
        last = (change for change in _of_frames(frames, namespace) if after < change.position <= through)
        return found + list(islice(entries_of_stored(last, declared, known), limit - len(found)))

    def _first_misfit(
        self,
        table: TableName,
        columns: Columns,
        after: LogPosition,
        segments: Sequence[SegmentInfo],
        tail: Iterator[Frame],
    ) -> ColumnDelta | None:
        frames = list(tail)
        parts = [self._of_segment(each, table.namespace, after, each.last, _CHANGES_STEP) for each in segments]
        for change in chain(*parts, _of_frames(frames, table.namespace)):
            delta = delta_of_stored(change) if change.table == table.table and change.position > after else None
            if delta is not None and (misfit := first_misfit(delta.columns, columns)) is not None:
                return misfit
        return None

    def _first(self) -> LogPosition:
        """The first position that the log still has: what is before is in the tables alone."""
        kept = self._log.segments()
        return kept[0].first if kept else LogPosition(self._log.sealed + 1)

    async def _of_history(self, namespace: str, after: LogPosition, through: LogPosition, limit: int) -> list[Entry]:
        """The first `limit` arrivals that the tables have. Fewer: there are no more."""
        found: list[Entry] = []
        while len(found) < limit:
            wanted = limit - len(found)
            stored = await self._history.page(namespace, after=after, through=through, limit=wanted)
            # The history has nothing that did not fit.
            found += entries_of_stored(stored, NOTHING)
            if len(stored) < wanted:
                break
            # Counted by what was read, and not by what became an entry: what is no delta ends no page.
            after = LogPosition(stored[-1].position)
        return found

    def _of_segment(
        self, segment: SegmentInfo, namespace: str, after: LogPosition, through: LogPosition, step: int
    ) -> Iterator[StoredChange]:
        """The changes of one segment, all of them; so many at a time are made Python's, for readers may stop early."""
        # Not above: it takes a tenth of a second, which the gateway's start can do without.
        import pyarrow.compute as pc

        table = self._segment(segment, namespace)
        positions = table["position"]
        wanted = table.filter(pc.and_(pc.greater(positions, after), pc.less_equal(positions, through)))
        for start in range(0, len(wanted), step):
            part = wanted.slice(start, step)
            for row in zip(*(part[name].to_pylist() for name in _READ), strict=True):
                yield StoredChange(*row)

    def _segment(self, segment: SegmentInfo, namespace: str) -> pa.Table:
        """A namespace's rows that are no dead letters, in the order of arrival. A client that catches up asks for page
        after page of them."""
        key = (str(segment.path), namespace)
        with self._lock:
            table = self._cache.get(key)
            if table is not None:
                self._cache.move_to_end(key)
                return table
        table = read_rows(str(segment.path), _READ, namespace=namespace).sort_by("position")
        if table.nbytes <= _SEGMENT_CACHED_BYTES_MAX:
            with self._lock:
                self._cache[key] = table
                while len(self._cache) > _SEGMENTS_CACHED_MAX:
                    self._cache.popitem(last=False)
        return table


def _has(segment: SegmentInfo, namespace: str) -> bool:
    return any(name.namespace == namespace for name in segment.tables)


def _identified_in_segment(segment: SegmentInfo, after: LogPosition) -> list[Identified]:
    names = ("namespace", "source", "id", "hlc")
    rows = read_rows(str(segment.path), names, after=after, with_errors=True)
    rows = rows.filter(rows["id"].is_valid())
    return [Identified(*row) for row in zip(*(rows[name].to_pylist() for name in names), strict=True)]


def _identified_in_frames(frames: Iterable[Frame]) -> list[Identified]:
    expander = Expander()
    return [
        Identified(rows.table.namespace, frame.header.source, name, rows.hlcs[index])
        for frame in frames
        for rows in expander.expand(frame.header, frame.payload, "the tail of the log")
        for index, name in enumerate(rows.ids or ())
        if name is not None
    ]


def _of_frames(frames: Iterable[Frame], namespace: str) -> Iterator[StoredChange]:
    expander = Expander()
    for frame in frames:
        changes: list[StoredChange] = []
        for rows in expander.expand(frame.header, frame.payload, "the tail of the log"):
            if rows.table.namespace == namespace:
                changes += changes_of_rows(rows, frame.header.source)
        yield from sorted(changes)


def _learn(known: KnownColumns, namespace: str, segments: Sequence[SegmentInfo], tail: Iterator[Frame]) -> None:
    # All frames are taken first: the files behind them are open, and must not stay so.
    frames = list(tail)
    for segment in segments:
        known.learn_segment(segment, namespace)
    for each in columns_of_changes(_of_frames(frames, namespace)):
        known.learn(*each)
