"""The keys of a batch, each with the position of its last change: an Arrow table (`_key`, `_position`) on the driver.

A pass is bounded, so its keys fit. Knowing them beforehand spares Spark a shuffle, and its jobs are then one stage.
"""

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from mainstem.model.position import LogPosition
from mainstem.pipeline.driver_sql import DriverSql, local_path, text_list
from mainstem.pipeline.segments import TableSlice
from mainstem.tables.layout import KEY, POSITION

KEYS_SCHEMA = pa.schema([(KEY, pa.string()), (POSITION, pa.int64())])


def keys_of_segments(sql: DriverSql, run: TableSlice, after: LogPosition) -> pa.Table | None:
    """Read the keys from the segment files; None where they are not on this machine."""
    paths = [local_path(path) for path in run.paths]
    if None in paths:
        return None
    query = (
        f"SELECT key AS {KEY}, max(position) AS {POSITION}"
        f" FROM read_parquet({text_list(path for path in paths if path)}, hive_partitioning = false)"
        ' WHERE namespace = $namespace AND "table" = $table AND position > $after AND position <= $last'
        " AND error IS NULL GROUP BY key"
    )
    values = {"namespace": run.table.namespace, "table": run.table.table, "after": int(after), "last": int(run.last)}
    with sql.cursor() as cursor:
        return cursor.execute(query, values).to_arrow_table().cast(KEYS_SCHEMA)


def keys_of_rows(rows: DataFrame) -> pa.Table:
    """Find the keys with Spark: for rows that were judged first, or segments elsewhere."""
    last = rows.groupBy(sf.col("key").alias(KEY)).agg(sf.max("position").alias(POSITION))
    return last.toArrow().cast(KEYS_SCHEMA)


def as_frame(spark: SparkSession, keys: pa.Table, *columns: str) -> DataFrame:
    """The keys in Spark, ready to be broadcast."""
    return sf.broadcast(spark.createDataFrame(keys.select(list(columns))))
