"""How far the tables have come."""

import asyncio
from pathlib import Path

import pytest

from mainstem.formats.segments import TableFooter
from mainstem.log import Coverage, SegmentInfo, TableLag
from mainstem.model.hlc import Hlc
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition

A, B = TableName("default", "a"), TableName("default", "b")


def segment(first: int, last: int, **tables: int) -> SegmentInfo:
    """A segment in which each table's last position is given."""
    return SegmentInfo(
        path=Path(f"{first}-{last}"),
        bytes=100,
        first=LogPosition(first),
        last=LogPosition(last),
        arrival_min_ms=0,
        arrival_max_ms=0,
        hlc_last=Hlc(0),
        tables={
            TableName("default", name): TableFooter(
                first=LogPosition(first),
                last=LogPosition(end),
                count=(last - first + 1) // len(tables),
                errors=0,
                hlc_min=Hlc(0),
                hlc_max=Hlc(0),
                deletes=0,
                columns={},
                always=[],
            )
            for name, end in tables.items()
        },
    )


def test_the_watermark_is_the_longest_prefix_that_every_table_covers() -> None:
    coverage = Coverage()
    coverage.sealed(segment(1, 10, a=9, b=10))
    coverage.sealed(segment(11, 20, b=20))
    coverage.sealed(segment(21, 30, a=30))
    seen: list[int] = []
    coverage.on_advance(seen.append)
    coverage.covered(B, LogPosition(20))
    assert coverage.watermark == 0
    # A table need only cover its own last change, not the segment's.
    coverage.covered(A, LogPosition(9))
    assert coverage.watermark == 20
    coverage.covered(A, LogPosition(30))
    assert coverage.watermark == 30
    assert seen == [20, 30]


def test_coverage_may_be_known_before_the_segment() -> None:
    coverage = Coverage()
    coverage.covered(A, LogPosition(10))
    coverage.sealed(segment(1, 10, a=10))
    assert coverage.watermark == 10
    assert coverage.lag()[A].changes_behind == 0


def test_older_news_are_ignored() -> None:
    coverage = Coverage()
    coverage.covered(A, LogPosition(10))
    coverage.covered(A, LogPosition(5))
    assert coverage.lag()[A].covered == 10


def test_lag_per_table() -> None:
    coverage = Coverage()
    coverage.sealed(segment(1, 10, a=9, b=10))
    coverage.sealed(segment(11, 20, a=20))
    coverage.covered(A, LogPosition(9))
    assert coverage.lag() == {
        A: TableLag(logged=LogPosition(20), covered=LogPosition(9), changes_behind=10, bytes_behind=100),
        B: TableLag(logged=LogPosition(10), covered=LogPosition(0), changes_behind=5, bytes_behind=50),
    }
    assert coverage.bytes_behind == 150
    coverage.covered(A, LogPosition(20))
    coverage.covered(B, LogPosition(10))
    assert coverage.bytes_behind == 0


def test_segments_come_in_order() -> None:
    coverage = Coverage(start=LogPosition(10))
    with pytest.raises(ValueError, match="order"):
        coverage.sealed(segment(1, 10, a=10))


async def test_waiting() -> None:
    coverage = Coverage()
    coverage.sealed(segment(1, 10, a=10))
    waiting = [asyncio.create_task(coverage.wait_for(LogPosition(n), 20)) for n in (1, 10)]
    late = asyncio.create_task(coverage.wait_for(LogPosition(11), 20))
    await asyncio.sleep(0)
    coverage.covered(A, LogPosition(10))
    assert await asyncio.gather(*waiting) == [True, True]
    assert not late.done()
    late.cancel()
    assert await coverage.wait_for(LogPosition(10), 0)
    assert not await coverage.wait_for(LogPosition(11), 0)


async def test_a_listener_can_leave() -> None:
    coverage = Coverage()
    seen: list[int] = []
    leave = coverage.on_advance(seen.append)
    leave()
    coverage.covered(A, LogPosition(10))
    coverage.sealed(segment(1, 10, a=10))
    assert seen == []
