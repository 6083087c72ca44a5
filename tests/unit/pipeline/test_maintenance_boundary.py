"""Maintenance deletes nothing outside a table's location, whatever the table's metadata names."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mainstem.client.delta import create_storage
from mainstem.model.names import TableName
from mainstem.pipeline.delta.maintenance import DeltaMaintenance
from mainstem.pipeline.delta.table import DeltaLake
from mainstem.pipeline.turns import Turns
from mainstem.pipeline.upkeep.maintenance import Maintenance
from mainstem.runtime.clock import SystemClock
from mainstem.tables.layout import STATE_COLUMNS
from mainstem.tables.maintenance import MaintenanceSettings, Step

# Everything is old enough to go.
NOW = MaintenanceSettings(manifests_max=1, snapshot_age_s=0.001, snapshot_age_min_s=0, orphan_age_s=0, min_files=2)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_expiry_spares_what_metadata_names_outside_the_location(bench: Any, tmp_path: Path) -> None:
    """As a table of an older version may have it: the catalog refuses such commits by now."""
    name = bench.name("boundary")
    spark = bench.lake.spark
    spark.sql(f"CREATE TABLE {bench.lake.identifier(name)} (n INT) USING iceberg")
    spark.sql(f"INSERT INTO {bench.lake.identifier(name)} VALUES (1)")
    table = bench.lake.load(name)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    data, prefixed = elsewhere / "data.parquet", Path(f"{_folder(table)}-of-another/data/x.parquet")
    prefixed.parent.mkdir(parents=True)
    hidden = Path(_folder(table)) / "data" / ".." / ".." / "dots.parquet"
    for victim in (data, prefixed, hidden):
        victim.write_bytes(b"not this table's")
        _add_and_remove(bench, table, str(victim))
    spark.sql(f"INSERT OVERWRITE {bench.lake.identifier(name)} VALUES (2)")
    files = set((Path(_folder(table)) / "data").glob("*.parquet"))

    done = Maintenance(bench.lake, Turns(), NOW, SystemClock()).run(name, [Step.EXPIRE])["expire"]

    assert [victim.exists() for victim in (data, prefixed, hidden)] == [True, True, True]
    assert done["snapshots"] >= 5 and done["files_beyond"] == 3
    left = set((Path(_folder(table)) / "data").glob("*.parquet"))
    assert len(files) == 2 and len(left) == 1, "the table's own old files go as ever"
    assert [row.n for row in spark.sql(f"SELECT n FROM {bench.lake.identifier(name)}").collect()] == [2]


def test_a_vacuum_spares_what_the_log_names_outside_the_location(spark: SparkSession, tmp_path: Path) -> None:
    lake = DeltaLake(create_storage(str(tmp_path / "delta")), SystemClock())
    name = TableName("default", "orders")
    table = lake.create(name, [*STATE_COLUMNS])
    victim = tmp_path / "delta" / "default" / "other" / "data.parquet"
    victim.parent.mkdir()
    victim.write_bytes(b"not this table's")
    log = sorted((tmp_path / "delta" / "default" / "orders" / "_delta_log").glob("*.json"))
    removals = [
        json.dumps({"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}})
        for path in ("../other/data.parquet", "..%2Fother%2Fdata.parquet", str(victim), victim.as_uri())
    ]
    (log[-1].parent / f"{len(log):020d}.json").write_text("\n".join(removals) + "\n")
    table.refresh()
    maintaining = DeltaMaintenance(lake, spark, Turns(), NOW)
    done = maintaining.run(
        table,
        [Step.EXPIRE, Step.ORPHANS],
        changes={},
        partitions=(),
        dry_run=False,
        on_progress=lambda *_: None,
        go_on=lambda: True,
    )
    assert done == {"expire": {"data_files": 0}, "orphans": {"files": 0}}
    assert victim.exists()


def _folder(table: Any) -> str:
    return str(table.java.location()).removeprefix("file:")


def _add_and_remove(bench: Any, table: Any, path: str) -> None:
    builder = bench.lake.jvm.org.apache.iceberg.DataFiles.builder(table.java.spec())
    file = builder.withPath(path).withFormat("parquet").withFileSizeInBytes(16).withRecordCount(1).build()
    table.java.newFastAppend().appendFile(file).commit()
    table.java.newDelete().deleteFile(file).commit()
