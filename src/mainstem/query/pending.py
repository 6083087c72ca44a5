"""`Pending` over the embedded log: sealed segments that a table does not cover yet, then the frames not yet sealed.

What to read is decided on the event loop in one step, so that no change falls between a segment and the tail; the
reading itself is done in a thread. A row that the sealer marked as an error goes to the dead letters, and is not shown.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from mainstem.formats.segments import read_rows
from mainstem.log import Log, SegmentInfo
from mainstem.log.frames import Frame
from mainstem.log.seal.expand import Expander
from mainstem.model import (
    NOWHERE,
    Conflict,
    Hlc,
    Lineage,
    LogId,
    LogPosition,
    Operation,
    Overloaded,
    Row,
    Stamp,
    TableName,
    join,
)
from mainstem.model.merge import Cell
from mainstem.query.ports import PendingRow

# Merging is done change by change, in Python: about a second's worth.
CHANGES_MAX = 200_000
_RETRY_AFTER_S = 2.0
_READ = ("position", "hlc", "op", "key", "columns", "source")
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class _Written(NamedTuple):
    position: int
    hlc: int
    op: str
    key: str
    columns: str | bytes | None
    source: str


class LogPending:
    """The tail of a log. `marks` tells what a state table covers now of which log, by the catalog; it may block."""

    def __init__(
        self,
        log: Log,
        marks: Callable[[TableName], Mapping[LogId, LogPosition]],
        *,
        changes_max: int = CHANGES_MAX,
    ) -> None:
        self._log = log
        self._marks = marks
        self._changes_max = changes_max

    @property
    def lineage(self) -> Lineage:
        """Which log the positions are of."""
        return self._log.lineage

    def durable(self) -> LogPosition:
        """The last durable position."""
        return self._log.durable

    async def rows(
        self, table: TableName, *, after: LogPosition, through: LogPosition, limit: int
    ) -> Mapping[str, PendingRow]:
        """By key, the merge of the table's changes at positions after < p <= through."""
        if through <= after:
            return {}
        kept = self._log.segments()
        first = kept[0].first if kept else self._log.sealed + 1
        wanted = [segment for segment in kept if segment.last > after and _slice_last(segment, table) > after]
        self._check_count(table, sum(segment.tables[table].count for segment in wanted))
        tail = self._log.tail(LogPosition(max(after, self._log.sealed)))
        return await asyncio.to_thread(self._read, _Span(table, after, through, limit, first), wanted, tail)

    def _read(self, span: "_Span", segments: Sequence[SegmentInfo], tail: Iterator[Frame]) -> Mapping[str, PendingRow]:
        # All frames are taken first: the files behind them are open, and must not stay so.
        frames = list(tail)
        if span.first > span.after + 1 and self.lineage.covered(self._marks(span.table)) > span.after:
            # A segment is dropped only once the tables cover it. So a table that covers no more than the caller's
            # snapshot did had nothing in the dropped ones; one that covers more has to be loaded again.
            raise Conflict(f"the log begins after the snapshot. expected={span.after + 1} got={span.first}")
        try:
            written = [*_of_segments(segments, span), *_of_frames(frames, span)]
        except FileNotFoundError as error:
            raise Conflict(f"a segment was dropped while it was read. table={span.table}") from error
        self._check_count(span.table, len(written))
        rows = _merged(written)
        self._check_count(span.table, len(rows), span.limit)
        return rows

    def _check_count(self, table: TableName, got: int, most: int | None = None) -> None:
        most = self._changes_max if most is None else most
        if got > most:
            raise Overloaded(
                f"the table is too far behind the log to be read at latest. table={table} "
                f"expected=at most {most} changes got={got}",
                retry_after_s=_RETRY_AFTER_S,
                reason="too_far_behind",
            )


class _Span(NamedTuple):
    table: TableName
    after: LogPosition
    through: LogPosition
    limit: int
    first: int


def _slice_last(segment: SegmentInfo, table: TableName) -> LogPosition:
    part = segment.tables.get(table)
    return part.last if part is not None else NOWHERE


def _of_segments(segments: Iterable[SegmentInfo], span: _Span) -> Iterator[_Written]:
    for segment in segments:
        found = read_rows(
            str(segment.path),
            _READ,
            namespace=span.table.namespace,
            table=span.table.table,
            after=span.after,
            through=span.through,
        )
        for row in zip(*(found[name].to_pylist() for name in _READ), strict=True):
            yield _Written(*row)


def _of_frames(frames: Iterable[Frame], span: _Span) -> Iterator[_Written]:
    expander = Expander()
    for frame in frames:
        if frame.header.first > span.through:
            return
        for rows in expander.expand(frame.header, frame.payload, "the tail of the log"):
            if rows.table != span.table:
                continue
            for index, position in enumerate(rows.positions):
                fits = rows.errors is None or rows.errors[index] is None
                if fits and span.after < position <= span.through:
                    yield _Written(
                        position=position,
                        hlc=rows.hlcs[index],
                        op=rows.ops[index],
                        key=rows.keys[index],
                        columns=rows.columns[index],
                        source=frame.header.source,
                    )


def _merged(written: Iterable[_Written]) -> Mapping[str, PendingRow]:
    rows: dict[str, PendingRow] = {}
    for each in written:
        stamp = Stamp(Hlc(each.hlc), each.source)
        if each.op == Operation.DELETE:
            row = Row(tombstone=stamp)
        else:
            row = Row(cells={name: Cell(stamp, value) for name, value in _decode(each.columns or b"{}").items()})
        before = rows.get(each.key)
        if before is None:
            rows[each.key] = PendingRow(row, LogPosition(each.position))
        else:
            rows[each.key] = PendingRow(join(before.row, row), LogPosition(max(before.position, each.position)))
    return rows
