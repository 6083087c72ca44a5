"""Neutral predicates as pyarrow dataset filters, and columns from an Arrow schema. The only module with pyarrow."""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

from collections.abc import Collection, Iterator
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mainstem.documents.columns import Column, Kind
from mainstem.documents.filters.predicate import (
    AllOf,
    Always,
    AnyOf,
    ColumnStats,
    Nan,
    Null,
    Predicate,
    Relates,
    Relation,
    Within,
)

_BY_RELATION = {
    Relation.EQ: pc.equal,
    Relation.NE: pc.not_equal,
    Relation.LT: pc.less,
    Relation.LTE: pc.less_equal,
    Relation.GT: pc.greater,
    Relation.GTE: pc.greater_equal,
}


def columns_of_schema(
    schema: pa.Schema,
    *,
    json: Collection[str] = (),
    extended_json: Collection[str] = (),
    object_id: Collection[str] = (),
) -> dict[str, Column]:
    """The columns of an Arrow schema. Text columns that hold JSON or ObjectIds are named by the caller."""
    named = {
        **dict.fromkeys(json, Kind.JSON),
        **dict.fromkeys(extended_json, Kind.EXTENDED_JSON),
        **dict.fromkeys(object_id, Kind.OBJECT_ID),
    }
    return {field.name: Column(named[field.name]) if field.name in named else _column(field.type) for field in schema}


def _column(type_: Any) -> Column:
    types = pa.types
    if types.is_decimal(type_):
        return Column(Kind.DECIMAL, type_.scale)
    if types.is_timestamp(type_):
        return Column(Kind.TIMESTAMP_TZ if type_.tz else Kind.TIMESTAMP)
    for test, kind in (
        (types.is_boolean, Kind.BOOLEAN),
        (types.is_signed_integer, Kind.INTEGER),
        (types.is_floating, Kind.DOUBLE),
        (types.is_string, Kind.STRING),
        (types.is_large_string, Kind.STRING),
        (types.is_date, Kind.DATE),
        (types.is_binary, Kind.BINARY),
        (types.is_large_binary, Kind.BINARY),
    ):
        if test(type_):
            return Column(kind)
    return Column(Kind.OTHER)


def row_group_stats(metadata: pq.FileMetaData, index: int) -> tuple[dict[str, ColumnStats], int]:
    """The zone map of one row group of a Parquet file, and how many rows it has; top-level columns only."""
    group = metadata.row_group(index)
    stats: dict[str, ColumnStats] = {}
    for place in range(group.num_columns):
        column = group.column(place)
        if "." in column.path_in_schema or column.statistics is None:
            continue
        found = column.statistics
        low, high = (found.min, found.max) if found.has_min_max else (None, None)
        stats[column.path_in_schema] = ColumnStats(low, high, found.null_count if found.has_null_count else None)
    return stats, group.num_rows


def to_arrow(predicate: Predicate, schema: pa.Schema, *, exact: bool = False) -> pc.Expression:
    """The predicate as a filter for `pyarrow.dataset` and `DeltaTable.to_pyarrow_dataset`.

    A comparison with what a column cannot hold, or of a column that is not there, lets every row through: such are in
    predicates that were made without a column list. With `exact` it is a ValueError.
    """
    if exact and (unknown := [leaf for leaf in _leaves(predicate) if not _is_expressible(leaf, schema)]):
        raise ValueError(f"no exact filter of these columns. got={unknown}")
    match predicate:
        case Always(value):
            return pc.scalar(value)
        case AllOf(children):
            return reduce(lambda left, right: left & right, (to_arrow(child, schema) for child in children))
        case AnyOf(children):
            return reduce(lambda left, right: left | right, (to_arrow(child, schema) for child in children))
        case Null(column, _) | Nan(column, _) if column not in schema.names:
            return pc.scalar(True)
        case Nan(column, _) if not pa.types.is_floating(schema.field(column).type):
            return pc.scalar(True)
        case Null(column, negated):
            return ~pc.field(column).is_null() if negated else pc.field(column).is_null()
        case Nan(column, negated):
            nan = pc.is_nan(pc.field(column))
            return ~nan if negated else nan
        case Relates():
            return _relates(predicate, schema)
        case Within():
            return _within(predicate, schema)


def _leaves(predicate: Predicate) -> Iterator[Predicate]:
    match predicate:
        case AllOf(children) | AnyOf(children):
            for child in children:
                yield from _leaves(child)
        case _:
            yield predicate


def _is_expressible(leaf: Predicate, schema: pa.Schema) -> bool:
    """Whether Arrow can be asked just what a leaf says."""
    match leaf:
        case Relates(column, _, value):
            return _constant(value, column, schema) is not None
        case Within(column, values, _):
            return all(_constant(value, column, schema) is not None for value in values)
        case Null(column, _):
            return column in schema.names
        case Nan(column, _):
            return column in schema.names and pa.types.is_floating(schema.field(column).type)
    return True


def _relates(predicate: Relates, schema: pa.Schema) -> pc.Expression:
    field, constant = pc.field(predicate.column), _constant(predicate.value, predicate.column, schema)
    if constant is None:
        return pc.scalar(True)
    # Arrow follows IEEE 754: NaN is unequal to everything, which only "not equal" has to be told.
    compared = _BY_RELATION[predicate.relation](field, constant)
    if isinstance(predicate.value, float) and predicate.relation is Relation.NE:
        return compared & ~pc.is_nan(field)
    return compared


def _within(predicate: Within, schema: pa.Schema) -> pc.Expression:
    field = pc.field(predicate.column)
    constants = [_constant(value, predicate.column, schema) for value in predicate.values]
    if None in constants:
        return pc.scalar(True)
    among = field.isin(pa.array(constants))
    if not predicate.negated:
        return among
    outside = ~among & ~field.is_null()
    return outside & ~pc.is_nan(field) if isinstance(predicate.values[0], float) else outside


def _constant(value: Any, column: str, schema: pa.Schema) -> pa.Scalar | None:
    """A constant in the column's type. None where that does not have it: then every row is let through."""
    if column not in schema.names:
        return None
    try:
        constant = pa.scalar(value, _wide(schema.field(column).type))
        found = constant.as_py()
        return constant if found == value and isinstance(found, bool) == isinstance(value, bool) else None
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _wide(type_: Any) -> Any:
    # A constant may not fit a narrow column; Arrow compares the two in the wider type.
    if pa.types.is_signed_integer(type_):
        return pa.int64()
    if pa.types.is_floating(type_):
        return pa.float64()
    if pa.types.is_decimal(type_):
        return pa.decimal128(38, type_.scale)
    return type_
