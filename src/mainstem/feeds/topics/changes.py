"""A table's changes by position, wherever they are: its history, the segments, what of the log is not sealed."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from mainstem.feeds.fitting import Columns, first_misfit
from mainstem.formats.segments import read_rows
from mainstem.log import Log, SegmentInfo
from mainstem.log.frames import Frame
from mainstem.log.seal.expand import Expander, Rows
from mainstem.model.change import Change, Operation, SourceId
from mainstem.model.hlc import Hlc
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.wire.checkpoints import split_columns
from mainstem.wire.sync import ColumnDelta

_READ = ("position", "hlc", "op", "key", "columns", "before", "source", "sequence")
_columns = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Told(NamedTuple):
    """A change as segments and histories have it."""

    position: int
    hlc: int
    op: str
    key: str
    columns: str | bytes | None
    before: str | bytes | None
    source: str
    sequence: int | None


class TableHistory(Protocol):
    """The history of one table. The app provides it."""

    async def of_table(
        self, table: TableName, *, after: LogPosition, through: LogPosition, limit: int
    ) -> Sequence[Told]:
        """The first changes at positions after < p <= through, in order. Raises Invalid (`offset_out_of_range`) where
        the table keeps none."""


def change_of(told: Told, table: TableName) -> Change:
    """The same as every door has it, with each value in the text that its writer sent: a number may be finer than a
    double."""
    before: Any = None if told.before is None else msgspec.Raw(told.before)
    return Change(
        namespace=table.namespace,
        table=table.table,
        key=told.key,
        operation=Operation(told.op),
        columns=None if told.columns is None else _columns(told.columns),
        before=before,
        hlc=Hlc(told.hlc),
        source=SourceId(told.source),
        batch_sequence=0,
        sequence=told.sequence,
        position=LogPosition(told.position),
    )


def that_fit(found: Iterable[Told], declared: Columns) -> list[Told]:
    """Without those that the table has as dead letters, as a value is not of its column's declared type. Its history,
    from which they are read later, does not have them either."""
    return [told for told in found if told.columns is None or first_misfit(_columns_of(told), declared) is None]


def _columns_of(told: Told) -> Iterator[ColumnDelta]:
    return (ColumnDelta(name, value) for name, value in split_columns(told.columns).items())


def first_kept(log: Log) -> LogPosition:
    """The first position that the log still has: what is before is in the tables alone."""
    kept = log.segments()
    return kept[0].first if kept else LogPosition(log.sealed + 1)


def read_log(
    segments: Sequence[SegmentInfo], tail: Iterator[Frame], table: TableName, after: int, through: int, limit: int
) -> list[Told]:
    """The first changes of a table in segments and frames. Blocks. Raises FileNotFoundError where a segment is gone."""
    # First of all: the files behind the frames are open, and must not stay so.
    frames = list(tail)
    found: list[Told] = []
    for segment in segments:
        found += _of_segment(segment, table, after, through)
        if len(found) >= limit:
            return found[:limit]
    expander = Expander()
    for frame in frames:
        for rows in expander.expand(frame.header, frame.payload, "the tail of the log"):
            if rows.table == table:
                found += [each for each in _of_rows(rows, frame.header.source) if after < each.position <= through]
        if len(found) >= limit:
            break
    return found[:limit]


def _of_segment(segment: SegmentInfo, table: TableName, after: int, through: int) -> list[Told]:
    rows = read_rows(
        str(segment.path), _READ, namespace=table.namespace, table=table.table, after=after, through=through
    )
    columns: list[Any] = [rows[name].to_pylist() for name in _READ]
    return [Told(*row) for row in zip(*columns, strict=True)]


def _of_rows(rows: Rows, source: str) -> Iterator[Told]:
    for index, position in enumerate(rows.positions):
        if rows.errors is not None and rows.errors[index] is not None:
            continue
        before = None if rows.before is None else rows.before[index]
        sequence = None if rows.sequences is None else rows.sequences[index]
        hlc, op, key = rows.hlcs[index], rows.ops[index], rows.keys[index]
        yield Told(position, hlc, op, key, rows.columns[index], before, source, sequence)
