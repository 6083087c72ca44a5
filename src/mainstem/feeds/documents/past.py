"""The log read back as what happened to documents: for a store that is behind, and for change streams that resume.

What is sealed is read from segments, whose rows carry in their metadata what only the Mongo door asks for; what is not
sealed yet from the frames. Everything here blocks: it runs in a thread.
"""

import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from mainstem.formats.segments import read_rows
from mainstem.log import Log, SegmentInfo
from mainstem.log.frames import Frame
from mainstem.log.seal.expand import Expander, Rows
from mainstem.model.batch import Encoding
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.wire.mongo.batches import (
    DOCUMENT_COLUMN,
    METADATA_KEY,
    SOURCES,
    DocumentBatch,
    DocumentOperation,
    Kind,
    Metadata,
    bytes_of,
    collection_of,
    decode_batch,
)

_READ = ("position", "hlc", "namespace", "table", "op", "key", "columns", "source", "metadata", "error", "arrival_ms")
_CHUNK_ROWS = 4_096
# The number of the first row at a position; the others at it go on from there, by table. One was the number of every
# row before rows were numbered, and two is the number of what ends a stream (`streams`).
FIRST_ROW = 3


class _Stated(msgspec.Struct):
    mongo: Metadata | None = msgspec.field(name=METADATA_KEY, default=None)


class _Document(msgspec.Struct):
    document: str | None = msgspec.field(name=DOCUMENT_COLUMN, default=None)


_stated = msgspec.json.Decoder(_Stated).decode
_document = msgspec.json.Decoder(_Document).decode


class Past(NamedTuple):
    """One batch of documents, or rows that came through another door (then `rows` are one table's).

    A record of a topic may be a row in two tables, both at its position. `numbers` says, row by row, which one this is:
    the same whether the rows just arrived, are read from frames, or from a segment.
    """

    first: LogPosition
    last: LogPosition
    hlc_first: int
    at_ms: int
    batch: DocumentBatch | None = None
    rows: Rows | None = None
    source: str = ""
    numbers: Sequence[int] = ()


class Gone(Exception):
    """What was asked for is not in the log any more."""


def reader(log: Log, after: LogPosition) -> Iterator[Past]:
    """Everything after a position that is durable now, in the log's order. Raises Gone.

    What to read is decided now, on the loop; the reading is done as it goes, and may be done in a thread.
    """
    kept = log.segments()
    first = kept[0].first if kept else log.sealed + 1
    if after + 1 < first:
        raise Gone
    wanted = [segment for segment in kept if segment.last > after]
    tail = log.tail(LogPosition(max(after, log.sealed)))
    return _read(wanted, tail, after)


def _read(segments: list[SegmentInfo], tail: Iterable[Frame], after: LogPosition) -> Iterator[Past]:
    for segment in segments:
        yield from _of_segment(segment, after)
    expander = Expander()
    for frame in tail:
        yield from of_frame(frame, expander)


def of_frame(frame: Frame, expander: Expander) -> Iterator[Past]:
    """What one frame of the log holds."""
    header = frame.header
    if header.encoding is Encoding.DOCUMENTS:
        batch = decode_batch(bytes(frame.payload), "the tail of the log")
        yield Past(header.first, header.last, header.hlc_first, header.arrival_ms, batch)
        return
    expanded = expander.expand(header, frame.payload, "the tail of the log")
    yield from _in_order(list(numbered(expanded, header.arrival_ms, header.source)))


def numbered(expanded: Sequence[Rows], at_ms: int, source: str) -> Iterator[Past]:
    """The rows of one batch, table by table."""
    taken: Counter[int] = Counter()
    for rows in sorted(expanded, key=lambda each: each.table):
        numbers: Sequence[int] = [FIRST_ROW] * len(rows.positions)
        if len(expanded) > 1:
            numbers = [FIRST_ROW + taken[position] for position in rows.positions]
            taken.update(rows.positions)
        first, last = LogPosition(rows.positions[0]), LogPosition(rows.positions[-1])
        yield Past(first, last, rows.hlcs[0], at_ms, rows=rows, source=source, numbers=numbers)


