"""From a record batch of a topic to rows, when the log is sealed: here the batch is opened for the first time.

What rows a record becomes is the mode's matter (`wire/kafka/payload.Mode`). A batch that cannot be opened was let in by
its checksum alone: it becomes one dead letter, with its bytes; the rest is sealed all the same.
"""

import datetime as dt
from binascii import b2a_base64
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.model.batch import BatchHeader
from mainstem.model.change import SOURCE_TIME_MS_MAX, Operation
from mainstem.model.hlc import Hlc
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.wire.kafka import payload as payloads
from mainstem.wire.kafka.columns import COLUMNS_RECORDS_MIN, RecordColumns, base64_texts, open_columns
from mainstem.wire.kafka.opening import OPENED_BYTES_MAX, Headers, Record, decompress_batch, read_dense
from mainstem.wire.kafka.payload import RECORDS_SUFFIX, Buffer, Mode, Records
from mainstem.wire.kafka.records import CONTROL, TRANSACTIONAL, BadBatch, BatchHead, read_head

if TYPE_CHECKING:
    from mainstem.log.seal.expand import Expander, Rows

# `tables.kinds`, which this layer does not know; a test holds the two together.
TOPIC, TOPIC_JSON, TOPIC_COMPACT = "topic", "topic-json", "topic-compact"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# A batch may be opened to so many times its size. What is beyond that is taken from a store that all batches of one
# segment share (`Expander.opening_bytes_left`), and when that is empty such batches are dead letters: 6 kB of zstd may
# stand for 200 MB, and a hundred of those would kill every sealer that tries.
OPENED_RATIO = 32
_RECORD_BYTES = 64
_JSON_PREFIX = "_kafka_"
_OFFSET_MARK, _BASE64_MARK = "offset:", "base64:"
_to_json = msgspec.json.Encoder().encode
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any = msgspec.json.Decoder(msgspec.Raw)
_INSERT, _UPDATE, _DELETE = str(Operation.INSERT), str(Operation.UPDATE), str(Operation.DELETE)


def expand_records(expander: "Expander", header: BatchHeader, payload: Buffer, place: str) -> "list[Rows]":
    """The rows of one record batch."""
    records = payloads.unpack(payload, place)
    namespace, _, name = records.table.rpartition(".")
    table = TableName(namespace, name)
    attributes = _attributes(records.batch)
    if attributes & CONTROL:
        return _committed_rows(expander, header, records, place)
    if attributes & TRANSACTIONAL:
        # Rows only once it is committed: the marker's frame has these records again.
        return []
    return _batch_rows(expander, header, table, records)


def _attributes(batch: memoryview) -> int:
    try:
        return read_head(batch).attributes
    except BadBatch:
        # Opening it says the same, and why.
        return 0


def _committed_rows(expander: "Expander", header: BatchHeader, records: Records, place: str) -> "list[Rows]":
    """The rows of a transaction in one partition: behind its marker are the batches that it commits."""
    namespace, _, name = records.table.rpartition(".")
    found: list[Rows] = []
    at, done = read_head(records.batch).size, 0
    while at < len(records.batch):
        head = read_head(records.batch, at)
        shifted = msgspec.structs.replace(
            header,
            first=LogPosition(header.first + done),
            hlc_first=Hlc(header.hlc_first + done),
            count=head.records,
        )
        part = records._replace(batch=records.batch[at : at + head.size])
        found += _batch_rows(expander, shifted, TableName(namespace, name), part)
        at += head.size
        done += head.records
    return found


def _batch_rows(expander: "Expander", header: BatchHeader, table: TableName, records: Records) -> "list[Rows]":
    try:
        allowance = OPENED_RATIO * len(records.batch)
        head, data = decompress_batch(records.batch, min(OPENED_BYTES_MAX, allowance + expander.opening_bytes_left))
        is_large = expander.takes_arrow and records.mode is Mode.RAW and head.records >= COLUMNS_RECORDS_MIN
        columns = open_columns(head, data) if is_large else None
        opened = read_dense(head, data) if columns is None else []
        size = (
            sum([len(each.key or b"") + len(each.value or b"") for each in opened])
            if columns is None
            else columns.bytes
        )
        size += _RECORD_BYTES * head.records
        expander.opening_bytes_left = max(0, expander.opening_bytes_left - max(0, size - allowance))
        if columns is not None:
            return [_raw_columns(header, table, records.partition, head, columns)]
        return _mode_rows(expander, header, table, records, head, opened)
    # Broad on purpose: a client chose these bytes, and they are durable. Whatever they make of the code below, a batch
    # that raises here would be met again by every later seal, and no table of anybody would ever get a row again.
    except Exception as error:
        return [_unreadable(header, table, records, error)]


