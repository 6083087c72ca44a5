"""Segments: the sealed, immutable Parquet files of the log. This module owns their schema, footer and names.

Rows are grouped by table (namespace, then table) and ordered by position within; every row group belongs to one table.
The footer says what a reader needs to plan without reading rows.
"""

import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.log.expand import Expander, Rows
from mainstem.log.frames import Buffer
from mainstem.log.shapes import Shape
from mainstem.model.batch import BatchHeader
from mainstem.model.errors import Corrupt
from mainstem.model.hlc import Hlc
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition

VERSION = 1
FOOTER_KEY = b"mainstem"
ROW_GROUP_ROWS = 131_072
# Rows wait as Python values up to so many per table, then as Arrow, which is several times smaller.
_CHUNK_ROWS = 16_384

_NAME = re.compile(r"(\d{20})-(\d{20})\.parquet")

SCHEMA = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("hlc", pa.int64(), nullable=False),
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("columns", pa.string()),
        pa.field("before", pa.string()),
        pa.field("source", pa.string(), nullable=False),
        pa.field("batch_sequence", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("source_time_ms", pa.int64()),
        pa.field("arrival_ms", pa.int64(), nullable=False),
        pa.field("metadata", pa.string()),
        pa.field("error", pa.string()),
    ]
)
# The others hardly repeat: a dictionary would cost time and be given up.
_DICTIONARY_COLUMNS = ["namespace", "table", "op", "source", "batch_sequence", "arrival_ms", "error"]


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
        self._expander = Expander()
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
                builder = self._tables[rows.table] = _TableBuilder(
                    rows.table, self._expander.shape(rows.table)
                )
            builder.add(header, rows)

    def write(self, path: Path) -> Footer:
        """Write the file. Making it durable is the caller's part."""
        footer = Footer(
            version=VERSION,
            first=self._first,
            last=self._last,
            arrival_min_ms=self._arrival_min_ms,
            arrival_max_ms=self._arrival_max_ms,
            hlc_last=self._hlc_last,
            tables={str(name): builder.summary() for name, builder in sorted(self._tables.items())},
        )
        with pq.ParquetWriter(
            path,
            SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=_DICTIONARY_COLUMNS,
            write_statistics=["position", "hlc", "namespace", "table", "arrival_ms", "key", "error"],
            store_schema=False,
        ) as writer:
            for name in sorted(self._tables):
                writer.write_table(self._tables.pop(name).arrow(), row_group_size=ROW_GROUP_ROWS)
            writer.add_key_value_metadata({FOOTER_KEY: msgspec.json.encode(footer)})
        return footer


class _TableBuilder:
    """The rows of one table."""

    def __init__(self, name: TableName, shape: Shape) -> None:
        self._name = name
        self._shape = shape
        self._first = LogPosition(0)
        self._last = LogPosition(0)
        self._count = self._errors = self._deletes = 0
        self._hlc_min = self._hlc_max = 0
        self._chunks: list[pa.RecordBatch] = []
        self._reset()

    def _reset(self) -> None:
        self._lists: dict[str, list[object]] = {
            field.name: [] for field in SCHEMA if field.name not in ("namespace", "table")
        }

    def add(self, header: BatchHeader, rows: Rows) -> None:
        size = len(rows.ops)
        low, high = min(rows.hlcs), max(rows.hlcs)
        if self._count == 0:
            self._first = LogPosition(rows.positions[0])
            self._hlc_min, self._hlc_max = low, high
        self._last = LogPosition(rows.positions[-1])
        self._hlc_min, self._hlc_max = min(self._hlc_min, low), max(self._hlc_max, high)
        self._count += size
        self._deletes += rows.ops.count("delete")
        if rows.errors is not None:
            self._errors += size - rows.errors.count(None)
        lists = self._lists
        lists["position"].extend(rows.positions)
        lists["hlc"].extend(rows.hlcs)
        lists["op"].extend(rows.ops)
        lists["key"].extend(rows.keys)
        lists["columns"].extend(rows.columns)
        lists["before"].extend(rows.before)
        lists["source"].extend([header.source] * size)
        lists["batch_sequence"].extend([header.sequence] * size)
        lists["sequence"].extend(rows.sequences)
        lists["id"].extend(rows.ids)
        lists["source_time_ms"].extend(rows.source_times_ms)
        lists["arrival_ms"].extend([header.arrival_ms] * size)
        lists["metadata"].extend(rows.metadata)
        lists["error"].extend(rows.errors or [None] * size)
        if len(lists["op"]) >= _CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        size = len(self._lists["op"])
        arrays = []
        for field in SCHEMA:
            if field.name == "namespace":
                arrays.append(pa.repeat(pa.scalar(self._name.namespace, pa.string()), size))
            elif field.name == "table":
                arrays.append(pa.repeat(pa.scalar(self._name.table, pa.string()), size))
            else:
                arrays.append(pa.array(self._lists[field.name], field.type))
        self._chunks.append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        self._reset()

    def summary(self) -> TableSlice:
        return TableSlice(
            first=self._first,
            last=self._last,
            count=self._count,
            errors=self._errors,
            hlc_min=Hlc(self._hlc_min),
            hlc_max=Hlc(self._hlc_max),
            deletes=self._deletes,
            columns=self._shape.columns,
            always=self._shape.always,
        )

    def arrow(self) -> pa.Table:
        if self._lists["op"]:
            self._flush()
        return pa.Table.from_batches(self._chunks, schema=SCHEMA)
