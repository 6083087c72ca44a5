"""Between documents and Arrow: which type a field's values make, and the Python values that a column's cells stand for.

Scalars become typed columns; objects, arrays and fields of mixed types become JSON text, or a Variant where the table
has one. A missing field and a null are both a null cell at the top level; inside JSON they stay apart.
"""

import datetime as dt
import decimal
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from bson.binary import Binary
from bson.code import Code
from bson.decimal128 import Decimal128
from bson.errors import BSONError
from bson.objectid import ObjectId

from mainstem.documents.columns import Kind, row_document
from mainstem.documents.values import INT64_MAX, INT64_MIN
from mainstem.formats.delta.schema import KIND, VARIANT, Field, TableSchema, check_names
from mainstem.formats.delta.values import json_cells, variant
from mainstem.formats.delta.values.exact import UNFIT, array_of, cast_exactly, refused
from mainstem.model.errors import Corrupt, Invalid

ROWS_MAX = 10_000_000
TIMESTAMP = pa.timestamp("us", "UTC")
_DIGITS_MAX = 38
_OBJECT_ID = re.compile(r"[0-9a-f]{24}")
_JSON_TEXT = msgspec.json.Decoder(msgspec.Raw)
# So many cells of Arrow are Python values at a time.
_VALUES_MAX = 65_536
# What comes for a column, from documents or from Arrow.
Values: TypeAlias = Sequence[Any] | pa.ChunkedArray
# Says which other column holds what came, or raises the error that this one gave.
Widen = Callable[[Field, Values, Invalid], Field]


def documents_of(batch: pa.RecordBatch | pa.Table, schema: TableSchema, *, whole: bool = False) -> list[dict[str, Any]]:
    """The documents that rows stand for; `whole` where they are written again (see `row_document`)."""
    rows = batch.to_pylist()
    variants = [name for name in batch.schema.names if schema.fields[name].is_variant]
    for row in rows:
        for name in variants:
            if row[name] is not None:
                row[name] = variant.decode(row[name]["metadata"], row[name]["value"])
    columns = {name: column for name, column in schema.columns.items() if name not in variants}
    try:
        return [row_document(row, columns, whole=whole) for row in rows]
    except (ValueError, TypeError, BSONError) as error:
        raise Corrupt(f"a cell is not what its column is said to hold. {error}", place=", ".join(columns)) from None


def table_of(
    data: Any, schema: TableSchema | None, variants: Iterable[str] = (), widen: Widen | None = None
) -> pa.Table:
    """Any rows as an Arrow table: dictionaries, Arrow, pandas or Polars; columns that the table has, in its types.

    Where one of those does not hold what came, `widen` says what it becomes; without it that is an error.
    """
    if isinstance(data, pa.RecordBatchReader):
        data = data.read_all()
    elif isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    elif not isinstance(data, pa.Table) and hasattr(data, "__arrow_c_stream__"):
        # pandas leaves notes of its own in the schema, which would end up in the log.
        data = pa.table(data).replace_schema_metadata(None)
    if isinstance(data, pa.Table):
        return _of_arrow(data, schema, widen)
    if isinstance(data, Mapping):
        data = [data]
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _of_documents(data, schema, frozenset(variants), widen)
    raise Invalid(f"rows. expected=documents, Arrow, pandas or Polars got={type(data).__name__}")


def values_of(column: Values) -> Iterator[Sequence[Any]]:
    """What came for a column as Python values, a part at a time."""
    if not isinstance(column, pa.ChunkedArray):
        yield column
        return
    for at in range(0, len(column), _VALUES_MAX):
        yield column.slice(at, _VALUES_MAX).to_pylist()


def _of_arrow(rows: pa.Table, schema: TableSchema | None, widen: Widen | None) -> pa.Table:
    if len({*rows.column_names}) < len(rows.column_names):
        raise Invalid(f"two columns have one name. got={rows.column_names}", reason="schema")
    fields: list[pa.Field] = []
    columns: list[pa.ChunkedArray] = []
    for field in rows.schema:
        known = None if schema is None else schema.fields.get(field.name)
        if known is None and pa.types.is_null(field.type):
            # No row has a value: nothing is known of this column yet.
            continue
        if known is None:
            fields.append(field)
            columns.append(rows[field.name])
            continue
        known, column = _of_cells(rows[field.name], field, known, widen)
        fields.append(_arrow_field(known))
        columns.append(column)
    return pa.table(columns, schema=pa.schema(fields, rows.schema.metadata))


