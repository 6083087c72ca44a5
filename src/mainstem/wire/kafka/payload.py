"""The payload of `Encoding.KAFKA_RECORDS`: one record batch of one partition, with what is needed to make rows of it.

    u8 version | u8 mode | u16 length of the table's name | i32 partition | 16 bytes topic id | table's name | batch

Numbers are little endian; the batch is as Kafka has it, its offset included: offsets are stored, never derived. The
mode (`value.mode` and compaction of the topic when the batch came) decides what rows the batch becomes, so that a later
change of the topic's settings does not change what was written before.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from mainstem.model.errors import Corrupt

VERSION = 1
_HEAD = struct.Struct("<BBHi16s")

# What the records' table of a topic of envelopes is called, beside the table that they fill.
RECORDS_SUFFIX = "_records"

Buffer = bytes | bytearray | memoryview


class Mode(IntEnum):
    """What a topic's records become. The numbers are stored in the log: never reuse one."""

    # A row per record, with the bytes as they came.
    RAW = 1
    # A row per record, with the fields of its value as columns.
    JSON = 2
    # Debezium's envelopes: a row per key in the state they tell of, beside the records as they came.
    DEBEZIUM = 3
    # The last record of each key.
    COMPACT = 4


class Records(NamedTuple):
    """A payload, taken apart."""

    mode: Mode
    topic_id: bytes
    table: str
    partition: int
    batch: memoryview


def pack(mode: Mode, topic_id: bytes, table: str, partition: int, batch: Buffer) -> bytes:
    """The payload of one batch."""
    name = table.encode()
    return b"".join((_HEAD.pack(VERSION, mode, len(name), partition, topic_id), name, batch))


def unpack(payload: Buffer, place: str) -> Records:
    """Take a payload apart. Raises Corrupt where it is none."""
    view = memoryview(payload)
    try:
        version, mode, length, partition, topic_id = _HEAD.unpack_from(view)
        start = _HEAD.size + length
        table = str(view[_HEAD.size : start], "utf-8")
        if version != VERSION or not table or start >= len(view):
            raise ValueError(f"version {version}, {len(view)} bytes")
        return Records(Mode(mode), topic_id, table, partition, view[start:])
    except (struct.error, ValueError) as error:
        raise Corrupt(f"records of a topic cannot be read. got={error}", place=place) from error