def _mode_rows(
    expander: "Expander",
    header: BatchHeader,
    table: TableName,
    records: Records,
    head: BatchHead,
    opened: Sequence[Record],
) -> "list[Rows]":
    namespace, name = table.namespace, table.table
    match records.mode:
        case Mode.JSON:
            return [_json_rows(expander, header, table, records.partition, head, opened)]
        case Mode.COMPACT:
            return [_latest_rows(header, table, records.partition, head, opened)]
        case Mode.DEBEZIUM:
            rows = _raw_rows(header, table, records.partition, head, opened)
            state = TableName(namespace, name.removesuffix(RECORDS_SUFFIX))
            return [rows, *_envelope_rows(expander, header, state, opened)]
        case _:
            return [_raw_rows(header, table, records.partition, head, opened)]


class _Columns:
    """How the records of one batch are written as the columns of their rows, in JSON; bytes as Base64. What they have
    in common is written once: every record of every topic passes here."""

    def __init__(self, partition: int, head: BatchHead, prefix: str = "") -> None:
        mark = prefix.encode()
        kind = b"LogAppendTime" if head.is_log_append_time else b"CreateTime"
        self.begin = b'{"%bpartition":%d,"%boffset":' % (mark, partition, mark)
        self._time = b',"%btimestamp":%%b,"%btimestamp_type":"%b","%bkey":' % (mark, mark, kind, mark)
        self.value = b',"%bvalue":' % mark
        self._headers = b',"%bheaders":' % mark
        self.no_headers = self._headers + b"null"
        self.end = b',"%bleader_epoch":%d}' % (mark, head.leader_epoch)
        # Of the record before: most have the same one.
        self._timestamp: int | None = None
        self._moment = b""

    def moment(self, time_ms: int) -> bytes:
        """What follows the offset: a time, and up to where the key begins."""
        return self._time % _moment(time_ms)

    def of(self, record: Record) -> bytes:
        """One record's columns."""
        offset, timestamp, key, value, headers = record
        if timestamp != self._timestamp:
            self._timestamp, self._moment = timestamp, self.moment(timestamp)
        return b"%b%d%b%b%b%b%b%b" % (
            self.begin,
            offset,
            self._moment,
            b"null" if key is None else b'"%b"' % b2a_base64(key, newline=False),
            self.value,
            b"null" if value is None else b'"%b"' % b2a_base64(value, newline=False),
            self._headers + _headers_text(headers) if headers else self.no_headers,
            self.end,
        )


def _headers_text(headers: Headers) -> bytes:
    return _to_json([[name, None if value is None else _base64(value).decode()] for name, value in headers])


def _raw_rows(
    header: BatchHeader, table: TableName, partition: int, head: BatchHead, records: Sequence[Record]
) -> "Rows":
    written = _Columns(partition, head)
    columns: list[bytes | None] = [written.of(record) for record in records]
    return _rows(header, table, columns, [f"{partition}/{record.offset}" for record in records], kind=TOPIC)


def _raw_columns(
    header: BatchHeader, table: TableName, partition: int, head: BatchHead, records: RecordColumns
) -> "Rows":
    """What `_raw_rows` makes of them, for the whole batch at once."""
    # Not above: it takes a tenth of a second, which the gateway's start can do without.
    import pyarrow.compute as pc

    written = _Columns(partition, head)
    count = head.records
    offsets = pa.array(np.arange(head.base_offset, head.base_offset + count)).cast(pa.string())
    moments = _moments(records.timestamps, written)
    begin, value, end = written.begin.decode(), written.value.decode(), (written.no_headers + written.end).decode()
    columns = pc.binary_join_element_wise(
        *(begin, offsets, moments, _json_texts(records.keys), value, _json_texts(records.values), end, "")
    )
    keys = pc.binary_join_element_wise(str(partition), offsets, "/")
    return _rows(header, table, [], [], kind=TOPIC, count=count, arrow=(keys, columns))


def _moments(timestamps: npt.NDArray[np.int64], written: _Columns) -> pa.StringArray:
    """The times of records as columns have them. Most have that of the record before."""
    firsts = np.concatenate(([0], np.flatnonzero(np.diff(timestamps)) + 1))
    texts = pa.array([written.moment(time_ms) for time_ms in timestamps[firsts].tolist()], pa.string())
    return texts.take(pa.array(np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, len(timestamps))))))


def _json_texts(values: pa.BinaryArray | None) -> pa.StringArray | str:
    if values is None:
        return "null"
    import pyarrow.compute as pc

    quoted = pc.binary_join_element_wise('"', base64_texts(values), '"', "")
    return quoted.fill_null("null") if quoted.null_count else quoted


def _json_rows(
    expander: "Expander",
    header: BatchHeader,
    table: TableName,
    partition: int,
    head: BatchHead,
    records: Sequence[Record],
) -> "Rows":
    """The fields of each value, beside the record itself. A value that is no JSON object is a dead letter, with the
    record as its metadata: so consumers get it from there."""
    written = _Columns(partition, head, _JSON_PREFIX)
    texts = [_json_text(record, written) for record in records]
    metadata: list[bytes | None] = [
        None if text.startswith(b"{") else written.of(record) for text, record in zip(texts, records, strict=True)
    ]
    keys = [f"{partition}/{record.offset}" for record in records]
    columns, errors, unjudged = expander.judge_json(table, texts, [])
    told = metadata if any(metadata) else None
    return _rows(header, table, columns, keys, kind=TOPIC_JSON, errors=errors, unjudged=unjudged, metadata=told)


