"""Between documents and Arrow: which type a field's values make, and the Python values that a column's cells stand for.

Scalars become typed columns; objects, arrays and fields of mixed types become JSON text, or a Variant where the table
has one. A missing field and a null are both a null cell at the top level; inside JSON they stay apart.
"""

import datetime as dt
import decimal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from bson import json_util
from bson.decimal128 import Decimal128
from bson.objectid import ObjectId

from mainstem.client.delta import variant
from mainstem.client.delta.schema import KIND, VARIANT, Field, TableSchema
from mainstem.documents.columns import Kind, row_document
from mainstem.documents.values import INT64_MAX, INT64_MIN
from mainstem.model.errors import Invalid

_RELAXED = json_util.RELAXED_JSON_OPTIONS
_ROWS_MAX = 10_000_000
_TIMESTAMP = pa.timestamp("us", "UTC")
_PLAIN_JSON = (str, bool, int, float, type(None))


def documents_of(batch: pa.RecordBatch | pa.Table, schema: TableSchema) -> list[dict[str, Any]]:
    """The documents that rows stand for."""
    rows = batch.to_pylist()
    variants = [name for name in batch.schema.names if schema.fields[name].is_variant]
    for row in rows:
        for name in variants:
            if row[name] is not None:
                row[name] = variant.decode(row[name]["metadata"], row[name]["value"])
    columns = {name: column for name, column in schema.columns.items() if name not in variants}
    return [row_document(row, columns) for row in rows]


def table_of(data: Any, schema: TableSchema | None, variants: Iterable[str] = ()) -> pa.Table:
    """Any rows as an Arrow table: dictionaries, Arrow, pandas or Polars, fitted to a table where there is one."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if hasattr(data, "__arrow_c_stream__"):
        return _without_pandas(pa.table(data))
    if isinstance(data, Mapping):
        data = [data]
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _of_documents(data, schema, frozenset(variants))
    raise Invalid(f"rows. expected=documents, Arrow, pandas or Polars got={type(data).__name__}")


def _without_pandas(table: pa.Table) -> pa.Table:
    # pandas leaves notes of its own in the schema, which would end up in the log.
    return table.replace_schema_metadata(None)


def _of_documents(rows: Sequence[Any], schema: TableSchema | None, variants: frozenset[str]) -> pa.Table:
    if len(rows) > _ROWS_MAX:
        raise Invalid(f"too many rows at once. expected=at most {_ROWS_MAX} got={len(rows)}", reason="too_large")
    names: dict[str, None] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise Invalid(f"a row is a document. got={type(row).__name__}")
        names.update(dict.fromkeys(row))
    fields, arrays = [], []
    for name in names:
        if not isinstance(name, str) or not name:
            raise Invalid(f"a field's name is text. got={name!r}")
        values = [row.get(name) for row in rows]
        known = None if schema is None else schema.fields.get(name)
        column = _fitted(values, known) if known is not None else _inferred(name, values, name in variants)
        if column is not None:
            fields.append(column[0])
            arrays.append(column[1])
    if not fields:
        raise Invalid("the rows have no field with a value")
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _fitted(values: list[Any], known: Field) -> tuple[pa.Field, pa.Array]:
    """A column of the table, from Python values."""
    column = pa.field(known.name, known.type, True, _kind_metadata(known))
    if known.is_variant:
        return column, _variants(values)
    try:
        return column, pa.array([_cell(value, known.column.kind) for value in values], known.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"a value does not fit its column. column={known.name} type={known.type} {error}") from None


def _kind_metadata(known: Field) -> dict[str, str] | None:
    kind = known.column.kind
    return {KIND: kind.value} if kind in (Kind.JSON, Kind.EXTENDED_JSON, Kind.OBJECT_ID) else None


def _cell(value: Any, kind: Kind) -> Any:  # noqa: PLR0911 - case by case
    if value is None:
        return None
    match kind:
        case Kind.JSON:
            if not _is_plain(value):
                raise TypeError("the column holds plain JSON, which has no dates, ObjectIds, decimals or binaries")
            return msgspec.json.encode(value).decode()
        case Kind.EXTENDED_JSON:
            return json_util.dumps(value, json_options=_RELAXED)
        case Kind.OBJECT_ID:
            return str(ObjectId(value))
        case Kind.TIMESTAMP_TZ:
            return _utc(value)
        case Kind.DECIMAL:
            return value.to_decimal() if isinstance(value, Decimal128) else decimal.Decimal(str(value))
        case Kind.DATE:
            return value.date() if isinstance(value, dt.datetime) else value
        case Kind.STRING if not isinstance(value, str):
            raise TypeError(f"expected=text got={type(value).__name__}")
        case Kind.INTEGER | Kind.DOUBLE if isinstance(value, bool):
            raise TypeError("expected=a number got=bool")
    return value


def _utc(value: Any) -> Any:
    return value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo is None else value


def _inferred(name: str, values: list[Any], as_variant: bool) -> tuple[pa.Field, pa.Array] | None:
    """A new column. None where no row has a value: then nothing is known of it yet."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if as_variant:
        return pa.field(name, VARIANT, True, {KIND: "variant"}), _variants(values)
    kinds = {_kind_of(value) for value in present}
    if kinds == {Kind.INTEGER, Kind.DOUBLE} and all(_is_exact_double(value) for value in present):
        kinds = {Kind.DOUBLE}
    kind = kinds.pop() if len(kinds) == 1 else Kind.JSON
    if kind is Kind.JSON and not all(map(_is_plain, present)):
        kind = Kind.EXTENDED_JSON
    type_ = _decimal_type(present) if kind is Kind.DECIMAL else _TYPES[kind]
    metadata = {KIND: kind.value} if kind in (Kind.JSON, Kind.EXTENDED_JSON, Kind.OBJECT_ID) else None
    return pa.field(name, type_, True, metadata), pa.array([_cell(value, kind) for value in values], type_)


