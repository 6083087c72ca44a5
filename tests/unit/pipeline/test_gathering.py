"""How long a flood may gather between two micro-batches."""

from collections.abc import Sequence

import pytest

from mainstem.formats.segments import TableFooter
from mainstem.model import LogPosition, TableName
from mainstem.pipeline.source.gathering import WAIT_S_MAX, Gathering
from mainstem.pipeline.source.segments import Segment
from mainstem.runtime.clock import ManualClock

ROWS = 100_000
STEP_S = 0.1


def segment(number: int, *, more: bool, rows: int = ROWS) -> Segment:
    first, last = number * rows + 1, (number + 1) * rows
    tables = {TableName("default", "orders"): TableFooter(first=LogPosition(first), last=LogPosition(last), count=rows)}
    return Segment(f"/log/{first:020d}-{last:020d}.parquet", LogPosition(first), LogPosition(last), 10, tables, more)


class Sealer:
    """Shows one more segment at each of some looks; every look takes a while."""

    def __init__(self, clock: ManualClock, segments: Sequence[Segment], looks_per_segment: int = 1) -> None:
        self._clock = clock
        self._segments = segments
        self._looks_per_segment = looks_per_segment
        self.looks = 0
        self.fails = False

    def list(self) -> tuple[Segment, ...]:
        if self.fails:
            raise OSError("gone")
        self._clock.advance(STEP_S)
        self.looks += 1
        return tuple(self._segments[: 1 + (self.looks - 1) // self._looks_per_segment])


def gather(sealer: Sealer, clock: ManualClock, *, after: int = 0, bytes_max: int = 1_000) -> int:
    """How many looks it took."""
    Gathering(sealer, clock, bytes_max=bytes_max, look_s=0).wait(LogPosition(after))
    return sealer.looks


def test_nothing_is_waited_for_where_no_segment_says_that_more_come() -> None:
    clock = ManualClock()
    assert gather(Sealer(clock, [segment(0, more=False)]), clock) == 1
    assert gather(Sealer(clock, []), clock) == 1


def test_it_ends_with_the_last_segment_of_a_flood() -> None:
    clock = ManualClock()
    segments = [segment(number, more=number < 7) for number in range(10)]
    assert gather(Sealer(clock, segments), clock) == 8


def test_it_ends_once_a_micro_batch_is_full_of_what_is_past_the_position() -> None:
    clock = ManualClock()
    segments = [segment(number, more=True) for number in range(20)]
    assert gather(Sealer(clock, segments), clock, bytes_max=50) == 5
    assert gather(Sealer(clock, segments), clock, after=3 * ROWS, bytes_max=50) == 8


@pytest.mark.parametrize(("rows", "waits_s"), [(ROWS, 1.2), (10_000_000, WAIT_S_MAX)])
def test_a_flood_that_ends_without_a_word_is_waited_for_as_long_as_a_segment_takes(rows: int, waits_s: float) -> None:
    clock = ManualClock()
    began_s = clock.monotonic_s()
    gather(Sealer(clock, [segment(0, more=True, rows=rows)]), clock)
    assert clock.monotonic_s() - began_s == pytest.approx(waits_s, abs=3 * STEP_S)


def test_every_new_segment_is_given_its_own_time() -> None:
    clock = ManualClock()
    segments = [segment(number, more=number < 3) for number in range(4)]
    assert gather(Sealer(clock, segments, looks_per_segment=10), clock) == 31


def test_a_stop_and_a_store_that_is_gone_end_it() -> None:
    clock = ManualClock()
    sealer = Sealer(clock, [segment(0, more=True)])
    gathering = Gathering(sealer, clock, bytes_max=1_000, look_s=0)
    gathering.stop()
    gathering.wait(LogPosition(0))
    assert sealer.looks == 1
    sealer.fails = True
    Gathering(sealer, clock, bytes_max=1_000, look_s=0).wait(LogPosition(0))
