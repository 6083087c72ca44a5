"""The breaker around the commits: when it opens, who may try, what closes it, and what it says."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.errors import PySparkException

from mainstem.model import Conflict, Invalid, LogPosition, TableName
from mainstem.pipeline.breaker import Breaker, State, is_store_trouble
from mainstem.pipeline.carrier import Carrier
from mainstem.pipeline.progress import Progress
from mainstem.pipeline.segments import Segment, SegmentFolder, slice_for
from mainstem.runtime.clock import ManualClock


def test_it_opens_after_five_failures_in_a_row_and_not_before() -> None:
    breaker = Breaker(ManualClock())
    for _ in range(4):
        breaker.failed("no route")
    breaker.succeeded()
    for _ in range(4):
        breaker.failed("no route")
    assert (breaker.report().state, breaker.allow()) == (State.CLOSED, True)
    breaker.failed("no route")
    report = breaker.report()
    assert (report.state, report.openings, report.error, breaker.allow()) == (State.OPEN, 1, "no route", False)


def test_after_its_pause_one_may_try_and_a_success_closes_it() -> None:
    clock = ManualClock()
    breaker = Breaker(clock)
    for _ in range(5):
        breaker.failed("x")
    clock.advance(29.9)
    assert not breaker.allow()
    clock.advance(0.1)
    assert [breaker.allow() for _ in range(3)] == [True, False, False]
    assert breaker.report().state is State.HALF_OPEN
    breaker.undecided()
    assert [breaker.allow(), breaker.allow()] == [True, False]
    assert breaker.succeeded() is True
    assert (breaker.report().state, breaker.report().error) == (State.CLOSED, None)
    assert [breaker.allow() for _ in range(3)] == [True] * 3
    assert breaker.succeeded() is False


def test_a_failed_try_opens_it_for_another_pause() -> None:
    clock = ManualClock()
    breaker = Breaker(clock)
    for _ in range(5):
        breaker.failed("x")
    clock.advance(30)
    assert breaker.allow()
    breaker.failed("still")
    assert (breaker.report().state, breaker.report().openings) == (State.OPEN, 2)
    clock.advance(29)
    assert not breaker.allow()
    clock.advance(1)
    assert breaker.allow()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError("connection reset"), True),
        (ConnectionResetError("x"), True),
        (PySparkException("Job aborted. Caused by: software.amazon.awssdk.core.exception.SdkClientException: x"), True),
        (PySparkException("org.apache.iceberg.exceptions.ServiceFailureException: 503"), True),
        (Conflict("main moved"), False),
        (Invalid("a column"), False),
        (RuntimeError("anything else"), False),
        (PySparkException("AnalysisException: no such column"), False),
    ],
)
def test_only_trouble_of_the_store_counts(error: Exception, expected: bool) -> None:
    assert is_store_trouble(error) is expected
    outer = RuntimeError("around it")
    outer.__cause__ = error
    assert is_store_trouble(outer) is expected


class Store:
    """What the fake tables are written to: it fails while it is down, and counts who asked."""

    def __init__(self) -> None:
        self.down = True
        self.asked = 0
        self.covered: dict[TableName, LogPosition] = {}
        self.changes: list[int] = []
        self.lock = threading.Lock()


class Writer:
    def __init__(self, name: TableName, store: Store) -> None:
        self._name = name
        self._store = store

    def catch_up(
        self, segments: Sequence[Segment], *, on_pass: Callable[[LogPosition], None], go_on: Callable[[], bool]
    ) -> LogPosition:
        store = self._store
        with store.lock:
            store.asked += 1
            if store.down:
                raise OSError("the store is away")
            covered = store.covered.get(self._name, LogPosition(0))
            while go_on() and (run := slice_for(self._name, segments, covered, 1)):
                store.changes.append(run.last)
                covered = store.covered[self._name] = run.last
                on_pass(covered)
            return covered


class Rig:
    def __init__(self, log: Any, lanes: ThreadPoolExecutor) -> None:
        self.log = log
        self.clock = ManualClock()
        self.breaker = Breaker(self.clock)
        self.progress = Progress(self.clock, self.breaker)
        self.store = Store()
        self.carrier = Carrier(
            SegmentFolder(log.folder),
            lambda name: Writer(name, self.store),
            lanes,
            self.progress,
            self.clock,
            self.breaker,
        )

    def tick(self) -> None:
        """One look at the folder, until all that it started has ended."""
        self.carrier.tick()
        with self.carrier._condition:
            assert self.carrier._condition.wait_for(lambda: not self.carrier._busy, 60)


@pytest.fixture
def rig(log: Any) -> Iterator[Rig]:
    with ThreadPoolExecutor(4) as lanes:
        yield Rig(log, lanes)


def test_a_store_in_trouble_is_left_alone_and_made_up_for_once_it_heals(rig: Rig) -> None:
    for _ in range(3):
        rig.log.seal(*(rig.log.change("1", {"a": 1}, table=table) for table in ("a", "b", "c")))
    while rig.breaker.report().state is State.CLOSED:
        rig.tick()
        rig.clock.advance(1)
    asked = rig.store.asked
    assert 5 <= asked <= 7
    for _ in range(20):
        rig.tick()
        rig.clock.advance(1)
    assert rig.store.asked == asked
    assert rig.progress.report({}).breaker.state is State.OPEN
    rig.store.down = False
    rig.clock.advance(60)
    # One table tries; its success lets the others in at once, whatever pause they were in.
    rig.tick()
    assert rig.breaker.report().state is State.CLOSED
    rig.tick()
    assert len(rig.store.covered) == 3
    assert sorted(rig.store.changes) == [3, 3, 3, 6, 6, 6, 9, 9, 9]
    assert rig.progress.report({}).breaker.openings == 1


def test_a_table_that_is_wrong_in_itself_does_not_open_it(rig: Rig) -> None:
    class Wrong(Writer):
        def catch_up(self, segments: Any, *, on_pass: Any, go_on: Any) -> LogPosition:
            raise Invalid("a column that cannot be")

    rig.carrier._writer_for = lambda name: Wrong(name, rig.store)
    rig.log.seal(rig.log.change("1", {"a": 1}, table="a"))
    for _ in range(20):
        rig.tick()
        rig.clock.advance(61)
    assert rig.breaker.report().state is State.CLOSED
    assert rig.progress.report({}).tables[str(rig.log.name("a"))].attempts >= 10
