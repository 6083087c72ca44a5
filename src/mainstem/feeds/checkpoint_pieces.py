"""A checkpoint's rows as the bytes that clients are sent.

A first sync waits for this. So the rows that are one write and nothing else, which most are, are put together by Arrow,
all of a batch at once, and what it makes is the message as it stands. The others are encoded one by one.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mainstem.model.hlc import Hlc
from mainstem.model.merge import Cell, Row, Stamp
from mainstem.model.position import LogPosition
from mainstem.wire.sync import ColumnDelta, Op, RowDelta, encode_delta, join_response, varint

BATCH_ROWS = 2_000
# A piece is sent once it is so large; a message is 16 MiB at most.
PIECE_BYTES = 1024 * 1024
# Lengths below this are looked up; they take two bytes at most.
_SIZES = 1 << 14
# Texts that come again and again are read, and framed, once.
_DICTIONARIES = ["table", "cells.list.element.column", "cells.list.element.source"]


class Checkpoint(NamedTuple):
    """One that is whole."""

    folder: Path
    position: LogPosition
    rows: int


class CheckpointRow(NamedTuple):
    """A row as a checkpoint has it: its living columns, and beside each its JSON text and its stamp."""

    table: str
    row_id: str
    tombstone: Stamp | None
    names: list[str]
    values: list[str]
    hlcs: list[int]
    sources: list[str]

    def value(self, name: str) -> bytes | None:
        """The JSON text of a column, if the row has it."""
        return self.values[self.names.index(name)].encode() if name in self.names else None


RowFilter = Callable[[CheckpointRow], bool]


def pieces_of(checkpoint: Checkpoint, *, hidden: str, keep: RowFilter | None = None) -> Iterator[bytes]:
    """What a client is sent, piece by piece; the last one says that it is the last. Blocks: to be run in a thread.

    The rows of the table `hidden` are left out, and those that `keep` does not want.
    """
    for batch in _batches(checkpoint):
        wanted = _mask(batch, hidden, keep)
        for encoded in _pieces_of_batch(batch.filter(wanted)):
            yield join_response([encoded], checkpoint.position, True, 0)
    yield join_response([], checkpoint.position, False, 0)


def rows_of(checkpoint: Checkpoint) -> Iterator[list[CheckpointRow]]:
    """Its rows, some at a time. The files are opened now: one that is dropped meanwhile is read to its end."""
    batches = _batches(checkpoint)
    return (_rows_of_batch(batch) for batch in batches)


def deltas_of_row(table: str, row_id: str, row: Row) -> Iterator[RowDelta]:
    """A merged row as deltas that are no writes: the delete, then one insert for each stamp. Values are JSON text."""
    if row.tombstone is not None:
        yield RowDelta(
            op=Op.DELETE, table=table, row_id=row_id, hlc=row.tombstone.hlc, client_id=row.tombstone.source
        )
    by_stamp: dict[Stamp, list[ColumnDelta]] = {}
    for name, cell in row.cells.items():
        by_stamp.setdefault(cell.stamp, []).append(ColumnDelta(name, cell.value))
    for stamp, columns in by_stamp.items():
        yield RowDelta(
            op=Op.INSERT, table=table, row_id=row_id, columns=tuple(columns), hlc=stamp.hlc, client_id=stamp.source
        )


def _batches(checkpoint: Checkpoint) -> Iterator[pa.RecordBatch]:
    paths = sorted(checkpoint.folder.glob("*.parquet"))
    files = [pq.ParquetFile(pa.OSFile(str(path)), read_dictionary=_DICTIONARIES) for path in paths]

    def read() -> Iterator[pa.RecordBatch]:
        for file in files:
            with file:
                yield from file.iter_batches(BATCH_ROWS)

    return read()


def _mask(batch: pa.RecordBatch, hidden: str, keep: RowFilter | None) -> pa.BooleanArray:
    shown = pc.not_equal(batch.column("table").cast(pa.string()), hidden)
    if keep is None:
        return shown
    rows = _rows_of_batch(batch)
    return pc.and_(shown, pa.array([keep(row) for row in rows], pa.bool_()))


def _pieces_of_batch(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The deltas of a batch as they stand in a response, in parts of a piece's size."""
    usual = _is_usual(batch)
    encoded = _encode_usual(batch.filter(usual))
    odd = batch.filter(pc.invert(usual))
    if encoded is None:
        encoded, odd = [], batch
    size = 0
    parts: list[bytes] = []
    for part in (*encoded, *_encode_rows(odd)):
        if parts and size + len(part) > PIECE_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
        parts.append(part)
        size += len(part)
    if parts:
        yield b"".join(parts)


def _is_usual(batch: pa.RecordBatch) -> pa.BooleanArray:
    """The rows without a tombstone whose cells all have one stamp."""
    cells = batch.column("cells")
    same: pa.BooleanArray = pc.and_(pc.is_null(batch.column("tombstone")), pc.greater(pc.list_value_length(cells), 0))
    rows = pc.list_parent_indices(cells)
    flat = cells.flatten()
    for name in ("hlc", "source"):
        values = flat.field(name)
        if len(values) < 2:  # noqa: PLR2004
            continue
        plain = values.indices if pa.types.is_dictionary(values.type) else values
        # A cell that differs from the one before it, in the same row.
        breaks = pc.and_(
            pc.not_equal(plain.slice(1), plain.slice(0, len(plain) - 1)),
            pc.equal(rows.slice(1), rows.slice(0, len(rows) - 1)),
        )
        broken = pc.unique(rows.slice(1).filter(breaks))
        same = pc.and_(same, pc.invert(pc.is_in(pa.array(range(len(batch)), rows.type), broken)))
    return same


def _encode_usual(batch: pa.RecordBatch) -> list[bytes] | None:
    """Rows of one write each; None where a length is not among those that are looked up."""
    if len(batch) == 0:
        return []
    cells = batch.column("cells")
    flat = cells.flatten()
    values = flat.field("value").cast(pa.binary())
    names = _framed_texts(b"\x0a", flat.field("column"))
    sizes = pc.binary_length(values)
    ...
