"""What we write, with every feature in use, is read alike by delta-rs, DuckDB and Spark; and Spark writes on."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from duckdb_extensions import import_extension

from mainstem.client.delta import DeltaTable, Storage, create_storage
from tests.compat.delta_fixtures import ordered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [
    {
        "_id": str(n),
        "n": n,
        "ratio": n / 7,
        "flag": n % 2 == 0,
        "price": Decimal(n) / 4,
        "day": dt.date(2024, 1, 1 + n % 28),
        "at": dt.datetime(2024, 1, 1, n % 24, 0, 0, n, tzinfo=dt.UTC),
        "data": bytes([n % 256]),
        "tags": [n, "x"],
        "p": ["a b", "é/=%", None][n % 3],
    }
    for n in range(200)
]


def partitioned(table: DeltaTable) -> None:
    table.write(ROWS, partition_by=["p"])
    table.upsert([{**ROWS[5], "p": "moved"}])
    table.delete({"n": {"$gte": 150}})


def vectors(table: DeltaTable) -> None:
    table.write(ROWS, properties={"delta.enableDeletionVectors": "true"})
    table.delete({"n": {"$mod": [3, 0]}})
    table.update({"n": {"$lt": 20}}, {"$inc": {"n": 1000}, "$set": {"new": "column"}})
    table.upsert([{"_id": str(n), "n": -n} for n in range(0, 200, 7)])


def with_feed(table: DeltaTable) -> None:
    table.write(ROWS, properties={"delta.enableChangeDataFeed": "true"})
    table.upsert([{"_id": "1", "n": 5}, {"_id": "new", "n": 6}])
    table.delete({"n": 100})


def checkpointed(table: DeltaTable) -> None:
    vectors(table)
    table.checkpoint()
    table.delete({"n": 50})


def optimized(table: DeltaTable) -> None:
    vectors(table)
    table.write(ROWS[:5])
    table.optimize()


FEATURES: tuple[Callable[[DeltaTable], None], ...] = (partitioned, vectors, with_feed, checkpointed, optimized)


@pytest.fixture(params=FEATURES, ids=lambda make: make.__name__)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaTable:
    storage: Storage = create_storage(str(tmp_path))
    made = DeltaTable(storage, "t")
    request.param(made)
    return made


def ours(table: DeltaTable) -> list[Any]:
    return ordered(table.query_arrow().to_pylist())


def test_delta_rs(table: DeltaTable) -> None:
    found = pa.RecordBatchReader.from_stream(table.delta_rs().scan()).read_all()
    assert ordered(found.to_pylist()) == ours(table)


def test_duckdb(table: DeltaTable) -> None:
    connection = duckdb.connect()
    import_extension("delta", con=connection)
    connection.load_extension("delta")
    found = connection.execute(f"SELECT * FROM delta_scan('{table.uri}')").to_arrow_table()
    assert ordered(found.to_pylist()) == ours(table)


@pytest.mark.spark
def test_spark_reads_and_writes_on(table: DeltaTable, spark: "SparkSession") -> None:
    found = table.to_spark(spark)
    assert ordered([row.asDict(recursive=True) for row in found.collect()]) == ours(table)
    count = len(table.query())
    spark.sql(f"DELETE FROM delta.`{table.uri}` WHERE n = 31")
    assert len(table.query()) == count - len(table.snapshot(table.version - 1).query({"n": 31}))
    assert table.query({"n": 31}) == []
    table.upsert([{"_id": "32", "n": 31}])
    assert table.to_spark(spark).where("n = 31").count() == 1
