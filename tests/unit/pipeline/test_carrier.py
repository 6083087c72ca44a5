"""The passes' scheduling: all tables in one job, each for itself where it fails, and no other held back by it.

The jobs are real; the tables are hand-written fakes that keep what was committed to them in memory.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from mainstem.model import NOWHERE, Conflict, LogPosition, TableName
from mainstem.model.errors import NotFound
from mainstem.pipeline.carrier import JOBS_MAX, Carrier
from mainstem.pipeline.commit.iceberg import IcebergChange, IcebergCommits
from mainstem.pipeline.commit.lake import Lake, LakeTable
from mainstem.pipeline.commit.marks import Marks
from mainstem.pipeline.passes.plan import IcebergTarget, Part, TableTask
from mainstem.pipeline.plan.writer import Written
from mainstem.pipeline.progress import Progress
from mainstem.pipeline.roster import BACKOFF_S_MIN, RACES_MAX, TURN_S
from mainstem.pipeline.source.rows import read_segments
from mainstem.pipeline.source.segments import SegmentFolder, TableSlice
from mainstem.pipeline.turns import Turns
from mainstem.runtime.clock import ManualClock
from mainstem.tables.layout import HISTORY_COLUMNS
from mainstem.tables.parquet import writer_options

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_FIELDS = tuple((name, kind, number) for number, (name, kind) in enumerate(HISTORY_COLUMNS, 1))


class FakeCommit:
    """What the fake table stages: it becomes visible when it is told to."""

    def __init__(self, writer: "FakeWriter", run: TableSlice, written: Written) -> None:
        self._writer = writer
        self._run = run
        self._written = written
        self.is_committed = False

    def commit(self) -> None:
        """Make it visible."""
        self._writer.fail("commit")
        self._writer.covers = self._run.last
        self._writer.commits.append(self._run.last)
        self._writer.on_commit()
        self._writer.rows += self._written.read
        self.is_committed = True


class FailingCommits:
    """Commits of Iceberg's that the catalog does not answer, so many times. Counts the tables of each."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.batches: list[int] = []

    def commit(self, changes: Sequence[IcebergChange], batch: str) -> None:
        self.batches.append(len(changes))
        if len(self.batches) <= self.failures:
            raise OSError("the catalog is away")
        for change in changes:
            change.is_committed = True


class FakeWriter:
    """A table of history alone. It fails where it is told to, so many times."""

    def __init__(self, name: TableName, folder: Path) -> None:
        self.name = name
        self.location = str(folder / name.table)
        self.covers = NOWHERE
        self.failures: dict[str, list[Exception]] = {}
        self.commits: list[int] = []
        self.rows = 0
        self.discarded = 0
        self.drops: list[int] = []
        self.preparations: list[Callable[[], None]] = []
        self.in_iceberg = False
        self.on_commit: Callable[[], None] = lambda: None
        self._run: TableSlice | None = None

    def fail(self, step: str) -> None:
        """Raise what was asked for."""
        if self.failures.get(step):
            raise self.failures[step].pop(0)

    @property
    def table(self) -> TableName:
        return self.name

    def covered(self) -> LogPosition:
        return self.covers

    def preparation(self, run: TableSlice) -> Callable[[], None] | None:
        return self.preparations.pop(0) if self.preparations else None

    def plan(self, run: TableSlice) -> TableTask:
        self.fail("plan")
        self._run = run
        target = IcebergTarget(self.location, _FIELDS, 0, (), writer_options({}))
        return TableTask(self.name, run.last, history=Part(target, self.covers))

    def evidence(self, changes: DataFrame) -> list[DataFrame]:
        self.fail("job")
        return []

    def stage(self, written: Written) -> list[Any]:
        self.fail("stage")
        assert self._run is not None
        if self.in_iceberg:
            return [IcebergChange(table=cast(LakeTable, None), marks=cast(Marks, None))]
        return [FakeCommit(self, self._run, written)]

    def committed(self) -> None:
        pass

    def discard(self, written: Written) -> None:
        self.fail("discard")
        self.discarded += len(written.files)

    def dropped(self, covered: LogPosition) -> None:
        self.drops.append(covered)


