"""A table that somebody drops while the pipeline runs is made again by its next change, or refused, by a setting.

What the dropped table held does not come back, and the other tables notice nothing.
"""

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from mainstem.model import Conflict
from mainstem.pipeline.carrier import Carrier
from mainstem.pipeline.commit.iceberg import IcebergChange, IcebergCommits
from mainstem.pipeline.commit.lake import Lake
from mainstem.pipeline.plan.iceberg import IcebergWriter
from mainstem.pipeline.plan.writer import Writer
from mainstem.pipeline.roster import BACKOFF_S_MIN
from mainstem.runtime.clock import ManualClock
from mainstem.tables.settings import DEFAULT_SETTINGS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.parametrize("bench", ["served"], indirect=True),
]

PARTS = {"state": ["orders"], "history": ["orders_history"], "both": ["orders", "orders_history"]}


class Dropping(IcebergCommits):
    """Lets somebody drop tables, or lose a race, just before a commit."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake)
        self.before: list[Any] = []

    def commit(self, changes: Sequence[IcebergChange], batch: str) -> dict[str, int]:
        if self.before:
            self.before.pop(0)()
        return super().commit(changes, batch)


class Pipeline:
    """One process' life over a bench."""

    def __init__(self, bench: Any, url: str, *, refuses: bool = False) -> None:
        self.bench = bench
        self.url = url
        self.refuses = refuses
        bench.clock = self.clock = ManualClock()
        bench.commits = self.commits = Dropping(bench.lake)
        bench.writer = self.writer
        self.carrier: Carrier = bench.carrier()

    def writer(self, name: Any) -> Writer:
        bench = self.bench
        return IcebergWriter(
            bench.lake, name, DEFAULT_SETTINGS, lineage=bench.lineage, finder=bench.finder, store={},
            refuses_dropped=self.refuses,
        )  # fmt: skip

    def carry(self, *keys: str, tables: Sequence[str] = ("orders", "others")) -> None:
        """A change per key to each table, carried as far as it goes without waiting."""
        self.bench.seal(*(self.bench.change(key, {"n": 1}, table=table) for key in keys for table in tables))
        self.carrier.carry(None, (), "test")
        while self.carrier.is_behind():
            self.carrier.carry(None, (), "test")

    def wait(self) -> None:
        """Let the pause of a failed table pass."""
        self.clock.advance(BACKOFF_S_MIN + 0.01)
        assert self.carrier.is_behind()
        self.carrier.carry(None, (), "test")

    def drop(self, tables: Sequence[str], *, purge: bool = True) -> None:
        for table in tables:
            path = f"{self.url}/v1/namespaces/{self.bench.namespace}/tables/{table}"
            assert httpx.delete(path, params={"purgeRequested": str(purge).lower()}).status_code == 204

    def keys(self, table: str) -> list[str]:
        return [row["_key"] for row in self.bench.rows(table)]

    def error(self, table: str = "orders") -> str | None:
        found: str | None = self.bench.progress.report({}).tables[str(self.bench.name(table))].error
        return found


@pytest.fixture
def pipeline(bench: Any, catalog_url: str) -> Pipeline:
    return Pipeline(bench, catalog_url)


@pytest.mark.parametrize("part", PARTS)
def test_the_next_change_makes_it_again(pipeline: Pipeline, part: str) -> None:
    pipeline.carry("a", "b")
    pipeline.drop(PARTS[part])
    pipeline.carry("c")
    assert pipeline.error() is None and pipeline.error("others") is None
    for table in ("orders", "orders_history"):
        assert pipeline.keys(table) == (["c"] if table in PARTS[part] else ["a", "b", "c"])
    assert pipeline.keys("others") == pipeline.keys("others_history") == ["a", "b", "c"]
    # And once more, of the table that was made.
    pipeline.drop(PARTS[part], purge=False)
    pipeline.carry("d")
    assert pipeline.error() is None
    assert pipeline.keys(PARTS[part][0]) == ["d"]
    assert pipeline.bench.progress.covered(pipeline.bench.name("orders")) == pipeline.bench.position


@pytest.mark.parametrize("part", PARTS)
def test_one_that_goes_between_the_plan_and_the_commit(pipeline: Pipeline, part: str) -> None:
    """The others are committed in the same pass, and what the dropped one held stays away after lost races too."""
    pipeline.carry("a")

    others: list[list[str]] = []

    def lose() -> None:
        others.append(pipeline.keys("others"))
        raise Conflict("a race")

    pipeline.commits.before = [lambda: pipeline.drop(PARTS[part]), lose, lambda: pipeline.drop(PARTS[part])]
    pipeline.carry("b")
    assert pipeline.commits.before == []
    assert others == [["a", "b"]], "the others waited for it"
    assert pipeline.error() is None and pipeline.error("others") is None
    assert pipeline.keys(PARTS[part][0]) == ["b"]
    assert pipeline.keys("others") == ["a", "b"]


def test_another_failure_does_not_bring_back_what_it_held(pipeline: Pipeline) -> None:
    """After a failure the table has a new writer, which knows nothing of the drop."""
    pipeline.carry("a")

    def fail() -> None:
        raise OSError("no answer")

    pipeline.drop(PARTS["both"])
    pipeline.commits.before = [fail]
    pipeline.carry("b", tables=["orders"])
    assert pipeline.error() == "OSError: no answer"
    pipeline.wait()
    assert pipeline.error() is None
    assert pipeline.keys("orders") == pipeline.keys("orders_history") == ["b"]


@pytest.mark.parametrize("part", PARTS)
def test_it_is_refused_where_the_setting_says_so(bench: Any, catalog_url: str, part: str) -> None:
    pipeline = Pipeline(bench, catalog_url, refuses=True)
    pipeline.carry("a")
    pipeline.drop(PARTS[part])
    pipeline.carry("b")
    error = pipeline.error()
    assert error is not None and error.startswith("Denied: the table was dropped") and PARTS[part][0] in error
    assert pipeline.error("others") is None and pipeline.keys("others") == ["a", "b"]
    names = httpx.get(f"{catalog_url}/v1/namespaces/{bench.namespace}/tables").json()["identifiers"]
    assert not {each["name"] for each in names} & set(PARTS[part])
    # New tables are no dropped ones, and dead letters may be dropped at will.
    pipeline.carry("a", tables=["new"])
    assert pipeline.keys("new") == ["a"]
    pipeline.wait()
    assert (pipeline.error() or "").startswith("Denied: ")

    # Somebody decides otherwise.
    pipeline.refuses = False
    pipeline.clock.advance(100)
    pipeline.carrier.carry(None, (), "test")
    assert pipeline.error() is None
    assert pipeline.keys(PARTS[part][0]) == ["b"]
