"""An upsert leaves what a plain MERGE leaves; cut off, overtaken or repeated, nothing is lost and nothing doubled."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mainstem.model import Conflict
from mainstem.pipeline.commit.iceberg import IcebergChange, IcebergCommits
from mainstem.pipeline.roster import RACES_MAX
from mainstem.tables.settings import TableSettings
from tests.unit.pipeline.conftest import BOTH_CATALOGS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def random_batch(bench: Any, draw: random.Random, count: int) -> list[Any]:
    changes = []
    for _ in range(count):
        key = str(draw.randrange(300))
        columns = None if draw.random() < 0.2 else {"n": draw.randrange(1000), "text": draw.choice(["a", "b", None])}
        changes.append(bench.change(key, columns))
    return changes


def merge_plainly(bench: Any, segment: Path) -> None:
    """The reference: what everybody writes first, in Spark's own SQL."""
    reference = bench.lake.identifier(bench.name("reference"))
    bench.spark.sql(f"CREATE TABLE IF NOT EXISTS {reference} (_key string, n bigint, text string) USING iceberg")
    bench.spark.read.parquet(str(segment)).createOrReplaceTempView("changes")
    bench.spark.sql(
        f"""
        MERGE INTO {reference} t USING (
            SELECT key, max_by(op, position) AS op,
                   from_json(max_by(columns, position), 'n bigint, text string') AS row
            FROM changes GROUP BY key
        ) c ON t._key = c.key
        WHEN MATCHED AND c.op = 'delete' THEN DELETE
        WHEN MATCHED THEN UPDATE SET n = c.row.n, text = c.row.text
        WHEN NOT MATCHED AND c.op <> 'delete' THEN INSERT (_key, n, text) VALUES (c.key, c.row.n, c.row.text)
        """
    )


@pytest.mark.parametrize("version", [2, 3])
def test_agrees_with_the_plain_merge(bench: Any, version: int) -> None:
    draw = random.Random(version)
    settings = TableSettings(format_version=version)
    for _ in range(3):
        segment = bench.seal(*random_batch(bench, draw, 400))
        # One segment at a time, so that later ones find rows of earlier ones.
        bench.catch_up(settings=settings)
        merge_plainly(bench, segment)
    reference = bench.spark.table(bench.lake.identifier(bench.name("reference"))).collect()
    assert len(reference) > 100
    assert bench.values() == {row["_key"]: {"n": row["n"], "text": row["text"]} for row in reference}


class CutOff(Exception):
    """The driver is gone."""


class Interrupted(IcebergCommits):
    """Commits that something happens to. `before` is called once everything is staged; `after` when all is done."""

    def __init__(
        self,
        lake: Any,
        before: Callable[[Sequence[IcebergChange]], None] = lambda _: None,
        after: Callable[[Sequence[IcebergChange]], None] = lambda _: None,
    ) -> None:
        super().__init__(lake)
        self.before = before
        self.after = after

    def commit(self, changes: Sequence[IcebergChange], batch: str) -> dict[str, int]:
        self.before(changes)
        found = super().commit(changes, batch)
        self.after(changes)
        return found


def cut_off(*_: object) -> None:
    raise CutOff


def lose_the_answer(changes: Sequence[IcebergChange]) -> None:
    """The catalog has committed, and the driver does not know."""
    for change in changes:
        change.is_committed = False
    raise CutOff


def carry(bench: Any) -> Any:
    """One go of a pipeline that has just started; returns what is reported of the table."""
    name = bench.name("orders")
    bench.settings.setdefault(name, TableSettings())
    bench.asked_for = {name}
    bench.carrier().carry(None, (), "test")
    return bench.progress.report({}).tables[str(name)]


def marks(bench: Any, *tables: str) -> list[int]:
    """What the tables cover."""
    return [bench.lineage.covered(bench.lake.load(bench.name(table)).marks().positions) for table in tables]


def two_batches(bench: Any) -> None:
    """The first is in the table, the second waits."""
    bench.seal(bench.change("1", {"n": 1}), bench.change("2", {"n": 2}))
    bench.catch_up()
    bench.seal(bench.change("1", {"n": 10}), bench.change("2", None), bench.change("3", {"n": 3}))


def assert_both_batches_count_once(bench: Any) -> None:
    assert bench.values() == {"1": {"n": 10}, "3": {"n": 3}}
    assert [row["_position"] for row in bench.rows("orders_history")] == [1, 3, 2, 4, 5]
    assert marks(bench, "orders", "orders_history") == [5, 5]


@BOTH_CATALOGS
def test_cut_off_before_the_commit_nothing_is_seen_and_the_batch_is_done_again(bench: Any) -> None:
    two_batches(bench)
    plain, bench.commits = bench.commits, Interrupted(bench.lake, before=cut_off)
    assert "CutOff" in carry(bench).error
    assert bench.values() == {"1": {"n": 1}, "2": {"n": 2}}
    assert marks(bench, "orders", "orders_history") == [2, 2]
    bench.commits = plain
    assert bench.catch_up() == 5
    assert_both_batches_count_once(bench)