class Rig:
    def __init__(self, spark: SparkSession, log: Any, folder: Path, **more: Any) -> None:
        self.log = log
        self.spark = spark
        self.folder = folder
        self.clock = ManualClock()
        self.progress = Progress(self.clock)
        self.turns = Turns()
        self.writers: dict[TableName, FakeWriter] = {}
        self.made = 0
        self.carrier = self.new_carrier(**more)

    def new_carrier(self, commits: Any = None, segments: SegmentFolder | None = None, **more: Any) -> Carrier:
        return Carrier(
            self.spark, segments or SegmentFolder(self.log.folder), self.writer,
            commits or IcebergCommits(Lake(self.spark)), self.progress, self.clock, turns=self.turns, **more,
        )  # fmt: skip

    def writer(self, name: TableName) -> Any:
        self.made += 1
        return self.writers.setdefault(name, FakeWriter(name, self.folder))

    def table(self, name: str) -> FakeWriter:
        full = self.log.name(name)
        return self.writers.setdefault(full, FakeWriter(full, self.folder))

    def seal(self, *tables: str) -> Path:
        path: Path = self.log.seal(*(self.log.change("1", {"a": 1}, table=table) for table in tables))
        return path

    def carry(self) -> int:
        return self.carrier.carry(None, (), "test")

    def until_prepared(self, name: str) -> None:
        """A table holds its turn while it is prepared."""
        with self.turns.of(self.log.name(name)):
            pass

    def reported(self, name: str) -> Any:
        return self.progress.report({}).tables[str(self.log.name(name))]

    def passes(self) -> list[tuple[int, int]]:
        """Of each pass: its tables, and the changes that it read."""
        return [(each.tables, each.rows_read) for each in self.progress.report({}).passes]


@pytest.fixture
def rig(spark: SparkSession, log: Any, tmp_path: Path) -> Rig:
    return Rig(spark, log, tmp_path / "tables")


def test_all_tables_are_carried_to_the_end_by_one_job(rig: Rig) -> None:
    rig.seal("a", "b")
    rig.seal("a")
    assert rig.carry() == 3
    assert (rig.table("a").covers, rig.table("b").covers) == (3, 2)
    assert (rig.table("a").rows, rig.table("b").rows) == (2, 1)
    assert rig.passes() == [(2, 3)]


def test_nothing_to_do_starts_nothing(rig: Rig) -> None:
    assert rig.carry() == 0
    rig.seal("a")
    rig.carry()
    rig.carry()
    assert rig.table("a").commits == [1]
    assert len(rig.passes()) == 1


def test_a_pass_is_bounded_and_the_next_one_goes_on(spark: SparkSession, log: Any, tmp_path: Path) -> None:
    rig = Rig(spark, log, tmp_path / "tables", rows_max=2)
    for _ in range(5):
        rig.seal("a")
    assert rig.carry() == 5
    assert rig.table("a").commits == [2, 4, 5]
    assert rig.table("a").rows == 5


def test_a_table_with_much_to_carry_does_not_hold_back_what_comes_for_others(
    spark: SparkSession, log: Any, tmp_path: Path
) -> None:
    """As after a long pause: many passes in one call, and another table's change is there after the first of them."""
    rig = Rig(spark, log, tmp_path / "tables", rows_max=1)
    large, small, seen = rig.table("large"), rig.table("small"), list[int]()
    for _ in range(3):
        rig.seal("large")

    def after_the_first() -> None:
        if len(large.commits) == 1:
            rig.seal("small")

    large.on_commit = after_the_first
    small.on_commit = lambda: seen.append(len(large.commits))
    assert rig.carry() == 3, "what this call was to carry"
    assert large.commits == [1, 2, 3] and small.commits == [4]
    assert seen[0] <= 2, "the small table did not wait for the end of the large one"


def test_a_flood_that_goes_on_does_not_keep_a_call_from_ending(rig: Rig) -> None:
    """Spark's checkpoint moves on only between calls."""

    def more() -> None:
        rig.seal("a")

    rig.table("a").on_commit = more
    more()
    assert rig.carry() == 1
    assert rig.table("a").covers == 1


def test_what_the_stream_hands_over_is_what_is_carried(rig: Rig) -> None:
    first, second = rig.seal("a", "b"), rig.seal("a")
    rig.seal("b")
    frame = read_segments(rig.spark, [str(second)])
    # The first one was left behind, and comes along; the third is the next batch's.
    assert rig.carrier.carry(frame, [second.name], "7") == 3
    assert (rig.table("a").covers, rig.table("b").covers) == (3, 2)
    assert (rig.table("a").rows, rig.table("b").rows) == (2, 1)
    assert rig.progress.report({}).passes[-1].batch == "7"
    # Handed over again, as after a crash, nothing happens.
    both = read_segments(rig.spark, [str(first), str(second)])
    assert rig.carrier.carry(both, [first.name, second.name], "8") == 3
    assert (rig.table("a").rows, rig.table("b").rows) == (2, 1)


