"""Records as rows: how a record is written in a segment's JSON, and how it is read back from there.

`log/seal/expand` writes these rows when the log is sealed; consumers behind the tail read them here.
"""

import base64
import datetime as dt
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.model.names import TableName
from mainstem.tables.kinds import TOPIC, TOPIC_COMPACT, TOPIC_JSON
from mainstem.wire.kafka.opening import Record

# Before the record's own columns, beside the fields of its value.
JSON_PREFIX = "_kafka_"
_STEP = 256
# What a process that reads keeps: where rows are, and the rows of row groups.
_PARTS_BYTES_MAX = 32 * 1024 * 1024
_TEXTS_BYTES_MAX = 96 * 1024 * 1024
_LASTS_MAX = 100_000


class _Sized(Protocol):
    @property
    def nbytes(self) -> int:
        """How large it is."""


K = TypeVar("K")
V = TypeVar("V", bound=_Sized)


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
    """Where one partition's rows are in one segment, in the order of their offsets: row group, and row in it."""

    offsets: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        return self.offsets.nbytes + self.groups.nbytes + self.rows.nbytes


class SegmentRecords:
    """Records of sealed segments, by partition and offset. Called in one thread.

    A consumer comes again for its next page: where a partition's rows are is kept, and so are the row groups that were
    read last, which all partitions of a topic share.
    """

    def __init__(self) -> None:
        self._parts = _Kept[tuple[str, TableName, int], _Part](_PARTS_BYTES_MAX)
        self._texts = _Kept[tuple[str, int], pa.Array](_TEXTS_BYTES_MAX)
        # The last offset of every part that was ever read: a consumer on its way does not read those behind it again.
        self._lasts: OrderedDict[tuple[str, TableName, int], int] = OrderedDict()

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
            return self._merged(segments, table, partition, offset, before, bytes_max)
        found: list[Record] = []
        size = 0
        for segment in segments:
            if self._lasts.get((segment.path, table, partition), offset) < offset:
                continue
            part = self._part(segment, table, partition)
            start, end = (int(at) for at in np.searchsorted(part.offsets, [offset, before]))
            decode = _decoder(segment)
            for at in range(start, end, _STEP):
                for text in self._texts_of(segment, part, at, min(end, at + _STEP)):
                    found.append(_record(decode(text)))
                    size += len(text)
                # As JSON they are about half as large again.
                if size > bytes_max * 3 // 2:
                    return found
        return found

    def _merged(
        self,
        segments: Sequence[SegmentFile],
        table: TableName,
        partition: int,
        offset: int,
        before: int,
        bytes_max: int,
    ) -> list[Record]:
        """Records of several segments by their offsets, wherever they are."""
        parts = [self._part(segment, table, partition) for segment in segments]
        places = sorted(
            (int(part.offsets[at]), number, at)
            for number, part in enumerate(parts)
            for at in range(*map(int, np.searchsorted(part.offsets, [offset, before])))
        )
        found: list[Record] = []
        size = 0
        for _, number, at in places:
            (text,) = self._texts_of(segments[number], parts[number], at, at + 1)
            found.append(_record(_decoder(segments[number])(text)))
            size += len(text)
            if size > bytes_max * 3 // 2:
                break
        return found

    def _texts_of(self, segment: SegmentFile, part: _Part, start: int, end: int) -> Iterator[str]:
        """The columns of some rows, in order."""
        while start < end:
            group = int(part.groups[start])
            # As many as are in the same row group.
            same = start + int(np.argmax(np.append(part.groups[start:end] != group, True)))
            texts = self._group(segment, group).take(pa.array(part.rows[start:same]))
            yield from texts.to_pylist()
            start = same

    def _group(self, segment: SegmentFile, group: int) -> pa.Array:
        key = (segment.path, group)
        known = self._texts.get(key)
        if known is None:
            # Of a JSON topic those that do not fit are records all the same.
            names = ["columns", "metadata", "error"] if segment.kind == TOPIC_JSON else ["columns"]
            with pa.OSFile(segment.path) as source:
                read = pq.ParquetFile(source).read_row_group(group, columns=names)
            known = (_json_texts(read) if segment.kind == TOPIC_JSON else read["columns"]).combine_chunks()
            known = known.chunk(0) if isinstance(known, pa.ChunkedArray) else known
            self._texts.put(key, known)
        return known

    def _part(self, segment: SegmentFile, table: TableName, partition: int) -> _Part:
        key = (segment.path, table, partition)
        known = self._parts.get(key)
        if known is None:
            known = self._find(segment, table, partition)
            self._parts.put(key, known)
            self._lasts[key] = int(known.offsets[-1]) if len(known.offsets) else -1
            while len(self._lasts) > _LASTS_MAX:
                self._lasts.popitem(last=False)
        return known

    def _find(self, segment: SegmentFile, table: TableName, partition: int) -> _Part:
        found: list[tuple[npt.NDArray[np.int64], int, npt.NDArray[np.int64]]] = []
        with pa.OSFile(segment.path) as source:
            file = pq.ParquetFile(source)
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, columns=["namespace", "table"])
                if not _has(rows, table):
                    continue
                rows = file.read_row_group(group, columns=["namespace", "table", "key", "error"])
                own = np.flatnonzero(_is_of(rows, table, partition, with_errors=segment.kind == TOPIC_JSON))
                if segment.kind != TOPIC:
                    # What has no text is no record: one without a value of a compacted topic, a batch that could not
                    # be opened.
                    texts = self._group(segment, group).take(pa.array(own))
                    own = own[texts.is_valid().to_numpy(zero_copy_only=False)]
                if segment.kind == TOPIC_COMPACT:
                    # By key: only the row itself says which offset it has.
                    decoded = [_rows.decode(text).offset for text in texts.drop_null().to_pylist()]
                    offsets = np.array(decoded, np.int64)
                else:
                    offsets = _offsets(rows["key"].take(pa.array(own)), partition)
                found.append((offsets, group, own))
        return _sorted_part(found)


