"""Which hashes of a partition stand more than once."""

import pyarrow as pa
import pytest

from mainstem.pipeline.passes.repeated import REPEATED, repeated


def batches(*columns: list[int]) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array(column, pa.int64())], schema=REPEATED) for column in columns]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([], []),
        ([[]], []),
        ([[7]], []),
        ([[1, 2, 3]], []),
        ([[3, 1], [2, 3]], [3]),
        ([[5, 5, 5], [5]], [5]),
        ([[-(2**63), 2**63 - 1], [2**63 - 1, 0, -(2**63)]], [-(2**63), 2**63 - 1]),
    ],
)
@pytest.mark.parametrize("held_max", [1, 3, 1_000])
def test_each_that_stands_more_than_once_is_told_once(
    columns: list[list[int]], expected: list[int], held_max: int
) -> None:
    found = [number for batch in repeated(iter(batches(*columns)), held_max) for number in batch.column(0).to_pylist()]
    assert found == expected
