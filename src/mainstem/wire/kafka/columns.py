"""The records of a large batch as columns, all of them at once. Pure.

To open a batch record by record was most of what sealing cost at a producer's full rate. What most batches are (no
headers, offsets one after the other) is read here by a few calls for the whole batch. Whatever else there is, broken
records included, is left to `opening`, which says what is wrong with them; a test holds the two against each other.
"""

from binascii import b2a_base64
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.wire.kafka.records import BatchHead

# With fewer records the calls cost more than they save.
COLUMNS_RECORDS_MIN = 256
# Of numbers in a record: of longer ones `opening` decides.
_NUMBER_BYTES_MAX = 5
_EQUALS = ord("=")

_Numbers = npt.NDArray[np.int64]
_FIRST = np.zeros(1, np.int64)


class RecordColumns(NamedTuple):
    """Records without headers, whose offsets count up from the batch's first. Keys are None where no record has one."""

    timestamps: _Numbers
    keys: pa.BinaryArray | None
    values: pa.BinaryArray
    # Of all keys and values.
    bytes: int


class _OneByOne(Exception):
    """Something that is read record by record."""


def open_columns(head: BatchHead, data: bytes) -> RecordColumns | None:
    """The records of a batch whose body was decompressed; None where they must be read one by one."""
    try:
        return _columns(head, data, np.array(_ends(head.records, data), np.int64))
    # An index past the end: the data end early.
    except (IndexError, _OneByOne):
        return None


def _ends(count: int, data: bytes) -> list[int]:
    """Where each record ends: one after the other, there is no other way. What is wrong with a size shows later."""
    ends: list[int] = []
    at = 0
    for _ in range(count):
        size = data[at]
        if size < 0x80:
            at += 1 + (size >> 1)
        elif (second := data[at + 1]) < 0x80:
            at += 2 + ((size & 0x7F | second << 7) >> 1)
        elif (third := data[at + 2]) < 0x80:
            at += 3 + ((size & 0x7F | (second & 0x7F) << 7 | third << 14) >> 1)
        else:
            raise _OneByOne
        ends.append(at)
    if at > len(data):
        raise _OneByOne
    return ends


def _columns(head: BatchHead, data: bytes, ends: _Numbers) -> RecordColumns:
    numbers = np.frombuffer(data, np.uint8)
    sizes, at = _varints(numbers, np.concatenate((_FIRST, ends[:-1])))
    _check(at + sizes, ends)
    # Behind one byte of attributes, which Kafka leaves unused.
    time_deltas, at = _varints(numbers, at + 1)
    offset_deltas, at = _varints(numbers, at)
    _check(offset_deltas, np.arange(head.records))
    sizes, key_starts = _varints(numbers, at)
    has_key, key_ends = sizes >= 0, key_starts + np.maximum(sizes, 0)
    sizes, value_starts = _varints(numbers, key_ends)
    has_value, value_ends = sizes >= 0, value_starts + np.maximum(sizes, 0)
    # No headers, and the end.
    _check(numbers[value_ends], 0)
    _check(value_ends + 1, ends)
    if head.is_log_append_time:
        timestamps = np.full(head.records, head.max_timestamp, np.int64)
    else:
        timestamps = head.base_timestamp + time_deltas
    keys = _slices(data, key_starts, key_ends, has_key) if has_key.any() else None
    values = _slices(data, value_starts, value_ends, has_value)
    size = int((key_ends - key_starts).sum() + (value_ends - value_starts).sum())
    return RecordColumns(timestamps, keys, values, size)


def _check(got: npt.NDArray[Any], expected: npt.NDArray[Any] | int) -> None:
    if (got != expected).any():
        raise _OneByOne


def _varints(data: npt.NDArray[np.uint8], at: _Numbers) -> tuple[_Numbers, _Numbers]:
    """A zigzag varint at each place, and where they end."""
    raw = data[at].astype(np.int64)
    at = at + 1
    unfinished = np.flatnonzero(raw >= 0x80)
    raw[unfinished] &= 0x7F
    for position in range(1, _NUMBER_BYTES_MAX):
        if not unfinished.size:
            break
        byte = data[at[unfinished]].astype(np.int64)
        raw[unfinished] |= (byte & 0x7F) << 7 * position
        at[unfinished] += 1
        unfinished = unfinished[byte >= 0x80]
    if unfinished.size:
        raise _OneByOne
    return (raw >> 1) ^ -(raw & 1), at


def _slices(data: bytes, starts: _Numbers, ends: _Numbers, valid: npt.NDArray[np.bool_]) -> pa.BinaryArray:
    """Parts of the data that lie one behind the other, without what is between them."""
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    all_parts = pa.BinaryArray.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    every_other = np.arange(0, len(bounds), 2, dtype=np.int32)
    return all_parts.take(pa.array(every_other, mask=None if valid.all() else ~valid))


def base64_texts(values: pa.BinaryArray) -> pa.StringArray:
    """Each value as Base64. All at once: filled up to whole threes first, so that none reaches into the next."""
    import pyarrow.compute as pc

    fill = -np.diff(_offsets(values)) % 3
    if fill.any():
        fills = pa.array([b"", b"\0", b"\0\0"]).take(pa.array(fill))
        values = pc.binary_join_element_wise(values, fills, b"")
    offsets = _offsets(values)
    # An array of nulls may have no buffer of its own.
    data = memoryview(values.buffers()[2] or b"")[offsets[0] : offsets[-1]]
    text = bytearray(b2a_base64(data, newline=False))
    ends = (offsets - offsets[0]) // 3 * 4
    marks = np.frombuffer(text, np.uint8)
    last = ends[1:]
    marks[last[fill >= 1] - 1] = _EQUALS
    marks[last[fill == 2] - 2] = _EQUALS
    valid = None if not values.null_count else pc.is_valid(values).buffers()[1]
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(text), valid)


def _offsets(values: pa.BinaryArray) -> npt.NDArray[np.int32]:
    return np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