def _json_text(record: Record, written: _Columns) -> bytes:
    """A record's columns and the fields of its value as one JSON object. What is no such value becomes JSON that is no
    object, which is judged to be a dead letter.

    The texts of many records are put together and read as one: each must be whole in itself, or it would change what
    the others are.
    """
    value = (record.value or b"null").strip() or b"null"
    try:
        value.decode()
        fields = _object.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _no_object(value)
    if any(name.startswith(_JSON_PREFIX) for name in fields):
        # It would take the place of what the record itself says: its offset, say.
        return _as_text(value)
    own = written.of(record)
    return own[:-1] + (b"," if fields else b"") + value[1:]


def _no_object(value: bytes) -> bytes:
    """A value as it is where it is JSON, and as a JSON text where it is not."""
    try:
        value.decode()
        _any.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _as_text(value)
    return _as_text(value) if value.startswith(b"{") else value


def _as_text(value: bytes) -> bytes:
    try:
        return _to_json(value.decode())
    except UnicodeDecodeError:
        return b'"base64:%b"' % _base64(value)


def _latest_rows(
    header: BatchHeader, table: TableName, partition: int, head: BatchHead, records: Sequence[Record]
) -> "Rows":
    """By key: a record without a value takes the row away. One without a key keeps a row of its own."""
    keys = [_key_text(record, partition) for record in records]
    ops = [_DELETE if record.value is None and record.key is not None else _UPDATE for record in records]
    written = _Columns(partition, head)
    columns = [None if op == _DELETE else written.of(record) for op, record in zip(ops, records, strict=True)]
    return _rows(header, table, columns, keys, kind=TOPIC_COMPACT, ops=ops)


def _envelope_rows(
    expander: "Expander", header: BatchHeader, table: TableName, records: Sequence[Record]
) -> "list[Rows]":
    """What Debezium's envelopes say of a table's rows. Tombstones say nothing that the delete before did not."""
    from mainstem.log.seal.expand_envelopes import envelope_rows

    return envelope_rows(expander.shape(table), header, table, records)


def _rows(
    header: BatchHeader,
    table: TableName,
    columns: list[bytes | None],
    keys: list[str],
    *,
    kind: str,
    ops: list[str] | None = None,
    **more: Any,
) -> "Rows":
    from mainstem.log.seal.expand import Rows

    count = more.get("count", len(keys))
    return Rows(
        table=table,
        positions=range(header.first, header.first + count),
        hlcs=range(header.hlc_first, header.hlc_first + count),
        ops=ops or [_INSERT] * count,
        keys=keys,
        columns=columns,
        before=None,
        sequences=None,
        ids=None,
        source_times_ms=None,
        metadata=more.get("metadata"),
        errors=more.get("errors"),
        unjudged=more.get("unjudged"),
        arrow=more.get("arrow"),
        kind=kind,
    )


def _unreadable(header: BatchHeader, table: TableName, records: Records, error: Exception) -> "Rows":
    """The whole batch as one row that does not fit."""
    kinds = {Mode.JSON: TOPIC_JSON, Mode.COMPACT: TOPIC_COMPACT}
    text = _to_json({"partition": records.partition, "batch": _base64(bytes(records.batch)).decode()})
    key = f"{records.partition}/{header.first}"
    reason = f"record batch cannot be opened. {error if isinstance(error, BadBatch) else repr(error)}"
    return _rows(header, table, [text], [key], kind=kinds.get(records.mode, TOPIC), errors=[reason])


def _key_text(record: Record, partition: int) -> str:
    """The row's key: by partition, as Kafka compacts. No two keys have the same text, nor has a record without one the
    text of a key: what looks like one of our own marks is written as Base64."""
    if record.key is None:
        return f"{partition}/{_OFFSET_MARK}{record.offset}"
    try:
        text = record.key.decode()
    except UnicodeDecodeError:
        text = ""
    is_plain = text and text.isprintable() and not text.startswith((_OFFSET_MARK, _BASE64_MARK))
    return f"{partition}/{text if is_plain else _BASE64_MARK + _base64(record.key).decode()}"


@lru_cache(65_536)
def _moment(time_ms: int) -> bytes:
    """A time as columns have it; none where no calendar has it."""
    if time_ms < 0 or time_ms > SOURCE_TIME_MS_MAX:
        return b"null"
    return b'"%b"' % (_EPOCH + dt.timedelta(milliseconds=time_ms)).isoformat().encode()


def _base64(value: bytes) -> bytes:
    return b2a_base64(value, newline=False)
