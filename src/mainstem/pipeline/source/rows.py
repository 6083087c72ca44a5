"""The rows of segments as Spark reads them.

Expressions are SQL text: a column built object by object costs a call to the JVM for every node of it, which on a small
batch adds up to more than the work itself. For the same reason nothing that changes from batch to batch (a position, a
clock) may stand in an expression where it can be avoided: Spark compiles a query's code anew for every new constant.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType, StructField, StructType

from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.pipeline.passes.stores import for_spark
from mainstem.pipeline.source.segments import TableSlice
from mainstem.sql import spark_text
from mainstem.tables.types import ColumnType

SEGMENT_SCHEMA = StructType(
    [
        StructField("position", LongType()),
        StructField("hlc", LongType()),
        StructField("namespace", StringType()),
        StructField("table", StringType()),
        StructField("op", StringType()),
        StructField("key", StringType()),
        StructField("columns", StringType()),
        StructField("before", StringType()),
        StructField("source", StringType()),
        StructField("batch_sequence", LongType()),
        StructField("sequence", LongType()),
        StructField("id", StringType()),
        StructField("source_time_ms", LongType()),
        StructField("arrival_ms", LongType()),
        StructField("metadata", StringType()),
        StructField("error", StringType()),
    ]
)

# Changes one after the other that are read by one task: many row groups of a segment.
_NEIGHBOURS = 131_072
_SPARK_TYPES = {
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    # Spark has no uuid; Iceberg's writer takes its text.
    "uuid": "string",
}


def read_segments(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """The rows of some segments. The schema is explicit: no file is opened to plan."""
    return spark.read.schema(SEGMENT_SCHEMA).parquet(*(for_spark(path) for path in paths))


def of_table(rows: DataFrame, table: TableName, after: LogPosition | None) -> DataFrame:
    """One table's rows, past a position where some are not. Segments are sorted by table, so Parquet skips others."""
    condition = f"namespace = {spark_text(table.namespace)} AND `table` = {spark_text(table.table)}"
    return rows.where(condition if after is None else f"{condition} AND position > {int(after)}L")


def keys_of(spark: SparkSession, run: TableSlice) -> DataFrame:
    """The keys (`key`) of one pass over one table."""
    return of_table(read_segments(spark, run.paths), run.table, None).select("key")


def without_tables(rows: DataFrame, tables: Sequence[TableName]) -> DataFrame:
    """The rows of all other tables."""
    for name in tables:
        rows = rows.where(f"NOT (namespace = {spark_text(name.namespace)} AND `table` = {spark_text(name.table)})")
    return rows


def latest_of_each_key(changes: DataFrame, tasks: int) -> DataFrame:
    """The last `position` of every key of one table, and `stands_for`: how many changes of the key there are.

    Neighbours in the log come to one task, so that no two tasks read the same part of a segment.
    """
    latest = changes.groupBy("key").agg(sf.expr("max(position) AS position"), sf.expr("count(1) AS stands_for"))
    task = sf.expr(f"CAST(pmod(position DIV {_NEIGHBOURS}, {tasks}) AS int)")
    return latest.select("position", "stands_for").repartitionById(tasks, task)


def spark_type(column_type: ColumnType) -> str:
    """An Iceberg type in Spark's SQL."""
    return _SPARK_TYPES.get(column_type, column_type)
