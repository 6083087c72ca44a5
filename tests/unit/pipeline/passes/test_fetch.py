"""Rows by their positions out of segments that were written in small row groups. No Spark runs here."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.model.errors import Corrupt
from mainstem.pipeline.passes.fetch import whole_rows
from mainstem.pipeline.passes.plan import CHANGE

# As `latest_as_rows` has them.
NARROW = pa.schema(
    {
        "position": pa.int64(),
        "stands_for": pa.int64(),
        "evidence": pa.int8(),
        "namespace": pa.string(),
        "table": pa.string(),
    }
)


def rows_of(positions: list[int], table: str) -> pa.Table:
    texts = {name: pa.array([f"{name}{each}" for each in positions]) for name in ("key", "columns", "op", "source")}
    numbers = {name: pa.array(positions, pa.int64()) for name in ("position", "hlc", "arrival_ms")}
    names = {"namespace": pa.array(["n"] * len(positions)), "table": pa.array([table] * len(positions))}
    return pa.table({**numbers, **texts, **names})


def segment(folder: Path, positions: list[int], *tables: str) -> str:
    """A segment that has all of its positions in each of the tables: every row group is of one of them."""
    parts = [rows_of(positions, table) for table in tables or ("t",)]
    path = folder / f"{positions[0]:020d}-{positions[-1]:020d}-{len(list(folder.iterdir()))}.parquet"
    with pq.ParquetWriter(path, parts[0].schema) as writer:
        for part in parts:
            writer.write_table(part, row_group_size=3)
    return str(path)


def asked_for(positions: list[int], table: str = "t") -> pa.Table:
    rows = [
        {"position": each, "stands_for": each * 10, "evidence": CHANGE, "namespace": "n", "table": table}
        for each in positions
    ]
    return pa.Table.from_pylist(rows, schema=NARROW)


def test_rows_come_whole_whatever_order_they_are_asked_for_in(tmp_path: Path) -> None:
    # The second segment is sorted by table: positions go up and down in it.
    places = [segment(tmp_path, list(range(1, 11))), segment(tmp_path, [11, 13, 15, 17, 12, 14, 16, 18])]
    found = whole_rows(asked_for([17, 2, 12, 9, 18]), places, {})
    assert set(found.schema.names) == {*NARROW.names, "key", "columns", "op", "source", "hlc", "error"}
    by_position = {row["position"]: row for row in found.to_pylist()}
    assert set(by_position) == {2, 9, 12, 17, 18}
    for position, row in by_position.items():
        assert (row["key"], row["columns"], row["hlc"]) == (f"key{position}", f"columns{position}", position)
        assert (row["stands_for"], row["namespace"], row["table"]) == (position * 10, "n", "t")
        assert (row["evidence"], row["error"]) == (CHANGE, None)


def test_a_position_that_no_segment_has_is_not_passed_over(tmp_path: Path) -> None:
    places = [segment(tmp_path, [1, 2, 3, 5, 6])]
    for wanted in ([4], [2, 4], [7], [0, 1]):
        with pytest.raises(Corrupt, match=f"expected={len(wanted)}"):
            whole_rows(asked_for(wanted), places, {})


def test_a_position_that_stands_twice_is_refused(tmp_path: Path) -> None:
    places = [segment(tmp_path, [1, 2, 3]), segment(tmp_path, [2, 4])]
    with pytest.raises(Corrupt):
        whole_rows(asked_for([2, 4]), places, {})


@pytest.mark.parametrize("table", ["t", "täglich", "ü" * 128])
def test_rows_of_other_tables_at_the_same_positions_are_passed_over(tmp_path: Path, table: str) -> None:
    """A record of a topic and what its envelope says of another table share a position."""
    places = [segment(tmp_path, [1, 2, 3, 4], "a", table, f"{table}_records"), segment(tmp_path, [5, 6], "a", "z")]
    found = whole_rows(asked_for([1, 3, 4], table), places, {})
    assert found["position"].to_pylist() == [1, 3, 4] and found["table"].to_pylist() == [table] * 3
