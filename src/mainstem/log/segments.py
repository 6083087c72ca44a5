"""Segments: the sealed, immutable Parquet files of the log. This module owns their schema, footer and names.

Rows are grouped by table (namespace, then table) and ordered by position within; every row group belongs to one table.
The footer says what a reader needs to plan without reading rows.

The columns have the Iceberg field ids of a history table's: a segment with one table alone, and without errors, can
become a data file of its history as it is. `time` and `source_time` are there for that.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.log.columns import Column
from mainstem.log.expand import Expander, Rows
from mainstem.log.frames import Buffer
from mainstem.model.batch import BatchHeader
from mainstem.model.change import SOURCE_TIME_MS_MAX, SOURCE_TIME_MS_MIN
from mainstem.model.errors import Corrupt
from mainstem.model.hlc import Hlc
from mainstem.model.names import TableName
from mainstem.model.position import UNNAMED, LogId, LogPosition

VERSION = 1
FOOTER_KEY = b"mainstem"
# So small that a segment of one large batch is read on several cores.
ROW_GROUP_ROWS = 16_384
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
# What is made row by row; the others are made of these, or are the same in all rows of a table.
_BUILT_COLUMNS = [
    "position",
    "hlc",
    "op",
    "key",
    "columns",
    "before",
    "source",
    "batch_sequence",
    "sequence",
    "id",
    "source_time_ms",
    "arrival_ms",
    "metadata",
]
# As it is handed to the writer, which need not look for repetitions in these.
_WRITTEN_SCHEMA = pa.schema(
    [
        field.with_type(pa.dictionary(pa.int32(), pa.string())) if field.name in ("namespace", "table", "op") else field
        for field in SCHEMA
    ]
)
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
    # Of which kind the table is, where that settles how it is stored (`tables/kinds`).
    kind: str = ""


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
    # The log that issued the positions: one and the same for all of them. Older segments have none.
    log: LogId = UNNAMED


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
    log: LogId = UNNAMED

    @property
    def changes(self) -> int:
        return self.last - self.first + 1


def segment_name(first: LogPosition, last: LogPosition) -> str:
    """The file's name says which positions are in it."""
    return f"{first:020d}-{last:020d}.parquet"


def is_segment_name(name: str) -> bool:
    """Whether a file's name is a segment's."""
    return _NAME.fullmatch(name) is not None


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
        log=footer.log,
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

    def write(self, path: Path, *, more: bool = False, log: LogId = UNNAMED) -> Footer:
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
            log=log,
        )
        with pq.ParquetWriter(
            path,
            _WRITTEN_SCHEMA,
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
    """The rows of one table, column by column."""

    def __init__(self, name: TableName, expander: Expander) -> None:
        self._name = name
        self._expander = expander
        self._first = LogPosition(0)
        self._last = LogPosition(0)
        self._count = self._deletes = 0
        self._hlc_min = self._hlc_max = 0
        self._ordered = True
        self._kind = ""
        self._columns = {name: Column(_WRITTEN_SCHEMA.field(name).type) for name in _BUILT_COLUMNS}
        # Why rows do not fit, by their number; and the texts of those that are still to be judged, by their first's.
        self._errors: dict[int, str] = {}
        self._unjudged: list[tuple[int, pa.StringArray]] = []
        self._unjudged_rows = 0

    def add(self, header: BatchHeader, rows: Rows) -> None:
        size = len(rows.ops)
        if rows.errors is not None:
            self._errors |= {self._count + index: why for index, why in enumerate(rows.errors) if why is not None}
        if rows.unjudged is not None:
            self._unjudged.append((self._count, rows.unjudged))
            self._unjudged_rows += size
        self._kind = rows.kind or self._kind
        self._count_in(rows, size)
        columns = self._columns
        columns["position"].extend(rows.positions)
        columns["hlc"].extend(rows.hlcs)
        _add_texts(columns["op"], rows.ops)
        self._add_rows(rows)
        columns["source"].repeat(header.source, size)
        columns["batch_sequence"].repeat(header.sequence, size)
        columns["arrival_ms"].repeat(header.arrival_ms, size)
        for column, values in (
            (columns["before"], rows.before),
            (columns["sequence"], rows.sequences),
            (columns["id"], rows.ids),
            (columns["source_time_ms"], rows.source_times_ms),
            (columns["metadata"], rows.metadata),
        ):
            if values is None:
                column.repeat(None, size)
            else:
                column.extend(values)
        if self._unjudged_rows >= _JUDGED_ROWS:
            self._judge()

    def _add_rows(self, rows: Rows) -> None:
        """Keys and columns, in whichever form they came."""
        keys, columns = self._columns["key"], self._columns["columns"]
        if rows.arrow is not None:
            keys.append(rows.arrow[0])
            columns.append(rows.arrow[1])
            return
        keys.extend(rows.keys)
        if rows.unjudged is None:
            columns.extend(rows.columns)
        else:
            columns.append(rows.unjudged)

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

    def _judge(self) -> None:
        """Let the rows be judged that came without a judgement since the last time."""
        unjudged, self._unjudged, self._unjudged_rows = self._unjudged, [], 0
        if not unjudged:
            return
        errors = self._expander.judge(self._name, pa.concat_arrays([texts for _, texts in unjudged]))
        if not errors:
            return
        numbers = [first + index for first, texts in unjudged for index in range(len(texts))]
        self._errors |= {numbers[index]: why for index, why in errors.items()}

    def summary(self) -> TableSlice:
        self._judge()
        shape = self._expander.shape(self._name)
        return TableSlice(
            first=self._first,
            last=self._last,
            count=self._count,
            errors=len(self._errors),
            hlc_min=Hlc(self._hlc_min),
            hlc_max=Hlc(self._hlc_max),
            deletes=self._deletes,
            columns=shape.columns,
            always=shape.always,
            ordered=self._ordered,
            kind=self._kind,
        )

    def arrow(self) -> pa.Table:
        arrays = {name: column.finish() for name, column in self._columns.items()}
        arrays["namespace"] = _constant(self._name.namespace, self._count)
        arrays["table"] = _constant(self._name.table, self._count)
        arrays["error"] = _sparse(self._errors, self._count)
        arrays["time"] = _as_time(arrays["arrival_ms"])
        arrays["source_time"] = _as_time(arrays["source_time_ms"])
        return pa.table([arrays[name] for name in _WRITTEN_SCHEMA.names], schema=_WRITTEN_SCHEMA)


def _add_texts(column: Column, values: list[str]) -> None:
    """Texts that are mostly one and the same."""
    if values.count(values[0]) == len(values):
        column.repeat(values[0], len(values))
    else:
        column.extend(values)


def _constant(text: str, size: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), size), pa.array([text], pa.string()))


def _sparse(values: Mapping[int, str], size: int) -> pa.Array:
    """Texts that few rows have."""
    if not values:
        return pa.nulls(size, pa.string())
    return pa.array([values.get(index) for index in range(size)], pa.string())


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
