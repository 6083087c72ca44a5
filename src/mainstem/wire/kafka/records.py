"""Record batches (magic 2) without opening them: the head is read and checked, the offset is put in, the rest is bytes.

    i64 base offset | i32 length of the rest | i32 leader epoch | i8 magic | u32 CRC-32C of what follows
    i16 attributes | i32 last offset delta | i64 base timestamp | i64 max timestamp
    i64 producer id | i16 producer epoch | i32 base sequence | i32 count | records

Base offset and leader epoch are before the checksum, so a broker sets them without touching what the producer signed.
"""

import struct
from typing import NamedTuple

import crc32c

from mainstem.model.errors import Invalid

HEAD = struct.Struct(">qiibIhiqqqhii")
HEAD_BYTES = HEAD.size
CRC_START = 21
MAGIC = 2

# What one batch may have, which is also what librdkafka puts into one at most. A few kilobytes of zstd can stand for
# many millions of empty records, and what opens them, the sealer or a search by time, holds them all.
RECORDS_MAX = 1_000_000

# Attributes: the codec in the lowest three bits, then these.
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

_BASE = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")


class BadBatch(Invalid):
    """A batch that is not one. `reason` is `corrupt` (send it again) or `unsupported` (of an old format) or
    `invalid` (no retry can mend it)."""


class BatchHead(NamedTuple):
    """What the head of a batch says. `size` is of the whole batch."""

    base_offset: int
    size: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def next_offset(self) -> int:
        """The offset after the batch's last one."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record. Sequences begin again at 0 after 2,147,483,647."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF


def read_head(batch: bytes | bytearray | memoryview, start: int = 0) -> BatchHead:
    """The head at a place, unchecked but for its length. Raises BadBatch."""
    try:
        fields = HEAD.unpack_from(batch, start)
    except struct.error as error:
        told = f"record batch. expected=at least {HEAD_BYTES} bytes got={len(batch) - start}"
        raise BadBatch(told, reason="corrupt") from error
    base_offset, length, epoch, magic, _, attributes, delta, base_time, max_time, pid, pepoch, sequence, count = fields
    if magic != MAGIC:
        raise BadBatch(f"record batch. expected=magic {MAGIC} got={magic}", reason="unsupported")
    return BatchHead(
        base_offset, length + 12, epoch, attributes, delta, base_time, max_time, pid, pepoch, sequence, count
    )


def read_batch(records: bytes) -> BatchHead:
    """Check the one batch that a produce request has for a partition: its head, its size and its checksum.

    Raises BadBatch.
    """
    if len(records) >= 17 and records[16] in (0, 1):
        raise BadBatch(f"record batch. expected=magic {MAGIC} got={records[16]}", reason="unsupported")
    head = read_head(records)
    if head.size != len(records):
        if HEAD_BYTES <= head.size < len(records):
            raise BadBatch("a partition takes one record batch per request. got=more", reason="invalid")
        raise BadBatch(f"record batch. expected={head.size} bytes got={len(records)}", reason="corrupt")
    if (got := crc32c.crc32c(memoryview(records)[CRC_START:])) != (expected := _CRC.unpack_from(records, 17)[0]):
        raise BadBatch(f"record batch checksum. expected={expected:#010x} got={got:#010x}", reason="corrupt")
    if head.records < 1 or head.last_offset_delta != head.records - 1:
        raise BadBatch(f"records. expected={head.last_offset_delta + 1} got={head.records}", reason="invalid")
    if head.records > RECORDS_MAX:
        raise BadBatch(f"records in a batch. expected=at most {RECORDS_MAX} got={head.records}", reason="invalid")
    if head.codec > 4:
        raise BadBatch(f"compression. expected=0 to 4 got={head.codec}", reason="invalid")
    if head.producer_id >= 0 and (head.producer_epoch < 0 or head.base_sequence < 0):
        raise BadBatch("an idempotent producer has an epoch and a sequence. got=none", reason="invalid")
    return head


def is_whole(batch: bytes) -> bool:
    """Whether bytes are one batch as its checksum says."""
    return len(batch) >= HEAD_BYTES and crc32c.crc32c(memoryview(batch)[CRC_START:]) == _CRC.unpack_from(batch, 17)[0]


def assign(batch: bytes, base_offset: int, leader_epoch: int, append_time_ms: int | None = None) -> bytes:
    """The batch as the log keeps it: with its offset; and with the broker's time, where the topic wants that."""
    stored = bytearray(batch)
    _BASE.pack_into(stored, 0, base_offset)
    _EPOCH.pack_into(stored, 12, leader_epoch)
    if append_time_ms is not None:
        (attributes,) = _ATTRIBUTES.unpack_from(stored, 21)
        _ATTRIBUTES.pack_into(stored, 21, attributes | LOG_APPEND_TIME)
        _MAX_TIMESTAMP.pack_into(stored, 35, append_time_ms)
        _CRC.pack_into(stored, 17, crc32c.crc32c(memoryview(stored)[CRC_START:]))
    return bytes(stored)
