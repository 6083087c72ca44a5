"""What the driver reads of segments: order, footers, slices, whether clocks grow with positions."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.model import Corrupt, LogPosition, TableName
from mainstem.pipeline.source.segments import SegmentFolder, clocks_are_ordered, slice_for, tables_of

ORDERS = TableName("default", "orders")


def folder_of(log: Any) -> tuple[Any, ...]:
    return tuple(SegmentFolder(log.folder).list())


def test_segments_come_in_log_order_and_other_files_are_left_alone(log: Any) -> None:
    for _ in range(3):
        log.seal(log.change("1", {"a": 1}), log.change("2", {"a": 1}, table="items"))
    (log.folder / "00000000000000000007-00000000000000000008.parquet.tmp").write_bytes(b"half")
    segments = folder_of(log)
    assert [(segment.first, segment.last) for segment in segments] == [(1, 2), (3, 4), (5, 6)]
    assert tables_of(segments) == {log.name("orders"): 5, log.name("items"): 6}


def test_a_missing_folder_has_no_segments(tmp_path: Path) -> None:
    assert SegmentFolder(tmp_path / "nothing").list() == ()


def test_a_footer_of_another_segment_is_refused(log: Any) -> None:
    path = log.seal(log.change("1", {"a": 1}))
    path.rename(path.with_name(f"{2:020d}-{2:020d}.parquet"))
    with pytest.raises(Corrupt, match="segment name"):
        SegmentFolder(log.folder).list()


def test_a_file_without_a_footer_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"position": [1]}), tmp_path / f"{1:020d}-{1:020d}.parquet")
    with pytest.raises(Corrupt, match="footer"):
        SegmentFolder(tmp_path).list()


def test_a_slice_starts_past_what_is_covered_and_is_bounded(log: Any) -> None:
    for _ in range(4):
        log.seal(log.change("1", {"a": 1}), log.change("1", {"a": 2}), log.change("9", {"b": 1}, table="items"))
    orders = log.name("orders")
    segments = folder_of(log)
    assert slice_for(orders, segments, LogPosition(11), 100) is None
    run = slice_for(orders, segments, LogPosition(4), 4)
    assert run is not None
    # The second segment is taken again: its last change of the table, at 5, is not covered.
    assert ([segment.first for segment in run.segments], run.last, run.count) == ([4, 7], 9, 4)
    assert run.past(LogPosition(4)) == 4
    assert run.past(LogPosition(3)) is None
    # However small the bound is, a pass takes something.
    one = slice_for(orders, segments, LogPosition(0), 1)
    assert one is not None and one.last == 3


def test_what_a_slice_says_of_its_columns(log: Any) -> None:
    log.seal(log.change("1", {"a": 1, "b": None}), log.change("2", {"a": "x"}))
    log.seal(log.change("1", None))
    run = slice_for(log.name("orders"), folder_of(log), LogPosition(0), 100)
    assert run is not None
    assert run.columns == {"a": {"int", "string"}, "b": {"null"}}
    # A segment of nothing but deletes says nothing against a column.
    assert run.always == {"a"}
    assert (run.deletes, run.errors, run.hlc_min, run.hlc_max) == (1, 0, 10, 30)


@pytest.mark.parametrize(
    ("clocks", "ordered"),
    [([[1, 2], [3, 4]], True), ([[1, 2], [2, 3]], False), ([[2, 1], [3, 4]], False), ([[5, 6], [3, 4]], False)],
)
def test_whether_clocks_grow_with_positions(log: Any, clocks: list[list[int]], ordered: bool) -> None:
    for batch in clocks:
        log.seal(*(log.change("1", {"a": 1}, hlc=clock) for clock in batch))
    run = slice_for(log.name("orders"), folder_of(log), LogPosition(0), 100)
    assert run is not None
    assert clocks_are_ordered(run) is ordered
