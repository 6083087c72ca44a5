"""Opens record batches and makes them: compression, and the records inside. Pure.

A broker needs this only away from its hot path: when the log is sealed, and when old records are served from tables.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import cramjam
import crc32c
import pyarrow as pa
import zstandard

from mainstem.wire.kafka.records import CRC_START, HEAD, HEAD_BYTES, MAGIC, BadBatch, BatchHead, read_head
from mainstem.wire.varint import zigzag

# A batch that becomes larger than this when it is opened is refused: a few bytes may stand for gigabytes.
OPENED_BYTES_MAX = 256 * 1024 * 1024
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

_CODEC_ERRORS = (struct.error, zlib.error, zstandard.ZstdError, cramjam.DecompressionError, pa.ArrowException)
_XERIAL = b"\x82SNAPPY\x00"
_CRC = struct.Struct(">I")
_SIZE = struct.Struct(">i")
# The length of a field that has no value: -1.
_NOTHING = 1

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record, with its own offset and time."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def open_batch(batch: bytes | memoryview, bytes_max: int = OPENED_BYTES_MAX) -> tuple[BatchHead, list[Record]]:
    """The records of a batch, in order. Raises BadBatch, also where they are more bytes than `bytes_max`."""
    head, data = decompress_batch(batch, bytes_max)
    return head, read_records(head, data)


def open_dense(batch: bytes | memoryview, bytes_max: int = OPENED_BYTES_MAX) -> tuple[BatchHead, list[Record]]:
    """The same of a batch that a producer made (`read_dense`). Raises BadBatch."""
    head, data = decompress_batch(batch, bytes_max)
    return head, read_dense(head, data)


def decompress_batch(batch: bytes | memoryview, bytes_max: int = OPENED_BYTES_MAX) -> tuple[BatchHead, bytes]:
    """The head of a batch and the bytes of its records. Raises BadBatch."""
    head = read_head(batch)
    try:
        return head, decompress(head.codec, bytes(batch[HEAD_BYTES : head.size]), bytes_max)
    except BadBatch:
        raise
    # What the codecs raise.
    except (IndexError, ValueError, OSError, *_CODEC_ERRORS) as error:
        raise _cannot_be_opened(error) from error


def read_records(head: BatchHead, data: bytes) -> list[Record]:
    """The records of a batch whose body was decompressed, one by one. Raises BadBatch."""
    try:
        return _records(head, data)
    # What a record that ends early makes of the reading.
    except (IndexError, ValueError, struct.error) as error:
        raise _cannot_be_opened(error) from error


def read_dense(head: BatchHead, data: bytes) -> list[Record]:
    """The records of a batch that a producer made: they have the offsets that the batch was given, one after the other.
    A record that claims another one would stand in the place of somebody else's. Raises BadBatch."""
    records = read_records(head, data)
    for expected, record in enumerate(records, head.base_offset):
        if record.offset != expected:
            raise BadBatch(f"offset of a record. expected={expected} got={record.offset}", reason="invalid")
    return records


def _cannot_be_opened(error: Exception) -> BadBatch:
    return BadBatch(f"records cannot be opened. got={error!r}", reason="invalid")


def decompress(codec: int, data: bytes, bytes_max: int = OPENED_BYTES_MAX) -> bytes:
    """The bytes of the records. Raises BadBatch beyond the bound, and the codec's own errors."""
    if codec == NONE:
        return data
    if codec == GZIP:
        return _checked(zlib.decompressobj(31).decompress(data, bytes_max + 1), bytes_max)
    if codec == SNAPPY:
        return _unsnappy(data, bytes_max)
    if codec == LZ4:
        # Arrow's reader stops where we tell it to; the others open everything first.
        with pa.CompressedInputStream(pa.BufferReader(data), "lz4") as stream:
            return _checked(stream.read(bytes_max + 1), bytes_max)
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data)
    return _checked(reader.read(bytes_max + 1), bytes_max)


def _checked(opened: bytes, bytes_max: int) -> bytes:
    if len(opened) > bytes_max:
        raise _too_large(bytes_max)
    return opened


def _unsnappy(data: bytes, bytes_max: int) -> bytes:
    """Raw snappy, or blocks of it as Java's library frames them."""
    if not data.startswith(_XERIAL):
        return _snappy_block(data, bytes_max)
    parts: list[bytes] = []
    total, start = 0, 16
    while start < len(data):
        (size,) = _SIZE.unpack_from(data, start)
        start += 4
        if size < 0 or start + size > len(data):
            raise ValueError("a snappy block ends early")
        parts.append(_snappy_block(data[start : start + size], bytes_max))
        total += len(parts[-1])
        if total > bytes_max:
            raise _too_large(bytes_max)
        start += size
    return b"".join(parts)


def _snappy_block(data: bytes, bytes_max: int) -> bytes:
    # The block says its size first: a lie is found by the codec, a true one that is too large by us.
    if cramjam.snappy.decompress_raw_len(data) > bytes_max:
        raise _too_large(bytes_max)
    return bytes(cramjam.snappy.decompress_raw(data))


