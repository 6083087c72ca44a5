"""A driver that was thought dead runs the same micro-batches as the one in its place, on one catalog, at the same time.

Nothing is lost, nothing counts twice, and what neither of both committed is in no table: judged by DuckDB and by Spark.
"""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import connect_duckdb
from mainstem.pipeline.carrier import Carrier
from mainstem.pipeline.commit.iceberg import IcebergCommits
from mainstem.pipeline.commit.lake import Lake
from mainstem.pipeline.commit.places import PlaceFinder
from mainstem.pipeline.plan.iceberg import IcebergWriter
from mainstem.pipeline.progress import Progress
from mainstem.pipeline.session.spark import join_session
from mainstem.pipeline.source.segments import SegmentFolder, tables_of
from mainstem.runtime.clock import SystemClock
from mainstem.tables.settings import DEFAULT_SETTINGS
from tests.harness.seeds import soak_seed
from tests.unit.pipeline.conftest import Bench

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

# A name that no other test has for its catalog: Spark keeps what it has loaded.
CATALOG = "zombies"
TABLES = ("orders", "lines")
KEYS = 60


class Driver:
    """A pipeline with nothing in common with another one but the catalog and the segments."""

    def __init__(self, bench: Bench) -> None:
        lake, self.clock, finder = Lake(bench.spark, CATALOG), SystemClock(), PlaceFinder()
        self.folder = SegmentFolder(bench.folder)
        self.progress = Progress(self.clock)
        self.spark = bench.spark
        self.failure: BaseException | None = None
        self.carrier = Carrier(
            bench.spark,
            self.folder,
            lambda name: IcebergWriter(lake, name, DEFAULT_SETTINGS, lineage=bench.lineage, finder=finder, store={}),
            IcebergCommits(lake),
            self.progress,
            self.clock,
        )

    def run(self, barrier: threading.Barrier, done: threading.Event) -> None:
        """Carry until every segment of the end is covered, in step with the other at the beginning."""
        join_session(self.spark)
        try:
            barrier.wait(60)
            while not (done.is_set() and self._covers_all()):
                self.carrier.carry(None, (), "batch")
        except BaseException as error:
            self.failure = error

    def _covers_all(self) -> bool:
        last = tables_of(self.folder.list())
        return all(self.progress.covered(table) >= position for table, position in last.items())


def _run(bench: Bench, batches: int, seed: int) -> dict[str, dict[str, int]]:
    """Seal batches while two drivers carry them; returns what the tables must have."""
    draw = random.Random(seed)
    expected: dict[str, dict[str, int]] = {table: {} for table in TABLES}
    drivers, barrier, done = [Driver(bench) for _ in range(2)], threading.Barrier(3), threading.Event()
    threads = [threading.Thread(target=driver.run, args=(barrier, done)) for driver in drivers]
    for thread in threads:
        thread.start()
    for number in range(batches):
        changes = []
        for table in TABLES:
            for key in draw.sample(range(KEYS), 20):
                if draw.random() < 0.2:
                    expected[table].pop(str(key), None)
                    changes.append(bench.change(str(key), None, table=table))
                else:
                    expected[table][str(key)] = number
                    changes.append(bench.change(str(key), {"n": number}, table=table))
        bench.seal(*changes)
        if number == 0:
            barrier.wait(60)
    done.set()
    for thread in threads:
        thread.join()
    for driver in drivers:
        assert driver.failure is None, driver.failure
    return expected


def _judge(bench: Bench, url: str, expected: dict[str, dict[str, int]]) -> None:
    with connect_duckdb(url) as duck:
        _assert_all_is_there_once(bench, expected, lambda sql: duck.execute(sql.format("lake")).fetchall())
    _assert_all_is_there_once(
        bench, expected, lambda sql: [tuple(row) for row in bench.spark.sql(sql.format(CATALOG)).collect()]
    )


def _assert_all_is_there_once(
    bench: Bench, expected: dict[str, dict[str, int]], read: Callable[[str], list[tuple[Any, ...]]]
) -> None:
    positions: list[int] = []
    for table, wanted in expected.items():
        found = read(f"SELECT _key, n FROM {{}}.{bench.namespace}.{table}")
        assert len(found) == len(dict(found)), f"{table}: {len(found) - len(dict(found))} keys stand twice"
        assert dict(found) == wanted
        positions += [position for (position,) in read(f"SELECT _position FROM {{}}.{bench.namespace}.{table}_history")]
    assert sorted(positions) == list(range(1, bench.position + 1))


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real catalog over HTTP, made known to the session; its address."""
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
    server = ServerProcess(tmp_path_factory.mktemp("zombies"), config)
    asyncio.run(server.start())
    properties = {"type": "rest", "uri": server.url, "warehouse": "lake", "cache-enabled": "false"}
    spark.conf.set(f"spark.sql.catalog.{CATALOG}", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in properties.items():
        spark.conf.set(f"spark.sql.catalog.{CATALOG}.{key}", value)
    yield server.url
    asyncio.run(server.stop())


@pytest.fixture
def bench(spark: SparkSession, catalog: str, tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    return Bench(spark, tmp_path / "segments", f"z_{request.node.name[:40]}", CATALOG)


def test_two_drivers_on_one_catalog(bench: Bench, catalog: str) -> None:
    expected = _run(bench, batches=6, seed=3)
    _judge(bench, catalog, expected)


@pytest.mark.soak
def test_two_drivers_for_long(bench: Bench, catalog: str) -> None:
    expected = _run(bench, batches=100, seed=soak_seed(4))
    _judge(bench, catalog, expected)
