"""Segments: the sealed, immutable Parquet files of the log. This module owns their schema, footer and names.

Rows are grouped by table (namespace, then table) and ordered by position within; every row group belongs to one table.
The footer says what a reader needs to plan without reading rows.

The columns have the Iceberg field ids of a history table's: a segment with one table alone, and without errors, can
become a data file of its history as it is. `time` and `source_time` are there for that.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.log.expand import Expander, Rows
from mainstem.log.frames import Buffer
from mainstem.log.shapes import LONG_MAX, LONG_MIN
from mainstem.model.batch import BatchHeader
from mainstem.model.change import SOURCE_TIME_MS_MAX, SOURCE_TIME_MS_MIN
from mainstem.model.errors import Corrupt
from mainstem.model.hlc import Hlc
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition

VERSION = 1
FOOTER_KEY = b"mainstem"
# So small that a segment of one large batch is read on several cores.
ROW_GROUP_ROWS = 16_384
# A batch with so many rows of a table becomes Arrow at once; fewer wait until they are so many together.
_CHUNK_ROWS_MIN = 64
_CHUNK_ROWS = 16_384
# Rows are judged when there are so many.
_JUDGED_ROWS = 131_072

_NAME = re.compile(r"(\d{20})-(\d{20})\.parquet")

_TIME = pa.timestamp("us", "UTC")
# Field ids from here on are no history's.
_OTHER_ID = 1_001


def _field(name: str, kind: pa.DataType, field_id: int, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"PARQUET:field_id": str(field_id)})


SCHEMA = pa.schema(
    [
        _field("position", pa.int64(), 1, nullable=False),
        _field("hlc", pa.int64(), 2, nullable=False),
        _field("namespace", pa.string(), _OTHER_ID, nullable=False),
        _field("table", pa.string(), _OTHER_ID + 1, nullable=False),
        _field("op", pa.string(), 3, nullable=False),
        _field("key", pa.string(), 4, nullable=False),
        _field("columns", pa.string(), 5),
        _field("before", pa.string(), 6),
        _field("source", pa.string(), 7, nullable=False),
        _field("batch_sequence", pa.int64(), 8, nullable=False),
        _field("sequence", pa.int64(), 9),
        _field("id", pa.string(), 10),
        _field("source_time_ms", pa.int64(), _OTHER_ID + 2),
        _field("arrival_ms", pa.int64(), _OTHER_ID + 3, nullable=False),
        _field("metadata", pa.string(), 13),
        _field("error", pa.string(), _OTHER_ID + 4),
        _field("time", _TIME, 11, nullable=False),
        _field("source_time", _TIME, 12),
    ]
)
# Without the times, which are made of others for all rows at once.
_CHUNK_SCHEMA = pa.schema([field for field in SCHEMA if field.type != _TIME])
# The others hardly repeat: a dictionary would cost time and be given up.
_DICTIONARY_COLUMNS = ["namespace", "table", "op", "source", "batch_sequence", "arrival_ms", "time", "error"]


class TableSlice(msgspec.Struct, frozen=True, kw_only=True):
    """What a segment holds of one table."""

    first: LogPosition
    last: LogPosition
    count: int
    errors: int
    hlc_min: Hlc
    hlc_max: Hlc
    deletes: int
    # The JSON types seen per column, and the columns that every row with columns has; rows without error only.
    columns: dict[str, list[str]]
    always: list[str]
    # Whether clocks strictly grow with positions. Older segments do not tell.
    ordered: bool | None = None


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """The key-value metadata of a segment."""

    version: int
    first: LogPosition
    last: LogPosition
    arrival_min_ms: int
    arrival_max_ms: int
    # The highest clock that the log issued for the batches in here.
    hlc_last: Hlc
    tables: dict[str, TableSlice]
    # Whether the next segment was about to be made as well: a reader may want to take both at once.
    more: bool = False


class SegmentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed segment, as its name, size and footer tell."""

    path: Path
    bytes: int
    first: LogPosition
    last: LogPosition
    arrival_min_ms: int
    arrival_max_ms: int
    hlc_last: Hlc
    tables: dict[TableName, TableSlice]

    @property
    def changes(self) -> int:
        return self.last - self.first + 1


