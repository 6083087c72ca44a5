"""Variant: one value of any type in two binaries, as Parquet's specification lays them out.

Owns the encoding: `metadata` is a dictionary of field names, `value` a tree of tagged values with offsets. Written are
the plain types that Python has; read is every type of the specification but intervals.
"""

# ruff: noqa: PLR0911 - a tagged format is read tag by tag.

import datetime as dt
import decimal
import struct
import uuid
from collections.abc import Mapping
from typing import Any

from bson.binary import Binary
from bson.code import Code
from bson.objectid import ObjectId

from mainstem.model.errors import Corrupt, Invalid

_VERSION = 1
_SORTED = 0x10
_PRIMITIVE, _SHORT_STRING, _OBJECT, _ARRAY = range(4)
_SHORT_MAX = 63
DEPTH_MAX = 100
# The largest of the decimals, which hold integers that are wider than 64 bits.
_WHOLE_MAX = 10**38 - 1
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = dt.date(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)


def encode(value: Any, *, exact: bool = False) -> tuple[bytes, bytes]:
    """The two binaries of a value. With `exact` a value that would come back as another one is refused."""
    names: set[str] = set()
    _collect(value, names, 0, exact)
    ordered = sorted(names, key=str.encode)
    ids = {name: at for at, name in enumerate(ordered)}
    return _metadata(ordered), _value(value, ids)


def _collect(value: Any, names: set[str], depth: int, exact: bool) -> None:
    if depth > DEPTH_MAX:
        raise Invalid(f"a value is nested too deeply. expected=at most {DEPTH_MAX}", reason="too_deep")
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str):
                raise Invalid(f"a field's name is text. got={name!r}")
            names.add(name)
            _collect(item, names, depth + 1, exact)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(item, names, depth + 1, exact)
    elif exact and not _is_exact(value):
        raise Invalid(f"a Variant cannot hold this as it is. got={type(value).__name__} {value!r:.80}")


def _is_exact(value: Any) -> bool:
    """Whether a Variant has a type for a value, and room for all of it."""
    if isinstance(value, int):
        return -_WHOLE_MAX <= value <= _WHOLE_MAX
    if isinstance(value, Binary):
        return value.subtype == 0
    if isinstance(value, dt.datetime):
        return not getattr(value, "nanosecond", 0)  # of pandas
    return not isinstance(value, ObjectId | Code)


def _width(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)


def _metadata(names: list[str]) -> bytes:
    texts = [name.encode() for name in names]
    total = sum(map(len, texts))
    width = _width(max(total, len(texts)))
    header = _VERSION | _SORTED | (width - 1) << 6
    parts = [bytes([header]), len(texts).to_bytes(width, "little")]
    at = 0
    for text in [*texts, b""]:
        parts.append(at.to_bytes(width, "little"))
        at += len(text)
    return b"".join([*parts, *texts])


def _value(value: Any, ids: Mapping[str, int]) -> bytes:
    if isinstance(value, Mapping):
        return _object(value, ids)
    if isinstance(value, list | tuple):
        return _array([_value(item, ids) for item in value])
    if isinstance(value, str):
        text = value.encode()
        if len(text) <= _SHORT_MAX:
            return bytes([len(text) << 2 | _SHORT_STRING]) + text
        return _tagged(16, struct.pack("<I", len(text)) + text)
    return _scalar(value)


def _tagged(type_id: int, data: bytes = b"") -> bytes:
    return bytes([type_id << 2 | _PRIMITIVE]) + data


