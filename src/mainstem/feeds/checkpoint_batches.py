"""Rows of a checkpoint as deltas, a whole batch at a time.

A first sync waits for this. Most rows are one write and nothing else, and those are put together by Arrow, column by
column: what it concatenates is the message. Python would take five times as long for them.
"""

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.wire.varint import varint

# What is shorter than this has its length looked up.
_SIZES = 1 << 14
# Tag bytes: field number << 3 | wire type. The operation stands before the table.
_INSERT_INTO, _ROW_ID, _COLUMNS, _HLC, _CLIENT = b"\x08\x01\x12", b"\x1a", b"\x22", b"\x29", b"\x32"
_NAME, _VALUE = b"\x0a", b"\x12"
_DELTA = b"\x0a"


def written_once(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Which rows are one write: no tombstone, some cells, and one stamp for all of them."""
    cells = batch.column("cells")
    counts = pc.list_value_length(cells).to_numpy()
    found: npt.NDArray[np.bool_] = (counts > 0) & pc.is_null(batch.column("tombstone")).to_numpy(zero_copy_only=False)
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))[counts > 0]
    if not len(starts):
        return found
    flat = cells.flatten()
    for stamp in (flat.field("hlc").to_numpy(), flat.field("source").dictionary_encode().indices.to_numpy()):
        found[counts > 0] &= np.minimum.reduceat(stamp, starts) == np.maximum.reduceat(stamp, starts)
    return found


def encode_written(batch: pa.RecordBatch, bytes_max: int) -> list[bytes] | None:
    """Rows that are one write each, as they stand in a response, in parts; None where one is too large for this."""
    if not len(batch):
        return []
    cells = batch.column("cells")
    flat = cells.flatten()
    values, row_ids = flat.field("value").cast(pa.binary()), batch.column("row_id").cast(pa.binary())
    value_heads, id_heads = _lengths(_VALUE, values), _lengths(_ROW_ID, row_ids)
    if value_heads is None or id_heads is None:
        return None
    each = _framed(_COLUMNS, _repeated(_NAME, flat.field("column")), value_heads, values)
    if each is None:
        return None
    ends = np.cumsum(pc.list_value_length(cells).to_numpy())
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    # A row's stamp is that of its first cell.
    firsts = offsets.slice(0, len(batch))
    clocks = np.ascontiguousarray(flat.field("hlc").take(firsts).to_numpy(), dtype="<i8")
    hlcs = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(clocks), [None, pa.py_buffer(clocks)])
    rows = _framed(
        _DELTA,
        _repeated(_INSERT_INTO, batch.column("table")),
        id_heads,
        row_ids,
        pc.binary_join(pa.ListArray.from_arrays(offsets, each), b""),
        pc.binary_join_element_wise(_HLC, hlcs.cast(pa.binary()), b""),
        _repeated(_CLIENT, flat.field("source").take(firsts)),
    )
    return None if rows is None else _parts(rows, bytes_max)


def _parts(rows: pa.BinaryArray, bytes_max: int) -> list[bytes]:
    """What Arrow put together lies in memory as it is to be sent."""
    ends = np.cumsum(_sizes(rows), dtype=np.int64)
    data = memoryview(rows.buffers()[2])
    parts, start = [], 0
    while start < ends[-1]:
        last = min(int(np.searchsorted(ends, start + bytes_max)), len(ends) - 1)
        end = int(ends[last])
        parts.append(bytes(data[start:end]))
        start = end
    return parts


def _framed(tag: bytes, *parts: pa.BinaryArray) -> pa.BinaryArray | None:
    """The parts of each message, after its tag and length."""
    sizes = sum(map(_sizes, parts), np.zeros(len(parts[0]), np.int32))
    heads = _heads_of(tag, sizes)
    return None if heads is None else pc.binary_join_element_wise(heads, *parts, b"")


def _lengths(tag: bytes, array: pa.BinaryArray) -> pa.BinaryArray | None:
    return _heads_of(tag, _sizes(array))


def _heads_of(tag: bytes, sizes: npt.NDArray[np.int32]) -> pa.BinaryArray | None:
    return None if sizes.max(initial=0) >= _SIZES else _heads(tag).take(pa.array(sizes))


def _repeated(tag: bytes, texts: pa.StringArray) -> pa.BinaryArray:
    """A field of a text that comes again and again: framed once for each text there is."""
    found = texts.dictionary_encode()
    framed = [tag + varint(len(text)) + text for text in found.dictionary.cast(pa.binary()).to_pylist()]
    return pa.array(framed, pa.binary()).take(found.indices)


def _sizes(array: pa.BinaryArray) -> npt.NDArray[np.int32]:
    sizes: npt.NDArray[np.int32] = pc.binary_length(array).to_numpy()
    return sizes


@cache
def _heads(tag: bytes) -> pa.BinaryArray:
    """A tag and each length that is looked up."""
    return pa.array([tag + varint(size) for size in range(_SIZES)], pa.binary())
