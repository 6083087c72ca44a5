"""Values of any shape as JSON text: plain JSON, or MongoDB's extended JSON where it holds more than JSON knows.

Owns what such a column may hold. A value that would come back as another one is refused: an integer beyond 64 bits
(readers make it a double), and in extended JSON a document that has one of the names by which values are marked.
"""

import datetime as dt
import decimal
import json
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec
from bson import json_util
from bson.binary import Binary, UuidRepresentation
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128

from mainstem.documents.columns import MARKS, KeptInteger
from mainstem.documents.values import DEPTH_MAX, INT64_MAX, INT64_MIN
from mainstem.formats.delta.values.exact import moment_of
from mainstem.model.errors import Invalid

_RELAXED = json_util.RELAXED_JSON_OPTIONS
_MARKS = frozenset(MARKS)
_SCALARS = frozenset([str, bool, type(None), KeptInteger])


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether plain JSON holds a value as it is."""
    if type(value) in _SCALARS:
        return True
    if type(value) is int:
        return INT64_MIN <= value <= INT64_MAX
    if type(value) is float:
        return value - value == 0  # neither NaN nor infinite
    _check_depth(depth)
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and is_plain(item, depth + 1) for name, item in value.items())
    return isinstance(value, list | tuple) and all(is_plain(item, depth + 1) for item in value)


def plain(value: Any) -> str:
    """A value as plain JSON; TypeError where that does not hold it."""
    if not is_plain(value):
        raise TypeError(
            "the column holds plain JSON, which has no dates, ObjectIds, decimals, binaries or integers beyond 64 bits"
        )
    return _encoded(value)


def extended(value: Any) -> str:
    """A value as extended JSON; TypeError or ValueError where that does not hold it."""
    return _encoded(_marked(value, 0))


def _encoded(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (OverflowError, TypeError):
        # It has an integer that was there already, of more than 64 bits.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _marked(value: Any, depth: int) -> Any:  # noqa: PLR0911 - case by case
    _check_depth(depth)
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return _document(value, depth)
    if isinstance(value, list | tuple):
        return [_marked(item, depth + 1) for item in value]
    if isinstance(value, int):
        if not INT64_MIN <= value <= INT64_MAX:
            raise ValueError(f"expected=an integer of 64 bits, or a Decimal got={value}")
        return int(value)
    if isinstance(value, float) and value - value == 0:
        return float(value)
    if isinstance(value, dt.date | DatetimeMS):
        return _moment(value)
    if isinstance(value, decimal.Decimal):
        value = Decimal128(value)
    elif isinstance(value, uuid.UUID):
        value = Binary.from_uuid(value, UuidRepresentation.STANDARD)
    elif isinstance(value, bytearray | memoryview):
        value = bytes(value)
    return json_util.default(value, _RELAXED)


def _document(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    for name in value:
        if not isinstance(name, str):
            raise TypeError(f"expected=text as a field's name got={name!r}")
        if name in _MARKS:
            raise ValueError(f"a document with this field would come back as another value. field={name}")
    return {name: _marked(item, depth + 1) for name, item in value.items()}


def _moment(value: dt.date | DatetimeMS) -> dict[str, Any]:
    moment = moment_of(value)
    if moment.microsecond % 1000 == 0:
        return dict(json_util.default(moment, _RELAXED))
    # BSON ends at milliseconds; the text may have all that the moment has.
    return {"$date": moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"}


def _check_depth(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise Invalid(f"a value is nested too deeply. expected=at most {DEPTH_MAX}", reason="too_deep")