def _too_large(bytes_max: int) -> BadBatch:
    return BadBatch(f"records. expected=at most {bytes_max} bytes when opened got=more", reason="invalid")


def _records(head: BatchHead, data: bytes) -> list[Record]:
    """Every record of a producer passes here when the log is sealed, and most of what that cost was calls: numbers of
    one or two bytes, which nearly all of them are, are read in line."""
    found: list[Record] = []
    at, bytes_end = 0, len(data)
    base_offset, base_time = head.base_offset, head.base_timestamp
    append_time = head.max_timestamp if head.is_log_append_time else None
    for _ in range(head.records):
        size, at = _signed(data, at)
        end = at + size
        if size < 6 or end > bytes_end:
            raise ValueError(f"a record of {size} bytes")
        # Behind one byte of attributes, all of them unused.
        at += 1
        byte = data[at]
        if byte < 0x80:
            time_delta, at = (byte >> 1) ^ -(byte & 1), at + 1
        else:
            time_delta, at = _signed(data, at)
        byte = data[at]
        if byte < 0x80:
            offset_delta, at = (byte >> 1) ^ -(byte & 1), at + 1
        elif data[at + 1] < 0x80:
            byte = byte & 0x7F | data[at + 1] << 7
            offset_delta, at = (byte >> 1) ^ -(byte & 1), at + 2
        else:
            offset_delta, at = _signed(data, at)
        if data[at] == _NOTHING:
            key, at = None, at + 1
        else:
            key, at = _bytes(data, at)
        value, at = _bytes(data, at)
        if data[at]:
            headers, at = _headers(data, at)
        else:
            headers, at = (), at + 1
        if at != end:
            raise ValueError(f"a record ends at {at} instead of {end}")
        timestamp = base_time + time_delta if append_time is None else append_time
        found.append(Record(base_offset + offset_delta, timestamp, key, value, headers))
    return found


def _signed(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint, and where it ends."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    second = data[at]
    if second < 0x80:
        value = byte & 0x7F | second << 7
        return (value >> 1) ^ -(value & 1), at + 1
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than ten bytes")


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    byte = data[at]
    if byte < 0x80:
        size, at = (byte >> 1) ^ -(byte & 1), at + 1
    else:
        size, at = _signed(data, at)
    if size < 0:
        return None, at
    end = at + size
    if end > len(data):
        raise ValueError(f"a field of {size} bytes")
    return data[at:end], end


def _headers(data: bytes, at: int) -> tuple[Headers, int]:
    count, at = _signed(data, at)
    if not 0 <= count <= len(data):
        raise ValueError(f"{count} headers")
    found: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _bytes(data, at)
        value, at = _bytes(data, at)
        found.append(((name or b"").decode("utf-8", "replace"), value))
    return tuple(found), at


def build_batch(
    records: Sequence[Record],
    *,
    leader_epoch: int = 0,
    attributes: int = 0,
    first: int | None = None,
    last: int | None = None,
) -> bytes:
    """One uncompressed batch of records whose offsets grow. Offsets between them may be missing; `first` and `last` say
    from where and how far the batch reaches, if not from its first to its last record."""
    base_offset = records[0].offset if first is None else first
    base_time = records[0].timestamp if records else -1
    last = records[-1].offset if last is None else last
    body = b"".join([_packed(record, base_offset, base_time) for record in records])
    max_time = max((record.timestamp for record in records), default=-1)
    stored = bytearray(
        HEAD.pack(
            base_offset,
            HEAD_BYTES - 12 + len(body),
            leader_epoch,
            MAGIC,
            0,
            attributes,
            last - base_offset,
            base_time,
            max_time,
            -1,
            -1,
            -1,
            len(records),
        )
    )
    stored += body
    _CRC.pack_into(stored, 17, crc32c.crc32c(memoryview(stored)[CRC_START:]))
    return bytes(stored)


def _packed(record: Record, base_offset: int, base_time: int) -> bytes:
    offset, timestamp, key, value, headers = record
    body = b"".join(
        (
            b"\0",
            _number(timestamp - base_time),
            _number(offset - base_offset),
            b"\x01" if key is None else _number(len(key)),
            key or b"",
            b"\x01" if value is None else _number(len(value)),
            value or b"",
            _headers_packed(headers) if headers else b"\0",
        )
    )
    return _number(len(body)) + body


def _headers_packed(headers: Headers) -> bytes:
    parts = [zigzag(len(headers))]
    for name, value in headers:
        told = name.encode()
        parts += (zigzag(len(told)), told)
        parts += (b"\x01",) if value is None else (zigzag(len(value)), value)
    return b"".join(parts)


def _number(number: int) -> bytes:
    return _NUMBERS[number] if 0 <= number < len(_NUMBERS) else zigzag(number)


# The numbers that nearly all records are made of.
_NUMBERS = [zigzag(number) for number in range(2_048)]
