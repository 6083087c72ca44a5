"""Values of documents: their types, their total order, and the limits on their shape.

Owns BSON's comparison order. Everything that compares two values (filters, sorts, updates, expressions) does it through
`order_key`, so that there is one order. Types are compared before values: a number never equals a string, and numbers
of every width compare by their exact mathematical value.
"""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

import datetime as dt
import decimal
import enum
import math
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from bson.binary import Binary, UuidRepresentation
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from mainstem.model.errors import Invalid

# MongoDB's own bound on the nesting of a stored document is 100 levels; operands may be nested as deep.
DEPTH_MAX: Final = 100
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

_REGEX_FLAGS = (("i", re.IGNORECASE), ("l", re.LOCALE), ("m", re.MULTILINE), ("s", re.DOTALL), ("x", re.VERBOSE))
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


class Missing(enum.Enum):
    """The value of a path that a document does not have. Not null: `$exists` and `$type` tell them apart."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING


class Rank(enum.IntEnum):
    """A type's place in the order of all values. The numbers only matter by their order."""

    MIN_KEY = -1
    MISSING = 0
    NULL = 5
    NUMBER = 10
    STRING = 15
    OBJECT = 20
    ARRAY = 25
    BINARY = 30
    OBJECT_ID = 35
    BOOLEAN = 40
    DATE = 45
    TIMESTAMP = 47
    REGEX = 50
    CODE = 60
    CODE_WITH_SCOPE = 65
    MAX_KEY = 127


_RANKS: dict[type, Rank] = {
    Missing: Rank.MISSING,
    type(None): Rank.NULL,
    int: Rank.NUMBER,
    float: Rank.NUMBER,
    Int64: Rank.NUMBER,
    decimal.Decimal: Rank.NUMBER,
    Decimal128: Rank.NUMBER,
    str: Rank.STRING,
    dict: Rank.OBJECT,
    DBRef: Rank.OBJECT,
    list: Rank.ARRAY,
    tuple: Rank.ARRAY,
    bytes: Rank.BINARY,
    bytearray: Rank.BINARY,
    memoryview: Rank.BINARY,
    Binary: Rank.BINARY,
    uuid.UUID: Rank.BINARY,
    ObjectId: Rank.OBJECT_ID,
    bool: Rank.BOOLEAN,
    dt.datetime: Rank.DATE,
    DatetimeMS: Rank.DATE,
    Timestamp: Rank.TIMESTAMP,
    Regex: Rank.REGEX,
    MinKey: Rank.MIN_KEY,
    MaxKey: Rank.MAX_KEY,
}


def rank_of(value: Any) -> Rank:
    """The type's place in the order; an error for what no document can hold."""
    rank = _RANKS.get(type(value))
    if rank is not None:
        return rank
    return _rank_of_subclass(value)


def _rank_of_subclass(value: Any) -> Rank:
    if isinstance(value, Code):
        return Rank.CODE if value.scope is None else Rank.CODE_WITH_SCOPE
    if isinstance(value, Mapping):
        return Rank.OBJECT
    for base, rank in _RANKS.items():
        # bool before int cannot go wrong: bool has no subclasses and is found by its exact type.
        if isinstance(value, base):
            return rank
    raise Invalid(f"not a document value. expected=a BSON type got={type(value).__name__}", reason="bad_value")


