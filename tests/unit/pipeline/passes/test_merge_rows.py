"""The merge in columns against `mainstem.model.merge`: random histories, old rows, late deletes, ties; and vectors."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from mainstem.model import Change, LogPosition, Operation, merge
from mainstem.model.merge import EMPTY, Row
from mainstem.pipeline.passes.merge import Evidence, last_of_each, merge_rows
from mainstem.pipeline.passes.values import Values, read_values
from mainstem.tables.evolution import Column
from mainstem.tables.types import BOOLEAN, DOUBLE, LONG, STRING, Kind

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "merge.json").read_text())
COLUMNS = (
    Column("a", LONG, Kind.INT),
    Column("b", STRING, Kind.STRING),
    Column("c", DOUBLE, Kind.DOUBLE),
    Column("d", BOOLEAN, Kind.BOOL),
    Column("e", STRING, Kind.JSON),
)


class Known(NamedTuple):
    """One row of evidence."""

    key: str
    hlc: int
    source: str
    # None: a delete.
    columns: dict[str, Any] | None
    is_change: bool = True
    clocks: dict[str, tuple[int, str]] | None = None


def of_change(change: Change) -> Known:
    assert change.hlc is not None
    return Known(change.key, change.hlc, change.source, change.columns if change.columns is not None else None)


def of_row(key: str, row: Row, columns: Sequence[Column] = COLUMNS) -> list[Known]:
    """What a table keeps of a merged row: nothing of one that is not there, clocks only where stamps differ."""
    if not row.visible:
        return []
    top = max(cell.stamp for cell in row.cells.values())
    stamps = {name: (int(cell.stamp.hlc), cell.stamp.source) for name, cell in row.cells.items()}
    is_uniform = len(stamps) == len(columns) and set(stamps.values()) == {tuple(top)}
    return [Known(key, top.hlc, top.source, row.values(), False, None if is_uniform else stamps)]


def evidence(known: Sequence[Known], columns: Sequence[Column] = COLUMNS) -> Evidence:
    texts = [json.dumps(each.columns or {}).encode() for each in known]
    values = read_values(texts, columns, {column.name: ["big"] for column in columns}, {})
    assert values.errors == [None] * len(known)
    return Evidence(
        keys=pa.array([each.key for each in known], pa.string()),
        hlcs=np.array([each.hlc for each in known], np.int64),
        sources=[each.source for each in known],
        positions=np.arange(1, len(known) + 1),
        is_change=np.array([each.is_change for each in known], bool),
        is_delete=np.array([each.columns is None for each in known], bool),
        clocks=[None if each.clocks is None else json.dumps(each.clocks) for each in known],
        values=Values(values.arrays, values.present, []),
    )


def merged(known: Sequence[Known], columns: Sequence[Column] = COLUMNS) -> dict[str, dict[str, Any]]:
    """What the table has then, by key: the stamp of the row, and of each column its stamp and value."""
    found = merge_rows(evidence(known, columns), columns)
    rows: dict[str, dict[str, Any]] = {}
    for number, key in enumerate(found.keys.to_pylist()):
        assert key not in rows, "a key stands twice"
        stamp = (found.hlcs[number].as_py(), found.sources[number].as_py())
        text = found.clocks[number].as_py()
        stamps = {column.name: stamp for column in columns}
        if text is not None:
            stamps = {name: tuple(each) for name, each in json.loads(text).items()}
        values = {column.name: array[number].as_py() for column, array in zip(columns, found.columns, strict=True)}
        # A column that the row does not have is null, and has no stamp.
        assert all(value is None for name, value in values.items() if name not in stamps)
        parsed = {name: _parsed(name, values[name]) for name in stamps}
        rows[key] = {"stamp": stamp, "cells": {name: (stamps[name], parsed[name]) for name in stamps}}
    return rows


def _parsed(name: str, value: Any) -> Any:
    return json.loads(value) if name == "e" and value is not None else value


def expected(changes: Sequence[Change]) -> dict[str, dict[str, Any]]:
    by_key: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        by_key[change.key].append(change)
    found = {}
    for key, of_key in by_key.items():
        row = merge(of_key)
        if row.visible:
            cells = {name: (tuple(cell.stamp), cell.value) for name, cell in row.cells.items()}
            found[key] = {"stamp": max(stamp for stamp, _ in cells.values()), "cells": cells}
    return found


_VALUES = {
    "a": st.none() | st.integers(-3, 3),
    "b": st.none() | st.sampled_from(["", "x", "y", 'quo"te', "ü"]),
    "c": st.none() | st.sampled_from([-1.5, 0.5, 2.0]),
    "d": st.none() | st.booleans(),
    "e": st.none() | st.sampled_from([[], {}, [1], {"b": 1, "a": [2]}, {"a": 1}]),
}
_CHANGES = st.builds(
    lambda key, hlc, source, columns: Change(
        table="t", namespace="n", key=key, hlc=hlc, source=source, columns=columns, position=LogPosition(1),
        batch_sequence=1,
        operation=Operation.DELETE if columns is None else Operation.UPDATE,
    ),
    key=st.sampled_from(["k1", "k2", "k3"]),
    # Few clocks, so that sources tie, and one source with itself.
    hlc=st.integers(1, 12),
    source=st.sampled_from(["s1", "s2", "s10", ""]),
    columns=st.none() | st.fixed_dictionaries({}, optional=_VALUES),
)  # fmt: skip


@given(st.lists(_CHANGES, min_size=1, max_size=30))
def test_changes_alone(changes: list[Change]) -> None:
    assert merged([of_change(change) for change in changes]) == expected(changes)


@given(st.lists(_CHANGES, max_size=20), st.lists(_CHANGES, min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_onto_old_rows_and_earlier_deletes(before: list[Change], after: list[Change], draw: Any) -> None:
    """What a table keeps of earlier changes, the deletes of its history included, is all that a merge needs."""
    by_key: dict[str, list[Change]] = defaultdict(list)
    for change in before:
        by_key[change.key].append(change)
    touched = {change.key for change in after}
    known = [row for key in touched for row in of_row(key, merge(by_key[key], EMPTY))]
    known += [
        of_change(change)._replace(is_change=False)
        for change in before
        if change.operation is Operation.DELETE and change.key in touched
    ]
    known += [of_change(change) for change in after]
    draw.shuffle(known)
    whole = expected([*before, *after])
    assert merged(known) == {key: row for key, row in whole.items() if key in touched}


@given(st.lists(_CHANGES, min_size=1, max_size=12), st.randoms(use_true_random=False))
@example([], None)
def test_the_order_of_arrival_and_repeats_do_not_matter(changes: list[Change], draw: Any) -> None:
    if not changes:
        return
    known = [of_change(change) for change in changes]
    again = [*known, *known[: len(known) // 2]]
    draw.shuffle(again)
    assert merged(again) == merged(known)


@given(st.lists(_CHANGES, min_size=1, max_size=30))
def test_a_row_has_the_highest_position_of_its_changes(changes: list[Change]) -> None:
    known = [of_change(change) for change in changes]
    found = merge_rows(evidence(known), COLUMNS)
    last = {change.key: number for number, change in enumerate(changes, 1)}
    assert dict(zip(found.keys.to_pylist(), found.positions.to_pylist(), strict=True)) == {
        key: last[key] for key in found.keys.to_pylist()
    }


def test_vectors() -> None:
    for vector in VECTORS:
        known = [Known("k", each["hlc"], each["source"], each["columns"]) for each in vector["changes"]]
        names = sorted({name for each in known for name in each.columns or {}})
        # Text for all: a vector may have values of several types in one column.
        columns = [Column(name, STRING, Kind.STRING) for name in names]
        found = merged(known, columns).get("k")
        wanted = vector["row"]
        assert (found is None) == (wanted is None), vector["name"]
        if found is not None:
            values = {name: value for name, (_, value) in found["cells"].items()}
            assert values == {name: _as_text(value) for name, value in wanted.items()}, vector["name"]


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, separators=(",", ":"))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10**6)), unique_by=lambda pair: pair[1], max_size=40))
def test_the_last_of_each(rows: list[tuple[int, int]]) -> None:
    codes = np.array([code for code, _ in rows], np.int64)
    positions = np.array([position for _, position in rows], np.int64)
    found = last_of_each(codes, positions)
    assert {int(codes[row]): int(positions[row]) for row in found} == {
        code: max(position for other, position in rows if other == code) for code, _ in rows
    }
