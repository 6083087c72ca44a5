"""The pipeline reads no file beyond a table's own folder, whatever the table's metadata names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame

from mainstem.model.errors import Denied
from mainstem.pipeline.commit.own_files import BEYOND, own_delta_rows, own_rows
from mainstem.pipeline.plan.iceberg import live_rows
from mainstem.pipeline.turns import Turns
from mainstem.pipeline.upkeep.checkpoints import _history
from mainstem.pipeline.upkeep.maintenance import Maintenance
from mainstem.pipeline.upkeep.queries import _frame_of
from mainstem.runtime.clock import SystemClock
from mainstem.tables.maintenance import MaintenanceSettings, Step
from mainstem.wire.checkpoints import CheckpointOrder
from mainstem.wire.queries import QueryOrder, ViewOrder

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SMALL = MaintenanceSettings(min_files=2)
SECRET = "their secret"


@pytest.fixture
def thief(bench: Any) -> Any:
    """A table with rows of its own, whose manifests also name the data file of another table."""
    spark, (own, theirs) = bench.lake.spark, map(bench.name, ("thief_history", "theirs"))
    for name, word in ((own, "own"), (theirs, SECRET)):
        columns = "_key STRING, _columns STRING, _op STRING, _hlc BIGINT, _source STRING, _position BIGINT"
        spark.sql(f"CREATE TABLE {bench.lake.identifier(name)} ({columns}) USING iceberg")
        for n in range(2):
            values = f"'{n}', '{{\"word\": \"{word}\"}}', 'update', {n}, 's', {n}"
            spark.sql(f"INSERT INTO {bench.lake.identifier(name)} VALUES ({values})")
    table = bench.lake.load(own)
    append = table.java.newFastAppend()
    for file in _files(bench.lake.load(theirs)):
        append.appendFile(file)
    append.commit()
    table.refresh()
    return table


def test_a_compaction_takes_in_no_foreign_file(bench: Any, thief: Any) -> None:
    before = thief.snapshot_id
    maintenance = Maintenance(bench.lake, Turns(), SMALL, SystemClock())
    with pytest.raises(Denied, match=BEYOND):
        maintenance.run(thief.name, [Step.COMPACT])
    thief.refresh()
    assert thief.snapshot_id == before


def _by_query(bench: Any, thief: Any) -> DataFrame:
    """As `POST /v1/query` has Spark read a table: whether the gateway looked at its manifests before or not."""
    view = ViewOrder(
        view="v_thief", namespace=thief.name.namespace, table=thief.name.table, snapshot_id=thief.snapshot_id
    )
    order = QueryOrder(id="q", sql="SELECT * FROM v_thief", views=(view,), limit=100, timeout_s=60.0)
    return _frame_of(bench.spark, bench.lake, order)


def _for_a_checkpoint(bench: Any, thief: Any) -> DataFrame:
    order = CheckpointOrder(
        folder="", namespace=thief.name.namespace, position=9, tables=("thief",), log="l", before_position=0
    )
    found = _history(bench.spark, bench.lake, order, "thief")
    assert found is not None
    return found


READERS: dict[str, Callable[[Any, Any], DataFrame]] = {
    "old rows of a pass": lambda bench, thief: bench.lake.frame(bench.spark, thief),
    "a checkpoint": _for_a_checkpoint,
    "a query": _by_query,
}


@pytest.mark.parametrize("who", READERS)
def test_no_row_of_a_foreign_file_is_read(bench: Any, thief: Any, who: str) -> None:
    rows = READERS[who](bench, thief)
    for wanted in (rows, rows.select("_columns"), rows.where("_key = '1'"), rows.selectExpr("min(_key)", "count(*)")):
        with pytest.raises(Exception, match=BEYOND) as caught:
            wanted.collect()
        assert SECRET not in str(caught.value)


def test_the_places_of_keys_are_of_own_files(bench: Any, thief: Any) -> None:
    with pytest.raises(Denied, match=BEYOND):
        live_rows(bench.lake, thief)


def test_a_column_named_as_the_files_column_does_not_hide_them(bench: Any, tmp_path: Path) -> None:
    """Iceberg's own column of that name is meant, whatever the table has."""
    own = bench.name("named")
    spark = bench.lake.spark
    spark.sql(f"CREATE TABLE {bench.lake.identifier(own)} (n INT) USING iceberg")
    spark.sql(f"INSERT INTO {bench.lake.identifier(own)} VALUES (1)")
    table = bench.lake.load(own)
    rows = spark.table(table.identifier)
    assert own_rows(rows, str(table.java.location())).count() == 1
    beside = f"{table.java.location()}-12345678"
    for location in (beside, str(tmp_path)):
        with pytest.raises(Exception, match=BEYOND):
            own_rows(rows, location).count()
    with pytest.raises(Exception, match=BEYOND):
        own_rows(rows.selectExpr("n", f"'{beside}/x' AS _file"), beside).count()


def test_rows_of_a_delta_table_are_its_own(bench: Any, tmp_path: Path) -> None:
    for name in ("own ä%é", "theirs"):
        write_deltalake(tmp_path / name, pa.table({"word": [name]}))
    own = str(tmp_path / "own ä%é")

    def rows() -> list[str]:
        return [row.word for row in own_delta_rows(bench.spark.read.format("delta").load(own), own).collect()]

    assert rows() == ["own ä%é"]
    (theirs,) = (tmp_path / "theirs").glob("*.parquet")
    add = {"path": theirs.as_uri(), "partitionValues": {}, "size": theirs.stat().st_size, "modificationTime": 1}
    commit = tmp_path / "own ä%é" / "_delta_log" / f"{1:020d}.json"
    commit.write_text(json.dumps({"add": {**add, "dataChange": True}}))
    with pytest.raises(Exception, match=BEYOND):
        rows()


def _files(table: Any) -> list[Any]:
    tasks = table.java.newScan().planFiles()
    iterator, found = tasks.iterator(), []
    while iterator.hasNext():
        found.append(iterator.next().file())
    return found
