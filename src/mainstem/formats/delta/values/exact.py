"""Values into columns, exactly: a value is stored as what it is, or the write is refused with the column's name.

Owns every conversion on the way into a table. Arrow and Python both cut silently where types differ (2.75 becomes 2 in
a column of integers, a moment loses its time in a column of days); here a conversion counts only if the stored value
equals the one that came, as documents compare them: 2.0 is 2, a day is its midnight in UTC, and nothing else changes.
"""

import datetime as dt
import decimal
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.errors import BSONError
from bson.objectid import ObjectId

from mainstem.documents.columns import Kind
from mainstem.documents.values import is_nan, number_of
from mainstem.formats.delta.schema import TableSchema
from mainstem.model.errors import Invalid

# What Python, Arrow and bson raise for a value that they cannot convert.
UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError, decimal.DecimalException, struct.error)
_NUMBERS = (int, float, decimal.Decimal, Decimal128)


def refused(column: str, type_: object, why: object) -> Invalid:
    """The one error for a value that its column cannot hold."""
    text = " ".join(str(why).split())[:200].encode("utf-8", "backslashreplace").decode()
    return Invalid(f"a value does not fit its column. column={column} type={type_} {text}", reason="schema")


# From Python.


def array_of(values: Sequence[Any], kind: Kind, type_: pa.DataType, column: str) -> pa.Array:
    """A column of typed cells from Python values."""
    try:
        if {*map(type, values)} <= _AT_ONCE.get((kind, str(type_)), frozenset()):
            return pa.array(values, type_)
        if kind is Kind.OTHER:
            return _nested(values, type_)
        cell = _CELLS[kind]
        return pa.array([None if value is None else cell(value, type_) for value in values], type_)
    except UNFIT as error:
        raise refused(column, type_, error) from None


# Values of these types are what the column holds: Arrow takes them as they are, or raises.
_AT_ONCE = {
    (Kind.INTEGER, "int64"): frozenset([int, type(None)]),
    (Kind.DOUBLE, "double"): frozenset([float, type(None)]),
    (Kind.STRING, "string"): frozenset([str, type(None)]),
    (Kind.BOOLEAN, "bool"): frozenset([bool, type(None)]),
    (Kind.BINARY, "binary"): frozenset([bytes, type(None)]),
}


def _number(value: Any) -> int | float | decimal.Decimal:
    if isinstance(value, bool) or not isinstance(value, _NUMBERS):
        raise TypeError(f"expected=a number got={_told(value)}")
    return number_of(value)


def _integer(value: Any, type_: pa.DataType) -> int:
    del type_
    number = _number(value)
    whole = int(number)
    if whole != number:
        raise ValueError(f"expected=a whole number got={_told(value)}")
    return whole


def _double(value: Any, type_: pa.DataType) -> float:
    number = _number(value)
    near = float(number)
    if pa.types.is_float32(type_) and near - near == 0:
        near = struct.unpack("<f", struct.pack("<f", near))[0]
    if near != number and not is_nan(number):
        raise ValueError(f"expected=a number that this type holds exactly got={_told(value)}")
    return near


def _decimal(value: Any, type_: pa.DataType) -> decimal.Decimal:
    exact = decimal.Decimal(_number(value))
    if not exact.is_finite():
        raise ValueError(f"expected=a finite number got={_told(value)}")
    # Arrow raises where digits behind the point are too many, but takes more than the precision before it.
    if exact and exact.adjusted() >= type_.precision - type_.scale:
        raise ValueError(f"expected=at most {type_.precision} digits got={_told(value)}")
    return exact


def _text(value: Any, type_: pa.DataType) -> str:
    del type_
    if not isinstance(value, str) or isinstance(value, Code):
        raise TypeError(f"expected=text got={_told(value)}")
    return value


def _boolean(value: Any, type_: pa.DataType) -> bool:
    del type_
    if not isinstance(value, bool):
        raise TypeError(f"expected=a boolean got={_told(value)}")
    return value


