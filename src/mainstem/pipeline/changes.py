"""From segment rows to typed rows: frame in, frame out, built-in functions only.

Expressions are SQL text: a column built object by object costs a call to the JVM for every node of it, which on a small
batch adds up to more than the work itself. For the same reason nothing that changes from batch to batch (a position, a
clock) may stand in an expression where it can be avoided: Spark compiles a query's code anew for every new constant.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from mainstem.model.change import SOURCE_TIME_MS_MAX, SOURCE_TIME_MS_MIN
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.pipeline.lake import quoted
from mainstem.tables.evolution import TABLE_COLUMNS_MAX, Column, Evolution
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

_HISTORY = (
    "position AS _position",
    "hlc AS _hlc",
    "op AS _op",
    "key AS _key",
    "columns AS _columns",
    "before AS _before",
    "source AS _source",
    "batch_sequence AS _batch_sequence",
    "sequence AS _sequence",
    "id AS _id",
    "timestamp_millis(arrival_ms) AS _time",
    f"CASE WHEN source_time_ms BETWEEN {SOURCE_TIME_MS_MIN}L AND {SOURCE_TIME_MS_MAX}L"
    " THEN timestamp_millis(source_time_ms) END AS _source_time",
    "metadata AS _metadata",
)

_SPARK_TYPES = {
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    # Spark has no uuid; Iceberg's writer takes its text.
    "uuid": "string",
}
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_SHOWN_LENGTH_MAX = 80
_ROW = "__row"
_TEXTS = "__texts"


def literal(text: str) -> str:
    """A string in Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def read_segments(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """The rows of some segments. The schema is explicit: no file is opened to plan."""
    return spark.read.schema(SEGMENT_SCHEMA).parquet(*paths)


def of_table(rows: DataFrame, table: TableName, after: LogPosition | None) -> DataFrame:
    """One table's rows, past a position where some are not. Segments are sorted by table, so Parquet skips others."""
    condition = f"namespace = {literal(table.namespace)} AND `table` = {literal(table.table)}"
    return rows.where(condition if after is None else f"{condition} AND position > {int(after)}L")


def as_history(rows: DataFrame) -> DataFrame:
    """The change as it came."""
    return rows.selectExpr(*_HISTORY)


def as_dead_letters(rows: DataFrame) -> DataFrame:
    """The change as it came, and why its table cannot take it. `rows` have the reason in `error`."""
    return rows.selectExpr(*_HISTORY, "error AS _reason")


def spark_type(column_type: ColumnType) -> str:
    """An Iceberg type in Spark's SQL."""
    return _SPARK_TYPES.get(column_type, column_type)


def is_checked(column: Column) -> bool:
    """Whether a value may not fit: its type was given and not inferred from the values."""
    return column.kind is None and column.type not in (VARIANT, STRING)


def may_not_fit(plan: Evolution) -> bool:
    """Whether a row that the sealer let pass may still not fit: then the rows are judged with Spark."""
    return bool(plan.refused) or any(is_checked(column) for column in plan.columns)


def judged(rows: DataFrame, columns: Sequence[Column], refused: frozenset[str]) -> DataFrame:
    """Put into `error` why a row does not fit its table; null where it does."""
    reasons = ["error"]
    if refused:
        known = ", ".join(literal(column.name) for column in columns)
        over = f"size(array_except(json_object_keys(columns), array({known}))) > 0"
        reason = literal(f"the table has {TABLE_COLUMNS_MAX} columns, which is the limit")
        reasons.append(f"CASE WHEN {over} THEN {reason} END")
    checked = [column for column in columns if is_checked(column)]
    for column in checked:
        text = f"{_TEXTS}.{quoted(column.name)}"
        shown = f"concat({literal(column.name + ': ')}, '\\'', left({text}, {_SHOWN_LENGTH_MAX}), '\\'',"
        reason = f"{shown} {literal(f' is not {column.type}')})"
        reasons.append(f"CASE WHEN {text} IS NOT NULL AND {_value(column)} IS NULL THEN {reason} END")
    others = [quoted(name) for name in SEGMENT_SCHEMA.names if name != "error"]
    return _with_row(rows, checked).selectExpr(*others, f"coalesce({', '.join(reasons)}) AS error")


def with_values(rows: DataFrame, columns: Sequence[Column]) -> tuple[DataFrame, list[str]]:
    """Read the rows' JSON once; the second part gives each column's typed value on the first, in order."""
    return _with_row(rows, columns), [_value(column) for column in columns]


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
        parsed.append(f"from_json(columns, {literal(', '.join(fields))}) AS {_ROW}")
    if texts:
        parsed.append(f"from_json(columns, {literal(', '.join(texts))}) AS {_TEXTS}")
    return rows.selectExpr("*", *parsed)


def _value(column: Column) -> str:
    if not is_checked(column) or decimal_of(column.type):
        # A decimal is read as such: through text it would pass a double.
        return f"{_ROW}.{quoted(column.name)}"
    text = f"{_TEXTS}.{quoted(column.name)}"
    if column.type == "uuid":
        return f"CASE WHEN {text} RLIKE {literal(_UUID)} THEN {text} END"
    if column.type == "binary":
        return f"try_to_binary({text}, 'base64')"
    return f"try_cast({text} AS {spark_type(column.type)})"
