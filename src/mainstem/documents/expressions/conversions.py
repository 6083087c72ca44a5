"""The type operators: what a value's type is, and its value in another type."""

import math
import re
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from bson.binary import Binary
from bson.decimal128 import Decimal128
from bson.errors import InvalidId
from bson.int64 import Int64
from bson.objectid import ObjectId

from mainstem.documents.errors import Refused
from mainstem.documents.expressions.compiling import truthy
from mainstem.documents.expressions.numbers import DECIMAL, decimal_of, is_decimal
from mainstem.documents.expressions.registry import Evaluator, Scope, absent, named, operator
from mainstem.documents.values import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    MISSING,
    NUMBER_CODES,
    TYPE_CODES,
    Rank,
    date_ms,
    date_value,
    is_array,
    is_number,
    number_of,
    rank_of,
    type_code,
    type_name,
)

_GROUP = "type"
CONVERSION_FAILURE = 241
_WHOLE = re.compile(r"[+-]?\d+")
_NAMES = {code: name for name, code in TYPE_CODES.items()}

operator("$type", _GROUP, 1)(type_name)
operator("$isNumber", _GROUP, 1)(lambda value: type_code(value) in NUMBER_CODES)
operator("$isArray", _GROUP, 1)(is_array)


def _failed(value: Any, target: str, why: str = "") -> Refused:
    tail = f" ({why})" if why else ""
    return Refused(f"cannot convert. expected={target} got={type_name(value)}{tail}", code=CONVERSION_FAILURE)


