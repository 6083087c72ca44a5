"""The answer to Produce, in every version served.

Not made by kio's schemas, as Fetch's is not: a producer sends its next batches when it has this answer, and to build it
field by field took as long as all else that the door does for a request. A test holds it against kio's writer.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from mainstem.wire.kafka.fetched import Buffer, count_of, name_of

_INT = struct.Struct(">i")
# Number, error, base offset, append time, log start offset.
_PARTITION = struct.Struct(">ihqqq")
_PARTITION_OLD = struct.Struct(">ihqq")
_SHORT = struct.Struct(">h")
_NO_ERRORS, _NO_TEXT_OLD = _INT.pack(0), _SHORT.pack(-1)
# Behind the list of records that are to blame, of which there is never one.
_NO_TEXT_NO_TAGS = b"\1\0\0"
# From these versions on: the first offset that is kept; errors have a text; flexible; topics by their ids.
WITH_START, WITH_TEXT, FLEXIBLE, BY_ID = 5, 8, 9, 13


class ProducedPartition(NamedTuple):
    """One partition's part of an answer."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None


class ProducedTopic(NamedTuple):
    """One topic's part; `name` is its id from version 13 on."""

    name: str | UUID
    partitions: Sequence[ProducedPartition]


def encode_produced(version: int, topics: Sequence[ProducedTopic], *, throttle_ms: int = 0) -> list[Buffer]:
    """The body of an answer: what became of the batches; the time to be silent; what else there is in its version."""
    is_flexible = version >= FLEXIBLE
    text = bytearray(count_of(len(topics), is_flexible))
    for topic in topics:
        text += name_of(topic.name, is_flexible)
        text += count_of(len(topic.partitions), is_flexible)
        for each in topic.partitions:
            if version >= WITH_START:
                text += _PARTITION.pack(*each[:5])
            else:
                text += _PARTITION_OLD.pack(*each[:4])
            if version >= WITH_TEXT:
                text += _error(each.error_message, is_flexible)
        if is_flexible:
            text += b"\0"
    return [text, _INT.pack(throttle_ms), b"\0" if is_flexible else b""]


def _error(message: str | None, is_flexible: bool) -> bytes:
    """No single records, and what is wrong with the batch."""
    if message is None:
        return _NO_TEXT_NO_TAGS if is_flexible else _NO_ERRORS + _NO_TEXT_OLD
    data = message.encode()[:32_000]
    if is_flexible:
        return b"\1" + count_of(len(data), True) + data + b"\0"
    return _NO_ERRORS + _SHORT.pack(len(data)) + data