def _binary(value: Any, type_: pa.DataType) -> bytes:
    del type_
    if not isinstance(value, bytes | bytearray | memoryview) or (isinstance(value, Binary) and value.subtype):
        raise TypeError(f"expected=bytes got={_told(value)}")
    return bytes(value)


def _object_id(value: Any, type_: pa.DataType) -> str:
    del type_
    if not isinstance(value, ObjectId):
        raise TypeError(f"expected=an ObjectId got={_told(value)}")
    return str(value)


def moment_of(value: Any) -> dt.datetime:
    """A moment in UTC, to the microsecond. A day is its midnight, and a moment without a zone is in UTC."""
    if isinstance(value, DatetimeMS):
        try:
            value = value.as_datetime()
        except (BSONError, OverflowError, ValueError):
            raise ValueError(f"expected=a moment in the years 1 to 9999 got={_told(value)}") from None
    if not isinstance(value, dt.date):
        raise TypeError(f"expected=a moment got={_told(value)}")
    if not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    if getattr(value, "nanosecond", 0):  # of pandas
        raise ValueError(f"expected=microseconds got={_told(value)}")
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


def _timestamp(value: Any, type_: pa.DataType) -> dt.datetime:
    moment = moment_of(value)
    return moment if type_.tz else moment.replace(tzinfo=None)


def _date(value: Any, type_: pa.DataType) -> dt.date:
    del type_
    moment = moment_of(value)
    if moment.time() != dt.time():
        raise ValueError(f"expected=a day got={_told(value)}")
    return moment.date()


_CELLS: dict[Kind, Callable[[Any, pa.DataType], Any]] = {
    Kind.INTEGER: _integer,
    Kind.DOUBLE: _double,
    Kind.DECIMAL: _decimal,
    Kind.STRING: _text,
    Kind.BOOLEAN: _boolean,
    Kind.BINARY: _binary,
    Kind.OBJECT_ID: _object_id,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMP_TZ: _timestamp,
    Kind.DATE: _date,
}


