"""The answer to Fetch, in every version served, as the buffers of one write: batches are not copied.

Not made by kio's schemas: it may have thousands of partitions and tens of megabytes, and is the
one that a consumer waits for. A test holds it against kio's writer.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from mainstem.wire.varint import varint

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
    text += count_of(len(topics), is_flexible)
    for topic in topics:
        text += name_of(topic.name, is_flexible)
        text += count_of(len(topic.partitions), is_flexible)
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
        text += count_of(len(aborted), is_flexible)
        for one in aborted:
            text += _PAIR.pack(*one)
            if is_flexible:
                text += _NO_TAGS
    if version >= 11:
        text += _NO_REPLICA
    text += count_of(sum(map(len, batches)), is_flexible)


def name_of(name: str | UUID, is_flexible: bool) -> bytes:
    """A topic's name, or its id."""
    if isinstance(name, UUID):
        return name.bytes
    data = name.encode()
    return count_of(len(data), True) + data if is_flexible else struct.pack(">h", len(data)) + data


def count_of(number: int, is_flexible: bool) -> bytes:
    """How many there are of something that may be none but not nothing."""
    return varint(number + 1) if is_flexible else _INT.pack(number)