@pytest.mark.parametrize("step", ["plan", "stage", "commit"])
def test_a_table_that_fails_does_not_stop_the_others_and_is_tried_again(rig: Rig, step: str) -> None:
    rig.table("bad").failures[step] = [RuntimeError("disk full"), RuntimeError("disk full")]
    rig.seal("bad", "good")
    assert rig.carry() == 2
    assert rig.table("good").covers == 2
    assert "disk full" in rig.reported("bad").error
    since_ms = rig.reported("bad").since_ms
    # Not before its pause is over.
    rig.seal("good")
    rig.carry()
    assert rig.table("good").covers == 3
    assert (rig.reported("bad").attempts, rig.carrier.is_behind()) == (1, False)
    rig.clock.advance(BACKOFF_S_MIN)
    assert rig.carrier.is_behind()
    rig.carry()
    assert (rig.reported("bad").attempts, rig.reported("bad").since_ms) == (2, since_ms)
    rig.clock.advance(2 * BACKOFF_S_MIN)
    rig.carry()
    assert (rig.table("bad").covers, rig.reported("bad").error) == (2, None)
    assert (rig.table("bad").rows, rig.table("good").rows) == (1, 2)
    assert not rig.carrier.is_behind()


def test_a_table_whose_rows_make_the_job_fail_does_not_stop_the_others(rig: Rig) -> None:
    # A file stands where its folder should be: no executor can write there.
    rig.table("bad").location = str(rig.folder / "file" / "bad")
    rig.folder.mkdir()
    (rig.folder / "file").write_text("in the way")
    rig.seal("good", "bad", "fine")
    rig.carry()
    assert [rig.table(name).covers for name in ("good", "bad", "fine")] == [3, 0, 3]
    assert rig.passes() == [(2, 2)], "the others are still committed together"
    assert rig.reported("bad").error is not None
    (rig.folder / "file").unlink()
    rig.clock.advance(BACKOFF_S_MIN)
    rig.carry()
    assert rig.table("bad").covers == 3
    assert [rig.table(name).rows for name in ("good", "bad", "fine")] == [1, 1, 1]


def test_workers_that_die_take_no_table_out_of_its_micro_batch(rig: Rig) -> None:
    died = PySparkException("Job aborted: Python worker exited unexpectedly (crashed): java.io.EOFException")
    rig.table("orders").failures["job"] = [died] * (JOBS_MAX - 1)
    rig.seal("orders", "lines")
    rig.carry()
    assert rig.passes() == [(2, 2)]
    assert (rig.reported("orders").error, rig.reported("lines").error) == (None, None)


def test_rows_that_kill_every_worker_are_the_trouble_of_their_table_alone(rig: Rig) -> None:
    died = PySparkException("Job aborted: Python worker exited unexpectedly (crashed): java.io.EOFException")
    rig.table("deadly").failures["job"] = [died] * (2 * JOBS_MAX)
    rig.seal("deadly", "good", "fine")
    rig.carry()
    assert [rig.table(name).covers for name in ("deadly", "good", "fine")] == [0, 3, 3]
    assert rig.passes() == [(2, 2)]
    assert rig.reported("deadly").attempts == 1


def test_tables_whose_commit_failed_come_back_together_however_often_each_failed_before(rig: Rig) -> None:
    rig.table("orders").failures["plan"] = [RuntimeError("no such column")] * 3
    rig.seal("orders", "lines")
    for _ in range(3):
        rig.carry()
        rig.clock.advance(60)
    commits = FailingCommits(1)
    rig.carrier = rig.new_carrier(commits=commits)
    for name in ("orders", "lines"):
        rig.table(name).in_iceberg = True
    rig.seal("orders", "lines")
    rig.carry()
    assert (rig.reported("orders").attempts, rig.reported("lines").attempts) == (4, 1)
    while not rig.carrier.is_behind():
        rig.clock.advance(0.5)
    rig.carry()
    assert commits.batches == [2, 2]


def test_a_lost_race_is_run_again_at_once_until_it_is_one_too_many(rig: Rig) -> None:
    rig.table("a").failures["commit"] = [Conflict("somebody was faster")] * (RACES_MAX - 1)
    rig.seal("a")
    rig.carry()
    assert (rig.table("a").covers, rig.reported("a").error) == (1, None)
    # What the lost ones had written is removed.
    assert rig.table("a").discarded == RACES_MAX - 1
    rig.table("a").failures["commit"] = [Conflict("somebody was faster")] * RACES_MAX
    rig.seal("a")
    rig.carry()
    assert rig.table("a").covers == 1 and "somebody was faster" in rig.reported("a").error
    rig.clock.advance(BACKOFF_S_MIN)
    rig.carry()
    assert rig.table("a").covers == 2


def test_files_of_a_commit_with_an_unknown_outcome_stay(rig: Rig) -> None:
    rig.table("a").failures["commit"] = [OSError("the answer was lost")]
    rig.seal("a")
    rig.carry()
    assert rig.table("a").discarded == 0


