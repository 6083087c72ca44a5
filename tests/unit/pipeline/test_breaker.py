"""The breaker around the commits: when it opens, who may try, what closes it, and what it says."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mainstem.model import Conflict, Invalid, TableName
from mainstem.pipeline.breaker import Breaker, State, is_store_trouble
from mainstem.pipeline.passes.plan import TableTask
from mainstem.pipeline.progress import Progress
from mainstem.pipeline.source.segments import TableSlice
from mainstem.runtime.clock import ManualClock
from tests.unit.pipeline.test_carrier import FakeWriter, Rig


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
        (PySparkException("Python worker exited unexpectedly (crashed) Caused by: java.io.EOFException"), False),
        (PySparkException("ExecutorLostFailure (executor 1 exited) Caused by: java.io.IOException: reset"), False),
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

    def ask(self) -> None:
        """Whoever looks at a table, or writes to one."""
        self.asked += 1
        if self.down:
            raise OSError("the store is away")


class StoredWriter(FakeWriter):
    """A table in that store."""

    def __init__(self, name: TableName, folder: Path, store: Store) -> None:
        super().__init__(name, folder)
        self._store = store

    def plan(self, run: TableSlice) -> TableTask:
        self._store.ask()
        return super().plan(run)


class BreakerRig(Rig):
    def __init__(self, spark: SparkSession, log: Any, folder: Path) -> None:
        super().__init__(spark, log, folder, rows_max=1)
        self.breaker = Breaker(self.clock)
        self.progress = Progress(self.clock, self.breaker)
        self.store = Store()
        self.carrier = self.new_carrier(breaker=self.breaker, rows_max=1)

    def writer(self, name: TableName) -> Any:
        return self.writers.setdefault(name, StoredWriter(name, self.folder, self.store))

    def tick(self) -> None:
        """One look at the folder."""
        self.carry()


@pytest.fixture
def rig(spark: SparkSession, log: Any, tmp_path: Path) -> BreakerRig:
    return BreakerRig(spark, log, tmp_path / "tables")


@pytest.mark.spark
def test_a_store_in_trouble_is_left_alone_and_made_up_for_once_it_heals(rig: BreakerRig) -> None:
    for _ in range(3):
        rig.seal("a", "b", "c")
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
    # One pass tries, with all tables: a store that is back shows no micro-batch in part.
    rig.tick()
    assert [tables for tables, _ in rig.passes()] == [3, 3, 3]
    assert rig.breaker.report().state is State.CLOSED
    assert sorted(end for writer in rig.writers.values() for end in writer.commits) == [3, 3, 3, 6, 6, 6, 9, 9, 9]
    assert [writer.rows for writer in rig.writers.values()] == [3, 3, 3]
    assert rig.progress.report({}).breaker.openings == 1


@pytest.mark.spark
def test_a_table_that_is_wrong_in_itself_does_not_open_it(rig: BreakerRig) -> None:
    rig.store.down = False
    rig.writer(rig.log.name("a")).failures["plan"] = [Invalid("a column that cannot be")] * 20
    rig.seal("a")
    for _ in range(20):
        rig.tick()
        rig.clock.advance(61)
    assert rig.breaker.report().state is State.CLOSED
    assert rig.reported("a").attempts >= 10
