"""A table's changes by position, wherever they are: its history, the segments, what of the log is not sealed."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.log import Log, SegmentInfo
from mainstem.log.expand import Expander, Rows
from mainstem.log.frames import Frame
from mainstem.model.change import Change, Operation, SourceId
from mainstem.model.hlc import Hlc
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition

_READ = ("position", "hlc", "op", "key", "columns", "before", "source", "sequence")
_json = msgspec.json.Decoder().decode


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
    """The same as every door has it."""
    return Change(
        namespace=table.namespace,
        table=table.table,
        key=told.key,
        operation=Operation(told.op),
        columns=None if told.columns is None else _json(told.columns),
        before=None if told.before is None else _json(told.before),
        hlc=Hlc(told.hlc),
        source=SourceId(told.source),
        batch_sequence=0,
        sequence=told.sequence,
        position=LogPosition(told.position),
    )


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
    import pyarrow.compute as pc

    wanted = (
        (pc.field("namespace") == table.namespace)
        & (pc.field("table") == table.table)
        & pc.field("error").is_null()
        & (pc.field("position") > after)
        & (pc.field("position") <= through)
    )
    with pa.OSFile(str(segment.path)) as source:
        rows = pq.read_table(source, columns=list(_READ), filters=wanted)
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
