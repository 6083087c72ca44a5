"""The answer to Fetch, in every version served, as the buffers of one write: batches are not copied.

The only answer that is not made by kio's schemas: it may have thousands of partitions and tens of megabytes, and is the
one that a consumer waits for. A test holds it against kio's writer.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

Buffer = bytes | bytearray | memoryview

# Number, error, high watermark, last stable offset, log start offset.
_PARTITION = struct.Struct(">ihqqq")
_PARTITION_OLD = struct.Struct(">ihqq")
_INT = struct.Struct(">i")
_TOP = struct.Struct(">ihi")
_PAIR = struct.Struct(">qq")
_NO_TAGS = b"\0"
_NO_REPLICA = _INT.pack(-1)
FLEXIBLE, BY_ID = 12, 13


class Aborted(NamedTuple):
    """A transaction that was aborted: whose, and from which offset on."""

    producer_id: int
    first_offset: int


class FetchedPartition(NamedTuple):
    """One partition's part of an answer."""

    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    batches: Sequence[Buffer] = ()
    # None: not asked for.
    aborted: Sequence[Aborted] | None = None


class FetchedTopic(NamedTuple):
    """One topic's part; `name` is its id from version 13 on."""

    name: str | UUID
    partitions: Sequence[FetchedPartition]


def encode_fetched(
    version: int, topics: Sequence[FetchedTopic], *, error_code: int = 0, throttle_ms: int = 0
) -> list[Buffer]:
    """The body of an answer. There are no sessions: it says session 0."""
    parts: list[Buffer] = []
    # What stands between two runs of batches is put together before it is a buffer.
    text = bytearray(_TOP.pack(throttle_ms, error_code, 0) if version >= 7 else _INT.pack(throttle_ms))
    is_flexible = version >= FLEXIBLE
    text += _count(len(topics), is_flexible)
    for topic in topics:
        text += _named(topic.name, is_flexible)
        text += _count(len(topic.partitions), is_flexible)
        for each in topic.partitions:
            _partition(text, version, each)
            if each.batches:
                parts += (text, *each.batches)
                text = bytearray()
            if is_flexible:
                text += _NO_TAGS
        if is_flexible:
            text += _NO_TAGS
    if is_flexible:
        text += _NO_TAGS
    parts.append(text)
    return parts


def _partition(text: bytearray, version: int, each: FetchedPartition) -> None:
    partition, error, high, stable, start, batches, aborted = each
    if version >= 5:
        text += _PARTITION.pack(partition, error, high, stable, start)
    else:
        text += _PARTITION_OLD.pack(partition, error, high, stable)
    is_flexible = version >= FLEXIBLE
    if aborted is None:
        text += _NO_TAGS if is_flexible else b"\xff\xff\xff\xff"
    else:
        text += _count(len(aborted), is_flexible)
        for one in aborted:
            text += _PAIR.pack(*one)
            if is_flexible:
                text += _NO_TAGS
    if version >= 11:
        text += _NO_REPLICA
    text += _count(sum(map(len, batches)), is_flexible)


def _named(name: str | UUID, is_flexible: bool) -> bytes:
    if isinstance(name, UUID):
        return name.bytes
    data = name.encode()
    return _count(len(data), True) + data if is_flexible else struct.pack(">h", len(data)) + data


def _count(number: int, is_flexible: bool) -> bytes:
    """How many there are of something that may be none but not nothing."""
    if not is_flexible:
        return _INT.pack(number)
    value = number + 1
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