@BOTH_CATALOGS
def test_a_commit_whose_answer_is_lost_counts_once_and_its_files_stay(bench: Any) -> None:
    two_batches(bench)
    plain, bench.commits = bench.commits, Interrupted(bench.lake, after=lose_the_answer)
    assert "CutOff" in carry(bench).error
    assert_both_batches_count_once(bench)
    bench.commits = plain
    assert bench.catch_up() == 5
    assert_both_batches_count_once(bench)


@pytest.mark.parametrize("committed", ["history", "state"])
def test_what_one_of_two_commits_left_behind_catches_up_and_nothing_counts_twice(bench: Any, committed: str) -> None:
    """Of a catalog without transactions."""
    two_batches(bench)

    class OnlyOne(IcebergCommits):
        def commit(self, changes: Sequence[IcebergChange], batch: str) -> dict[str, int]:
            super().commit([each for each in changes if each.is_state == (committed == "state")], batch)
            raise CutOff

    plain, bench.commits = bench.commits, OnlyOne(bench.lake)
    assert "CutOff" in carry(bench).error
    assert marks(bench, "orders", "orders_history") == ([5, 2] if committed == "state" else [2, 5])
    assert bench.writer(bench.name("orders")).covered() == 2
    bench.commits = plain
    bench.seal(bench.change("3", None))
    assert bench.catch_up() == 6
    assert bench.values() == {"1": {"n": 10}}
    assert [row["_position"] for row in bench.rows("orders_history")] == [1, 3, 2, 4, 5, 6]


def data_files(bench: Any, table: str = "orders") -> set[str]:
    """Whatever stands in the table's folder of data, part of the table or not."""
    location = str(bench.lake.load(bench.name(table)).java.location()).removeprefix("file://").removeprefix("file:")
    return {path.name for path in (Path(location) / "data").rglob("*.*") if not path.name.endswith(".crc")}


def listed_files(bench: Any, table: str = "orders") -> set[str]:
    """The data and delete files that any snapshot of the table has."""
    files = bench.spark.sql(f"SELECT file_path FROM {bench.lake.identifier(bench.name(table))}.all_files").collect()
    return {Path(row["file_path"]).name for row in files}


@BOTH_CATALOGS
def test_a_compaction_meanwhile_makes_the_batch_look_again(bench: Any) -> None:
    for number in range(2):
        bench.seal(*(bench.change(str(key), {"n": number}) for key in range(50)))
        bench.catch_up()
    bench.seal(*(bench.change(str(key), {"n": 7}) for key in range(25)), bench.change("30", None))
    races: list[int] = []

    def compact(_: object) -> None:
        races.append(1)
        if len(races) == 1:
            name = f"{bench.namespace}.orders"
            options = "options => map('rewrite-all', 'true')"
            call = f"CALL {bench.lake.catalog}.system.rewrite_data_files(table => '{name}', {options})"
            bench.spark.sql(call).collect()

    bench.commits = Interrupted(bench.lake, before=compact)
    assert carry(bench).error is None
    assert len(races) == 2
    assert bench.values() == {str(key): {"n": 7 if key < 25 else 1} for key in range(50) if key != 30}
    assert marks(bench, "orders", "orders_history") == [126, 126]
    assert len(bench.rows("orders_history")) == 126
    # What was written for the commit that lost is gone.
    for table in ("orders", "orders_history"):
        assert data_files(bench, table) == listed_files(bench, table), table


@BOTH_CATALOGS
@pytest.mark.parametrize("settings", [TableSettings(), TableSettings(history=False), TableSettings(state=False)])
def test_two_pipelines_at_once_count_nothing_twice(bench: Any, settings: TableSettings) -> None:
    """A zombie runs the same micro-batch: it has planned and written everything when the other one commits."""
    name = bench.name("orders")
    bench.settings[name] = settings
    bench.asked_for = {name}
    bench.seal(bench.change("1", {"n": 1}), bench.change("2", {"n": 2}))
    bench.carrier().carry(None, (), "both")
    bench.seal(bench.change("1", {"n": 10}), bench.change("2", None), bench.change("3", {"n": 3}))
    other = bench.carrier()
    entered: list[int] = []

    def overtake(_: object) -> None:
        entered.append(1)
        if len(entered) == 1:
            other.carry(None, (), "other")

    plain, bench.commits = bench.commits, Interrupted(bench.lake, before=overtake)
    bench.carrier().carry(None, (), "zombie")
    assert bench.progress.report({}).tables[str(name)].error is None
    bench.commits = plain
    if settings.state:
        assert bench.values() == {"1": {"n": 10}, "3": {"n": 3}}
    if settings.history:
        assert [row["_position"] for row in bench.rows("orders_history")] == [1, 3, 2, 4, 5]
    for table in ["orders"] * settings.state + ["orders_history"] * settings.history:
        assert data_files(bench, table) == listed_files(bench, table), table


