"""Ordered bytes read back as a value: the other direction of `ordered`.

Many values share their bytes (1, 1.0 and Decimal128("1")); the one that is written most often stands for all of them.
"""

import decimal
import math
import struct
from collections.abc import Callable
from typing import Any

from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from mainstem.wire.mongo import ordered as kinds

_SIGN = 1 << 63
_MASK = (1 << 64) - 1
# Without the zeros at the end, and without rounding: a Decimal128 has 34 digits, of which none may be lost.
_exact = decimal.Context(prec=2_000, Emax=10_000, Emin=-10_000, traps=[decimal.InvalidOperation, decimal.Inexact])
_INVERTED = bytes(byte ^ 0xFF for byte in range(256))


def value_of(encoded: bytes) -> Any:
    """The value of ordered bytes. Raises ValueError for bytes that `ordered` never writes."""
    reader = _Reader(encoded)
    try:
        value = reader.value(0)
    # What hostile bytes do to a reader: too short, an unknown type, a number without digits, a scope that is a text.
    except (IndexError, KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(f"not ordered bytes. got={error!r}") from error
    if reader.at != len(encoded):
        raise ValueError(f"bytes after the value. expected={reader.at} bytes got={len(encoded)}")
    return value


def number_of(value: decimal.Decimal) -> Any:
    """A number as BSON most often holds it. Raises ValueError or ArithmeticError where no type of BSON's does."""
    if value.is_nan():
        return math.nan
    if value.is_infinite():
        return math.inf if value > 0 else -math.inf
    # The exponent first: what is as long as it says would not fit into memory.
    if value.adjusted() < 19 and value == value.to_integral_value() and -_SIGN <= int(value) < _SIGN:
        return int(value)
    as_double = float(value)
    if math.isfinite(as_double) and decimal.Decimal(as_double) == value:
        return as_double
    return Decimal128(_exact.normalize(value))


class _Reader:
    """A place in ordered bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def value(self, depth: int) -> Any:
        if depth > kinds.DEPTH_MAX:
            raise ValueError("ordered bytes are nested too deep")
        kind = self._byte()
        if kind == kinds.DOCUMENT:
            return self._document(depth)
        if kind == kinds.ARRAY:
            return self._array(depth)
        if kind == kinds.CODE_WITH_SCOPE:
            return Code(self._text(), self.value(depth + 1))
        return _SIMPLE[kind](self)

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _take(self, count: int) -> bytes:
        taken = self._data[self.at : self.at + count]
        if len(taken) < count:
            raise ValueError("ordered bytes end too early")
        self.at += count
        return taken

    def _u32(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def _u64(self) -> int:
        return int.from_bytes(self._take(8), "big")

    def _text(self) -> str:
        end = self.at
        while True:
            # A zero of the text is followed by 0xFF, the text's end by a second zero.
            end = self._data.index(b"\x00", end)
            if self._data[end + 1] == 0:
                break
            end += 2
        text = self._data[self.at : end].replace(b"\x00\xff", b"\x00").decode("utf-8")
        self.at = end + 2
        return text

    def _document(self, depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while self._byte():
            name = self._text()
            fields[name] = self.value(depth + 1)
        return fields

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        while self._data[self.at]:
            items.append(self.value(depth + 1))
        self.at += 1
        return items

    def _number(self) -> Any:
        if self._byte() == 0:
            return math.nan
        bits = self._u64()
        (floor,) = struct.unpack(">d", (bits ^ _SIGN if bits & _SIGN else bits ^ _MASK).to_bytes(8, "big"))
        if self._byte() == 0:
            return number_of(decimal.Decimal(floor))
        # The digits of a number below zero are inverted, so that they sort the other way round.
        is_negative = floor < 0
        end = self._data.index(b"\xff" if is_negative else b"\x00", self.at + 2)
        digits = self._take(end - self.at)
        self.at += 1
        if is_negative:
            digits = digits.translate(_INVERTED)
        place = int.from_bytes(digits[:2], "big") - kinds.EXPONENT_BIAS
        text = digits[2:].decode("ascii")
        return number_of(decimal.Decimal(f"{'-' if is_negative else ''}{text[0]}.{text[1:] or '0'}e{place}"))

    def _binary(self) -> Binary:
        length = self._u32()
        subtype = self._byte()
        return Binary(self._take(length), subtype)


_SIMPLE: dict[int, Callable[[_Reader], Any]] = {
    kinds.MIN_KEY: lambda reader: MinKey(),
    kinds.NULL: lambda reader: None,
    kinds.NUMBER: _Reader._number,
    kinds.TEXT: _Reader._text,
    kinds.BINARY: _Reader._binary,
    kinds.OBJECT_ID: lambda reader: ObjectId(reader._take(12)),
    kinds.BOOLEAN: lambda reader: bool(reader._byte()),
    kinds.DATE: lambda reader: DatetimeMS(reader._u64() - _SIGN),
    kinds.TIMESTAMP: lambda reader: Timestamp(reader._u32(), reader._u32()),
    kinds.REGEX: lambda reader: Regex(reader._text(), reader._u32()),
    kinds.CODE: lambda reader: Code(reader._text()),
    kinds.MAX_KEY: lambda reader: MaxKey(),
}