class _Kept(Generic[K, V]):
    """The values that were asked for last, up to a size in bytes; at least one."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
        return found

    def put(self, key: K, value: V) -> None:
        self._values[key] = value
        self._bytes += value.nbytes
        while self._bytes > self._bytes_max and len(self._values) > 1:
            self._bytes -= self._values.popitem(last=False)[1].nbytes


def _decoder(segment: SegmentFile) -> Callable[[str], _Row | _JsonRow]:
    return _json_rows.decode if segment.kind == TOPIC_JSON else _rows.decode


def _has(rows: pa.Table, table: TableName) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(_is_table(rows, table)).as_py())


def _is_table(rows: pa.Table, table: TableName) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.and_(pc.equal(rows["namespace"], table.namespace), pc.equal(rows["table"], table.table))


def letter_texts(columns: pa.ChunkedArray, metadata: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """The records of dead letters as JSON (see `json_record`), and which of them are one: a batch that could not be
    opened is a letter, too. What is no JSON object is told by the metadata, what only does not fit tells it itself."""
    import pyarrow.compute as pc

    texts = pc.coalesce(metadata, columns)
    return texts, pc.fill_null(pc.match_substring(texts, f'"{JSON_PREFIX}offset":'), False)


def _json_texts(rows: pa.Table) -> pa.ChunkedArray:
    """The records of a JSON topic: those that fit, and those among its dead letters. Null where it is none."""
    import pyarrow.compute as pc

    letters, is_record = letter_texts(rows["columns"], rows["metadata"])
    letters = pc.if_else(is_record, letters, pa.scalar(None, letters.type))
    return pc.if_else(rows["error"].is_null(), rows["columns"], letters)


def json_record(text: str) -> Record:
    """A record from the columns of its row."""
    return _record(_json_rows.decode(text))


def _is_of(rows: pa.Table, table: TableName, partition: int, *, with_errors: bool) -> npt.NDArray[np.bool_]:
    import pyarrow.compute as pc

    is_ours = _is_table(rows, table)
    if not with_errors:
        is_ours = pc.and_(is_ours, pc.is_null(rows["error"]))
    # By the key's text, which begins with the partition.
    found = pc.and_(is_ours, pc.starts_with(rows["key"].cast(pa.string()), f"{partition}/"))
    mask: npt.NDArray[np.bool_] = pc.fill_null(found, False).to_numpy()
    return mask


def _offsets(keys: pa.ChunkedArray, partition: int) -> npt.NDArray[np.int64]:
    import pyarrow.compute as pc

    texts = pc.utf8_slice_codeunits(keys.cast(pa.string()), len(f"{partition}/"))
    return np.asarray(texts.cast(pa.int64()).to_numpy(), np.int64)


def _sorted_part(found: Sequence[tuple[npt.NDArray[np.int64], int, npt.NDArray[np.int64]]]) -> _Part:
    none = np.array([], np.int64)
    offsets = np.concatenate([none, *(each[0] for each in found)])
    groups = np.concatenate([none, *(np.full(len(each[0]), each[1]) for each in found)]).astype(np.int32)
    rows = np.concatenate([none, *(each[2] for each in found)]).astype(np.int32)
    if np.any(offsets[1:] < offsets[:-1]):
        # Records of a transaction are where it was committed, behind others with higher offsets. Who looks for one
        # halves its way: in any other order it would pass records by.
        order = np.argsort(offsets, kind="stable")
        return _Part(offsets[order], groups[order], rows[order])
    return _Part(offsets, groups, rows)


def _record(row: _Row | _JsonRow) -> Record:
    headers = tuple((name, _plain(value)) for name, value in row.headers or ())
    # Whole milliseconds: a fraction would come from a float.
    time_ms = -1 if row.timestamp is None else round(row.timestamp.timestamp() * 1000)
    return Record(row.offset, time_ms, _plain(row.key), _plain(row.value), headers)


def _plain(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
