"""Makes the Delta tables that tests read without Spark: with Spark, one folder each, and what Spark says is in them.

    python -m tests.compat.delta_fixtures [NAME ...]     into tests/vectors/delta

They are checked in, so that a reader that changes is judged by the same bytes. Run it again only to add one.
"""

import datetime as dt
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from mainstem.app.spark.jars import ensure_jars
from tests.harness.spark_delta import DELTA_SETTINGS

FOLDER = Path(__file__).parent.parent / "vectors" / "delta"
Make = Callable[[SparkSession, str], None]


def plain(spark: SparkSession, path: str) -> None:
    """Every simple type and the nested ones, with nulls and edge values."""
    spark.sql(
        f"""CREATE TABLE delta.`{path}` (i INT, l BIGINT, sh SMALLINT, by TINYINT, f FLOAT, d DOUBLE, s STRING,
        b BOOLEAN, x BINARY, day DATE, t TIMESTAMP, n TIMESTAMP_NTZ, m DECIMAL(20,4), a ARRAY<INT>,
        o STRUCT<p: STRING, q: ARRAY<STRUCT<r: BIGINT>>>, mp MAP<STRING, INT>) USING delta"""
    )
    spark.sql(
        f"""INSERT INTO delta.`{path}` VALUES
        (1, 9007199254740993, 7S, 1Y, 1.5F, double('NaN'), 'é''"', true, X'00FF', DATE'2024-02-29',
         TIMESTAMP'2024-02-29 12:00:00.123456', TIMESTAMP_NTZ'1969-12-31 23:59:59.999999', 1234567890.1234,
         array(1, NULL, 3), named_struct('p', 'x', 'q', array(named_struct('r', 5L))), map('k', 1)),
        (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
        (-1, -1, -1S, -1Y, -0.0F, double('-Infinity'), '', false, X'', DATE'0001-01-01',
         TIMESTAMP'1900-01-01 00:00:00', TIMESTAMP_NTZ'2024-01-01 00:00:00', -0.0001, array(),
         named_struct('p', NULL, 'q', NULL), map())"""
    )


def partitioned(spark: SparkSession, path: str) -> None:
    """Partitions by text with odd letters, by a date and by null."""
    spark.sql(f"CREATE TABLE delta.`{path}` (n INT, p STRING, day DATE) USING delta PARTITIONED BY (p, day)")
    spark.sql(
        f"""INSERT INTO delta.`{path}` VALUES (1, 'a b', DATE'2024-01-01'), (2, 'é/=%', DATE'2024-01-02'),
        (3, NULL, DATE'2024-01-01'), (4, 'a b', NULL), (5, 'c', DATE'2024-01-02')"""
    )
    spark.sql(f"DELETE FROM delta.`{path}` WHERE n = 5")


def vectors(spark: SparkSession, path: str) -> None:
    """Deletion vectors: several per file, one on top of another."""
    spark.sql(
        f"CREATE TABLE delta.`{path}` USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        " AS SELECT /*+ COALESCE(1) */ id AS n, concat('row ', id) AS s FROM range(1000)"
    )
    spark.sql(f"DELETE FROM delta.`{path}` WHERE n % 3 = 0")
    spark.sql(f"UPDATE delta.`{path}` SET s = 'changed' WHERE n % 7 = 1")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE n > 900")


def mapped(spark: SparkSession, path: str) -> None:
    """Columns that are stored under other names than they are called by."""
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id INT, `odd name` STRING, old INT) USING delta"
        " TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, 'a', 10), (2, 'b', 20)")
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN old TO new")
    spark.sql(f"ALTER TABLE delta.`{path}` DROP COLUMN id")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES ('c', 30)")


def checkpointed(spark: SparkSession, path: str) -> None:
    """A classic checkpoint with commits after it, and the commits before it gone."""
    spark.sql(f"CREATE TABLE delta.`{path}` (n INT) USING delta TBLPROPERTIES ('delta.checkpointInterval' = '4')")
    for n in range(6):
        spark.sql(f"INSERT INTO delta.`{path}` VALUES ({n})")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE n = 2")
    for version in range(3):
        (Path(path) / "_delta_log" / f"{version:020d}.json").unlink()


def sidecars(spark: SparkSession, path: str) -> None:
    """A checkpoint of version 2, with its files beside it."""
    spark.sql(
        f"CREATE TABLE delta.`{path}` (n INT) USING delta"
        " TBLPROPERTIES ('delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '3')"
    )
    for n in range(4):
        spark.sql(f"INSERT INTO delta.`{path}` VALUES ({n})")


