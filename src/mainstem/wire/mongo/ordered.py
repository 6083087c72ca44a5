"""Values as bytes that sort as MongoDB sorts the values.

`ordered` gives bytes whose plain order is BSON's comparison order, and that are equal for values that MongoDB holds
equal (1, 1.0 and Decimal128("1")). Concatenated they are still in order, since no encoding is the beginning of another.
So a store of bytes can look values up, walk ranges and sort without knowing any type. `from_ordered` reads them back.
"""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

import decimal
import math
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from bson.binary import Binary, UuidRepresentation
from bson.code import Code
from bson.datetime_ms import DatetimeMS, _datetime_to_millis
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from mainstem.model.errors import Invalid

# The first byte of each encoding, in MongoDB's order of types. No value begins with a zero: it ends a container.
MIN_KEY, MISSING, NULL, NUMBER, TEXT, DOCUMENT, ARRAY, BINARY = 0x01, 0x02, 0x08, 0x10, 0x18, 0x20, 0x28, 0x30
OBJECT_ID, BOOLEAN, DATE, TIMESTAMP, REGEX, CODE, CODE_WITH_SCOPE = 0x38, 0x40, 0x48, 0x4C, 0x50, 0x58, 0x5C
MAX_KEY = 0xF0

_END = b"\x00"
_NAN = bytes([NUMBER, 0])
_NUMBER = bytes([NUMBER, 1])
_EXACT, _INEXACT = b"\x00", b"\x01"
DEPTH_MAX = 200
_SIGN = 1 << 63
_MASK = (1 << 64) - 1
_EXACT_INT_MAX = 1 << 53
EXPONENT_BIAS = 1 << 15
_DOUBLE_MAX = 1.7976931348623157e308
_decimals = decimal.Context(prec=40, Emax=10_000, Emin=-10_000, traps=[])
_pack_double = struct.Struct(">d").pack
_pack_u64 = struct.Struct(">Q").pack
_unpack_u64 = struct.Struct(">Q").unpack
_pack_u32 = struct.Struct(">I").pack


def ordered(value: Any, depth: int = 0) -> bytes:
    """The value as bytes in MongoDB's order. Raises Invalid for what no document can hold."""
    simple = _SIMPLE.get(type(value))
    if simple is not None:
        return simple(value)
    if depth > DEPTH_MAX:
        raise Invalid(f"value is nested too deep. expected=at most {DEPTH_MAX} levels", reason="too_deep")
    if isinstance(value, Code):
        text = _text(str(value))
        if value.scope is None:
            return bytes([CODE]) + text
        return bytes([CODE_WITH_SCOPE]) + text + ordered(dict(value.scope), depth + 1)
    if isinstance(value, DBRef):
        value = value.as_doc()
    if isinstance(value, Mapping):
        return _document(value, depth)
    if isinstance(value, list | tuple):
        return b"%c%b\x00" % (ARRAY, b"".join([ordered(item, depth + 1) for item in value]))
    if isinstance(value, decimal.Decimal):
        return _of_decimal(value)
    # Subclasses, as bson's Int64 has them.
    for kind, encode in _SIMPLE.items():
        if isinstance(value, kind):
            return encode(value)
    raise Invalid(f"not a document value. expected=a BSON type got={type(value).__name__}", reason="bad_value")


def missing() -> bytes:
    """What an index has for a field that a document does not have: it sorts and compares as null."""
    return bytes([NULL])