def double_text(value: float) -> str:
    """A double as MongoDB writes it: the shortest digits, without a fraction of nothing."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    text = repr(value)
    return text[:-2] if text.endswith(".0") else text


def date_text(value: Any) -> str:
    """A date in ISO 8601 with milliseconds, UTC."""
    moment = date_value(date_ms(value))
    if not hasattr(moment, "isoformat"):
        return str(int(moment))
    return str(moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"))


def plain_text(value: Any) -> str | None:
    """Text of a text, a number or a date; None for anything else."""
    match rank_of(value):
        case Rank.STRING | Rank.CODE:
            return str(value)
        case Rank.NUMBER:
            if isinstance(value, float):
                return double_text(value)
            return str(value) if isinstance(value, Decimal128) else str(number_of(value))
        case Rank.DATE:
            return date_text(value)
        case _:
            return None


def _to_text(value: Any) -> str:
    text = plain_text(value)
    if text is not None:
        return text
    match rank_of(value):
        case Rank.BOOLEAN:
            return "true" if value else "false"
        case Rank.OBJECT_ID:
            return str(value)
        case Rank.BINARY:
            if isinstance(value, Binary) and value.subtype == 4:
                return str(uuid.UUID(bytes=bytes(value)))
            return b64encode(bytes(value)).decode()
    raise _failed(value, "string")


def _whole(value: Any, low: int, high: int, target: str) -> int:
    match rank_of(value):
        case Rank.BOOLEAN:
            return int(value)
        case Rank.STRING:
            if not _WHOLE.fullmatch(str(value)):
                raise _failed(value, target, "the text is no whole number")
            number: Any = int(value)
        case Rank.NUMBER:
            number = number_of(value)
            if not math.isfinite(number):
                raise _failed(value, target, f"{number}")
        case Rank.DATE if target == "long":
            return date_ms(value)
        case _:
            raise _failed(value, target)
    if not low <= int(number) <= high:
        raise _failed(value, target, "it does not fit")
    return int(number)


def _to_int(value: Any) -> int:
    return _whole(value, INT32_MIN, INT32_MAX, "int")


def _to_long(value: Any) -> Int64:
    return Int64(_whole(value, INT64_MIN, INT64_MAX, "long"))


def _to_double(value: Any) -> float:
    match rank_of(value):
        case Rank.BOOLEAN:
            return float(value)
        case Rank.NUMBER:
            number = number_of(value)
            result = float(number)
            if is_decimal(value) and math.isinf(result) and not math.isinf(number):
                raise _failed(value, "double", "it does not fit")
            return result
        case Rank.DATE:
            return float(date_ms(value))
        case Rank.STRING:
            text = str(value)
            try:
                if text.strip() != text or "_" in text:
                    raise ValueError
                return float(text)
            except ValueError:
                raise _failed(value, "double", "the text is no number") from None
    raise _failed(value, "double")


def _to_decimal(value: Any) -> Decimal128:
    match rank_of(value):
        case Rank.BOOLEAN:
            return Decimal128(Decimal(int(value)))
        case Rank.NUMBER:
            return value if isinstance(value, Decimal128) else Decimal128(decimal_of(number_of(value)))
        case Rank.DATE:
            return Decimal128(Decimal(date_ms(value)))
        case Rank.STRING:
            text = str(value)
            try:
                if text.strip() != text or "_" in text:
                    raise _failed(value, "decimal", "the text is no number")
                return Decimal128(DECIMAL.create_decimal(text))
            except InvalidOperation:
                raise _failed(value, "decimal", "the text is no number") from None
    raise _failed(value, "decimal")


def _to_object_id(value: Any) -> ObjectId:
    if isinstance(value, ObjectId):
        return value
    if rank_of(value) is Rank.STRING:
        try:
            return ObjectId(str(value))
        except InvalidId:
            raise _failed(value, "objectId", "the text has no 24 hexadecimal digits") from None
    raise _failed(value, "objectId")


def _to_date(value: Any) -> Any:
    from mainstem.documents.expressions.date_formats import parse_date

    match rank_of(value):
        case Rank.DATE:
            return value
        case Rank.OBJECT_ID:
            return value.generation_time
        case Rank.TIMESTAMP:
            return date_value(value.time * 1000)
        case Rank.STRING:
            return date_value(parse_date(str(value), None, None))
        case Rank.NUMBER if type_code(value) != TYPE_CODES["int"]:
            number = number_of(value)
            if not math.isfinite(number) or not INT64_MIN <= number <= INT64_MAX:
                raise _failed(value, "date", "it does not fit")
            return date_value(int(number))
    raise _failed(value, "date")


def _to_binary(value: Any) -> Any:
    if rank_of(value) is Rank.BINARY:
        return value
    if rank_of(value) is Rank.STRING:
        try:
            return b64decode(str(value), validate=True)
        except ValueError:
            raise _failed(value, "binData", "the text is no base64") from None
    raise _failed(value, "binData")


def _identity(rank: Rank, target: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if rank_of(value) is not rank:
            raise _failed(value, target)
        return value

    return check


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "string": _to_text,
    "int": _to_int,
    "long": _to_long,
    "double": _to_double,
    "decimal": _to_decimal,
    "bool": truthy,
    "date": _to_date,
    "objectId": _to_object_id,
    "binData": _to_binary,
    "object": _identity(Rank.OBJECT, "object"),
    "array": _identity(Rank.ARRAY, "array"),
}


def _short(name: str, target: str) -> None:
    convert = _CONVERSIONS[target]
    operator(name, _GROUP, 1)(lambda value: None if absent(value) else convert(value))


for _name, _to in (
    ("$toString", "string"),
    ("$toInt", "int"),
    ("$toLong", "long"),
    ("$toDouble", "double"),
    ("$toDecimal", "decimal"),
    ("$toBool", "bool"),
    ("$toDate", "date"),
    ("$toObjectId", "objectId"),
):
    _short(_name, _to)


@operator("$toUUID", _GROUP, 1)
def _to_uuid(value: Any) -> Any:
    if absent(value):
        return None
    try:
        return Binary(uuid.UUID(str(value)).bytes, 4)
    except ValueError:
        raise _failed(value, "binData", "the text is no UUID") from None


def _target(value: Any) -> str | None:
    if absent(value):
        return None
    # A DBRef ranks as an object, but is no mapping; none has a type's name.
    if isinstance(value, Mapping):
        value = value.get("type")
    if rank_of(value) is Rank.STRING:
        if value in TYPE_CODES:
            return str(value)
        raise Refused(f"unknown type. got={value}", code=2)
    if is_number(value) and number_of(value) in _NAMES:
        return _NAMES[int(number_of(value))]
    raise Refused(f"$convert takes a type's name or number as to. got={type_name(value)}", code=9)


@named("$convert", _GROUP, "input", "to", "onError?", "onNull?", "format?", lazy=True)
def _convert(value: Evaluator, to: Evaluator, on_error: Evaluator, on_null: Evaluator, format_: Evaluator) -> Evaluator:
    def run(document: Any, scope: Scope) -> Any:
        found, target = value(document, scope), _target(to(document, scope))
        if absent(found):
            instead = on_null(document, scope)
            return None if instead is MISSING else instead
        if target is None:
            return None
        try:
            if target not in _CONVERSIONS:
                raise _failed(found, target)
            return _CONVERSIONS[target](found)
        except Refused as error:
            if error.code != CONVERSION_FAILURE:
                raise
            instead = on_error(document, scope)
            if instead is MISSING:
                raise
            return instead

    return run
