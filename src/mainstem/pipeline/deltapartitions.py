"""Partitions of Delta tables. Delta knows only columns as they are: a transform becomes a column of its own.

The same declaration as for Iceberg, and the same names. The column is filled by the writer and stands behind all
others. Readers need not name it: files of one day have bounds of one day.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from mainstem.model.errors import Invalid
from mainstem.pipeline.lake import CATALOG, quoted
from mainstem.tables.partitions import field_name, source_of, takes
from mainstem.tables.settings import Transform
from mainstem.tables.types import STRING, ColumnType

_DATE, _INT = ColumnType("date"), ColumnType("int")


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """A column to partition by. One that the table has anyway needs no expression."""

    name: str
    type: ColumnType
    expression: str | None = None


def partition_columns(
    transforms: Sequence[Transform], types: Mapping[str, ColumnType], catalog: str = CATALOG
) -> tuple[PartitionColumn, ...]:
    """The columns that stand for the transforms. `types` are those of the columns that rows have."""
    return tuple(_column(transform, types, catalog) for transform in transforms)


def _column(  # noqa: PLR0911 - case by case
    transform: Transform, types: Mapping[str, ColumnType], catalog: str
) -> PartitionColumn:
    source, name = source_of(transform), field_name(transform)
    if source not in types:
        raise Invalid(f"the table cannot be partitioned. expected=a declared column got={source}")
    if not takes(transform.name, types[source]):
        raise Invalid(f"the table cannot be partitioned. {transform.name} cannot be taken of {types[source]}")
    if transform.name == "identity" and transform.alias is None:
        return PartitionColumn(source, types[source])
    if name in types:
        raise Invalid(f"the table cannot be partitioned. it has a column of the name {name}: give another by `as`")
    column = quoted(source)
    match transform.name:
        case "identity":
            return PartitionColumn(name, types[source], column)
        case "year":
            return PartitionColumn(name, _INT, f"year({column})")
        case "month":
            return PartitionColumn(name, STRING, f"date_format({column}, 'yyyy-MM')")
        case "day":
            return PartitionColumn(name, _DATE, f"CAST({column} AS DATE)")
        case "hour":
            return PartitionColumn(name, STRING, f"date_format({column}, 'yyyy-MM-dd-HH')")
        case "bucket":
            return PartitionColumn(name, _INT, f"{quoted(catalog)}.system.bucket({transform.size}, {column})")
        case _:
            cut = f"{quoted(catalog)}.system.truncate({transform.size}, {column})"
            return PartitionColumn(name, types[source], cut)


def derived(columns: Sequence[PartitionColumn]) -> list[tuple[str, ColumnType]]:
    """Those that the rows do not have by themselves."""
    return [(column.name, column.type) for column in columns if column.expression is not None]


def with_partitions(rows: DataFrame, columns: Sequence[PartitionColumn]) -> DataFrame:
    """The rows with what they are partitioned by."""
    made = [f"{column.expression} AS {quoted(column.name)}" for column in columns if column.expression is not None]
    return rows.selectExpr("*", *made) if made else rows
