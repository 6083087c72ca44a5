"""Documents as rows of a table: which kind of value each column holds, and the document that a row stands for.

Top-level fields are columns. Scalars are typed columns; objects, arrays and fields of mixed types are JSON text. A NULL
column is a field that the document does not have: a table cannot tell missing from null at the top level, and filters
that ask for presence (`$exists`) would be useless the other way round. Inside JSON text the two stay apart.

Every column of the table must be named: a path whose first name is not a column is missing in every row.
"""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

import contextlib
import datetime as dt
import decimal
import enum
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from bson import json_util
from bson.binary import UuidRepresentation
from bson.objectid import ObjectId

from mainstem.documents.values import INT64_MAX, INT64_MIN


class Kind(enum.Enum):
    """What a column holds."""

    BOOLEAN = "boolean"
    INTEGER = "integer"  # any width up to signed 64 bits
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    TIMESTAMP = "timestamp"  # without a zone, taken as UTC
    TIMESTAMP_TZ = "timestamp_tz"
    DATE = "date"
    BINARY = "binary"
    OBJECT_ID = "object_id"  # as text of 24 lowercase hexadecimal digits
    JSON = "json"
    EXTENDED_JSON = "extended_json"  # MongoDB's: {"$oid": …}, {"$date": …} stand for values
    OTHER = "other"  # structs, lists, unsigned numbers and the like: only `matches` looks into them


class Column(msgspec.Struct, frozen=True):
    """One column. `scale` counts the decimal places of a DECIMAL."""

    kind: Kind
    scale: int = 0

    @property
    def is_json(self) -> bool:
        """Whether the column is text that holds any value."""
        return self.kind is Kind.JSON or self.kind is Kind.EXTENDED_JSON

    @property
    def is_opaque(self) -> bool:
        """Whether statistics say nothing of what the column holds, but for its NULLs."""
        return self.is_json or self.kind is Kind.OTHER


Columns = Mapping[str, Column]


class KeptInteger(int):
    """An integer beyond 64 bits that stands in a cell: it may go back there as it is, and nowhere else."""


def columns(**kinds: str | Kind) -> dict[str, Column]:
    """The columns of a table by the names of their kinds: columns(id="integer", tags="json")."""
    return {name: Column(Kind(kind) if isinstance(kind, str) else kind) for name, kind in kinds.items()}


def row_document(row: Mapping[str, Any], columns: Columns, *, whole: bool = False) -> dict[str, Any]:
    """The document that a row stands for: what `matches` re-checks after an inexact scan.

    With `whole`, integers of JSON text are what they are, however large (`KeptInteger`): for values that are written
    again.
    """
    document: dict[str, Any] = {}
    for name, value in row.items():
        if value is None:
            continue
        column = columns.get(name)
        document[name] = value if column is None else _value(value, column.kind, whole)
    return document


def _value(value: Any, kind: Kind, whole: bool) -> Any:
    match kind:
        case Kind.JSON:
            is_long = whole and _LONG_DIGITS.search(value)
            return json.loads(value, parse_int=_kept) if is_long else decode_json(value)
        case Kind.EXTENDED_JSON:
            parse = _kept if whole else int
            return json_util.loads(value, json_options=_EXTENDED, object_pairs_hook=_unwrapped, parse_int=parse)
        case Kind.OBJECT_ID:
            return ObjectId(value)
        case Kind.DATE:
            return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
        case Kind.DECIMAL:
            return decimal.Decimal(value)
        case Kind.BINARY:
            return bytes(value)
        case _:
            return value


_EXTENDED = json_util.JSONOptions(tz_aware=True, tzinfo=dt.UTC, uuid_representation=UuidRepresentation.STANDARD)
# The names by which extended JSON tells a value from a document. A reference ($ref) is a document.
MARKS = (
    "$oid",
    "$date",
    "$regex",
    "$minKey",
    "$maxKey",
    "$binary",
    "$code",
    "$uuid",
    "$undefined",
    "$numberLong",
    "$timestamp",
    "$numberDecimal",
    "$dbPointer",
    "$regularExpression",
    "$symbol",
    "$numberInt",
    "$numberDouble",
)
_MARKS = frozenset(MARKS)
_LONG_DIGITS = re.compile(r"\d{19}")


def _unwrapped(pairs: Sequence[tuple[str, Any]]) -> Any:
    document = dict(pairs)
    if _MARKS.isdisjoint(document):
        return document
    moment = document.get("$date")
    if isinstance(moment, str) and len(document) == 1:
        # bson would go through a double, which is a microsecond off now and then.
        with contextlib.suppress(ValueError):
            return dt.datetime.fromisoformat(moment).astimezone(dt.UTC)
    return json_util.object_hook(document, _EXTENDED)


def decode_json(text: str) -> Any:
    """Decode JSON text as documents hold it: an integer beyond 64 bits is a double, for BSON has none wider."""
    if _LONG_DIGITS.search(text):
        return json.loads(text, parse_int=_integer)
    return msgspec.json.decode(text)


def _kept(digits: str) -> int:
    value = int(digits)
    return value if INT64_MIN <= value <= INT64_MAX else KeptInteger(value)


def _integer(digits: str) -> int | float:
    value = int(digits) if len(digits) <= 20 else None
    return value if value is not None and INT64_MIN <= value <= INT64_MAX else float(digits)