def test_a_pipeline_that_was_overtaken_before_it_plans_finds_all_done(bench: Any) -> None:
    """What it remembers of the table is old: it reads nothing, which is not what its segments' footers say."""
    bench.seal(bench.change("1", {"n": 1}), bench.change("2", {"n": 2}))
    zombie = bench.carrier()
    progress = bench.progress
    zombie.carry(None, (), "first")
    bench.seal(bench.change("1", {"n": 10}), bench.change("2", None), bench.change("3", {"n": 3}))
    bench.carrier().carry(None, (), "second")
    zombie.carry(None, (), "second")
    report = progress.report({}).tables[str(bench.name("orders"))]
    assert (report.error, report.covered) == (None, 5)
    assert_both_batches_count_once(bench)


@BOTH_CATALOGS
def test_a_table_that_loses_every_race_does_not_take_others_with_it(bench: Any) -> None:
    """Somebody else commits to one of the tables of every micro-batch."""
    bench.seal(*(bench.change(str(key), {"n": key}, table=table) for key in range(3) for table in ("raced", "a", "b")))
    bench.carrier().carry(None, (), "first")
    bench.seal(*(bench.change(str(key), {"n": 9}, table=table) for key in range(2) for table in ("raced", "a", "b")))
    lost: list[int] = []

    def race(changes: Sequence[IcebergChange]) -> None:
        if any(change.table.name == bench.name("raced") for change in changes):
            lost.append(len(changes))
            bench.lake.load(bench.name("raced")).java.newFastAppend().commit()

    plain, bench.commits = bench.commits, Interrupted(bench.lake, before=race)
    bench.carrier().carry(None, (), "raced")
    report = bench.progress.report({}).tables
    assert report[str(bench.name("raced"))].error is not None
    expected = {"0": {"n": 9}, "1": {"n": 9}, "2": {"n": 2}}
    for table in ("a", "b"):
        assert report[str(bench.name(table))].error is None
        assert bench.values(table) == expected
        assert len(bench.rows(f"{table}_history")) == 5
    assert bench.values("raced") == {str(key): {"n": key} for key in range(3)}
    # The others were in from the first time on: they were not written again for its sake.
    assert len(lost) == RACES_MAX and lost[0] == 6 and max(lost[1:]) <= 2
    bench.commits = plain
    bench.carrier().carry(None, (), "alone")
    assert bench.values("raced") == expected
    assert len(bench.rows("raced_history")) == 5


@BOTH_CATALOGS
def test_many_batches_over_restarts_leave_what_the_last_change_of_each_key_says(bench: Any) -> None:
    draw = random.Random(5)
    expected: dict[str, Any] = {}
    carrier = bench.carrier()
    for batch in range(10):
        changes = []
        for _ in range(draw.randrange(1, 200)):
            key, columns = str(draw.randrange(150)), {"n": draw.randrange(1000), "doc": {"x": [draw.randrange(9)]}}
            if draw.random() < 0.2:
                expected.pop(key, None)
                changes.append(bench.change(key, None))
            else:
                expected[key] = {"n": columns["n"], "doc": json.dumps(columns["doc"], separators=(",", ":"))}
                changes.append(bench.change(key, columns))
        bench.seal(*changes)
        if batch % 4 == 3:
            # A restart: the index of keys is read from the table.
            bench.finder.forget(bench.name("orders"))
            carrier = bench.carrier()
        carrier.carry(None, (), str(batch))
    assert bench.values() == expected
    assert len(bench.rows("orders_history")) == bench.position
    summary = bench.lake.load(bench.name("orders")).java.currentSnapshot().summary()
    live = int(summary.get("total-records")) - int(summary.get("total-position-deletes"))
    assert live == len(expected)


def test_every_value_that_json_can_hold_arrives(bench: Any) -> None:
    odd = {
        "1": {"n": 2**63 - 1, "price": 1e300, "text": 'quo"te \\ \n ü 😀 \u0000', "ok": None, "doc": {"ä": [1, 2.5]}},
        "2": {"n": -(2**63), "price": -0.0, "text": "", "ok": True, "doc": []},
        "3": dict.fromkeys(("n", "price", "text", "ok", "doc")),
        "ключ'\"": {"n": 0, "price": 3, "text": "'; DROP TABLE x", "ok": False, "doc": {}},
    }
    bench.seal(*(bench.change(key, columns) for key, columns in odd.items()))
    bench.catch_up()
    # Once more, partly: the rest comes from the old rows, and has not changed on its way.
    bench.seal(*(bench.change(key, {"more": 1}) for key in odd))
    bench.catch_up()
    found = bench.values()
    for key, columns in odd.items():
        doc = found[key].pop("doc")
        assert found[key].pop("more") == 1
        assert (None if doc is None else json.loads(doc)) == columns.pop("doc")
        assert found[key] == columns


def test_a_lost_race_is_not_taken_for_a_failure_unless_it_is_lost_for_ever(bench: Any) -> None:
    def lose(_: object) -> None:
        raise Conflict("somebody was faster")

    bench.seal(bench.change("1", {"n": 1}))
    plain, bench.commits = bench.commits, Interrupted(bench.lake, before=lose)
    assert "somebody was faster" in carry(bench).error
    bench.commits = plain
    assert carry(bench).error is None
    assert bench.values() == {"1": {"n": 1}}