def _of_cells(
    column: pa.ChunkedArray, said: pa.Field, known: Field, widen: Widen | None
) -> tuple[Field, pa.ChunkedArray]:
    """A column of the table from Arrow, and which column that is from now on."""
    holds_any = known.is_variant or known.column.is_json
    if holds_any and not pa.types.is_null(column.type) and _is_value(said, known, widen):
        return _of_values(column, known, widen)
    try:
        cells = cast_exactly(column, known.type, known.name)
        _check_text(cells, known)
        return known, cells
    except Invalid as error:
        if widen is None or holds_any:
            raise
        return _of_values(column, widen(known, column, error), None)


def _is_value(said: pa.Field, known: Field, widen: Widen | None) -> bool:
    """Whether Arrow's cells are values for a column of any values, or what such a column stores."""
    type_ = said.type.value_type if pa.types.is_dictionary(said.type) else said.type
    if known.is_variant:
        stored = pa.types.is_struct(type_) and [field.name for field in type_] == ["metadata", "value"]
        return not stored and (known.is_widened or widen is not None)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return known.is_widened and KIND.encode() not in (said.metadata or {})
    return known.is_widened or widen is not None


def _of_values(column: pa.ChunkedArray, known: Field, widen: Widen | None) -> tuple[Field, pa.ChunkedArray]:
    try:
        parts = [column_of(values, known)[1] for values in values_of(column)]
        return known, pa.chunked_array(parts, known.type)
    except UNFIT as error:
        raise refused(known.name, known.column.kind.value, error) from None
    except Invalid as error:
        if widen is None or error.reason != "schema":
            raise
        return _of_values(column, widen(known, column, error), None)


def _arrow_field(known: Field) -> pa.Field:
    kind = {KIND: "variant"} if known.is_variant else _kind_metadata(known.column.kind)
    return pa.field(known.name, known.type, True, kind)


def _check_text(column: pa.ChunkedArray, known: Field) -> None:
    """Text from Arrow goes into columns of JSON and ObjectIds as it is: it has to be that."""
    try:
        if known.column.is_json and not known.is_variant:
            for text in column.to_pylist():
                if text is not None:
                    _JSON_TEXT.decode(text)
        elif known.column.kind is Kind.OBJECT_ID:
            for text in column.to_pylist():
                if text is not None and not _OBJECT_ID.fullmatch(text):
                    raise ValueError(f"expected=24 hexadecimal digits got={text!r}")
    except (msgspec.DecodeError, ValueError) as error:
        raise refused(known.name, known.column.kind.value, error) from None


def _of_documents(
    rows: Sequence[Any], schema: TableSchema | None, variants: frozenset[str], widen: Widen | None
) -> pa.Table:
    if len(rows) > ROWS_MAX:
        raise Invalid(f"too many rows at once. expected=at most {ROWS_MAX} got={len(rows)}", reason="too_large")
    names: dict[Any, None] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise Invalid(f"a row is a document. got={type(row).__name__}")
        names.update(dict.fromkeys(row))
    for name in names:
        if not isinstance(name, str) or not name:
            raise Invalid(f"a field's name is text. got={name!r}")
    check_names(names)
    fields, arrays = [], []
    for name in names:
        values = [row.get(name) for row in rows]
        known = None if schema is None else schema.fields.get(name)
        column = column_of(values, known, widen) if known is not None else _inferred(name, values, name in variants)
        if column is not None:
            fields.append(column[0])
            arrays.append(column[1])
    if not fields:
        raise Invalid("the rows have no field with a value")
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def column_of(values: Sequence[Any], known: Field, widen: Widen | None = None) -> tuple[pa.Field, pa.Array]:
    """A column of the table, from Python values; `widen` as for `table_of`."""
    if known.is_variant:
        return _arrow_field(known), _variants(known.name, values)
    try:
        return _arrow_field(known), _cells(known.name, values, known.column.kind, known.type)
    except Invalid as error:
        if widen is None or error.reason != "schema":
            raise
        return column_of(values, widen(known, values, error))


def _cells(name: str, values: Sequence[Any], kind: Kind, type_: pa.DataType) -> pa.Array:
    write = {Kind.JSON: json_cells.plain, Kind.EXTENDED_JSON: json_cells.extended}.get(kind)
    if write is None:
        return array_of(values, kind, type_, name)
    try:
        return pa.array([None if value is None else write(value) for value in values], type_)
    except UNFIT as error:
        raise refused(name, kind.value, error) from None


