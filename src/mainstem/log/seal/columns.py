"""A column of a segment while it is being built.

Much of a segment is the same in all rows of a batch, or counts up from row to row, or is not there at all. None of that
is spelt out before the end, when it is done for all rows at once; and what is spelt out becomes Arrow batch by batch,
while it is still in the processor's caches.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from mainstem.log.seal.shapes import LONG_MAX, LONG_MIN

# A list of so many values becomes Arrow at once; shorter ones wait until they are so many together.
_ARROW_ROWS_MIN = 64
_ARROW_ROWS = 16_384
_INT64 = pa.int64()


class _Same(msgspec.Struct, gc=False):
    """One value in so many rows."""

    value: Any
    count: int


class ColumnBuilder:
    """Takes the values of one column, batch by batch, and is Arrow in the end."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        # A list is only ever the last one: it still grows.
        self._parts: list[_Same | range | list[Any] | pa.Array] = []

    def repeat(self, value: Any, count: int) -> None:
        """The next rows all have this value."""
        last = self._parts[-1] if self._parts else None
        if isinstance(last, _Same) and last.value == value:
            last.count += count
            return
        self._settle()
        self._parts.append(_Same(value, count))

    def extend(self, values: Sequence[Any]) -> None:
        """The values of the next rows."""
        last = self._parts[-1] if self._parts else None
        if isinstance(values, range):
            if isinstance(last, range) and last.stop == values.start:
                self._parts[-1] = range(last.start, values.stop)
                return
            self._settle()
            self._parts.append(values)
        elif isinstance(last, list):
            last.extend(values)
            if len(last) >= _ARROW_ROWS:
                self._settle()
        else:
            is_long = len(values) >= _ARROW_ROWS_MIN
            self._parts.append(_array(values, self._kind) if is_long else list(values))

    def append(self, values: pa.Array) -> None:
        """The values of the next rows, which are Arrow already."""
        self._settle()
        self._parts.append(values)

    def finish(self) -> pa.ChunkedArray:
        """All values. The column is empty then."""
        self._settle()
        parts, self._parts = self._parts, []
        arrays: list[pa.Array] = []
        same: list[_Same] = []
        for part in parts:
            if isinstance(part, _Same):
                same.append(part)
                continue
            arrays += self._repeated(same)
            same = []
            arrays.append(_counted(part) if isinstance(part, range) else part)
        return pa.chunked_array(arrays + self._repeated(same), self._kind).unify_dictionaries()

    def _settle(self) -> None:
        """Other than a list may follow."""
        if self._parts and isinstance(self._parts[-1], list):
            self._parts[-1] = _array(self._parts[-1], self._kind)

    def _repeated(self, same: list[_Same]) -> list[pa.Array]:
        if not same:
            return []
        if all(one.value is None for one in same):
            return [pa.nulls(sum(one.count for one in same), self._kind)]
        # Each value once, in the order in which they came.
        numbers: dict[Any, int] = {}
        places = [numbers.setdefault(one.value, len(numbers)) for one in same]
        indices = pa.array(np.repeat(np.array(places, np.int32), [one.count for one in same]))
        if pa.types.is_dictionary(self._kind):
            return [pa.DictionaryArray.from_arrays(indices, pa.array(numbers, self._kind.value_type))]
        return [pa.array(numbers, self._kind).take(indices)]


def _counted(values: range) -> pa.Array:
    return pa.arange(values.start, values.stop)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return _integers(values) if kind == _INT64 else pa.array(values, kind)


def _integers(values: Sequence[Any]) -> pa.Int64Array:
    """Null where a client's number has no room; of a fraction of a millisecond, the whole ones."""
    try:
        # What most of them are, in half the time that Arrow takes.
        numbers = array("q", values)
    except (TypeError, OverflowError):
        return pa.array([_int64_or_none(value) for value in values], _INT64)
    return pa.Array.from_buffers(_INT64, len(numbers), [None, pa.py_buffer(numbers)])


def _int64_or_none(value: int | float | None) -> int | None:
    return int(value) if value is not None and LONG_MIN <= value <= LONG_MAX else None
