"""From segment rows to typed rows: DataFrame in, DataFrame out, built-in functions only."""

from collections.abc import Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType, StructField, StructType

from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.pipeline.lake import quoted
from mainstem.tables.evolution import TABLE_COLUMNS_MAX, Column
from mainstem.tables.types import STRING, VARIANT, ColumnType, decimal_of

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

_SPARK_TYPES = {
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    # Spark has no uuid; Iceberg's writer takes its text.
    "uuid": "string",
}
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_SHOWN_LENGTH_MAX = 80


def read_segments(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """The rows of some segments. The schema is explicit: no file is opened to plan."""
    return spark.read.schema(SEGMENT_SCHEMA).parquet(*paths)


def of_table(rows: DataFrame, table: TableName, after: LogPosition, until: LogPosition) -> DataFrame:
    """One table's rows in a range of positions. Segments are sorted by table, so Parquet skips the others."""
    return rows.where(
        (sf.col("namespace") == table.namespace)
        & (sf.col("table") == table.table)
        & (sf.col("position") > sf.lit(int(after)))
        & (sf.col("position") <= sf.lit(int(until)))
    )


def as_history(rows: DataFrame, *more: SparkColumn) -> DataFrame:
    """The change as it came."""
    return rows.select(
        sf.col("position").alias("_position"),
        sf.col("hlc").alias("_hlc"),
        sf.col("op").alias("_op"),
        sf.col("key").alias("_key"),
        sf.col("columns").alias("_columns"),
        sf.col("before").alias("_before"),
        sf.col("source").alias("_source"),
        sf.col("batch_sequence").alias("_batch_sequence"),
        sf.col("sequence").alias("_sequence"),
        sf.col("id").alias("_id"),
        sf.timestamp_millis("arrival_ms").alias("_time"),
        sf.timestamp_millis("source_time_ms").alias("_source_time"),
        sf.col("metadata").alias("_metadata"),
        *more,
    )


def as_dead_letters(rows: DataFrame) -> DataFrame:
    """The change as it came, and why its table cannot take it. `rows` have the reason in `error`."""
    return as_history(rows, sf.col("error").alias("_reason"))


def spark_type(column_type: ColumnType) -> str:
    """An Iceberg type in Spark's SQL."""
    return _SPARK_TYPES.get(column_type, column_type)


def is_checked(column: Column) -> bool:
    """Whether a value may not fit: its type was given and not inferred from the values."""
    return column.kind is None and column.type not in (VARIANT, STRING)


def judged(rows: DataFrame, columns: Sequence[Column], refused: frozenset[str]) -> DataFrame:
    """Put into `error` why a row does not fit its table; null where it does."""
    reasons: list[SparkColumn] = [sf.col("error")]
    if refused:
        known = sf.array(*(sf.lit(column.name) for column in columns))
        over = sf.size(sf.array_except(sf.json_object_keys("columns"), known)) > 0
        reasons.append(sf.when(over, sf.lit(f"the table has {TABLE_COLUMNS_MAX} columns, which is the limit")))
    checked = [column for column in columns if is_checked(column)]
    for column in checked:
        text = sf.col(_TEXTS)[column.name]
        shown = sf.concat(sf.lit(f"{column.name}: '"), sf.left(text, sf.lit(_SHOWN_LENGTH_MAX)))
        reason = sf.concat(shown, sf.lit(f"' is not {column.type}"))
        reasons.append(sf.when(text.isNotNull() & _value(column).isNull(), reason))
    return _with_row(rows, checked).select(
        *(name for name in SEGMENT_SCHEMA.names if name != "error"), sf.coalesce(*reasons).alias("error")
    )


def with_values(rows: DataFrame, columns: Sequence[Column]) -> tuple[DataFrame, list[SparkColumn]]:
    """Read the rows' JSON once; the second part gives each column's typed value on the first, in order."""
    return _with_row(rows, columns), [_value(column) for column in columns]


_ROW = "__row"
_TEXTS = "__texts"


def _with_row(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Read the JSON as typed fields, and the checked columns as text too."""
    texts = [f"{quoted(column.name)} string" for column in columns if is_checked(column)]
    fields = [
        f"{quoted(column.name)} {spark_type(column.type)}"
        for column in columns
        if not is_checked(column) or decimal_of(column.type)
    ]
    parsed = []
    if fields:
        parsed.append(sf.from_json("columns", ", ".join(fields)).alias(_ROW))
    if texts:
        parsed.append(sf.from_json("columns", ", ".join(texts)).alias(_TEXTS))
    return rows.select("*", *parsed)


def _value(column: Column) -> SparkColumn:
    if not is_checked(column) or decimal_of(column.type):
        # A decimal is read as such: through text it would pass a double.
        return sf.col(_ROW)[column.name]
    text = sf.col(_TEXTS)[column.name]
    if column.type == "uuid":
        return sf.when(text.rlike(_UUID), text)
    if column.type == "binary":
        return sf.try_to_binary(text, sf.lit("base64"))
    return text.try_cast(spark_type(column.type))