def after(prefix: bytes) -> bytes:
    """The least bytes above everything that begins with a prefix: the end of a range."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"\xff" * (len(prefix) + 1)


def reversed_order(encoded: bytes) -> bytes:
    """The same bytes for a descending order. No encoding is the beginning of another, so this reverses the order."""
    return bytes(byte ^ 0xFF for byte in encoded)


def _document(value: Mapping[str, Any], depth: int) -> bytes:
    parts = [bytes([DOCUMENT])]
    for name, item in value.items():
        encoded = ordered(item, depth + 1)
        # Of two fields at one place the type decides first, then the name, then the value.
        parts += (encoded[:1], _text(name), encoded)
    parts.append(_END)
    return b"".join(parts)


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass").replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def _sortable(number: float) -> bytes:
    (bits,) = _unpack_u64(_pack_double(number + 0.0 if number else 0.0))
    return _pack_u64(bits ^ _MASK if bits & _SIGN else bits | _SIGN)


def _of_float(value: float) -> bytes:
    if value != value:  # noqa: PLR0124 - only NaN is not itself
        return _NAN
    return _NUMBER + _sortable(value) + _EXACT


def _of_int(value: int) -> bytes:
    if -_EXACT_INT_MAX <= value <= _EXACT_INT_MAX:
        return _NUMBER + _sortable(float(value)) + _EXACT
    return _of_exact(decimal.Decimal(value))


def _of_decimal(value: decimal.Decimal) -> bytes:
    if value.is_nan():
        return _NAN
    if value.is_infinite():
        return _of_float(math.inf if value > 0 else -math.inf)
    return _of_exact(value)


def _of_exact(value: decimal.Decimal) -> bytes:
    """The largest double that is not above the value, and where that is not the value itself, its digits."""
    floor = float(value)
    if math.isinf(floor):
        floor = _DOUBLE_MAX if floor > 0 else -math.inf
    elif decimal.Decimal(floor) > value:
        floor = math.nextafter(floor, -math.inf)
    if not math.isinf(floor) and decimal.Decimal(floor) == value:
        return _NUMBER + _sortable(floor) + _EXACT
    return _NUMBER + _sortable(floor) + _INEXACT + _digits(value)


def _digits(value: decimal.Decimal) -> bytes:
    sign, digits, exponent = scientific(value)
    encoded = struct.pack(">H", exponent + EXPONENT_BIAS) + digits.encode() + _END
    return bytes(byte ^ 0xFF for byte in encoded) if sign else encoded


def scientific(value: decimal.Decimal) -> tuple[int, str, int]:
    """The sign, the digits without zeros around them, and the exponent of the first one."""
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    place = int(exponent) + len(text) - 1
    return sign, text.rstrip("0"), place


def _of_date(value: Any) -> bytes:
    milliseconds = int(value) if isinstance(value, DatetimeMS) else _datetime_to_millis(value)
    return b"%c%b" % (DATE, _pack_u64(milliseconds + _SIGN))


def _of_binary(value: Any) -> bytes:
    subtype = value.subtype if isinstance(value, Binary) else 0
    return b"%c%b%c%b" % (BINARY, _pack_u32(len(value)), subtype, bytes(value))


def _of_uuid(value: uuid.UUID) -> bytes:
    return _of_binary(Binary.from_uuid(value, UuidRepresentation.STANDARD))


def _of_regex(value: Regex[Any]) -> bytes:
    pattern = value.pattern if isinstance(value.pattern, str) else value.pattern.decode("utf-8", "replace")
    return b"%c%b%b" % (REGEX, _text(pattern), _pack_u32(value.flags))


_datetime = type(DatetimeMS(0).as_datetime())
_SIMPLE: dict[type, Callable[[Any], bytes]] = {
    ObjectId: lambda value: b"%c%b" % (OBJECT_ID, value.binary),
    str: lambda value: b"%c%b" % (TEXT, _text(value)),
    int: _of_int,
    bool: lambda value: b"%c%c" % (BOOLEAN, value),
    float: _of_float,
    type(None): lambda value: bytes([NULL]),
    Int64: _of_int,
    _datetime: _of_date,
    DatetimeMS: _of_date,
    Decimal128: lambda value: _of_decimal(value.to_decimal()),
    bytes: _of_binary,
    Binary: _of_binary,
    uuid.UUID: _of_uuid,
    Timestamp: lambda value: b"%c%b%b" % (TIMESTAMP, _pack_u32(value.time), _pack_u32(value.inc)),
    Regex: _of_regex,
    MinKey: lambda value: bytes([MIN_KEY]),
    MaxKey: lambda value: bytes([MAX_KEY]),
}
