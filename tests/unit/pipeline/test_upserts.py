"""Every way to upsert leaves the same table; none leaves a trace on main when it is cut off."""

import random
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from mainstem.model import Conflict
from mainstem.pipeline.upsert import BRANCH, BranchUpsert, MergeUpsert, Upsert
from tests.unit.pipeline.conftest import BOTH_WAYS

pytestmark = pytest.mark.spark


def random_batch(bench: Any, draw: random.Random, table: str, count: int) -> list[Any]:
    changes = []
    for _ in range(count):
        key = str(draw.randrange(300))
        columns = None if draw.random() < 0.2 else {"n": draw.randrange(1000), "text": draw.choice(["a", "b", None])}
        changes.append(bench.change(key, columns, table=table))
    return changes


def test_every_way_agrees_with_the_plain_merge(bench: Any) -> None:
    ways: dict[str, Upsert | None] = {"by_merge": MergeUpsert(), "by_branch": BranchUpsert(), "by_delta": None}
    for seed in range(3):
        for table in ways:
            bench.seal(*random_batch(bench, random.Random(seed), table, 400))
    for table, upsert in ways.items():
        # One segment at a time, so that later ones find rows of earlier ones.
        segments = bench.segments()
        for end in range(1, len(segments) + 1):
            bench.writer(table, upsert=upsert).catch_up(segments[:end])
    values = {table: bench.values(table) for table in ways}
    assert len(values["by_merge"]) > 100
    assert values["by_branch"] == values["by_merge"]
    assert values["by_delta"] == values["by_merge"]


class _CutOff(Exception):
    pass


class _CutOffBefore:
    """Another upsert that dies at its commit, after everything was written."""

    def __init__(self, inner: Upsert) -> None:
        self.table_properties = inner.table_properties
        self._inner = inner

    def apply(self, table: Any, keys: Any, rows: Any, marks: Any) -> None:
        real = table.java

        class NoCommit:
            def __getattr__(self, name: str) -> Any:
                if name in ("newTransaction", "manageSnapshots"):
                    raise _CutOff
                return getattr(real, name)

        table.java = NoCommit()
        self._inner.apply(table, keys, rows, marks)


@pytest.mark.parametrize("way", ["delta", "branch"])
def test_cut_off_before_the_commit_nothing_is_seen_and_the_batch_is_done_again(bench: Any, way: str) -> None:
    inner = BranchUpsert() if way == "branch" else bench.row_delta
    bench.seal(bench.change("1", {"n": 1}), bench.change("2", {"n": 2}))
    bench.catch_up(upsert=inner)
    bench.seal(bench.change("1", {"n": 10}), bench.change("2", None), bench.change("3", {"n": 3}))
    with pytest.raises(_CutOff):
        bench.catch_up(upsert=_CutOffBefore(inner))
    assert bench.values() == {"1": {"n": 1}, "2": {"n": 2}}
    assert bench.lake.load(bench.name("orders")).marks().position == 2
    assert bench.catch_up(upsert=inner) == 5
    assert bench.values() == {"1": {"n": 10}, "3": {"n": 3}}
    assert len(bench.rows("orders_history")) == 5


def test_what_a_crash_left_on_the_branch_is_dropped(bench: Any) -> None:
    bench.seal(bench.change("1", {"n": 1}))
    bench.catch_up(upsert=BranchUpsert())
    table = bench.lake.load(bench.name("orders"))
    table.java.manageSnapshots().createBranch(BRANCH, table.snapshot_id).commit()
    bench.spark.sql(f"DELETE FROM {table.identifier}.branch_{BRANCH} WHERE _key = '1'")
    bench.seal(bench.change("2", {"n": 2}))
    bench.catch_up(upsert=BranchUpsert())
    assert sorted(bench.values()) == ["1", "2"]


class _FailsAtFirst(Executor):
    """The disk under the history is full, once."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.failures = 1

    def submit(self, function: Any, /, *arguments: Any, **more: Any) -> Future[Any]:
        if self.failures:
            self.failures -= 1
            failed: Future[Any] = Future()
            failed.set_exception(OSError("disk full"))
            return failed
        return self._inner.submit(function, *arguments, **more)


@BOTH_WAYS
def test_a_history_left_behind_by_a_crash_catches_up_and_nothing_counts_twice(bench: Any) -> None:
    bench.seal(bench.change("1", {"n": 1}), bench.change("2", {"n": 2}))
    with pytest.raises(OSError, match="disk full"):
        bench.writer(side_jobs=_FailsAtFirst(bench.side_jobs)).catch_up(bench.segments())
    assert bench.lake.load(bench.name("orders")).marks().position == 2
    assert bench.lake.load(bench.name("orders_history")).marks().position == 0
    assert bench.writer().covered() == 0
    bench.seal(bench.change("1", None))
    assert bench.catch_up() == 3
    assert bench.values() == {"2": {"n": 2}}
    assert [row["_position"] for row in bench.rows("orders_history")] == [1, 3, 2]


class _CompactsMeanwhile:
    """Somebody rewrites the table's files while an upsert looks for its rows. Only the first time."""

    def __init__(self, inner: Upsert) -> None:
        self.table_properties = inner.table_properties
        self._inner = inner
        self.conflicts = 0

    def apply(self, table: Any, keys: Any, rows: Any, marks: Any) -> None:
        if self.conflicts == 0:
            spark = table.lake.spark.newSession()
            name = f"{table.name.namespace}.{table.name.table}"
            options = "options => map('rewrite-all', 'true')"
            spark.sql(f"CALL lake.system.rewrite_data_files(table => '{name}', {options})").collect()
        try:
            self._inner.apply(table, keys, rows, marks)
        except Conflict:
            self.conflicts += 1
            raise


@pytest.mark.parametrize("way", ["delta", "branch"])
def test_a_compaction_meanwhile_makes_the_batch_look_again(bench: Any, way: str) -> None:
    inner = BranchUpsert() if way == "branch" else bench.row_delta
    for number in range(2):
        bench.seal(*(bench.change(str(key), {"n": number}) for key in range(50)))
        bench.catch_up(upsert=inner)
    bench.seal(*(bench.change(str(key), {"n": 7}) for key in range(25)), bench.change("30", None))
    racing = _CompactsMeanwhile(inner)
    bench.catch_up(upsert=racing)
    assert racing.conflicts == 1
    assert bench.values() == {str(key): {"n": 7 if key < 25 else 1} for key in range(50) if key != 30}
    assert bench.lake.load(bench.name("orders")).marks().position == 126
