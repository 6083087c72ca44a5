"""Checkpoints for first syncs: which there are, which are wanted, and what a client is sent of one.

The pipeline makes them from tables; here they are ordered, found on disk and encoded. Nothing of a checkpoint is kept
in memory but the piece that is being sent.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.feeds.cursors import Cursors
from mainstem.model.errors import MainstemError, Overloaded
from mainstem.model.hlc import Hlc
from mainstem.model.merge import Cell, Row, Stamp
from mainstem.model.names import RULES_TABLE
from mainstem.model.position import LogId, LogPosition
from mainstem.wire.checkpoints import DOCUMENT, VERSION, CheckpointMade, CheckpointOrder
from mainstem.wire.sync import ColumnDelta, Op, RowDelta, encode_delta, join_response

logger = logging.getLogger(__name__)

PIECE_ROWS = 1_000
# A piece is sent once it is so large; a message is 16 MiB at most.
PIECE_BYTES = 1024 * 1024
KEPT = 2
# A checkpoint is worth making once so much arrived since the last one.
ARRIVALS_MIN = 10_000
_POLL_S = 0.1


class Tables(Protocol):
    """What the lake has of a namespace."""

    async def histories(self, namespace: str) -> "Mapping[str, HistoryTable]":
        """Its logical tables, all with history, and what there is to know of those."""
        ...


class HistoryTable(NamedTuple):
    """The history of a table."""

    # Where it is, if it is in Delta. The catalog has the others.
    delta: str | None
    # How much it holds of each log; and how much it held when its rows began to say of which log they are.
    held: Mapping[LogId, LogPosition]
    unlogged: Mapping[LogId, LogPosition]


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


class Checkpoints:
    """The checkpoints of every gateway, in one folder. `watermark` tells how far the tables are."""

    def __init__(
        self,
        folder: Path,
        tables: Tables,
        watermark: Callable[[], LogPosition],
        cursors: Cursors | None = None,
    ) -> None:
        self._folder = folder
        self._cursors = cursors or Cursors()
        self._tables = tables
        self._watermark = watermark
        self._orders: dict[str, CheckpointOrder] = {}
        self._wanted: set[str] = set()
        self._newest: dict[str, Checkpoint | None] = {}

    def newest(self, gateway: str) -> Checkpoint | None:
        """The newest one that is whole."""
        if gateway not in self._newest:
            found = self._found(gateway)
            self._newest[gateway] = found[-1] if found else None
        return self._newest[gateway]

    def consider(self, gateway: str, arrived: LogPosition) -> None:
        """Order one where so much arrived that it pays."""
        newest = self.newest(gateway)
        if arrived - (newest.position if newest else 0) >= ARRIVALS_MIN:
            self.want(gateway)

    def want(self, gateway: str) -> None:
        """Order one as of what the tables cover now."""
        if gateway not in self._orders:
            self._wanted.add(gateway)

    async def orders(self) -> list[CheckpointOrder]:
        """What the pipeline should make. An order stands until it is made, also if the pipeline is another one then."""
        self._settle()
        for gateway in sorted(self._wanted):
            self._wanted.discard(gateway)
            try:
                tables = await self._tables.histories(gateway)
            except MainstemError as error:
                # What is wrong with one gateway's tables is that gateway's: the others' checkpoints are ordered.
                logger.warning("no checkpoint can be ordered: %s", error, extra={"gateway": gateway})
                continue
            newest = self.newest(gateway)
            position = self._watermark()
            if not tables or (newest is not None and newest.position >= position):
                continue
            self._orders[gateway] = CheckpointOrder(
                namespace=gateway,
                tables=tuple(tables),
                delta={name: table.delta for name, table in tables.items() if table.delta is not None},
                held={name: dict(table.held) for name, table in tables.items()},
                unlogged={name: dict(table.unlogged) for name, table in tables.items()},
                position=position,
                log=self._cursors.log_at(position),
                lineage=self._cursors.lineage.spans,
                folder=str(self._folder / gateway / f"{position:020d}"),
                before_folder=str(newest.folder) if newest else None,
                before_position=newest.position if newest else 0,
            )
        return list(self._orders.values())

    async def reach(self, gateway: str, position: LogPosition, timeout_s: float) -> Checkpoint:
        """Wait for one that has everything up to a position. Raises Overloaded where none is made in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    newest = self.newest(gateway)
                    if newest is not None and newest.position >= position:
                        return newest
                    self.want(gateway)
                    await asyncio.sleep(_POLL_S)
                    self._settle()
        except TimeoutError:
            raise Overloaded(
                f"no checkpoint was made in time. expected=one at {position} within {timeout_s:g} s", retry_after_s=5.0
            ) from None

    def _settle(self) -> None:
        """See which orders are done."""
        for gateway, order in list(self._orders.items()):
            made = _made(Path(order.folder) / DOCUMENT)
            if made is not None and made.log == order.log:
                del self._orders[gateway]
                self._newest.pop(gateway, None)
                self._drop_old(gateway)

    def _found(self, gateway: str) -> list[Checkpoint]:
        found = []
        for document in sorted((self._folder / gateway).glob(f"*/{DOCUMENT}")):
            made = _made(document) if document.parent.name.isdigit() else None
            # One of another log, or of a part of ours that was lost, is not a place to go on from.
            if made is not None and self._cursors.is_ours(LogId(made.log), LogPosition(made.position)):
                found.append(Checkpoint(document.parent, LogPosition(made.position), made.rows))
        return found

    def _drop_old(self, gateway: str) -> None:
        for old in self._found(gateway)[:-KEPT]:
            shutil.rmtree(old.folder, ignore_errors=True)