def segment_name(first: LogPosition, last: LogPosition) -> str:
    """The file's name says which positions are in it."""
    return f"{first:020d}-{last:020d}.parquet"


def read_info(path: Path) -> SegmentInfo:
    """Read a segment's footer and check it against the file's name."""
    try:
        metadata = pq.read_metadata(path).metadata or {}
        footer = msgspec.json.decode(metadata[FOOTER_KEY], type=Footer)
    except (pa.ArrowException, KeyError, msgspec.MsgspecError) as error:
        raise Corrupt(f"segment footer cannot be read. got={error}", place=str(path)) from error
    if footer.version != VERSION:
        raise Corrupt(f"segment version. expected={VERSION} got={footer.version}", place=str(path))
    if path.name != (expected := segment_name(footer.first, footer.last)):
        raise Corrupt(f"segment name. expected={expected} got={path.name}", place=str(path))
    return SegmentInfo(
        path=path,
        bytes=path.stat().st_size,
        first=footer.first,
        last=footer.last,
        arrival_min_ms=footer.arrival_min_ms,
        arrival_max_ms=footer.arrival_max_ms,
        hlc_last=footer.hlc_last,
        tables={_split(text): part for text, part in footer.tables.items()},
    )


def list_segments(folder: Path) -> list[SegmentInfo]:
    """Every segment in order; a gap between two is `Corrupt`."""
    found = [read_info(path) for path in sorted(folder.iterdir()) if _NAME.fullmatch(path.name)]
    for before, after in pairwise(found):
        if after.first != before.last + 1:
            raise Corrupt(f"segment gap. expected={before.last + 1} got={after.first}", place=str(after.path))
    return found


def _split(text: str) -> TableName:
    namespace, _, table = text.rpartition(".")
    return TableName(namespace, table)


class SegmentBuilder:
    """Collects the rows of batches, in log order, and writes them as one file."""

    def __init__(self) -> None:
        self._expander = Expander(judges_later=True)
        self._tables: dict[TableName, _TableBuilder] = {}
        self._first = self._last = LogPosition(0)
        self._arrival_min_ms = self._arrival_max_ms = 0
        self._hlc_last = Hlc(0)

    def add(self, header: BatchHeader, payload: Buffer, place: str) -> None:
        """Take one batch. `place` says where it stands, should it not be whole."""
        expanded = self._expander.expand(header, payload, place)
        if not self._first:
            self._first = header.first
            self._arrival_min_ms = self._arrival_max_ms = header.arrival_ms
        self._last = header.last
        self._arrival_min_ms = min(self._arrival_min_ms, header.arrival_ms)
        self._arrival_max_ms = max(self._arrival_max_ms, header.arrival_ms)
        self._hlc_last = max(self._hlc_last, Hlc(header.hlc_first + header.count - 1))
        for rows in expanded:
            builder = self._tables.get(rows.table)
            if builder is None:
                builder = self._tables[rows.table] = _TableBuilder(rows.table, self._expander)
            builder.add(header, rows)

    def write(self, path: Path, *, more: bool = False) -> Footer:
        """Write the file. Making it durable is the caller's part."""
        footer = Footer(
            version=VERSION,
            first=self._first,
            last=self._last,
            arrival_min_ms=self._arrival_min_ms,
            arrival_max_ms=self._arrival_max_ms,
            hlc_last=self._hlc_last,
            tables={str(name): builder.summary() for name, builder in sorted(self._tables.items())},
            more=more,
        )
        with pq.ParquetWriter(
            path,
            SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=_DICTIONARY_COLUMNS,
            write_statistics=["position", "hlc", "namespace", "table", "arrival_ms", "error"],
            store_schema=False,
        ) as writer:
            for name in sorted(self._tables):
                writer.write_table(self._tables.pop(name).arrow(), row_group_size=ROW_GROUP_ROWS)
            writer.add_key_value_metadata({FOOTER_KEY: msgspec.json.encode(footer)})
        return footer