def _nested(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Structs, lists and maps: Arrow converts, and what it made is compared with what came.

    A field that a struct has and a document lacks is null: a struct has all of its fields in every row.
    """
    array = pa.array(values, type_)
    for value, stored in zip(values, array.to_pylist(), strict=True):
        if not _alike(value, stored, type_):
            raise ValueError(f"expected=what the type holds exactly got={_told(value)}")
    return array


def _alike(value: Any, stored: Any, type_: pa.DataType) -> bool:  # noqa: PLR0911 - case by case
    types = pa.types
    if value is None or stored is None:
        return value is stored
    if types.is_struct(type_):
        fields = {field.name: field.type for field in type_}
        return (
            isinstance(value, Mapping)
            and fields.keys() >= value.keys()
            and all(_alike(value.get(name), stored[name], of) for name, of in fields.items())
        )
    if types.is_map(type_):
        if not isinstance(value, Mapping | list | tuple):
            return False
        pairs = list(value.items()) if isinstance(value, Mapping) else list(value)
        return len(pairs) == len(stored) and all(
            _alike(key, kept_key, type_.key_type) and _alike(item, kept, type_.item_type)
            for (key, item), (kept_key, kept) in zip(pairs, stored, strict=True)
        )
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(stored)
            and all(_alike(item, kept, type_.value_type) for item, kept in zip(value, stored, strict=True))
        )
    if isinstance(stored, dt.date):
        return isinstance(value, dt.date) and moment_of(value) == moment_of(stored)
    if isinstance(stored, bool) or isinstance(value, bool):
        return value is stored
    if isinstance(stored, int | float | decimal.Decimal):
        number = _number(value)
        return number == stored or (is_nan(number) and is_nan(stored))
    return isinstance(value, type(stored)) and value == stored


def _told(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.80}"


# From Arrow.


def cast_exactly(column: pa.ChunkedArray, type_: pa.DataType, name: str) -> pa.ChunkedArray:
    """A column in another type, each value equal to what it was."""
    if column.type.equals(type_):
        return column
    if pa.types.is_null(column.type) or _same_shape(column.type, type_):
        return column.cast(type_)
    try:
        if pa.types.is_dictionary(column.type):
            return cast_exactly(column.cast(column.type.value_type), type_, name)
        pair = (_family(column.type), _family(type_))
        if pair in _CHECKED_BY_ARROW:
            return column.cast(type_)
        if pair in _CHECKED_AFTERWARDS:
            return _there_and_back(column, type_)
        if pair in _ONE_BY_ONE:
            # Arrow rounds between decimals and doubles; these are rare enough to be looked at in Python.
            kind = {"float": Kind.DOUBLE, "decimal": Kind.DECIMAL, "integer": Kind.INTEGER}.get(pair[1], Kind.OTHER)
            return pa.chunked_array([array_of(column.to_pylist(), kind, type_, name)])
    except UNFIT as error:
        raise refused(name, type_, error) from None
    raise refused(name, type_, f"got={column.type}")


def _there_and_back(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    there = column.cast(type_)
    back = there.cast(column.type)
    equal = pc.equal(column, back)
    if pa.types.is_floating(column.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(column), pc.is_nan(back)))
    if pc.all(equal).as_py() is False:
        first = pc.index(pc.fill_null(equal, True), False).as_py()
        raise ValueError(f"got={column[first].as_py()!r} of {column.type}")
    return there


def _family(type_: pa.DataType) -> str:
    return next((name for name, tests in _FAMILIES.items() if any(test(type_) for test in tests)), str(type_))


_FAMILIES: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "integer": (pa.types.is_integer,),
    "float": (pa.types.is_floating,),
    "decimal": (pa.types.is_decimal,),
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "binary": (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ),
    "date": (pa.types.is_date,),
    "timestamp": (pa.types.is_timestamp,),
    "nested": (pa.types.is_nested,),
}
# Arrow's own cast raises where a value would change.
_CHECKED_BY_ARROW = {
    ("integer", "integer"),
    ("integer", "float"),
    ("integer", "decimal"),
    ("decimal", "decimal"),
    ("text", "text"),
    ("binary", "binary"),
    ("timestamp", "timestamp"),
    ("date", "timestamp"),
}
_CHECKED_AFTERWARDS = {("float", "float"), ("float", "integer"), ("timestamp", "date"), ("date", "date")}
_ONE_BY_ONE = {("float", "decimal"), ("decimal", "float"), ("decimal", "integer"), ("nested", "nested")}


def _same_shape(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types differ in nothing but what they call the items of lists and maps, and which may be null."""
    types = pa.types
    if one.equals(other):
        return True
    if types.is_struct(one) and types.is_struct(other):
        return [field.name for field in one] == [field.name for field in other] and all(
            _same_shape(mine.type, theirs.type) for mine, theirs in zip(one, other, strict=True)
        )
    if types.is_map(one) and types.is_map(other):
        return _same_shape(one.key_type, other.key_type) and _same_shape(one.item_type, other.item_type)
    if types.is_list(one) and types.is_list(other):
        return _same_shape(one.value_type, other.value_type)
    return False


def fitted(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """All columns of the table, in its order and types."""
    unknown = [name for name in rows.column_names if name not in schema.fields]
    if unknown:
        raise Invalid(f"columns that the table does not have. got={unknown}", reason="schema")
    columns = []
    for name, of in schema.fields.items():
        present = name in rows.column_names
        column = cast_exactly(rows[name], of.type, name) if present else pa.nulls(rows.num_rows, of.type)
        if not of.nullable and column.null_count:
            raise Invalid(f"a column may not be null. column={name}", reason="constraint")
        columns.append(column)
    return pa.table(columns, schema=pa.schema([(name, of.type) for name, of in schema.fields.items()]))