def _kind_metadata(kind: Kind) -> dict[str, str] | None:
    return {KIND: kind.value} if kind in (Kind.JSON, Kind.EXTENDED_JSON, Kind.OBJECT_ID) else None


def inferred_column(name: str, values: Sequence[Any]) -> tuple[pa.Field, pa.Array] | None:
    """A new column. None where no row has a value: then nothing is known of it yet."""
    return _inferred(name, values, False)


def _inferred(name: str, values: Sequence[Any], as_variant: bool) -> tuple[pa.Field, pa.Array] | None:
    present = [value for value in values if value is not None]
    if not present:
        return None
    if as_variant:
        return pa.field(name, VARIANT, True, {KIND: "variant"}), _variants(name, values)
    kind, type_ = _fitting(present)
    return pa.field(name, type_, True, _kind_metadata(kind)), _cells(name, values, kind, type_)


def _fitting(values: Sequence[Any]) -> tuple[Kind, pa.DataType]:
    """The narrowest column that holds all of these values as they are."""
    kinds = {kind_of(value) for value in values}
    if kinds == {Kind.INTEGER, Kind.DOUBLE} and all(is_exact_double(value) for value in values):
        return Kind.DOUBLE, pa.float64()
    if Kind.DECIMAL in kinds and kinds <= {Kind.DECIMAL, Kind.INTEGER}:
        type_ = decimal_type(values)
        if type_ is not None:
            return Kind.DECIMAL, type_
    kind = kinds.pop() if len(kinds) == 1 else Kind.JSON
    if kind is Kind.DECIMAL or (kind is Kind.JSON and not all(map(json_cells.is_plain, values))):
        kind = Kind.EXTENDED_JSON
    return kind, _TYPES[kind]


_TYPES = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INTEGER: pa.int64(),
    Kind.DOUBLE: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.TIMESTAMP_TZ: TIMESTAMP,
    Kind.DATE: pa.date32(),
    Kind.BINARY: pa.binary(),
    Kind.OBJECT_ID: pa.string(),
    Kind.JSON: pa.string(),
    Kind.EXTENDED_JSON: pa.string(),
}
# The order matters: bool is an int in Python, and datetime a date. Code is text that says more than its letters.
_KINDS = (
    (bool, Kind.BOOLEAN),
    (int, Kind.INTEGER),
    (float, Kind.DOUBLE),
    (Code, Kind.JSON),
    (str, Kind.STRING),
    (dt.datetime, Kind.TIMESTAMP_TZ),
    (dt.date, Kind.DATE),
    (decimal.Decimal, Kind.DECIMAL),
    (Decimal128, Kind.DECIMAL),
    (ObjectId, Kind.OBJECT_ID),
    (Binary, Kind.JSON),
    (bytes, Kind.BINARY),
)


def kind_of(value: Any) -> Kind:
    for type_, kind in _KINDS:
        if isinstance(value, type_):
            if kind is Kind.INTEGER and isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
                # No integer column is that wide, and a double has not all of its digits.
                return Kind.DECIMAL
            return kind
    return Kind.JSON


def is_exact_double(value: Any) -> bool:
    return isinstance(value, float) or abs(value) <= 2**53


def decimal_type(values: Sequence[Any]) -> pa.DataType | None:
    """The decimals that hold all of these; None where no decimals do."""
    scale = whole = 0
    for value in values:
        number = value.to_decimal() if isinstance(value, Decimal128) else decimal.Decimal(value)
        exponent = number.as_tuple().exponent
        if not isinstance(exponent, int):
            return None
        scale = max(scale, -exponent)
        whole = max(whole, number.adjusted() + 1)
    return pa.decimal128(_DIGITS_MAX, scale) if scale + whole <= _DIGITS_MAX else None


def _variants(name: str, values: Sequence[Any]) -> pa.Array:
    try:
        encoded = [None if value is None else variant.encode(value, exact=True) for value in values]
    except UnicodeError as error:
        raise refused(name, "variant", error) from None
    except Invalid as error:
        raise Invalid(f"a value does not fit its column. column={name} {error}", reason=error.reason) from None
    metadata = pa.array([b"" if pair is None else pair[0] for pair in encoded], pa.binary())
    value = pa.array([b"" if pair is None else pair[1] for pair in encoded], pa.binary())
    mask = pa.array([pair is None for pair in encoded], pa.bool_())
    return pa.StructArray.from_arrays([metadata, value], fields=list(VARIANT), mask=mask)
