"""The frame: how one batch is stored in a file of the log. A codec only: bytes in, values out, no I/O.

    u32 length of the body | u32 CRC-32 of the body | body
    body = "MSW", u8 version, u8 encoding, one pad byte, u16 source length, u32 count, u64 first position,
           u64 group position, u64 first clock, i64 arrival (ms), i64 sequence, u64 fingerprint | source | payload

All numbers are little endian. The group position is the first position of the group that was written and synced
together with this frame. It says that everything before it was durable when this frame was written, which is how
recovery tells a torn tail (never acknowledged) from bytes that went bad later.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from mainstem.model.batch import BatchHeader, Encoding
from mainstem.model.change import SourceId
from mainstem.model.checksum import crc32
from mainstem.model.errors import Corrupt, Invalid
from mainstem.model.hlc import HLC_MAX, Hlc
from mainstem.model.position import LogPosition

VERSION = 1
MAGIC = b"MSW" + bytes([VERSION])
# A length beyond this is not one that we wrote.
BODY_BYTES_MAX = 64 * 1024 * 1024

_PREFIX = struct.Struct("<II")
_HEADER = struct.Struct("<4sBxHIQQQqqQ")
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
OVERHEAD_BYTES = _PREFIX.size + _HEADER.size

Buffer = bytes | memoryview


class Frame(NamedTuple):
    """One stored batch. `payload` is a view of the buffer that was decoded."""

    header: BatchHeader
    group_first: LogPosition
    payload: memoryview
    # Where the next frame starts.
    end: int


class NeedMore(NamedTuple):
    """The buffer ends inside a frame. `bytes_at_least` more would be needed to go on."""

    bytes_at_least: int


def check_storable(source: bytes, sequence: int, count: int, fingerprint: int, payload_bytes: int) -> None:
    """Refuse what the frame has no room for, before it can spoil a group."""
    if not 1 <= count < 1 << 32:
        raise Invalid(f"batch count out of range. expected=1..{(1 << 32) - 1} got={count}")
    if not _INT64_MIN <= sequence <= _INT64_MAX:
        raise Invalid(f"sequence out of range. expected=signed 64 bits got={sequence}", reason="invalid_sequence")
    if not 0 <= fingerprint < 1 << 64:
        raise Invalid(f"fingerprint out of range. expected=an unsigned 64-bit number got={fingerprint}")
    if len(source) >= 1 << 16:
        raise Invalid(f"source is too long. expected=at most 65535 bytes got={len(source)}")
    if payload_bytes + len(source) + _HEADER.size > BODY_BYTES_MAX:
        raise Invalid(
            f"payload is too large. expected=at most {BODY_BYTES_MAX} bytes with its header got={payload_bytes}",
            reason="payload_too_large",
        )


def encode(header: BatchHeader, payload: Buffer, group_first: LogPosition) -> list[Buffer]:
    """The frame as the buffers of one vectored write; the payload is not copied."""
    source = header.source.encode()
    head = (
        _HEADER.pack(
            MAGIC,
            header.encoding,
            len(source),
            header.count,
            header.first,
            group_first,
            header.hlc_first,
            header.arrival_ms,
            header.sequence,
            header.fingerprint,
        )
        + source
    )
    crc = crc32(payload, crc32(head))
    return [_PREFIX.pack(len(head) + len(payload), crc) + head, payload]


def decode(buffer: Buffer, offset: int, name: str = "buffer") -> Frame | NeedMore:
    """Read the frame at `offset`. `name` is what a `Corrupt` calls the buffer."""
    view = memoryview(buffer)
    left = len(view) - offset
    if left < _PREFIX.size:
        return NeedMore(_PREFIX.size - left)
    length, crc = _PREFIX.unpack_from(view, offset)
    place = f"{name}:{offset}"
    if not _HEADER.size <= length <= BODY_BYTES_MAX:
        raise Corrupt(f"frame length. expected={_HEADER.size}..{BODY_BYTES_MAX} got={length}", place=place)
    start = offset + _PREFIX.size
    end = start + length
    if end > len(view):
        return NeedMore(end - len(view))
    body = view[start:end]
    if (got := crc32(body)) != crc:
        raise Corrupt(f"frame checksum. expected={crc:#010x} got={got:#010x}", place=place)
    return _read_body(body, end, place)


def _read_body(body: memoryview, end: int, place: str) -> Frame:
    magic, encoding, source_bytes, count, first, group_first, hlc_first, arrival_ms, sequence, fingerprint = (
        _HEADER.unpack_from(body)
    )
    if magic != MAGIC:
        raise Corrupt(f"frame version. expected={MAGIC!r} got={magic!r}", place=place)
    source_end = _HEADER.size + source_bytes
    if source_end > len(body) or count < 1 or not group_first <= first or hlc_first > HLC_MAX:
        raise Corrupt(f"frame header contradicts itself. got=first {first} count {count}", place=place)
    try:
        header = BatchHeader(
            first=LogPosition(first),
            count=count,
            hlc_first=Hlc(hlc_first),
            arrival_ms=arrival_ms,
            source=SourceId(str(body[_HEADER.size : source_end], "utf-8")),
            sequence=sequence,
            fingerprint=fingerprint,
            encoding=Encoding(encoding),
        )
    except ValueError as error:
        raise Corrupt(f"frame header. got={error}", place=place) from error
    return Frame(header, LogPosition(group_first), body[source_end:], end)


def decode_all(buffer: Buffer, name: str) -> Iterator[Frame]:
    """Every frame of a buffer that must be whole."""
    offset = 0
    while offset < len(buffer):
        frame = decode(buffer, offset, name)
        if isinstance(frame, NeedMore):
            place = f"{name}:{offset}"
            raise Corrupt(f"file ends inside a frame. expected={frame.bytes_at_least} more bytes", place=place)
        yield frame
        offset = frame.end


def find_later(buffer: Buffer, offset: int) -> Iterator[Frame]:
    """Valid frames anywhere after `offset`, where the frame at `offset` cannot be read."""
    data = bytes(buffer)
    candidate = offset
    while (found := data.find(MAGIC, candidate)) >= 0:
        candidate = found + 1
        start = found - _PREFIX.size
        if start <= offset:
            continue
        try:
            frame = decode(data, start)
        except Corrupt:
            continue
        if isinstance(frame, Frame):
            yield frame