@pytest.mark.parametrize("step", ["stage", "commit"])
def test_files_that_cannot_be_removed_are_nobody_else_s_trouble(rig: Rig, step: str) -> None:
    """A store that is away fails at both: at what was to be done, and at cleaning up after it."""
    rig.table("bad").failures = {step: [Conflict("lost")] * RACES_MAX, "discard": [OSError("the store is away")] * 9}
    rig.seal("bad", "good")
    rig.carry()
    assert rig.table("good").covers == 2 and "lost" in rig.reported("bad").error
    rig.clock.advance(BACKOFF_S_MIN)
    rig.carry()
    assert (rig.table("bad").covers, rig.table("bad").rows) == (2, 1)


def test_a_dropped_table_is_told_what_it_held(rig: Rig) -> None:
    rig.seal("a")
    rig.carry()
    rig.table("a").failures["plan"] = [NotFound("the table was dropped")]
    rig.seal("a")
    rig.carry()
    assert rig.table("a").drops == [1]
    # No other batch need come for it to be tried again.
    assert rig.carrier.is_behind()
    rig.carry()
    assert rig.table("a").covers == 2


def test_a_race_that_is_lost_while_planning_is_run_again_without_another_batch(rig: Rig) -> None:
    rig.table("a").failures["plan"] = [Conflict("somebody changed the schema")]
    rig.seal("a")
    rig.carry()
    assert rig.table("a").covers == 0 and rig.carrier.is_behind()
    rig.carry()
    assert (rig.table("a").covers, rig.reported("a").error) == (1, None)


def test_a_table_whose_turn_it_is_not_is_left_out_and_looked_at_again_soon(rig: Rig) -> None:
    rig.seal("busy", "free")
    with rig.turns.of(rig.log.name("busy")):
        rig.carry()
        assert (rig.table("busy").covers, rig.table("free").covers) == (0, 2)
        # It is not a failure.
        assert rig.reported("free").error is None and "busy" not in rig.progress.report({}).tables
    rig.clock.advance(TURN_S)
    assert rig.carrier.is_behind()
    rig.carry()
    assert rig.table("busy").covers == 2
    # Every turn was given back.
    for name in ("busy", "free"):
        assert rig.turns.take(rig.log.name(name), wait=False)


def test_no_table_waits_for_another_one_that_is_prepared(rig: Rig) -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def long_work() -> None:
        assert may_end.wait(60)
        has_ended.set()

    rig.table("large").preparations.append(long_work)
    rig.seal("large", "small")
    rig.carry()
    rig.seal("small")
    rig.carry()
    assert (rig.table("small").covers, rig.table("large").covers) == (3, 0)
    assert not rig.carrier.is_behind(), "nothing can be done for it now"
    assert not rig.turns.take(rig.log.name("large"), wait=False), "maintenance waits for it"
    may_end.set()
    rig.until_prepared("large")
    assert has_ended.is_set()
    rig.seal("large")
    rig.carry()
    assert rig.table("large").covers == 4


def test_a_table_that_was_prepared_is_carried_without_another_batch(rig: Rig) -> None:
    rig.table("large").preparations.append(lambda: None)
    rig.seal("large")
    rig.carry()
    rig.until_prepared("large")
    assert rig.carrier.is_behind()
    rig.carry()
    assert rig.table("large").covers == 1


def test_a_preparation_that_fails_is_tried_again_after_a_pause(rig: Rig) -> None:
    def fails() -> None:
        raise OSError("no room")

    rig.table("large").preparations.append(fails)
    rig.seal("large", "small")
    rig.carry()
    rig.until_prepared("large")
    assert rig.reported("large").attempts == 1
    assert (rig.table("small").covers, rig.table("large").covers) == (2, 0)
    assert not rig.carrier.is_behind()
    rig.clock.advance(BACKOFF_S_MIN)
    assert rig.carrier.is_behind()
    rig.carry()
    assert rig.table("large").covers == 2


def test_rows_that_are_missing_in_a_segment_are_noticed_and_nothing_is_committed(rig: Rig) -> None:
    path = rig.log.seal(*(rig.log.change(str(key), {"a": 1}, table="a") for key in range(3)))
    rows = pq.read_table(path)
    pq.write_table(rows.slice(0, 2), path)
    rig.carry()
    assert rig.table("a").covers == 0 and rig.table("a").commits == []
    assert "expected=3 got=2" in rig.reported("a").error
    assert rig.table("a").discarded == 1


def test_stop_starts_no_other_pass(rig: Rig) -> None:
    rig.seal("a")
    rig.carrier.stop()
    rig.carry()
    assert rig.table("a").commits == []