_TYPES = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INTEGER: pa.int64(),
    Kind.DOUBLE: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.TIMESTAMP_TZ: _TIMESTAMP,
    Kind.DATE: pa.date32(),
    Kind.BINARY: pa.binary(),
    Kind.OBJECT_ID: pa.string(),
    Kind.JSON: pa.string(),
    Kind.EXTENDED_JSON: pa.string(),
}
# The order matters: bool is an int in Python, and datetime a date.
_KINDS = (
    (bool, Kind.BOOLEAN),
    (int, Kind.INTEGER),
    (float, Kind.DOUBLE),
    (str, Kind.STRING),
    (dt.datetime, Kind.TIMESTAMP_TZ),
    (dt.date, Kind.DATE),
    (decimal.Decimal, Kind.DECIMAL),
    (Decimal128, Kind.DECIMAL),
    (ObjectId, Kind.OBJECT_ID),
    (bytes, Kind.BINARY),
)


def _kind_of(value: Any) -> Kind:
    for type_, kind in _KINDS:
        if isinstance(value, type_):
            if kind is Kind.INTEGER and isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
                return Kind.DOUBLE
            return kind
    return Kind.JSON


def _is_exact_double(value: Any) -> bool:
    return isinstance(value, float) or abs(value) <= 2**53


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and not name.startswith("$") and _is_plain(v) for name, v in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return value - value == 0  # neither NaN nor infinite
    return type(value) in _PLAIN_JSON


def _decimal_type(values: list[Any]) -> pa.DataType:
    numbers = [value.to_decimal() if isinstance(value, Decimal128) else value for value in values]
    scale = max((-int(number.as_tuple().exponent) for number in numbers if number.is_finite()), default=0)
    return pa.decimal128(38, min(max(scale, 0), 38))


def _variants(values: list[Any]) -> pa.Array:
    encoded = [None if value is None else variant.encode(value) for value in values]
    metadata = pa.array([b"" if pair is None else pair[0] for pair in encoded], pa.binary())
    value = pa.array([b"" if pair is None else pair[1] for pair in encoded], pa.binary())
    mask = pa.array([pair is None for pair in encoded], pa.bool_())
    return pa.StructArray.from_arrays([metadata, value], fields=list(VARIANT), mask=mask)
