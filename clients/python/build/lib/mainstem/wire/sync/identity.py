"""Canonical JSON (RFC 8785), and the ids of deltas that hash it.

Most values are short texts, small numbers or booleans whose text is canonical as it stands; a pattern tells, and only
the others are parsed and written anew.
"""

import hashlib
import json
import math
import re
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec

from mainstem.model.errors import Invalid
from mainstem.wire.sync.messages import ColumnDelta

DEPTH_MAX = 64

_CANONICAL = re.compile(rb'null|true|false|"[ !#-\[\]-~]*"|0|-?[1-9][0-9]{0,14}').fullmatch
_PLAIN = re.compile(r"[ !#-\[\]-~]*").fullmatch
_decode = msgspec.json.Decoder().decode


def delta_id(*, table: str, row_id: str, columns: tuple[ColumnDelta, ...], hlc: int, client_id: str) -> str:
    """The id under which a delta counts once. Raises Invalid (`invalid_value`) where a value is no JSON."""
    listed = b",".join(
        [b'{"column":%b,"value":%b}' % (_name(each.column), canonical_text(each.value)) for each in columns]
    )
    text = b'{"clientId":%b,"columns":[%b],"hlc":"%d","rowId":%b,"table":%b}' % (
        _name(client_id),
        listed,
        hlc,
        _quoted(row_id),
        _name(table),
    )
    return hashlib.sha256(text).hexdigest()


def canonical_text(value: bytes) -> bytes:
    """The one text of a JSON text's value."""
    return value if _CANONICAL(value) else canonical(parse_value(value)).encode()


def parse_value(value: bytes) -> Any:
    """The value that a JSON text stands for. Raises Invalid (`invalid_value`)."""
    try:
        return _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"a value is not UTF-8 JSON. got={error}", reason="invalid_value") from error


def canonical(value: Any, depth: int = 0) -> str:
    """Compact, members by UTF-16 code units, numbers as ECMAScript writes them."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, str):
        return _text(value)
    if depth >= DEPTH_MAX:
        raise Invalid(f"a value is nested too deep. expected=at most {DEPTH_MAX} levels", reason="invalid_value")
    if isinstance(value, list):
        return "[" + ",".join([canonical(item, depth + 1) for item in value]) + "]"
    keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
    return "{" + ",".join([f"{_text(key)}:{canonical(value[key], depth + 1)}" for key in keys]) + "}"


def _text(value: str) -> str:
    return f'"{value}"' if _PLAIN(value) else json.dumps(value, ensure_ascii=False)


def _quoted(value: str) -> bytes:
    return _text(value).encode()


# Clients, tables and columns come again and again; row ids hardly do.
_name = lru_cache(4_096)(_quoted)


def _number(value: int | float) -> str:
    """A number as ECMAScript's Number::toString writes it: every number is a double there."""
    try:
        double = float(value)
    except OverflowError:
        double = math.inf
    if not math.isfinite(double):
        raise Invalid(f"a number must be finite. got={str(value)[:32]}", reason="invalid_value")
    if double == 0:
        return "0"
    sign = "-" if double < 0 else ""
    _, figures, exponent = Decimal(repr(abs(double))).as_tuple()
    # The value is 0.DIGITS × 10^point.
    point = len(figures) + int(exponent)
    digits = "".join(map(str, figures)).rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = point - 1
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{'+' if power > 0 else '-'}{abs(power)}"
