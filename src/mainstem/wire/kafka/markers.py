"""Control batches: the one record that says in a partition how a producer's transaction ended. Pure."""

import struct

import crc32c

from mainstem.wire.kafka.records import CONTROL, CRC_START, HEAD, HEAD_BYTES, MAGIC, TRANSACTIONAL, BadBatch

_CRC = struct.Struct(">I")
# Version and kind of the key; version and the coordinator's epoch of the value.
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
ABORT, COMMIT = 0, 1


def build_marker(producer_id: int, epoch: int, now_ms: int, *, commits: bool) -> bytes:
    """The batch that ends a transaction; its offset is still to be assigned."""
    key, value = _KEY.pack(0, COMMIT if commits else ABORT), _VALUE.pack(0, 0)
    # Attributes, time and offset deltas of zero; lengths are zigzag varints, so doubled; no headers.
    record = b"\0\0\0" + bytes((2 * len(key),)) + key + bytes((2 * len(value),)) + value + b"\0"
    body = bytes((2 * len(record),)) + record
    stored = bytearray(
        HEAD.pack(
            0,
            HEAD_BYTES - 12 + len(body),
            0,
            MAGIC,
            0,
            TRANSACTIONAL | CONTROL,
            0,
            now_ms,
            now_ms,
            producer_id,
            epoch,
            -1,
            1,
        )
    )
    stored += body
    _CRC.pack_into(stored, 17, crc32c.crc32c(memoryview(stored)[CRC_START:]))
    return bytes(stored)


def is_commit(batch: bytes | memoryview) -> bool:
    """Whether a control batch commits. Raises BadBatch."""
    try:
        _, kind = _KEY.unpack_from(batch, HEAD_BYTES + 5)
    except struct.error as error:
        raise BadBatch("control batch. expected=a key of two numbers", reason="corrupt") from error
    return bool(kind == COMMIT)
