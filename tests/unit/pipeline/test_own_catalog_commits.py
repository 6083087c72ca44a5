"""Commits to a catalog of somebody else's, Iceberg's own server, which dies meanwhile: each counts once."""

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mainstem.pipeline.commit.iceberg import IcebergCommits
from mainstem.tables.settings import DEFAULT_SETTINGS
from tests.harness.reference_catalog import ReferenceCatalog
from tests.unit.pipeline.conftest import Bench

THEIRS = "theirs"
ROUNDS = 3


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_catalog_that_dies_under_commits_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    rng, wanted = random.Random(1), dict[str, dict[str, Any]]()
    with ReferenceCatalog(tmp_path / "theirs") as server:
        options = {"type": "rest", "uri": server.url, "cache-enabled": "false", "credential": "mainstem:secret"}
        # By default it asks a dead server for half a minute before it says so.
        options["rest.client.max-retries"] = "1"
        spark.conf.set(f"spark.sql.catalog.{THEIRS}", "org.apache.iceberg.spark.SparkCatalog")
        for name, value in options.items():
            spark.conf.set(f"spark.sql.catalog.{THEIRS}.{name}", value)
        bench = Bench(spark, tmp_path / "segments", "own", THEIRS)
        bench.commits = IcebergCommits(bench.lake, has_transactions=False)
        bench.settings[bench.name("orders")] = DEFAULT_SETTINGS
        for number in range(ROUNDS):
            keys = [f"k{rng.randrange(20):02d}" for _ in range(30)]
            changes = [bench.change(key, {"n": number * 100 + place}) for place, key in enumerate(keys)]
            bench.seal(*changes)
            wanted |= {str(change.key): dict(change.columns or {}) for change in changes}
            dies = threading.Timer(rng.uniform(0.0, 2.0), server.kill)
            dies.start()
            # Whatever becomes of this pass: the process that made it is gone as well.
            bench.carrier().carry(None, (), f"cut off {number}")
            dies.join()
            server.start()
            bench.catch_up()
            assert bench.values() == wanted
        history = spark.table(bench.lake.identifier(bench.name("orders_history")))
        assert history.count() == history.select("_position").distinct().count() == ROUNDS * 30
        state = bench.lake.load(bench.name("orders"))
        assert state is not None and bench.lineage.covered(state.marks().positions) == ROUNDS * 30
