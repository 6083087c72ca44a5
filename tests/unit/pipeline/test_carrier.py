"""Lanes: every table goes on by itself, and one that fails is left behind and tried again."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mainstem.model import LogPosition, TableName
from mainstem.pipeline import carrier as carriers
from mainstem.pipeline.carrier import BACKOFF_S_MIN, GATHER_S_MAX, GATHER_S_PER_CHANGE, Carrier
from mainstem.pipeline.progress import Progress
from mainstem.pipeline.segments import Segment, SegmentFolder, slice_for
from mainstem.runtime.clock import ManualClock

POLL_S = 0.01


class FakeWriter:
    """Covers what it is given, unless it is told to fail or to wait."""

    def __init__(self, name: TableName) -> None:
        self.name = name
        self.covered = LogPosition(0)
        self.failures = 0
        self.gate = threading.Event()
        self.gate.set()
        self.passes = 0

    def catch_up(
        self,
        segments: Sequence[Segment],
        *,
        on_pass: Callable[[LogPosition], None],
        go_on: Callable[[], bool],
    ) -> LogPosition:
        assert self.gate.wait(60)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("disk full")
        while go_on() and (run := slice_for(self.name, segments, self.covered, 1)):
            self.passes += 1
            self.covered = run.last
            on_pass(self.covered)
        return self.covered


class Rig:
    def __init__(self, log: Any, lanes: ThreadPoolExecutor) -> None:
        self.log = log
        self.clock = ManualClock()
        self.progress = Progress(self.clock)
        self.writers: dict[TableName, FakeWriter] = {}
        self.carrier = Carrier(SegmentFolder(log.folder), self.writer, lanes, self.progress, self.clock)

    def writer(self, name: TableName) -> Any:
        return self.writers.setdefault(name, FakeWriter(name))

    def table(self, name: str) -> FakeWriter:
        writer: FakeWriter = self.writer(self.log.name(name))
        return writer

    def seal(self, *tables: str, more: bool = False) -> None:
        self.log.seal(*(self.log.change("1", {"a": 1}, table=table) for table in tables), more=more)

    def comes_to(self, name: str, position: int) -> None:
        """As the timer does: a lane may still be putting its things away when it is looked at."""

        def is_there() -> bool:
            self.carrier.tick()
            return self.table(name).covered == position

        until(is_there)

    def reported(self, name: str) -> Any:
        return self.progress.report({}).tables[str(self.log.name(name))]


@pytest.fixture
def rig(log: Any) -> Iterator[Rig]:
    with ThreadPoolExecutor(4) as lanes:
        yield Rig(log, lanes)


def test_every_table_is_carried_to_the_end(rig: Rig) -> None:
    rig.seal("a", "b")
    rig.seal("a")
    assert rig.carrier.carry(POLL_S) == 3
    assert (rig.table("a").covered, rig.table("b").covered) == (3, 2)


def test_nothing_to_do_starts_nothing(rig: Rig) -> None:
    assert rig.carrier.carry(POLL_S) == 0
    rig.seal("a")
    rig.carrier.carry(POLL_S)
    rig.carrier.carry(POLL_S)
    assert rig.table("a").passes == 1


def test_a_table_that_fails_does_not_stop_the_others_and_is_tried_again(rig: Rig) -> None:
    rig.table("bad").failures = 2
    rig.seal("bad", "good")
    assert rig.carrier.carry(POLL_S) == 2
    assert rig.table("good").covered == 2
    assert "disk full" in rig.reported("bad").error
    since_ms = rig.reported("bad").since_ms
    # Not before its pause is over.
    rig.seal("good")
    rig.carrier.carry(POLL_S)
    assert rig.reported("bad").attempts == 1
    rig.clock.advance(BACKOFF_S_MIN)
    rig.carrier.carry(POLL_S)
    assert (rig.reported("bad").attempts, rig.reported("bad").since_ms) == (2, since_ms)
    rig.clock.advance(2 * BACKOFF_S_MIN)
    rig.carrier.carry(POLL_S)
    assert (rig.table("bad").covered, rig.reported("bad").error) == (2, None)


def test_a_busy_table_does_not_hold_up_newer_segments_of_others(rig: Rig) -> None:
    rig.table("slow").gate.clear()
    rig.seal("slow", "quick")
    batch = threading.Thread(target=rig.carrier.carry, args=(POLL_S,))
    batch.start()
    rig.seal("quick")
    until(lambda: rig.table("quick").covered == 3)
    assert batch.is_alive()
    rig.table("slow").gate.set()
    batch.join(60)
    assert not batch.is_alive()
    assert rig.table("slow").covered == 2


def test_segments_gather_while_more_are_about_to_come(rig: Rig) -> None:
    rig.seal("a", more=True)
    # Its first pass waits for nobody.
    rig.comes_to("a", 1)
    rig.seal("a", more=True)
    rig.seal("a", more=True)
    rig.carrier.tick()
    rig.seal("a")
    assert rig.table("a").covered == 1
    rig.comes_to("a", 4)


def test_a_segment_that_never_comes_is_not_waited_for_long(rig: Rig) -> None:
    rig.seal("a")
    rig.carrier.carry(POLL_S)
    rig.seal("a", more=True)
    rig.carrier.tick()
    assert rig.table("a").covered == 1
    # It had but one change, so another like it would be there soon.
    rig.clock.advance(2 * GATHER_S_PER_CHANGE)
    rig.comes_to("a", 2)


def test_the_wait_for_a_segment_follows_from_the_last_one_up_to_a_bound(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carriers, "GATHER_S_PER_CHANGE", 1_000.0)
    rig.seal("a")
    rig.carrier.carry(POLL_S)
    rig.seal("a", more=True)
    rig.carrier.tick()
    rig.clock.advance(GATHER_S_MAX - 0.1)
    rig.carrier.tick()
    assert rig.table("a").covered == 1
    rig.clock.advance(0.1)
    rig.comes_to("a", 2)


def test_not_more_than_one_pass_takes_well_gathers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carriers, "GATHERED_CHANGES_MAX", 2)
    rig.seal("a")
    rig.carrier.carry(POLL_S)
    rig.seal("a", more=True)
    rig.carrier.tick()
    assert rig.table("a").covered == 1
    rig.seal("a", more=True)
    rig.comes_to("a", 3)


def test_one_batch_of_the_stream_goes_on_while_more_is_about_to_come(rig: Rig) -> None:
    rig.seal("a", more=True)
    carried: list[int] = []
    batch = threading.Thread(target=lambda: carried.append(rig.carrier.carry(POLL_S)))
    batch.start()
    until(lambda: rig.table("a").covered == 1)
    rig.seal("a")
    batch.join(60)
    assert carried == [2]


def test_stop_finishes_the_pass_in_hand_and_starts_no_other(rig: Rig) -> None:
    rig.table("a").gate.clear()
    rig.seal("a")
    rig.carrier.tick()
    stopping = threading.Thread(target=rig.carrier.stop)
    stopping.start()
    rig.seal("a")
    rig.table("a").gate.set()
    stopping.join(60)
    assert not stopping.is_alive()
    rig.carrier.tick()
    assert rig.table("a").passes <= 1


def until(condition: Callable[[], bool]) -> None:
    """Poll: the lanes tell nobody but the carrier."""
    waiting = threading.Event()
    for _ in range(6000):
        if condition():
            return
        waiting.wait(POLL_S)
    raise AssertionError("never came true")
