"""The merge converges: any order, any grouping, any number of repeats."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.model import Change, Hlc, Invalid, Operation, Row, SourceId, Stamp, join, merge, row_of

COLUMNS = ("a", "b", "c")
VALUES = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from(["x", "y"]))


@st.composite
def changes(draw: st.DrawFn) -> Change:
    operation = draw(st.sampled_from([Operation.INSERT, Operation.UPDATE, Operation.DELETE]))
    return Change(
        table="t",
        key="k",
        operation=operation,
        columns=None
        if operation is Operation.DELETE
        else draw(st.dictionaries(st.sampled_from(COLUMNS), VALUES, max_size=3)),
        # A narrow range, so that clocks collide across sources and with tombstones.
        hlc=Hlc(draw(st.integers(1, 6))),
        source=SourceId(draw(st.sampled_from(["s1", "s2"]))),
        batch_sequence=1,
    )


ROWS = st.lists(changes(), max_size=6).map(merge)


@given(ROWS, ROWS)
def test_join_is_commutative(left: Row, right: Row) -> None:
    assert join(left, right) == join(right, left)


@given(ROWS, ROWS, ROWS)
def test_join_is_associative(one: Row, two: Row, three: Row) -> None:
    assert join(join(one, two), three) == join(one, join(two, three))


@given(ROWS)
def test_join_is_idempotent(row: Row) -> None:
    assert join(row, row) == row


@given(st.lists(changes(), max_size=5))
def test_any_order_with_any_repeats_gives_the_same_row(batch: list[Change]) -> None:
    expected = merge(batch)
    for order in itertools.islice(itertools.permutations(batch), 30):
        assert merge(order) == expected
        assert merge([*order, *order[:3]]) == expected


@given(st.lists(changes(), max_size=8))
def test_each_column_is_the_latest_write_after_the_latest_delete(batch: list[Change]) -> None:
    """The rule, said a second time in the plainest way: no lattice, just all changes at once."""
    deletes = [Stamp(c.hlc or Hlc(0), c.source) for c in batch if c.operation is Operation.DELETE]
    writes = [c for c in batch if c.operation is not Operation.DELETE]
    row = merge(batch)
    for column in COLUMNS:
        stamps = [Stamp(c.hlc or Hlc(0), c.source) for c in writes if column in (c.columns or {})]
        alive = [s for s in stamps if not deletes or s > max(deletes)]
        assert (column in row.cells) == bool(alive)
        if alive:
            assert row.cells[column].stamp == max(alive)


def _change(operation: Operation, clock: int, source: str = "s", **columns: object) -> Change:
    return Change(
        table="t",
        key="k",
        operation=operation,
        columns=columns or None,
        hlc=Hlc(clock),
        source=SourceId(source),
        batch_sequence=1,
    )


def test_columns_written_apart_are_merged_apart() -> None:
    row = merge(
        [_change(Operation.INSERT, 1, a=1, b=1), _change(Operation.UPDATE, 3, b=3), _change(Operation.UPDATE, 2, a=2)]
    )
    assert row.values() == {"a": 2, "b": 3}


def test_null_is_a_value_and_a_missing_column_is_not() -> None:
    row = merge([_change(Operation.INSERT, 1, a=1, b=1), _change(Operation.UPDATE, 2, a=None)])
    assert row.values() == {"a": None, "b": 1}


def test_a_write_after_a_delete_brings_back_only_what_it_wrote() -> None:
    row = merge(
        [_change(Operation.INSERT, 1, a=1, b=1), _change(Operation.DELETE, 2), _change(Operation.UPDATE, 3, a=3)]
    )
    assert row.values() == {"a": 3}
    assert row.visible


def test_a_late_write_older_than_the_delete_stays_gone() -> None:
    row = merge([_change(Operation.DELETE, 5), _change(Operation.INSERT, 4, a=1)])
    assert not row.visible
    assert row.tombstone == Stamp(Hlc(5), "s")


def test_two_sources_with_one_clock_are_ordered_by_source() -> None:
    row = merge([_change(Operation.UPDATE, 1, source="b", a="b"), _change(Operation.UPDATE, 1, source="a", a="a")])
    assert row.values() == {"a": "b"}


def test_an_unstamped_change_cannot_be_merged() -> None:
    with pytest.raises(Invalid, match="stamped"):
        row_of(Change(table="t", key="k", operation=Operation.INSERT, source=SourceId("s"), batch_sequence=1))
