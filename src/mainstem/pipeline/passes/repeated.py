"""Hashes that stand more than once in a partition. Runs on the executors.

A sort of the numbers takes half of what Spark's own grouping of mostly different ones takes.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

REPEATED = pa.schema([pa.field("hash", pa.int64())])
# So many are held before those that are the same become one: a key may stand in every row of a file.
HELD_MAX = 4_000_000

_Hashes = npt.NDArray[np.int64]


def repeated(batches: Iterable[pa.RecordBatch], held_max: int = HELD_MAX) -> Iterator[pa.RecordBatch]:
    """The task: a column of hashes in, each that stands more than once out."""
    once: _Hashes = np.empty(0, np.int64)
    again = once
    parts: list[_Hashes] = []
    held = 0
    for batch in batches:
        parts.append(batch.column(0).to_numpy())
        held += batch.num_rows
        if held >= held_max:
            once, again = _merged(once, again, parts)
            parts, held = [], 0
    _, again = _merged(once, again, parts)
    yield pa.record_batch([pa.array(again, pa.int64())], schema=REPEATED)


def _merged(once: _Hashes, again: _Hashes, parts: list[_Hashes]) -> tuple[_Hashes, _Hashes]:
    """Every hash once, and those that came more than once."""
    hashes = np.sort(np.concatenate([once, *parts]))
    is_same = hashes[1:] == hashes[:-1]
    # Not by `np.unique`, which does not see that they are sorted: it takes seconds.
    once = np.concatenate([hashes[:1], hashes[1:][~is_same]])
    return once, np.unique(np.concatenate([again, hashes[1:][is_same]]))