def _scalar(value: Any) -> bytes:
    if value is None:
        return _tagged(0)
    if isinstance(value, bool):
        return _tagged(1 if value else 2)
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return _tagged(7, struct.pack("<d", value))
    if isinstance(value, decimal.Decimal):
        return _decimal(value)
    if isinstance(value, dt.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        return _tagged(12, struct.pack("<q", (moment - _EPOCH) // _MICROSECOND))
    if isinstance(value, dt.date):
        return _tagged(11, struct.pack("<i", (value - _EPOCH_DAY).days))
    if isinstance(value, bytes):
        return _tagged(15, struct.pack("<I", len(value)) + value)
    if isinstance(value, uuid.UUID):
        return _tagged(20, value.bytes)
    if isinstance(value, ObjectId):
        return _value(str(value), {})
    raise Invalid(f"a Variant cannot hold this. got={type(value).__name__}")


def _integer(value: int) -> bytes:
    for type_id, bits in ((3, 8), (4, 16), (5, 32), (6, 64)):
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            return _tagged(type_id, value.to_bytes(bits // 8, "little", signed=True))
    if -_WHOLE_MAX <= value <= _WHOLE_MAX:
        return _decimal(decimal.Decimal(value))
    return _tagged(7, struct.pack("<d", float(value)))


def _decimal(value: decimal.Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return _tagged(7, struct.pack("<d", float(value)))
    scale = max(0, -exponent)
    whole = int("".join(map(str, digits)) or "0") * 10 ** max(0, exponent) * (-1 if sign else 1)
    precision = max(len(str(abs(whole))), scale)
    if scale > 38 or precision > 38:
        raise Invalid(f"a decimal is too long for a Variant. expected=38 digits got={value}")
    type_id, size = (8, 4) if precision <= 9 else (9, 8) if precision <= 18 else (10, 16)
    return _tagged(type_id, bytes([scale]) + whole.to_bytes(size, "little", signed=True))


def _offsets(sizes: list[int]) -> tuple[int, bytes]:
    width = _width(sum(sizes))
    at, parts = 0, []
    for size in [*sizes, 0]:
        parts.append(at.to_bytes(width, "little"))
        at += size
    return width, b"".join(parts)


def _array(items: list[bytes]) -> bytes:
    width, offsets = _offsets([len(item) for item in items])
    large = len(items) > 255
    header = (width - 1) | large << 2
    count = len(items).to_bytes(4 if large else 1, "little")
    return bytes([header << 2 | _ARRAY]) + count + offsets + b"".join(items)


def _object(value: Mapping[str, Any], ids: Mapping[str, int]) -> bytes:
    # Fields are listed by their names' order, which the dictionary has too.
    names = sorted(value, key=ids.__getitem__)
    items = [_value(value[name], ids) for name in names]
    width, offsets = _offsets([len(item) for item in items])
    id_width = _width(ids[names[-1]]) if names else 1
    large = len(items) > 255
    header = (width - 1) | (id_width - 1) << 2 | large << 4
    count = len(items).to_bytes(4 if large else 1, "little")
    fields = b"".join(ids[name].to_bytes(id_width, "little") for name in names)
    return bytes([header << 2 | _OBJECT]) + count + fields + offsets + b"".join(items)


def decode(metadata: bytes, value: bytes) -> Any:
    """The Python value that the two binaries hold."""
    try:
        return _Reader(value, _names(metadata)).read(0, 0)
    except (IndexError, struct.error, ValueError, OverflowError) as error:
        raise Corrupt(f"not a Variant. {error}", place=f"value of {len(value)} bytes") from None


def _names(metadata: bytes) -> list[str]:
    width = (metadata[0] >> 6) + 1
    count = int.from_bytes(metadata[1 : 1 + width], "little")
    start = 1 + width * (count + 2)
    ends = [int.from_bytes(metadata[1 + width * (at + 1) : 1 + width * (at + 2)], "little") for at in range(count + 1)]
    return [metadata[start + ends[at] : start + ends[at + 1]].decode() for at in range(count)]


class _Reader:
    def __init__(self, data: bytes, names: list[str]) -> None:
        self.data = data
        self.names = names

    def number(self, at: int, width: int) -> int:
        if at + width > len(self.data):
            raise IndexError("offset beyond the end")
        return int.from_bytes(self.data[at : at + width], "little")

    def read(self, at: int, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise Invalid(f"a value is nested too deeply. expected=at most {DEPTH_MAX}", reason="too_deep")
        tag = self.data[at]
        basic, header = tag & 3, tag >> 2
        match basic:
            case 0:
                return self.primitive(header, at + 1)
            case 1:
                return self.data[at + 1 : at + 1 + header].decode()
            case 2:
                return self.object(header, at + 1, depth)
            case _:
                return self.array(header, at + 1, depth)

    def object(self, header: int, at: int, depth: int) -> dict[str, Any]:
        width, id_width, large = (header & 3) + 1, (header >> 2 & 3) + 1, header >> 4 & 1
        count_width = 4 if large else 1
        count = self.number(at, count_width)
        ids = at + count_width
        offsets = ids + count * id_width
        start = offsets + (count + 1) * width
        return {
            self.names[self.number(ids + i * id_width, id_width)]: self.read(
                start + self.number(offsets + i * width, width), depth + 1
            )
            for i in range(count)
        }

    def array(self, header: int, at: int, depth: int) -> list[Any]:
        width, large = (header & 3) + 1, header >> 2 & 1
        count_width = 4 if large else 1
        count = self.number(at, count_width)
        offsets = at + count_width
        start = offsets + (count + 1) * width
        return [self.read(start + self.number(offsets + i * width, width), depth + 1) for i in range(count)]

    def primitive(self, type_id: int, at: int) -> Any:
        data = self.data
        match type_id:
            case 0:
                return None
            case 1 | 2:
                return type_id == 1
            case 3 | 4 | 5 | 6:
                width = 1 << type_id - 3
                self.number(at, width)
                return int.from_bytes(data[at : at + width], "little", signed=True)
            case 7:
                return struct.unpack_from("<d", data, at)[0]
            case 8 | 9 | 10:
                width = 4 << type_id - 8
                whole = int.from_bytes(data[at + 1 : at + 1 + width], "little", signed=True)
                return decimal.Decimal(whole).scaleb(-data[at], decimal.Context(prec=40))
            case 11:
                return _EPOCH_DAY + dt.timedelta(days=struct.unpack_from("<i", data, at)[0])
            case 12 | 13:
                moment = _EPOCH + dt.timedelta(microseconds=struct.unpack_from("<q", data, at)[0])
                return moment if type_id == 12 else moment.replace(tzinfo=None)
            case 14:
                return struct.unpack_from("<f", data, at)[0]
            case 15 | 16:
                size = self.number(at, 4)
                found = data[at + 4 : at + 4 + size]
                return found if type_id == 15 else found.decode()
            case 17:
                micros = struct.unpack_from("<q", data, at)[0]
                return (dt.datetime.min + dt.timedelta(microseconds=micros)).time()
            case 18 | 19:
                moment = _EPOCH + dt.timedelta(microseconds=struct.unpack_from("<q", data, at)[0] // 1000)
                return moment if type_id == 18 else moment.replace(tzinfo=None)
            case 20:
                return uuid.UUID(bytes=bytes(data[at : at + 16]))
        raise Invalid(f"a Variant of a type that is not known. got={type_id}")