class _TableBuilder:
    """The rows of one table, as Arrow; small batches wait as lists until they are worth a chunk."""

    def __init__(self, name: TableName, expander: Expander) -> None:
        self._name = name
        self._expander = expander
        self._first = LogPosition(0)
        self._last = LogPosition(0)
        self._count = self._errors = self._deletes = 0
        self._hlc_min = self._hlc_max = 0
        self._ordered = True
        self._chunks: list[pa.RecordBatch] = []
        self._waiting: dict[str, list[Any]] = {}
        self._waiting_rows = 0
        # Which chunks are still to be judged, and how many rows they have.
        self._unjudged: list[int] = []
        self._unjudged_rows = 0

    def add(self, header: BatchHeader, rows: Rows) -> None:
        size = len(rows.ops)
        self._count_in(rows, size)
        if size >= _CHUNK_ROWS_MIN:
            self._flush()
            self._chunks.append(self._chunk(_arrays(header, rows, size), size))
            if rows.unjudged is not None:
                self._unjudged.append(len(self._chunks) - 1)
                self._unjudged_rows += size
            if self._unjudged_rows >= _JUDGED_ROWS:
                self._judge()
            return
        for name, values in _lists(header, rows, size).items():
            self._waiting.setdefault(name, []).extend(values)
        self._waiting_rows += size
        if self._waiting_rows >= _CHUNK_ROWS:
            self._flush()

    def _count_in(self, rows: Rows, size: int) -> None:
        hlcs = rows.hlcs
        low, high = (hlcs[0], hlcs[-1]) if isinstance(hlcs, range) else (min(hlcs), max(hlcs))
        if self._count == 0:
            self._first = LogPosition(rows.positions[0])
            self._hlc_min, self._hlc_max = low, high
            self._ordered = True
        elif hlcs[0] <= self._hlc_max:
            self._ordered = False
        if not isinstance(hlcs, range):
            self._ordered = self._ordered and all(before < after for before, after in pairwise(hlcs))
        self._last = LogPosition(rows.positions[-1])
        self._hlc_min, self._hlc_max = min(self._hlc_min, low), max(self._hlc_max, high)
        self._count += size
        self._deletes += rows.ops.count("delete")
        if rows.errors is not None:
            self._errors += size - rows.errors.count(None)

    def _flush(self) -> None:
        if self._waiting_rows:
            waiting, size = self._waiting, self._waiting_rows
            self._waiting, self._waiting_rows = {}, 0
            self._chunks.append(self._chunk({name: _array(name, values) for name, values in waiting.items()}, size))

    def _chunk(self, arrays: dict[str, pa.Array], size: int) -> pa.RecordBatch:
        arrays["namespace"] = pa.repeat(pa.scalar(self._name.namespace, pa.string()), size)
        arrays["table"] = pa.repeat(pa.scalar(self._name.table, pa.string()), size)
        return pa.RecordBatch.from_arrays([arrays[name] for name in _CHUNK_SCHEMA.names], schema=_CHUNK_SCHEMA)

    def _judge(self) -> None:
        """Let the rows be judged that came without a judgement since the last time."""
        numbers, self._unjudged, self._unjudged_rows = self._unjudged, [], 0
        if not numbers:
            return
        columns = pa.concat_arrays([self._chunks[number].column("columns") for number in numbers])
        errors = self._expander.judge(self._name, columns)
        self._errors += len(errors)
        offset = 0
        for number in numbers if errors else ():
            chunk = self._chunks[number]
            reasons = [errors.get(offset + index) for index in range(len(chunk))]
            self._chunks[number] = chunk.set_column(
                _CHUNK_SCHEMA.names.index("error"), SCHEMA.field("error"), pa.array(reasons, pa.string())
            )
            offset += len(chunk)

    def summary(self) -> TableSlice:
        self._flush()
        self._judge()
        shape = self._expander.shape(self._name)
        return TableSlice(
            first=self._first,
            last=self._last,
            count=self._count,
            errors=self._errors,
            hlc_min=Hlc(self._hlc_min),
            hlc_max=Hlc(self._hlc_max),
            deletes=self._deletes,
            columns=shape.columns,
            always=shape.always,
            ordered=self._ordered,
        )

    def arrow(self) -> pa.Table:
        self._flush()
        table = pa.Table.from_batches(self._chunks, schema=_CHUNK_SCHEMA)
        for name, source in (("time", "arrival_ms"), ("source_time", "source_time_ms")):
            table = table.append_column(SCHEMA.field(name), _as_time(table[source]))
        return table


