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
from mainstem.model.errors import Invalid
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


def _feed(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["_commit_version"], row["_change_type"], row["_id"], row["n"]) for row in rows)


# Minutes of Spark: on demand. What is read and written on by each is in every run.
@pytest.mark.soak
@pytest.mark.spark
def test_spark_and_we_share_the_rest(tmp_path: Path, spark: "SparkSession") -> None:
    """The change feed, constraints, versions, new columns, restore, maintenance: done by one, seen by the other."""
    table = DeltaTable(create_storage(str(tmp_path)), "t")
    table.create(pa.schema([("_id", pa.string()), ("n", pa.int64())]), deletion_vectors=True, change_feed=True)
    name = f"delta.`{table.uri}`"
    table.write([{"_id": str(n), "n": n} for n in range(50)])
    table.upsert([{"_id": "1", "n": 100}, {"_id": "new", "n": 5}])
    spark.sql(f"MERGE INTO {name} t USING (SELECT '2' AS _id, 200L AS n) s ON t._id = s._id"
              " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")  # fmt: skip
    table.delete({"_id": "3"})
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(table.uri)
    theirs = _feed([row.asDict() for row in feed.collect()])
    assert theirs == _feed(table.changes().read_all().to_pylist())
    assert [change[1:] for change in theirs if change[0] == 3] == [
        ("update_postimage", "2", 200), ("update_preimage", "2", 2),
    ]  # fmt: skip

    table.add_constraint("small", "n < 1000")
    with pytest.raises(Exception, match="CHECK constraint"):
        spark.sql(f"INSERT INTO {name} VALUES ('big', 5000)")
    spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT known CHECK (_id <> 'never')")
    with pytest.raises(Invalid, match="constraint"):
        table.upsert([{"_id": "never", "n": 1}])

    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (theirs STRING)")
    table.upsert([{"_id": "4", "n": 4, "theirs": "ours now", "more": 1.5}])
    assert table.to_spark(spark).where("_id = '4'").first().asDict() == {
        "_id": "4", "n": 4, "theirs": "ours now", "more": 1.5,
    }  # fmt: skip
    before = table.version
    then = [row.asDict() for row in table.to_spark(spark, at=2).collect()]
    assert ordered(then) == ordered(table.snapshot(2).query())

    spark.sql(f"OPTIMIZE {name} ZORDER BY (n)")
    assert len(table.query()) == table.to_spark(spark).count() == 50
    spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF 1")
    assert sorted(row["n"] for row in table.query()) == list(range(50))
    table.restore(before)
    assert table.to_spark(spark).where("n = 100").count() == 1
    table.set_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    assert table.vacuum(dry_run=False)
    assert ordered([row.asDict() for row in table.to_spark(spark).collect()]) == ours(table)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.sql(f"VACUUM {name} RETAIN 0 HOURS")
    spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert ordered([row.asDict() for row in table.to_spark(spark).collect()]) == ours(table)
