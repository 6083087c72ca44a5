"""From the JSON text of one value to a value of a column's type. Pure, value by value.

A value that a type cannot hold without being changed is `UNFIT`: its row becomes a dead letter. `None` is a null.
"""

import base64
import binascii
import datetime as dt
import decimal
import math
import re
import struct
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import msgspec

from mainstem.tables.types import ColumnType, decimal_of


class _Unfit:
    """Stands for a value that its column cannot hold."""


UNFIT: Final = _Unfit()
Convert = Callable[[bytes], Any]

_RANGES = {"int": (-(1 << 31), (1 << 31) - 1), "long": (-(1 << 63), (1 << 63) - 1)}
_INTEGER = re.compile(r"[+-]?\d{1,30}")
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(?i:nan|inf|infinity)")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")
_TRUE = frozenset(("t", "true", "y", "yes", "1"))
_FALSE = frozenset(("f", "false", "n", "no", "0"))
# A time of the day has no place in a date: only midnight may follow.
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ]0?0:00(?::00(?:\.0{1,9})?)?\s*(?:Z|UTC|[+-]00(?::?00)?)?)?")
_TIME = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?\s*(Z|UTC|[+-]\d{1,2}(?::?\d{2})?)?)?"
)
_EPOCH_MS = re.compile(rb"-?[0-9]{1,18}")
_EPOCH = dt.datetime(1970, 1, 1)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_FLOAT32 = struct.Struct("<f")
# A declared decimal of 38 digits is computed exactly, whatever the thread's context says.
_EXACT = decimal.Context(prec=400, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
_text = msgspec.json.Decoder(str).decode


def text_of(raw: bytes) -> str:
    """A value as a text column keeps it: a string's own text, a number as it was written, the rest as compact JSON."""
    if raw[:1] == b'"':
        return _text(raw)
    return (msgspec.json.format(raw, indent=-1) if raw[:1] in b"{[" else raw).decode()


def converter(column_type: ColumnType) -> Convert:
    """What makes values of a type. It is given the JSON text of a value that is not null."""
    size = decimal_of(column_type)
    if size is not None:
        return _to_decimal(*size)
    return _CONVERTERS[column_type]


def _to_integer(low: int, high: int) -> Convert:
    def convert(raw: bytes) -> Any:
        text = text_of(raw).strip()
        if not _INTEGER.fullmatch(text):
            return UNFIT
        number = int(text)
        return number if low <= number <= high else UNFIT

    return convert


def _to_double(raw: bytes) -> Any:
    text = text_of(raw).strip()
    if not _FLOAT.fullmatch(text):
        return UNFIT
    number = float(text)
    # A number that is too large for a double is not infinite.
    return UNFIT if math.isinf(number) and "inf" not in text.lower() else number


def _to_float(raw: bytes) -> Any:
    number = _to_double(raw)
    if number is UNFIT or not math.isfinite(number):
        return number
    try:
        # The greatest float, written with few digits, is a little more than itself: what counts is what it rounds to.
        _FLOAT32.pack(number)
    except OverflowError:
        return UNFIT
    return number


def _to_boolean(raw: bytes) -> Any:
    text = text_of(raw).strip().lower()
    return True if text in _TRUE else False if text in _FALSE else UNFIT


def _to_decimal(precision: int, scale: int) -> Convert:
    step = decimal.Decimal(1).scaleb(-scale)

    def convert(raw: bytes) -> Any:
        text = text_of(raw).strip()
        if not _DECIMAL.fullmatch(text):
            return UNFIT
        number = decimal.Decimal(text)
        if number.adjusted() >= precision - scale and number != 0:
            return UNFIT
        fitted = number.quantize(step, rounding=decimal.ROUND_HALF_UP, context=_EXACT)
        # Digits that the column has no room for would be a changed value.
        return fitted if fitted == number else UNFIT

    return convert


def _to_date(raw: bytes) -> Any:
    match = _DATE.fullmatch(text_of(raw).strip())
    if match is None:
        return UNFIT
    try:
        return dt.date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        return UNFIT


def _moment(raw: bytes) -> tuple[dt.datetime, dt.timedelta] | None:
    """A point of time as it is written, and how far its zone is from UTC (nothing said: not at all).

    A whole number (not a text of digits) is milliseconds since 1970.
    """
    if _EPOCH_MS.fullmatch(raw):
        return _since_1970(int(raw))
    match = _TIME.fullmatch(text_of(raw).strip())
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    micros = int((fraction or "0").ljust(6, "0")[:6])
    try:
        local = dt.datetime(int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), micros)
    except ValueError:
        return None
    if zone is None or zone in ("Z", "UTC"):
        return local, dt.timedelta()
    digits = zone[1:].replace(":", "")
    hours, minutes = (int(digits[:-2]), int(digits[-2:])) if len(digits) > 2 else (int(digits), 0)
    if hours > 18 or minutes > 59:
        return None
    return local, dt.timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)


def _since_1970(milliseconds: int) -> tuple[dt.datetime, dt.timedelta] | None:
    try:
        return _EPOCH + dt.timedelta(milliseconds=milliseconds), dt.timedelta()
    except OverflowError:
        return None


def _to_timestamp(raw: bytes) -> Any:
    moment = _moment(raw)
    return UNFIT if moment is None else moment[0]


def _to_timestamptz(raw: bytes) -> Any:
    moment = _moment(raw)
    try:
        return UNFIT if moment is None else (moment[0] - moment[1]).replace(tzinfo=dt.UTC)
    except OverflowError:
        return UNFIT


def _to_uuid(raw: bytes) -> Any:
    text = text_of(raw)
    return UUID(text).bytes if _UUID.fullmatch(text) else UNFIT


def _to_binary(raw: bytes) -> Any:
    try:
        return base64.b64decode(text_of(raw), validate=True)
    except (binascii.Error, ValueError):
        return UNFIT


_CONVERTERS: dict[str, Convert] = {
    "boolean": _to_boolean,
    "int": _to_integer(*_RANGES["int"]),
    "long": _to_integer(*_RANGES["long"]),
    "float": _to_float,
    "double": _to_double,
    "date": _to_date,
    "timestamp": _to_timestamp,
    "timestamptz": _to_timestamptz,
    "uuid": _to_uuid,
    "binary": _to_binary,
    "string": text_of,
}
