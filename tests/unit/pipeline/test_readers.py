"""Spark, DuckDB and pyiceberg read the same rows, after many updates and deletes over many files.

The size matters: a layout that DuckDB reads wrongly (several deletion vectors in one Puffin file) looks right on a
small table.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from duckdb_extensions import import_extension
from pyiceberg.table import StaticTable

from mainstem.tables.settings import TableSettings
from tests.unit.pipeline.conftest import BOTH_CATALOGS, PLAIN_ROW, sealed_events

pytestmark = pytest.mark.spark

KEYS = 40_000
BATCHES = 10
BATCH = 30_000


def write_batch(folder: Path, namespace: str, start: int, draw: np.random.Generator) -> dict[int, int | None]:
    """A segment of random updates and deletes, written column by column; returns what it leaves of each key."""
    keys = draw.integers(0, KEYS, BATCH)
    deleted = draw.random(BATCH) < 0.1
    positions = np.arange(start + 1, start + BATCH + 1)
    texts = pc.binary_join_element_wise('{"n":', pa.array(positions).cast(pa.string()), "}", "")
    none = pa.nulls(BATCH, pa.string())
    rows = pa.table(
        {
            "position": positions,
            "hlc": positions,
            "namespace": pa.array([namespace] * BATCH),
            "table": pa.array(["orders"] * BATCH),
            "op": pc.if_else(pa.array(deleted), "delete", "update"),
            "key": pa.array(keys).cast(pa.string()),
            "columns": pc.if_else(pa.array(deleted), pa.scalar(None, pa.string()), texts),
            "before": none,
            "source": pa.array(["s"] * BATCH),
            "batch_sequence": positions,
            "sequence": positions,
            "id": none,
            "source_time_ms": positions,
            "arrival_ms": positions,
            "metadata": none,
            "error": none,
        }
    )
    bounds = {"first": start + 1, "last": start + BATCH}
    table = bounds | {
        "count": BATCH, "deletes": int(deleted.sum()), "hlc_min": start + 1, "hlc_max": start + BATCH,
        "columns": {"n": ["int"]}, "always": ["n"],
    }  # fmt: skip
    footer = {"version": 1, **bounds, "tables": {f"{namespace}.orders": table}}
    folder.mkdir(exist_ok=True)
    path = folder / f"{start + 1:020d}-{start + BATCH:020d}.parquet"
    pq.write_table(rows.replace_schema_metadata({b"mainstem": json.dumps(footer).encode()}), path)
    return {
        int(key): None if gone else int(position) for key, gone, position in zip(keys, deleted, positions, strict=True)
    }


@pytest.mark.parametrize(("bench", "version"), [("hadoop", 2), ("served", 2), ("served", 3)], indirect=["bench"])
def test_three_readers_see_the_same_rows(bench: Any, version: int) -> None:
    """By position deletes in version 2, by deletion vectors in version 3."""
    draw = np.random.default_rng(7)
    expected: dict[int, int | None] = {}
    for number in range(BATCHES):
        expected |= write_batch(bench.folder, bench.namespace, number * BATCH, draw)
        bench.catch_up(settings=TableSettings(format_version=version))
    wanted = sorted((str(key), value) for key, value in expected.items() if value is not None)
    table = bench.lake.load(bench.name("orders"))
    metadata = table.java.operations().current().metadataFileLocation().removeprefix("file:")
    assert int(table.java.currentSnapshot().summary().get("total-delete-files")) >= BATCHES - 1

    spark = bench.spark.table(table.identifier).select("_key", "n").toArrow()
    assert sorted(zip(*spark.to_pydict().values(), strict=True)) == wanted

    connection = duckdb.connect()
    for extension in ("avro", "iceberg"):
        import_extension(extension, con=connection)
    connection.execute("LOAD iceberg")
    assert sorted(connection.execute(f"SELECT _key, n FROM iceberg_scan('{metadata}')").fetchall()) == wanted

    scanned = StaticTable.from_metadata(metadata).scan(selected_fields=("_key", "n")).to_arrow().to_pydict()
    assert sorted(zip(scanned["_key"], scanned["n"], strict=True)) == wanted

    history = bench.spark.table(bench.lake.identifier(bench.name("orders_history")))
    assert history.count() == history.select("_position").distinct().count() == BATCHES * BATCH


@BOTH_CATALOGS
def test_spark_reads_a_history_that_is_made_of_segments(bench: Any) -> None:
    segment = sealed_events(bench.folder, bench.namespace, 1, ["orders"])
    sealed_events(bench.folder, bench.namespace, 60_001, ["orders", "other"])
    assert bench.catch_up() == 180_000
    segment.unlink()
    history = bench.spark.table(bench.lake.identifier(bench.name("orders_history")))
    found = history.selectExpr(
        "count(*)", "count(DISTINCT _position)", "min(_time)", "count(_source_time)", "max(_key)", "max(_op)",
        "sum(get_json_object(_columns, '$.n'))",
    ).toArrow()  # fmt: skip
    total = 2 * sum(range(60_000))
    assert [column.to_pylist()[0] for column in found.columns] == [
        120_000, 120_000, datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC), 119_998, "k9999", "update", total,
    ]  # fmt: skip
    state = bench.spark.table(bench.lake.identifier(bench.name("orders")))
    assert (state.count(), state.where("_position <= 60000").count()) == (60_000, 0)


def test_a_job_that_fails_leaves_no_second_name_of_a_segment(bench: Any, tmp_path: Path) -> None:
    bench.seal(bench.change("k1", PLAIN_ROW))
    bench.catch_up()
    state, history = (bench.lake.load(bench.name(table)) for table in ("orders", "orders_history"))
    segment = sealed_events(bench.folder, bench.namespace, 2, ["orders"])
    # No executor can write below a file.
    (tmp_path / "file").write_text("in the way")
    state.java.updateProperties().set("write.data.path", str(tmp_path / "file" / "data")).commit()
    for _ in range(2):
        with pytest.raises(AssertionError, match="run_task"):
            bench.catch_up()
        assert segment.stat().st_nlink == 1
    state.java.updateProperties().remove("write.data.path").commit()
    assert bench.catch_up() == 60_001
    assert segment.stat().st_nlink == 2
    history.refresh()
    assert history.java.currentSnapshot().summary().get("total-records") == "60001"