def evolved(spark: SparkSession, path: str) -> None:
    """A column added, a type widened, and the whole overwritten once."""
    spark.sql(
        f"CREATE TABLE delta.`{path}` (n INT, s STRING) USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    )
    spark.sql(f"INSERT OVERWRITE delta.`{path}` VALUES (0, 'gone')")
    spark.sql(f"INSERT OVERWRITE delta.`{path}` VALUES (1, 'a')")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (d DOUBLE)")
    spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN n TYPE BIGINT")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (5000000000, 'b', 1.5)")


def variants(spark: SparkSession, path: str) -> None:
    """A Variant column with values of every shape."""
    spark.sql(f"CREATE TABLE delta.`{path}` (n INT, v VARIANT) USING delta")
    spark.sql(
        f"""INSERT INTO delta.`{path}` SELECT n, parse_json(j) FROM VALUES
        (1, '{{"a": [1, 2.5, null], "b": {{"c": "x"}}}}'), (2, '"text"'),
        (3, '[]'), (4, '12345678901'), (5, CAST(NULL AS STRING)), (6, 'true') AS t(n, j)"""
    )


def shredded_variants(spark: SparkSession, path: str) -> None:
    """A Variant column whose usual fields are columns of their own in the files."""
    spark.conf.set("spark.sql.variant.writeShredding.enabled", "true")
    spark.conf.set("spark.sql.variant.forceShreddingSchemaForTest", "a bigint, b struct<c: string>")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (n INT, v VARIANT) USING delta"
        " TBLPROPERTIES ('delta.enableVariantShredding' = 'true')"
    )
    spark.sql(
        f"""INSERT INTO delta.`{path}` SELECT n, parse_json(j) FROM VALUES
        (1, '{{"a": 5, "b": {{"c": "x"}}}}'), (2, '{{"a": "no number", "more": [1]}}'), (3, '"text"'),
        (4, '{{"b": 7}}'), (5, CAST(NULL AS STRING)) AS t(n, j)"""
    )
    spark.conf.unset("spark.sql.variant.forceShreddingSchemaForTest")
    spark.conf.unset("spark.sql.variant.writeShredding.enabled")


def feed(spark: SparkSession, path: str) -> None:
    """A change feed with every kind of change."""
    spark.sql(
        f"CREATE TABLE delta.`{path}` (_id STRING, n INT) USING delta"
        " TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    )
    spark.sql(f"INSERT INTO delta.`{path}` VALUES ('a', 1), ('b', 2), ('c', 3)")
    spark.sql(
        f"MERGE INTO delta.`{path}` t USING (SELECT * FROM VALUES ('a', 10), ('d', 4) AS v(_id, n)) s ON t._id = s._id"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    spark.sql(f"DELETE FROM delta.`{path}` WHERE _id = 'b'")


FIXTURES: tuple[Make, ...] = (
    plain, partitioned, vectors, mapped, checkpointed, sidecars, evolved, variants, shredded_variants, feed,
)  # fmt: skip


def normal(value: Any) -> Any:  # noqa: PLR0911 - case by case
    """A value as JSON has it, the same from Spark's rows and from ours."""
    if isinstance(value, dict):
        return {name: normal(item) for name, item in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    if hasattr(value, "toPython"):
        return normal(value.toPython())
    if isinstance(value, dt.datetime):
        return (value.astimezone(dt.UTC) if value.tzinfo else value).replace(tzinfo=None).isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dt.date | Decimal):
        return str(value)
    return bytes(value).hex() if isinstance(value, bytes | bytearray) else value


def ordered(rows: list[dict[str, Any]]) -> list[Any]:
    """Rows in an order that does not depend on who read them."""
    return sorted((normal(row) for row in rows), key=lambda row: json.dumps(row, sort_keys=True))


def main(*names: str) -> None:
    """All of them, or those that are named."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.jars", ",".join(str(jar) for jar in ensure_jars()))
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "1")
    for name, value in DELTA_SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        for make in [make for make in FIXTURES if not names or make.__name__ in names]:
            target = FOLDER / make.__name__
            shutil.rmtree(target, ignore_errors=True)
            make(spark, str(target))
            rows = [row.asDict(recursive=True) for row in spark.read.format("delta").load(str(target)).collect()]
            # Hadoop's own checksums are no part of the table.
            for leftover in target.rglob("*.crc"):
                leftover.unlink()
            text = json.dumps(ordered(rows), indent=1, ensure_ascii=False)
            (FOLDER / f"{make.__name__}.json").write_text(text + "\n")
            sys.stdout.write(f"{make.__name__}: {len(rows)} rows\n")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
