"""Casting a state table's columns to a type that Iceberg cannot widen to: all rows, one atomic replace."""

from collections.abc import Mapping, Sequence

from pyspark.sql import functions as sf

from mainstem.pipeline.commit.lake import Lake, LakeTable
from mainstem.pipeline.commit.marks import Marks
from mainstem.pipeline.commit.own_files import own_rows
from mainstem.pipeline.session.spark import own_session
from mainstem.pipeline.source.rows import spark_type
from mainstem.sql import spark_name
from mainstem.tables.evolution import Column
from mainstem.tables.partitions import takes
from mainstem.tables.types import STRING, VARIANT, ColumnType


def rewrite_columns(lake: Lake, table: LakeTable, columns: Sequence[Column], marks: Marks) -> None:
    """Replace the table by itself with some columns cast. Properties, partitions and marks stay; so do old snapshots.

    Readers see the old table or the new one. A crash before the commit leaves the old one.
    """
    # The marks can only be given to a replace through the session, and other tables are written at the same time.
    spark = own_session(lake.spark)
    for name, value in marks.summary().items():
        spark.conf.set(f"spark.sql.iceberg.snapshot-property.{name}", value)
    cast = {column.stored: column for column in columns}
    source = own_rows(lake.spark.table(table.identifier), str(table.java.location()))
    selected = []
    for field in source.schema.fields:
        old = sf.col(spark_name(field.name))
        column = cast.get(field.name)
        if column is None:
            selected.append(old)
        elif column.type == STRING and field.dataType.simpleString() == VARIANT:
            selected.append(sf.to_json(old).alias(field.name))
        else:
            selected.append(old.cast(spark_type(column.type)).alias(field.name))
    types = {column.stored: column.type for column in columns}
    view = f"mainstem_rewrite_{table.java.uuid().toString().replace('-', '')}"
    source.select(*selected).createOrReplaceGlobalTempView(view)
    try:
        spark.sql(
            f"CREATE OR REPLACE TABLE {table.identifier} USING iceberg {_partitioned_by(table, types)}"
            f"AS SELECT * FROM global_temp.{view}"
        )
    finally:
        spark.catalog.dropGlobalTempView(view)


def _partitioned_by(table: LakeTable, new_types: Mapping[str, ColumnType]) -> str:
    """The table's current partition spec in Spark's SQL, without what the new types do not allow.

    Nor an hour below its own day, which that SQL cannot say: the writer gives the new table the whole spec again.
    """
    schema = table.java.schema()
    parts: list[str] = []
    for field in table.java.spec().fields():
        name = str(schema.findColumnName(field.sourceId()))
        column = spark_name(name)
        transform = str(field.transform().toString())
        if transform == "void" or not takes(transform.partition("[")[0], new_types.get(name)):
            continue
        if transform == "hour" and f"day({column})" in parts:
            continue
        if transform.endswith("]"):
            kind, _, size = transform[:-1].partition("[")
            parts.append(f"{kind}({size}, {column})")
        else:
            parts.append(column if transform == "identity" else f"{transform}({column})")
    return f"PARTITIONED BY ({', '.join(parts)}) " if parts else ""