def _in_order(tables: list[Past]) -> Iterator[Past]:
    """Rows of several tables, cut where another table's come between them."""
    if len(tables) < 2:
        yield from tables
        return
    places = sorted(
        (position, number, at, index)
        for at, past in enumerate(tables)
        for index, (position, number) in enumerate(
            zip(past.rows.positions if past.rows else (), past.numbers, strict=True)
        )
    )
    for at, run in itertools.groupby(places, key=operator.itemgetter(2)):
        past, indexes = tables[at], [index for *_, index in run]
        yield _part(past, slice(indexes[0], indexes[-1] + 1))


def _part(past: Past, part: slice) -> Past:
    rows = past.rows
    assert rows is not None
    cut = msgspec.structs.replace(
        rows,
        positions=rows.positions[part],
        hlcs=rows.hlcs[part],
        ops=rows.ops[part],
        keys=rows.keys[part],
        columns=rows.columns[part],
        errors=None if rows.errors is None else rows.errors[part],
    )
    first, last = LogPosition(cut.positions[0]), LogPosition(cut.positions[-1])
    return past._replace(first=first, last=last, hlc_first=cut.hlcs[0], rows=cut, numbers=past.numbers[part])


def _of_segment(segment: SegmentInfo, after: LogPosition) -> Iterator[Past]:
    try:
        table = read_rows(str(segment.path), _READ, with_errors=True)
    except FileNotFoundError as error:
        raise Gone from error
    pending: list[tuple[Metadata, dict[str, Any]]] = []
    position, number = NOWHERE, FIRST_ROW
    for row in _rows(table.sort_by([(name, "ascending") for name in ("position", "namespace", "table")])):
        number = number + 1 if row["position"] == position else FIRST_ROW
        position = row["position"]
        # Only the Mongo door has such sources: a row of another door may carry any metadata.
        is_ours = row["metadata"] is not None and row["source"].startswith(SOURCES)
        stated = _mongo(row["metadata"]) if is_ours else None
        if stated is None:
            if position > after:
                yield _foreign(row, number)
            continue
        pending.append((stated, row))
        if len(pending) == stated.count:
            # Whole, also where the place that was asked for lies within it.
            if position > after:
                yield _batch(pending)
            pending = []


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=_CHUNK_ROWS):
        yield from batch.to_pylist()


def _mongo(text: str) -> Metadata | None:
    try:
        return _stated(text).mongo
    except msgspec.MsgspecError:
        return None


def _foreign(row: dict[str, Any], number: int) -> Past:
    rows = Rows(
        table=TableName(row["namespace"], row["table"]),
        positions=[row["position"]],
        hlcs=[row["hlc"]],
        ops=[row["op"]],
        keys=[row["key"]],
        columns=[None if row["columns"] is None else row["columns"].encode()],
        before=None,
        sequences=None,
        ids=None,
        source_times_ms=None,
        metadata=None,
        errors=[row["error"]],
    )
    position = LogPosition(row["position"])
    return Past(position, position, row["hlc"], row["arrival_ms"], rows=rows, source=row["source"], numbers=[number])


def _batch(pending: list[tuple[Metadata, dict[str, Any]]]) -> Past:
    stated, row = pending[0]
    answers = {int(number): bytes_of(text) or b"" for number, text in (stated.answers or {}).items()}
    batch = DocumentBatch(
        operations=tuple(_operation(each, at) for each, at in pending),
        session=bytes_of(stated.session),
        number=stated.number,
        transaction=stated.transaction,
        answers=answers,
    )
    last = LogPosition(pending[-1][1]["position"])
    return Past(LogPosition(row["position"]), last, row["hlc"], row["arrival_ms"], batch)


def _operation(stated: Metadata, row: dict[str, Any]) -> DocumentOperation:
    database, collection = collection_of(TableName(row["namespace"], row["table"]))
    document = None if row["columns"] is None else bytes_of(_document(row["columns"]).document)
    return DocumentOperation(
        kind=Kind(stated.kind),
        database=database,
        collection=collection,
        key=row["key"],
        id=bytes_of(stated.id) or b"",
        document=document,
        description=bytes_of(stated.description),
        before=bytes_of(stated.before),
        silent=stated.silent,
        event=bytes_of(stated.event),
    )
