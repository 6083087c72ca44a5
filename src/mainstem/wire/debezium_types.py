"""The types of Debezium's rows, by the schema that comes with them: values as tables have them, and columns' types.

    Connect or Debezium type                       value here                      column
    Decimal (base64, fixed scale)                  its digits                      decimal(p, s)
    VariableScaleDecimal                           its digits                      string
    Date, in days                                  2026-01-31                      date
    Timestamp, MicroTimestamp, NanoTimestamp       2026-01-31T23:59:59.000000      timestamp
    ZonedTimestamp                                 as it is                        timestamptz
    Time, MicroTime, NanoTime                      23:59:59.000000                 string
    Uuid                                           as it is                        uuid
    Bits                                           101, as PostgreSQL shows it     string
    Json                                           the value that it holds         JSON text
    bytes                                          base64                          binary
    array, map, struct                             what is in it, by these rules   JSON text

A value that its schema cannot explain (an infinite timestamp, say) stays as the connector wrote it: it does not fit its
column, and its row becomes a dead letter with that value in the reason.
"""

import base64
import binascii
import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

JSON_TEXT = "io.debezium.data.Json"
DECIMAL_PRECISION_MAX = 38
_EPOCH = dt.datetime(1970, 1, 1)
_DAY = dt.date(1970, 1, 1)
_CONNECT, _TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
_UNREADABLE = (TypeError, ValueError, OverflowError, ArithmeticError, binascii.Error, KeyError, AttributeError)


def typed_row(row: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A row's values, and the types of those columns for which JSON has none. `schema` is that of the row's struct."""
    values, types = dict(row), {}
    for field in _fields(schema):
        name = field["field"]
        kind = column_type(field)
        if kind is not None:
            types[name] = kind
        if values.get(name) is not None:
            values[name] = typed_value(values[name], field)
    return values, types


def row_schema(schema: Any) -> Mapping[str, Any] | None:
    """The schema of the rows in an envelope's; or the same one, where it is a row's already."""
    if not isinstance(schema, Mapping):
        return None
    for field in _fields(schema):
        if field["field"] in ("after", "before") and field.get("type") == "struct":
            return field
    return schema


def column_type(field: Mapping[str, Any]) -> str | None:
    """The type that a table's column should have; None where JSON says enough."""
    name = field.get("name")
    if name == _CONNECT + "Decimal":
        parameters = field.get("parameters") or {}
        try:
            scale, precision = int(parameters["scale"]), int(parameters.get("connect.decimal.precision", 38))
        except _UNREADABLE:
            return None
        fits = 0 <= scale <= precision and 1 <= precision <= DECIMAL_PRECISION_MAX
        return f"decimal({precision},{scale})" if fits else None
    if field.get("type") == "bytes" and name is None:
        return "binary"
    return _COLUMN_TYPES.get(str(name))


def typed_value(value: Any, field: Mapping[str, Any]) -> Any:
    """One value that is not null; of an array, a map or a struct also what is in it."""
    convert = _CONVERTERS.get(str(field.get("name")))
    if convert is None:
        return _typed_within(value, field)
    try:
        return convert(value, field)
    except _UNREADABLE:
        return value


def _typed_within(value: Any, field: Mapping[str, Any]) -> Any:
    inner = field.get("items" if isinstance(value, list) else "values")
    if isinstance(value, list) and isinstance(inner, Mapping):
        return [None if each is None else typed_value(each, inner) for each in value]
    if isinstance(value, dict) and field.get("type") == "struct":
        return typed_row(value, field)[0]
    if isinstance(value, dict) and isinstance(inner, Mapping):
        return {name: None if each is None else typed_value(each, inner) for name, each in value.items()}
    return value


def _fields(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    fields = schema.get("fields")
    found = fields if isinstance(fields, list) else []
    return [field for field in found if isinstance(field, Mapping) and isinstance(field.get("field"), str)]


def _decimal(value: Any, field: Mapping[str, Any]) -> str:
    # `decimal.handling.mode` may have made a text or a number of it already.
    if not isinstance(value, str):
        return str(value)
    return _digits(value, int(field["parameters"]["scale"]))


def _variable_decimal(value: Any, field: Mapping[str, Any]) -> str:
    del field
    return _digits(value["value"], int(value["scale"]))


def _digits(text: str, scale: int) -> str:
    unscaled = int.from_bytes(base64.b64decode(text, validate=True), "big", signed=True)
    if abs(scale) >= 400:
        raise ValueError(f"the scale of a decimal. expected=below 400 got={scale}")
    # Not `scaleb`: it rounds to the 28 digits of Decimal's context.
    sign, digits, _ = Decimal(unscaled).as_tuple()
    return format(Decimal((sign, digits, -scale)), "f")


def _date(value: Any, field: Mapping[str, Any]) -> str:
    del field
    return (_DAY + dt.timedelta(days=value)).isoformat()


def _moment(per_microsecond: int, microseconds: int = 1) -> Callable[[Any, Mapping[str, Any]], str]:
    """Of a count of units since 1970: so many of them are so many microseconds."""

    def convert(value: Any, field: Mapping[str, Any]) -> str:
        del field
        moment = _EPOCH + dt.timedelta(microseconds=value * microseconds // per_microsecond)
        return moment.isoformat(timespec="microseconds")

    return convert


def _time_of_day(per_microsecond: int, microseconds: int = 1) -> Callable[[Any, Mapping[str, Any]], str]:
    def convert(value: Any, field: Mapping[str, Any]) -> str:
        del field
        whole = value * microseconds // per_microsecond
        if whole == 86_400_000_000:
            return "24:00:00.000000"
        return (dt.datetime.min + dt.timedelta(microseconds=whole)).time().isoformat(timespec="microseconds")

    return convert


def _bits(value: Any, field: Mapping[str, Any]) -> str:
    length = int((field.get("parameters") or {})["length"])
    number = int.from_bytes(base64.b64decode(value, validate=True), "little")
    # A length that no database has is a BIT VARYING without one.
    return format(number, "b") if length > 1 << 20 else format(number, f"0{length}b")


_CONVERTERS: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    _CONNECT + "Decimal": _decimal,
    "io.debezium.data.VariableScaleDecimal": _variable_decimal,
    _CONNECT + "Date": _date,
    _TIME + "Date": _date,
    _CONNECT + "Timestamp": _moment(1, 1000),
    _TIME + "Timestamp": _moment(1, 1000),
    _TIME + "MicroTimestamp": _moment(1),
    _TIME + "NanoTimestamp": _moment(1000),
    _CONNECT + "Time": _time_of_day(1, 1000),
    _TIME + "Time": _time_of_day(1, 1000),
    _TIME + "MicroTime": _time_of_day(1),
    _TIME + "NanoTime": _time_of_day(1000),
    "io.debezium.data.Bits": _bits,
}
_COLUMN_TYPES: Mapping[str, str] = {
    _CONNECT + "Date": "date",
    _TIME + "Date": "date",
    _CONNECT + "Timestamp": "timestamp",
    _TIME + "Timestamp": "timestamp",
    _TIME + "MicroTimestamp": "timestamp",
    _TIME + "NanoTimestamp": "timestamp",
    _TIME + "ZonedTimestamp": "timestamptz",
    "io.debezium.data.Uuid": "uuid",
}
