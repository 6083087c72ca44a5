"""The stream itself: what Spark says of its micro-batches is handed on, each once, also where a query ends in between.

The query and its jobs are real; the tables are those of `test_carrier`.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mainstem.pipeline.breaker import Breaker
from mainstem.pipeline.source.gathering import Gathering
from mainstem.pipeline.source.segments import Segment, SegmentFolder
from mainstem.pipeline.source.stream import RESTART_S, SegmentStream
from tests.unit.pipeline.test_carrier import Rig

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

WAIT_S_MAX = 120.0
POLL_S = 0.02


class AwayFolder(SegmentFolder):
    """A folder that cannot be reached while it is told to be away."""

    is_away = False

    def list(self) -> tuple[Segment, ...]:
        if self.is_away:
            raise OSError("the segments are away")
        return super().list()


class StreamRig(Rig):
    """A stream over the log's folder."""

    def __init__(self, spark: SparkSession, log: Any, folder: Path) -> None:
        super().__init__(spark, log, folder)
        log.folder.mkdir(parents=True, exist_ok=True)
        self.segments = AwayFolder(log.folder)
        self.carrier = self.new_carrier(segments=self.segments)
        gathering = Gathering(self.segments, self.clock, bytes_max=1)
        self.stream = SegmentStream(
            self.carrier, self.progress, 0.02, breaker=Breaker(self.clock), clock=self.clock, gathering=gathering
        )
        self.stream.start(spark, str(log.folder), str(folder / "checkpoint"))

    def covers(self, table: str, position: int) -> bool:
        return self.table(table).covers == position

    def told(self) -> list[tuple[str, int]]:
        """The micro-batches and their rows, by Spark's own progress."""
        return [(each.batch, each.rows_in) for each in self.progress.report({}).micro_batches]

    def watched(self, condition: Callable[[], bool]) -> bool:
        self.stream.watch()
        return condition()


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(POLL_S)


@pytest.fixture
def rig(spark: SparkSession, log: Any, tmp_path: Path) -> Iterator[StreamRig]:
    made = StreamRig(spark, log, tmp_path / "tables")
    yield made
    made.stream.stop(before=made.carrier.stop)


def test_it_is_drained_once_nothing_is_left_to_hand_over(rig: StreamRig) -> None:
    assert not rig.stream.is_drained
    until(lambda: rig.watched(lambda: rig.stream.is_drained))
    assert rig.told() == []


def test_what_waits_at_the_start_is_a_micro_batch(spark: SparkSession, log: Any, tmp_path: Path) -> None:
    log.seal(log.change("1", {"a": 1}, table="a"), log.change("2", {"a": 1}, table="a"))
    rig = StreamRig(spark, log, tmp_path / "tables")
    try:
        until(lambda: rig.watched(lambda: rig.told() != []))
        assert (rig.told(), rig.stream.is_drained) == ([("0", 2)], False)
    finally:
        rig.stream.stop(before=rig.carrier.stop)


def test_rows_of_a_micro_batch_are_told_though_the_query_ends_before_the_next_look(rig: StreamRig) -> None:
    rig.seal("a", "b")
    until(lambda: rig.covers("b", 2))
    # Nobody looks until the query has ended, in the next micro-batch.
    rig.segments.is_away = True
    rig.seal("a")
    until(lambda: not any(query.name == "segments" for query in rig.spark.streams.active))
    rig.stream.watch()
    assert rig.told() == [("0", 2)]
    rig.segments.is_away = False
    rig.clock.advance(RESTART_S)
    until(lambda: rig.watched(lambda: len(rig.told()) == 2))
    rig.seal("b")
    until(lambda: rig.watched(lambda: len(rig.told()) == 3))
    # The micro-batch that failed was run again, under its own number.
    assert rig.told() == [("0", 2), ("1", 1), ("2", 1)]
    report = rig.progress.report({})
    assert report.totals["rows_in"] == report.totals["rows_read"] == 4
    assert [(each.number, each.batch) for each in report.passes] == [(1, "0"), (2, "1"), (3, "2")]


def test_another_query_goes_on_with_the_numbers_of_the_last_one(rig: StreamRig, spark: SparkSession) -> None:
    """As after a restart of the process: Spark's numbers go on, and what it is told counts from nothing."""
    for number in (1, 2):
        rig.seal("a")
        until(lambda number=number: rig.covers("a", number))  # type: ignore[misc]
    until(lambda: rig.watched(lambda: len(rig.told()) == 2))
    rig.stream.stop(before=rig.carrier.stop)
    rig.seal("a")
    again = StreamRig(spark, rig.log, rig.folder)
    try:
        until(lambda: again.watched(lambda: len(again.told()) == 1))
        # Its tables are new: what was handed over before is read beside the micro-batch.
        assert again.told() == [("2", 1)]
        assert again.progress.report({}).totals["rows_read"] == 3
    finally:
        again.stream.stop(before=again.carrier.stop)