def _lists(header: BatchHeader, rows: Rows, size: int) -> dict[str, Sequence[Any]]:
    """The columns of a few rows; `namespace` and `table` are added with the chunk."""
    return {
        "position": rows.positions,
        "hlc": rows.hlcs,
        "op": rows.ops,
        "key": rows.keys,
        "columns": rows.columns,
        "before": rows.before,
        "source": [header.source] * size,
        "batch_sequence": [header.sequence] * size,
        "sequence": rows.sequences,
        "id": rows.ids or [None] * size,
        "source_time_ms": rows.source_times_ms,
        "arrival_ms": [header.arrival_ms] * size,
        "metadata": rows.metadata,
        "error": rows.errors or [None] * size,
    }


def _arrays(header: BatchHeader, rows: Rows, size: int) -> dict[str, pa.Array]:
    """The columns of many rows: what is the same in all of them, or counts up, is not spelt out in Python."""
    return {
        "position": _array("position", rows.positions),
        "hlc": _array("hlc", rows.hlcs),
        "op": _text_array(rows.ops),
        "key": _array("key", rows.keys),
        "columns": _array("columns", rows.columns) if rows.unjudged is None else rows.unjudged,
        "before": _text_array(rows.before),
        "source": pa.repeat(pa.scalar(header.source, pa.string()), size),
        "batch_sequence": pa.repeat(pa.scalar(header.sequence, pa.int64()), size),
        "sequence": _array("sequence", rows.sequences),
        "id": pa.nulls(size, pa.string()) if rows.ids is None else _array("id", rows.ids),
        "source_time_ms": _array("source_time_ms", rows.source_times_ms),
        "arrival_ms": pa.repeat(pa.scalar(header.arrival_ms, pa.int64()), size),
        "metadata": _text_array(rows.metadata),
        "error": pa.nulls(size, pa.string()) if rows.errors is None else _array("error", rows.errors),
    }


def _as_time(milliseconds: pa.ChunkedArray) -> pa.ChunkedArray:
    """As instants; null where a source's time is out of all bounds."""
    if milliseconds.null_count == len(milliseconds):
        return pa.chunked_array([pa.nulls(len(milliseconds), _TIME)])
    # Not above: it takes a tenth of a second, which the gateway's start can do without.
    import pyarrow.compute as pc

    bounds = pc.min_max(milliseconds).as_py()
    if bounds["min"] < SOURCE_TIME_MS_MIN or bounds["max"] > SOURCE_TIME_MS_MAX:
        fits = pc.and_(
            pc.greater_equal(milliseconds, SOURCE_TIME_MS_MIN), pc.less_equal(milliseconds, SOURCE_TIME_MS_MAX)
        )
        milliseconds = pc.if_else(fits, milliseconds, pa.scalar(None, pa.int64()))
    return pc.multiply(milliseconds, 1000).cast(_TIME)


def _text_array(values: list[Any]) -> pa.Array:
    """Texts that are mostly one and the same, or not there."""
    if values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0], pa.string()), len(values))
    return pa.array(values, pa.string())


def _array(name: str, values: Sequence[Any]) -> pa.Array:
    if isinstance(values, range):
        return pa.arange(values.start, values.stop)
    kind = SCHEMA.field(name).type
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, OverflowError):
        if kind != pa.int64():
            raise
        # A number of the client's that the column has no room for, or a fraction of a millisecond.
        return pa.array([_int64_or_none(value) for value in values], kind)


def _int64_or_none(value: int | float | None) -> int | None:
    return int(value) if value is not None and LONG_MIN <= value <= LONG_MAX else None
