"""Records as rows: how a record is written in a segment's JSON, and how it is read back from there.

`log/expand` writes these rows when the log is sealed; consumers behind the tail read them here.
"""

import base64
import datetime as dt
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.model.names import TableName
from mainstem.tables.kinds import TOPIC_COMPACT, TOPIC_JSON
from mainstem.wire.kafka.opening import Record

# Before the record's own columns, beside the fields of its value.
JSON_PREFIX = "_kafka_"
_STEP = 256
# Of the parts that are kept, together; one that is larger than a half of it is not.
_CACHED_BYTES_MAX = 96 * 1024 * 1024
_BOUNDS_MAX = 100_000


class _Row(msgspec.Struct, gc=False):
    offset: int
    timestamp: dt.datetime | None = None
    key: str | None = None
    value: str | None = None
    headers: list[tuple[str, str | None]] | None = None


class _JsonRow(msgspec.Struct, gc=False, rename=lambda name: JSON_PREFIX + name):
    """Beside the fields of its value. Not a subclass of the other: fields are renamed where they stand alone."""

    offset: int
    timestamp: dt.datetime | None = None
    key: str | None = None
    value: str | None = None
    headers: list[tuple[str, str | None]] | None = None


_rows = msgspec.json.Decoder(_Row)
_json_rows = msgspec.json.Decoder(_JsonRow)


class SegmentFile(NamedTuple):
    """A segment as its reader needs it: where it is, and of which kind the table is (`tables/kinds`)."""

    path: str
    kind: str


class _Part(NamedTuple):
    """One partition's rows of one segment, in the order of their offsets."""

    offsets: npt.NDArray[np.int64]
    columns: pa.ChunkedArray
    is_json: bool


class SegmentRecords:
    """Records of sealed segments, by partition and offset. Called in threads."""

    def __init__(self) -> None:
        self._cache: OrderedDict[_Key, _Part] = OrderedDict()
        self._cached_bytes = 0
        # The last offset of every part that was ever read: a consumer on its way does not read those behind it again.
        self._lasts: OrderedDict[_Key, int] = OrderedDict()
        self._lock = Lock()

    def records(
        self,
        segments: Sequence[SegmentFile],
        table: TableName,
        partition: int,
        offset: int,
        before: int,
        bytes_max: int,
        *,
        is_sorted: bool = True,
    ) -> list[Record]:
        """The first records of a partition from an offset on, in order, of about so many bytes. Raises
        FileNotFoundError where a segment was dropped meanwhile. Not `is_sorted`: records of transactions are where
        those were committed, behind others."""
        if not is_sorted:
            parts = [self._part(segment, table, partition) for segment in segments]
            return _merged(parts, offset, before, bytes_max)
        found: list[Record] = []
        size = 0
        for segment in segments:
            if self._lasts.get((segment.path, table, partition), offset) < offset:
                continue
            part = self._part(segment, table, partition)
            start, end = np.searchsorted(part.offsets, [offset, before])
            decode = _json_rows.decode if part.is_json else _rows.decode
            for at in range(int(start), int(end), _STEP):
                for text in part.columns.slice(at, min(_STEP, int(end) - at)).to_pylist():
                    found.append(_record(decode(text)))
                    size += len(text)
                # As JSON they are about half as large again.
                if size > bytes_max * 3 // 2:
                    return found
        return found

    def _part(self, segment: SegmentFile, table: TableName, partition: int) -> _Part:
        key = (segment.path, table, partition)
        with self._lock:
            known = self._cache.get(key)
            if known is not None:
                self._cache.move_to_end(key)
                return known
        part = _read(segment, table, partition)
        with self._lock:
            self._lasts[key] = int(part.offsets[-1]) if len(part.offsets) else -1
            while len(self._lasts) > _BOUNDS_MAX:
                self._lasts.popitem(last=False)
            if key not in self._cache and part.columns.nbytes <= _CACHED_BYTES_MAX // 2:
                self._cache[key] = part
                self._cached_bytes += part.columns.nbytes
                while self._cached_bytes > _CACHED_BYTES_MAX:
                    self._cached_bytes -= self._cache.popitem(last=False)[1].columns.nbytes
        return part


_Key = tuple[str, TableName, int]


def _read(segment: SegmentFile, table: TableName, partition: int) -> _Part:
    import pyarrow.compute as pc

    kind = segment.kind
    # By the key's text, which begins with the partition: "0" is the character behind "/".
    ours = (
        (pc.field("namespace") == table.namespace)
        & (pc.field("table") == table.table)
        & (pc.field("key") >= f"{partition}/")
        & (pc.field("key") < f"{partition}0")
        # A compacted topic's record without a value has no row.
        & pc.field("columns").is_valid()
    )
    names = ["key", "columns"]
    if kind == TOPIC_JSON:
        # Those that do not fit are records all the same.
        names += ["metadata", "error"]
    else:
        ours &= pc.field("error").is_null()
    with pa.OSFile(segment.path) as source:
        rows = pq.read_table(source, columns=names, filters=ours)
    if kind == TOPIC_JSON:
        texts, is_record = letter_texts(rows["columns"], rows["metadata"])
        fits = rows["error"].is_null()
        texts = pc.if_else(fits, rows["columns"], texts)
        rows = pa.table({"key": rows["key"], "columns": texts}).filter(pc.or_(fits, is_record))
    if kind == TOPIC_COMPACT:
        offsets = np.array([_rows.decode(text).offset for text in rows["columns"].to_pylist()], np.int64)
    else:
        texts = pc.utf8_slice_codeunits(rows["key"], len(f"{partition}/"))
        offsets = texts.cast(pa.int64()).to_numpy().astype(np.int64)
    columns = rows["columns"]
    if np.any(offsets[1:] < offsets[:-1]):
        # Records of a transaction are where it was committed, behind others with higher offsets. Who looks for one
        # halves its way: in any other order it would pass records by.
        order = np.argsort(offsets, kind="stable")
        offsets, columns = offsets[order], columns.take(pa.array(order))
    return _Part(offsets, columns, kind == TOPIC_JSON)


def letter_texts(columns: pa.ChunkedArray, metadata: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """The records of dead letters as JSON (see `json_record`), and which of them are one: a batch that could not be
    opened is a letter, too. What is no JSON object is told by the metadata, what only does not fit tells it itself."""
    import pyarrow.compute as pc

    texts = pc.coalesce(metadata, columns)
    return texts, pc.fill_null(pc.match_substring(texts, f'"{JSON_PREFIX}offset":'), False)


def json_record(text: str) -> Record:
    """A record from the columns of its row."""
    return _record(_json_rows.decode(text))


def _merged(parts: Sequence[_Part], offset: int, before: int, bytes_max: int) -> list[Record]:
    """Records of several segments by their offsets, wherever they are."""
    places = sorted(
        (int(part.offsets[at]), number, at)
        for number, part in enumerate(parts)
        for at in range(*map(int, np.searchsorted(part.offsets, [offset, before])))
    )
    found: list[Record] = []
    size = 0
    for _, number, at in places:
        part = parts[number]
        text = part.columns[at].as_py()
        found.append(_record((_json_rows.decode if part.is_json else _rows.decode)(text)))
        size += len(text)
        if size > bytes_max * 3 // 2:
            break
    return found


def _record(row: _Row | _JsonRow) -> Record:
    headers = tuple((name, _plain(value)) for name, value in row.headers or ())
    # Whole milliseconds: a fraction would come from a float.
    time_ms = -1 if row.timestamp is None else round(row.timestamp.timestamp() * 1000)
    return Record(row.offset, time_ms, _plain(row.key), _plain(row.value), headers)


def _plain(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
