"""Columns of a segment while they are built, against lists."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.log.seal.columns import ColumnBuilder

_TEXT = st.sampled_from(["insert", "update", "é", ""])
_KINDS = {
    pa.string(): st.none() | _TEXT,
    pa.int64(): st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    pa.dictionary(pa.int32(), pa.string()): _TEXT,
}


@st.composite
def built(draw: st.DrawFn) -> tuple[pa.DataType, list[tuple[str, Any]]]:
    """A kind, and what is done to a column of it."""
    kind = draw(st.sampled_from(list(_KINDS)))
    value = _KINDS[kind]
    # Around the size from which on a list becomes Arrow at once.
    lists = st.lists(value, min_size=1, max_size=8) | st.lists(value, min_size=62, max_size=66)
    steps = st.one_of(
        st.tuples(st.just("repeat"), st.tuples(value, st.integers(1, 100))),
        st.tuples(st.just("extend"), lists),
        st.tuples(st.just("append"), lists.map(lambda values: pa.array(values, kind))),
    )
    if kind == pa.int64():
        ranges = st.builds(lambda start, size: range(start, start + size), st.integers(0, 3), st.integers(1, 3))
        steps |= st.tuples(st.just("extend"), ranges)
    return kind, draw(st.lists(steps, max_size=12))


@given(built())
def test_a_column_has_what_it_was_given(case: tuple[pa.DataType, list[tuple[str, Any]]]) -> None:
    kind, steps = case
    column = ColumnBuilder(kind)
    expected: list[Any] = []
    for step, values in steps:
        if step == "repeat":
            column.repeat(*values)
            expected += [values[0]] * values[1]
        else:
            getattr(column, step)(values)
            expected += values.to_pylist() if isinstance(values, pa.Array) else values
    finished = column.finish()
    finished.validate(full=True)
    assert finished.type == kind
    assert finished.to_pylist() == expected
    assert len(column.finish()) == 0


@pytest.mark.parametrize("size", [1, 100], ids=["few", "many"])
@pytest.mark.parametrize(
    ("value", "kept"), [(1 << 63, None), (-(1 << 70), None), (1.5, 1), (1e300, None), (float("inf"), None)]
)
def test_a_number_without_room_is_null_and_no_failure(size: int, value: float, kept: int | None) -> None:
    column = ColumnBuilder(pa.int64())
    column.extend([7] * size + [value, None])
    assert column.finish().to_pylist() == [7] * size + [kept, None]


def test_many_short_lists_become_few_arrays() -> None:
    column = ColumnBuilder(pa.string())
    for number in range(40_000):
        column.extend([str(number)])
    finished = column.finish()
    assert finished.num_chunks == 3
    assert finished.to_pylist() == [str(number) for number in range(40_000)]


def test_counting_goes_on_from_batch_to_batch() -> None:
    column = ColumnBuilder(pa.int64())
    for first in range(0, 1_000, 10):
        column.extend(range(first, first + 10))
    finished = column.finish()
    assert finished.num_chunks == 1
    assert finished.to_pylist() == list(range(1_000))
