"""Which `_id` belongs to which key of a table's row: one rule, one to one, for every id and for every text.

A row's key is a text, whichever door wrote it. An `_id` may have any BSON type.

- A text stands for itself: the key `ann` is the id "ann".
- Every other id is written with its kind: `$oid:65f…`, `$n:42`, `$b:true`, `$uuid:…`, or `$x:` and the ordered bytes in
  hexadecimal. Ids that MongoDB holds equal (1, 1.0) have one key. Such a key is *ours* only when it is written to the
  letter as `key_text` writes it: `$n:042` and `$oid:nonsense` are plain texts.
- A text that reads as a key of ours, with or without `$s:` before it, is written with one `$s:` more. So the text
  "$n:42" has the key `$s:$n:42`, and the text "$price" has the key `$price`.

Every text is therefore the key of exactly one id, and every id has exactly one key: a document that two doors write is
one row. The keys are stored in logs and tables: `tests/vectors/mongo_keys.json` holds them as they are.
"""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

import decimal
import re
import uuid
from typing import Any

from bson.binary import Binary
from bson.decimal128 import Decimal128
from bson.errors import BSONError
from bson.objectid import ObjectId
from bson.regex import Regex

from mainstem.model.errors import Invalid
from mainstem.wire.mongo.frames import decode_document, encode_document
from mainstem.wire.mongo.from_ordered import number_of, value_of
from mainstem.wire.mongo.ordered import ordered, scientific

_MARK = "$"
_TEXT = "$s:"
_TEXTS = re.compile(r"(?:\$s:)*")
_OBJECT_ID = re.compile("[0-9a-f]{24}")
_HEXADECIMAL = re.compile("(?:[0-9a-f]{2})+")
# The longest number is a double with all of its digits.
_NUMBER_LENGTH_MAX = 1_100
_SIGN = 1 << 63
_UUID_SUBTYPE = 4
_NOTHING = object()


def key_text(value: Any) -> str:
    """An `_id` as the key of its row."""
    kind = type(value)
    if kind is str:
        text: str = value
        return _TEXT + text if text.startswith(_MARK) and _reads_as_ours(text) else text
    if kind is ObjectId:
        return f"{_MARK}oid:{value}"
    if kind is bool:
        return f"{_MARK}b:{'true' if value else 'false'}"
    if isinstance(value, int):
        return f"{_MARK}n:{int(value)}" if -_SIGN <= value < _SIGN else _number_text(decimal.Decimal(value))
    if kind is float:
        return _number_text(decimal.Decimal(value))
    if kind is Decimal128:
        return _number_text(value.to_decimal())
    if isinstance(value, uuid.UUID):
        return f"{_MARK}uuid:{value}"
    if isinstance(value, Binary) and value.subtype == _UUID_SUBTYPE and len(value) == 16:
        return f"{_MARK}uuid:{uuid.UUID(bytes=bytes(value))}"
    return f"{_MARK}x:{ordered(value).hex()}"


def id_of_key(key: str) -> Any:
    """The `_id` of a row by its key. Of equal numbers it is the one that is written most often."""
    if not key.startswith(_MARK):
        return key
    if key.startswith(_TEXT):
        return key[len(_TEXT) :] if _reads_as_ours(key) else key
    found = _ours(key)
    return key if found is _NOTHING else found


def key_bytes(key: str) -> bytes:
    """The id that a key stands for, as ordered bytes."""
    return ordered(id_of_key(key))


def _reads_as_ours(text: str) -> bool:
    """Whether a text is a key of ours, with any number of `$s:` before it."""
    before = _TEXTS.match(text)
    assert before is not None
    return _ours(text[before.end() :]) is not _NOTHING


def _ours(key: str) -> Any:
    """The id that is no text and that `key_text` gives this key, or `_NOTHING`."""
    if not key.startswith(_MARK):
        return _NOTHING
    kind, _, text = key[1:].partition(":")
    read = _KINDS.get(kind)
    if read is None:
        return _NOTHING
    try:
        found = read(text)
        return found if key_text(found) == key else _NOTHING
    except (ValueError, ArithmeticError, BSONError, Invalid):
        return _NOTHING


def _object_id(text: str) -> ObjectId:
    if _OBJECT_ID.fullmatch(text) is None:
        raise ValueError(text)
    return ObjectId(text)


def _number(text: str) -> Any:
    if len(text) > _NUMBER_LENGTH_MAX:
        raise ValueError("longer than any number")
    return number_of(decimal.Decimal(text))


def _any(text: str) -> Any:
    if _HEXADECIMAL.fullmatch(text) is None:
        raise ValueError("not bytes")
    value = value_of(bytes.fromhex(text))
    if type(value) is str or isinstance(value, list | Regex):
        raise ValueError("a text has a key of its own, and MongoDB has no ids of the other kinds")
    # By way of BSON: what that cannot hold (a name with a zero byte, one name twice) can be no id.
    return decode_document(encode_document({"_id": value}))["_id"]


_KINDS: dict[str, Any] = {
    "oid": _object_id,
    "b": lambda text: text == "true",
    "n": _number,
    "uuid": lambda text: Binary(uuid.UUID(text).bytes, _UUID_SUBTYPE),
    "x": _any,
}


def _number_text(value: decimal.Decimal) -> str:
    if value.is_nan():
        return f"{_MARK}n:nan"
    if value.is_infinite():
        return f"{_MARK}n:{'inf' if value > 0 else '-inf'}"
    if not value:
        return f"{_MARK}n:0"
    sign, digits, place = scientific(value)
    minus = "-" if sign else ""
    if len(digits) - 1 <= place <= 18:
        whole = int(digits + "0" * (place - len(digits) + 1))
        if whole < _SIGN + sign:
            return f"{_MARK}n:{minus}{whole}"
    return f"{_MARK}n:{minus}{digits[0]}.{digits[1:] or '0'}e{place}"