def order_key(value: Any, depth: int = 0) -> tuple[Any, ...]:
    """A key whose order and equality are those of the values: usable in sorts and sets."""
    simple = _SIMPLE_KEYS.get(type(value))
    if simple is not None:
        return simple(value)
    rank = rank_of(value)
    # Plain numbers in the keys: an enum's members hash and compare through Python code.
    number = rank.value
    match rank:
        case Rank.STRING | Rank.CODE:
            return (number, str(value))
        case Rank.NUMBER:
            return _number_key(value)
        case Rank.OBJECT:
            return (number, _object_key(value, _deeper(depth)))
        case Rank.ARRAY:
            below = _deeper(depth)
            return (number, tuple([order_key(item, below) for item in value]))
        case Rank.OBJECT_ID:
            return (number, value)
        case Rank.DATE:
            return (number, date_ms(value))
        case Rank.BINARY:
            data, subtype = binary_parts(value)
            return (number, len(data), subtype, data)
        case Rank.TIMESTAMP:
            return (number, value.time, value.inc)
        case Rank.REGEX:
            source = value.pattern.decode() if isinstance(value.pattern, bytes) else value.pattern
            return (number, source, "".join(letter for letter, flag in _REGEX_FLAGS if value.flags & flag))
        case Rank.CODE_WITH_SCOPE:
            return (number, str(value), _object_key(value.scope, _deeper(depth)))
        case _:
            return (number,)


def _number_key(value: Any) -> tuple[Any, ...]:
    number = number_of(value)
    # NaN is below every other number and equal to itself, which Python's own comparison would deny.
    return _NAN_KEY if is_nan(number) else (_NUMBER, 1, number)


_NUMBER, _STRING, _BOOLEAN = Rank.NUMBER.value, Rank.STRING.value, Rank.BOOLEAN.value
_OBJECT_ID, _DATE = Rank.OBJECT_ID.value, Rank.DATE.value
_NAN_KEY = (_NUMBER, 0, 0)
_NULL_KEY = (Rank.NULL.value,)
# The types of most values. Code points sort as UTF-8 bytes do.
_SIMPLE_KEYS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    str: lambda value: (_STRING, value),
    int: lambda value: (_NUMBER, 1, value),
    float: lambda value: (_NUMBER, 1, value) if value == value else _NAN_KEY,  # noqa: PLR0124
    bool: lambda value: (_BOOLEAN, value),
    type(None): lambda value: _NULL_KEY,
    Int64: lambda value: (_NUMBER, 1, value),
    ObjectId: lambda value: (_OBJECT_ID, value),
    dt.datetime: lambda value: (_DATE, date_ms(value)),
}


def _object_key(value: Any, depth: int) -> tuple[Any, ...]:
    fields = value.as_doc() if isinstance(value, DBRef) else value
    keys = []
    for name, item in fields.items():
        key = order_key(item, depth)
        # Of two fields at one place the type decides first, then the name, then the value.
        keys.append((key[0], name, key))
    return tuple(keys)


def _deeper(depth: int) -> int:
    if depth >= DEPTH_MAX:
        raise Invalid(f"value is nested too deep. expected=at most {DEPTH_MAX} levels", reason="too_deep")
    return depth + 1


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal in BSON's sense: 1 and 1.0 are, {a, b} and {b, a} are not."""
    return order_key(left) == order_key(right)


def identical(left: Any, right: Any) -> bool:
    """Whether two values are equal and of the same types throughout: what an update may leave untouched."""
    if type_code(left) != type_code(right):
        return False
    match rank_of(left):
        case Rank.OBJECT if isinstance(left, Mapping) and isinstance(right, Mapping):
            return list(left) == list(right) and all(identical(left[name], right[name]) for name in left)
        case Rank.ARRAY:
            return len(left) == len(right) and all(map(identical, left, right))
        case _:
            return same(left, right)


def number_of(value: Any) -> int | float | decimal.Decimal:
    """A number as Python compares it exactly with every other one. A decimal NaN would raise: it is a float's."""
    if isinstance(value, Decimal128):
        value = value.to_decimal()
    if isinstance(value, decimal.Decimal) and value.is_nan():
        return math.nan
    return value  # type: ignore[no-any-return]


def is_nan(number: int | float | decimal.Decimal) -> bool:
    """Whether a number is NaN. Unlike `math.isnan`, takes integers of any size."""
    return number != number  # noqa: PLR0124


