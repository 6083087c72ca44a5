"""What a table has already, in the shape of a pass's rows: old rows and earlier deletes of the keys that changed.

An old row comes as JSON, like a change. Its values survive that as they are: numbers keep all their digits, times their
microseconds, binaries are Base64.
"""

from pyspark.sql import DataFrame
from pyspark.sql.types import ByteType, LongType, StringType, StructField, StructType

from mainstem.model.names import TableName
from mainstem.pipeline.passes.plan import CHANGE, OLD_ROW, TOMBSTONE, TableTask
from mainstem.pipeline.source.rows import SEGMENT_SCHEMA
from mainstem.sql import spark_name, spark_text
from mainstem.tables.layout import CLOCKS, HLC, KEY, POSITION, SOURCE

# The rows of a pass: those of segments, what tells evidence from changes, and how many changes a row stands for. Null
# is one.
ROWS_SCHEMA = StructType(
    [
        *SEGMENT_SCHEMA.fields,
        StructField("evidence", ByteType()),
        StructField("clocks", StringType()),
        StructField("stands_for", LongType()),
    ]
)
_TYPES = {field.name: field.dataType.simpleString() for field in ROWS_SCHEMA.fields}
_JSON_OPTIONS = (
    "map('ignoreNullFields', 'false', 'timestampFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSSXXX',"
    " 'timestampNTZFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSS')"
)


def changes_as_rows(changes: DataFrame) -> DataFrame:
    """Rows of segments as rows of a pass."""
    return changes.selectExpr(
        *(spark_name(name) for name in SEGMENT_SCHEMA.names),
        f"CAST({CHANGE} AS tinyint) AS evidence",
        "CAST(NULL AS string) AS clocks",
        "CAST(NULL AS bigint) AS stands_for",
    )


def latest_as_rows(latest: DataFrame, table: TableName) -> DataFrame:
    """The last positions of a table's keys (see `latest_of_each_key`), without the columns that the tasks read."""
    return latest.selectExpr(
        "position",
        "stands_for",
        f"CAST({CHANGE} AS tinyint) AS evidence",
        f"{spark_text(table.namespace)} AS namespace",
        f"{spark_text(table.table)} AS `table`",
    )


def old_rows_as_evidence(rows: DataFrame, task: TableTask) -> DataFrame:
    """Rows of a state table."""
    # A column that came after the snapshot is missing in it, and in its rows.
    known = [column for column in task.columns if column.stored in rows.columns]
    values = ", ".join(f"{spark_name(column.stored)} AS {spark_name(column.name)}" for column in known)
    return _rows(
        rows,
        task.table,
        {
            "position": POSITION,
            "hlc": HLC,
            "op": "'read'",
            "key": KEY,
            "columns": f"to_json(struct({values}), {_JSON_OPTIONS})" if known else "'{}'",
            "source": SOURCE,
            "evidence": f"CAST({OLD_ROW} AS tinyint)",
            "clocks": CLOCKS,
        },
    )


def deletes_as_evidence(rows: DataFrame, task: TableTask) -> DataFrame:
    """Deletes of a history."""
    return _rows(
        rows,
        task.table,
        {
            "position": POSITION,
            "hlc": HLC,
            "op": "'delete'",
            "key": KEY,
            "source": SOURCE,
            "evidence": f"CAST({TOMBSTONE} AS tinyint)",
        },
    )


def history_as_rows(rows: DataFrame, table: TableName) -> DataFrame:
    """Changes of a history, as the segments had them: what a state needs of them."""
    return _rows(
        rows,
        table,
        {
            "position": POSITION,
            "hlc": HLC,
            "op": "_op",
            "key": KEY,
            "columns": "_columns",
            "source": SOURCE,
            "evidence": f"CAST({CHANGE} AS tinyint)",
        },
    )


def _rows(rows: DataFrame, table: TableName, known: dict[str, str]) -> DataFrame:
    return _selected(rows, {**known, "namespace": spark_text(table.namespace), "table": spark_text(table.table)})


def _selected(rows: DataFrame, known: dict[str, str]) -> DataFrame:
    return rows.selectExpr(
        *(f"{known.get(name, f'CAST(NULL AS {kind})')} AS {spark_name(name)}" for name, kind in _TYPES.items())
    )
