"""Sealed segments as the log writes and lists them. What is in one is said in `formats/segments`."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.formats.segments import (
    FOOTER_KEY,
    SCHEMA,
    TIME,
    VERSION,
    Footer,
    TableFooter,
    is_segment_name,
    read_footer,
)
from mainstem.log.frames import Buffer
from mainstem.log.seal.columns import ColumnBuilder
from mainstem.log.seal.expand import Expander, Rows
from mainstem.log.settings import TimesRule
from mainstem.model.batch import BatchHeader
from mainstem.model.change import SOURCE_TIME_MS_MAX, SOURCE_TIME_MS_MIN
from mainstem.model.errors import Corrupt
from mainstem.model.hlc import Hlc
from mainstem.model.names import TableName
from mainstem.model.position import UNNAMED, LogId, LogPosition

# So small that a segment of one large batch is read on several cores.
ROW_GROUP_ROWS = 16_384
# Rows are judged when there are so many.
_JUDGED_ROWS = 131_072

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
_REPEATED = ("namespace", "table", "op", "log")
# As it is handed to the writer, which need not look for repetitions in these.
_WRITTEN_SCHEMA = pa.schema(
    [field.with_type(pa.dictionary(pa.int32(), pa.string())) if field.name in _REPEATED else field for field in SCHEMA]
)
# The others hardly repeat: a dictionary would cost time and be given up.
_DICTIONARY_COLUMNS = ["namespace", "table", "op", "source", "batch_sequence", "arrival_ms", "time", "error", "log"]


class SegmentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed segment, as its name, size and footer tell."""

    path: Path
    bytes: int
    first: LogPosition
    last: LogPosition
    arrival_min_ms: int
    arrival_max_ms: int
    hlc_last: Hlc
    tables: dict[TableName, TableFooter]
    log: LogId = UNNAMED

    @property
    def changes(self) -> int:
        return self.last - self.first + 1


def read_info(path: Path) -> SegmentInfo:
    """Read a segment's footer and check it against the file's name."""
    footer = read_footer(path, path.name, str(path))
    return SegmentInfo(
        path=path,
        bytes=path.stat().st_size,
        first=footer.first,
        last=footer.last,
        arrival_min_ms=footer.arrival_min_ms,
        arrival_max_ms=footer.arrival_max_ms,
        hlc_last=Hlc(footer.hlc_last),
        tables=footer.by_table,
        log=footer.log,
    )


def list_segments(folder: Path) -> list[SegmentInfo]:
    """Every segment in order; a gap between two is `Corrupt`."""
    found = [read_info(path) for path in sorted(folder.iterdir()) if is_segment_name(path.name)]
    for before, after in pairwise(found):
        if after.first != before.last + 1:
            raise Corrupt(f"segment gap. expected={before.last + 1} got={after.first}", place=str(after.path))
    return found


class SegmentBuilder:
    """Collects the rows of batches, in log order, and writes them as one file."""

    def __init__(self, times: TimesRule | None = None) -> None:
        self._expander = Expander(judges_later=True, times=times)
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
                writer.write_table(self._tables.pop(name).arrow(log), row_group_size=ROW_GROUP_ROWS)
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
        self._columns = {name: ColumnBuilder(_WRITTEN_SCHEMA.field(name).type) for name in _BUILT_COLUMNS}
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

    def summary(self) -> TableFooter:
        self._judge()
        shape = self._expander.shape(self._name)
        return TableFooter(
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

    def arrow(self, log: LogId) -> pa.Table:
        arrays = {name: column.finish() for name, column in self._columns.items()}
        arrays["namespace"] = _constant(self._name.namespace, self._count)
        arrays["table"] = _constant(self._name.table, self._count)
        arrays["log"] = _constant(log, self._count)
        arrays["error"] = _sparse(self._errors, self._count)
        arrays["time"] = _as_time(arrays["arrival_ms"])
        arrays["source_time"] = _as_time(arrays["source_time_ms"])
        return pa.table([arrays[name] for name in _WRITTEN_SCHEMA.names], schema=_WRITTEN_SCHEMA)


def _add_texts(column: ColumnBuilder, values: list[str]) -> None:
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
        return pa.chunked_array([pa.nulls(len(milliseconds), TIME)])
    # Not above: it takes a tenth of a second, which the gateway's start can do without.
    import pyarrow.compute as pc

    bounds = pc.min_max(milliseconds).as_py()
    if bounds["min"] < SOURCE_TIME_MS_MIN or bounds["max"] > SOURCE_TIME_MS_MAX:
        fits = pc.and_(
            pc.greater_equal(milliseconds, SOURCE_TIME_MS_MIN), pc.less_equal(milliseconds, SOURCE_TIME_MS_MAX)
        )
        milliseconds = pc.if_else(fits, milliseconds, pa.scalar(None, pa.int64()))
    return pc.multiply(milliseconds, 1000).cast(TIME)