def _made(document: Path) -> CheckpointMade | None:
    """What a checkpoint's document says; None where there is none, or one of an older version."""
    try:
        made = msgspec.json.decode(document.read_bytes(), type=CheckpointMade)
    except FileNotFoundError:
        return None
    return made if made.version >= VERSION else None


def pieces_of(checkpoint: Checkpoint, keep: RowFilter | None = None, cursor: int | None = None) -> Iterator[bytes]:
    """What a client is sent, piece by piece; the last one says that it is the last. Blocks: to be run in a thread.

    `cursor` is what the client goes on from: the checkpoint's position, where that is not said. The gateway's rules are
    no data. The files are opened now: a checkpoint that is dropped is still read to its end.
    """
    paths = sorted(checkpoint.folder.glob("*.parquet"))
    files = [pq.ParquetFile(pa.OSFile(str(path))) for path in paths]

    after = checkpoint.position if cursor is None else cursor

    def made() -> Iterator[bytes]:
        for file in files:
            with file:
                for batch in file.iter_batches(PIECE_ROWS):
                    for encoded in _sized(_encoded(_shown(batch, keep))):
                        yield join_response(encoded, after, True, 0)
        yield join_response([], after, False, 0)

    return made()


def _shown(batch: pa.RecordBatch, keep: RowFilter | None) -> pa.RecordBatch:
    # Not above: it takes a tenth of a second, which the gateway's start can do without.
    import pyarrow.compute as pc

    shown = pc.not_equal(batch.column("table"), RULES_TABLE)
    if keep is not None:
        shown = pc.and_(shown, pa.array(map(keep, _rows_of_batch(batch)), pa.bool_()))
    return batch.filter(shown)


def _encoded(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The deltas of its rows, many at a time where that can be."""
    from mainstem.feeds.checkpoint_batches import encode_written, written_once

    once = written_once(batch)
    many = encode_written(batch.filter(pa.array(once)), PIECE_BYTES)
    if many is None:
        once[:] = False
    else:
        yield from many
    for row in _rows_of_batch(batch.filter(pa.array(~once))):
        yield b"".join([encode_delta(delta) for delta in _deltas_of(row)])


def _sized(parts: Iterable[bytes]) -> Iterator[list[bytes]]:
    """In portions of a piece's size, or a little more."""
    portion: list[bytes] = []
    size = 0
    for part in parts:
        portion.append(part)
        size += len(part)
        if size > PIECE_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def deltas_of_row(table: str, row_id: str, row: Row) -> Iterator[RowDelta]:
    """A merged row as deltas that are no writes: the delete, then one insert for each stamp. Values are JSON text."""
    if row.tombstone is not None:
        yield RowDelta(op=Op.DELETE, table=table, row_id=row_id, hlc=row.tombstone.hlc, client_id=row.tombstone.source)
    by_stamp: dict[Stamp, list[ColumnDelta]] = {}
    for name, cell in row.cells.items():
        by_stamp.setdefault(cell.stamp, []).append(ColumnDelta(name, cell.value))
    for stamp, columns in by_stamp.items():
        yield RowDelta(
            op=Op.INSERT, table=table, row_id=row_id, columns=tuple(columns), hlc=stamp.hlc, client_id=stamp.source
        )


def _deltas_of(row: CheckpointRow) -> Iterator[RowDelta]:
    cells = {
        name: Cell(Stamp(Hlc(hlc), source), value.encode())
        for name, value, hlc, source in zip(row.names, row.values, row.hlcs, row.sources, strict=True)
    }
    return deltas_of_row(row.table, row.row_id, Row(cells, row.tombstone))


def _rows_of_batch(batch: pa.RecordBatch) -> Iterator[CheckpointRow]:
    """Column by column: a dictionary for each cell would take longer than all the rest."""
    tables, row_ids = batch.column("table").to_pylist(), batch.column("row_id").to_pylist()
    gone_hlcs, gone_sources = (each.to_pylist() for each in batch.column("tombstone").flatten())
    cells = batch.column("cells")
    starts = cells.offsets.to_pylist()
    fields = [cells.values.field(name).to_pylist() for name in ("column", "value", "hlc", "source")]
    for index, (table, row_id, start, end) in enumerate(zip(tables, row_ids, starts[:-1], starts[1:], strict=True)):
        gone = None if gone_hlcs[index] is None else Stamp(Hlc(gone_hlcs[index]), gone_sources[index])
        yield CheckpointRow(table, row_id, gone, *(each[start:end] for each in fields))