def date_ms(value: dt.datetime | DatetimeMS) -> int:
    """A date as BSON holds it: whole milliseconds since 1970, UTC; a time without a zone is UTC."""
    if isinstance(value, DatetimeMS):
        return int(value)
    aware = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
    return (aware - _EPOCH) // _MILLISECOND


def date_of_ms(milliseconds: int) -> dt.datetime:
    """The UTC time of a count of milliseconds since 1970."""
    return _EPOCH + dt.timedelta(milliseconds=milliseconds)


def date_value(milliseconds: int) -> dt.datetime | DatetimeMS:
    """A date as documents hold it: BSON has dates that Python's own type does not reach."""
    if not INT64_MIN <= milliseconds <= INT64_MAX:
        raise OverflowError
    try:
        return date_of_ms(milliseconds)
    except OverflowError:
        return DatetimeMS(milliseconds)


def binary_parts(value: Any) -> tuple[bytes, int]:
    """The bytes and the subtype of a binary value; plain bytes are subtype 0, a UUID is subtype 4."""
    if isinstance(value, uuid.UUID):
        value = Binary.from_uuid(value, UuidRepresentation.STANDARD)
    return bytes(value), value.subtype if isinstance(value, Binary) else 0


def is_array(value: Any) -> bool:
    """Whether a value is an array."""
    return isinstance(value, list | tuple)


def is_document(value: Any) -> bool:
    """Whether a value is a document. The exact type first: asking an abstract class costs more than most tests."""
    return type(value) is dict or isinstance(value, Mapping)


def is_text(value: Any) -> bool:
    """Whether a value is a text. Code is one to Python, but not to BSON."""
    return isinstance(value, str) and not isinstance(value, Code)


def is_number(value: Any) -> bool:
    """Whether a value is a number. A boolean is not one."""
    return rank_of(value) is Rank.NUMBER


TYPE_CODES: dict[str, int] = {
    "double": 1,
    "string": 2,
    "object": 3,
    "array": 4,
    "binData": 5,
    "undefined": 6,
    "objectId": 7,
    "bool": 8,
    "date": 9,
    "null": 10,
    "regex": 11,
    "dbPointer": 12,
    "javascript": 13,
    "symbol": 14,
    "javascriptWithScope": 15,
    "int": 16,
    "timestamp": 17,
    "long": 18,
    "decimal": 19,
    "minKey": -1,
    "maxKey": 127,
}
NUMBER_CODES: Final = frozenset({1, 16, 18, 19})

_CODE_BY_RANK: dict[Rank, int] = {
    Rank.MISSING: 0,
    Rank.NULL: 10,
    Rank.STRING: 2,
    Rank.OBJECT: 3,
    Rank.ARRAY: 4,
    Rank.BINARY: 5,
    Rank.OBJECT_ID: 7,
    Rank.BOOLEAN: 8,
    Rank.DATE: 9,
    Rank.TIMESTAMP: 17,
    Rank.REGEX: 11,
    Rank.CODE: 13,
    Rank.CODE_WITH_SCOPE: 15,
    Rank.MIN_KEY: -1,
    Rank.MAX_KEY: 127,
}


def type_code(value: Any) -> int:
    """BSON's number for the value's type; 0 where it is missing. An int is 32 bits wide where it fits."""
    rank = rank_of(value)
    if rank is not Rank.NUMBER:
        return _CODE_BY_RANK[rank]
    if isinstance(value, float):
        return TYPE_CODES["double"]
    if isinstance(value, decimal.Decimal | Decimal128):
        return TYPE_CODES["decimal"]
    if isinstance(value, Int64) or not INT32_MIN <= value <= INT32_MAX:
        return TYPE_CODES["long"]
    return TYPE_CODES["int"]


def type_name(value: Any) -> str:
    """The name of the value's type, for messages."""
    code = type_code(value)
    return next((name for name, number in TYPE_CODES.items() if number == code), "missing")
