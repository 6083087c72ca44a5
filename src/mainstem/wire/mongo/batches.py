"""How a batch of documents stands in the log: one command, or one transaction, is one batch.

MessagePack of `DocumentBatch`. Every operation is one change of one row: its key, the exact BSON of the document after
it, and what a change stream has to tell of it. What a retry of the command must be answered with is part of the batch.

In a table a document is a row: its fields are columns, and `_document` has the exact BSON. A document of the
collection `system.collections` describes another collection of its database: options and indexes.
"""

import base64
import datetime as dt
import decimal
import math
from binascii import b2a_base64
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgspec
from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from mainstem.model.errors import Corrupt, Invalid
from mainstem.model.names import TableName
from mainstem.model.typed_text import DECIMAL_PRECISION, DECIMAL_SCALE, DecimalText, TimeText
from mainstem.wire.mongo.frames import decode_document

VERSION = 1
# The exact BSON of a document, among the columns of its row.
DOCUMENT_COLUMN = "_document"
# Under which a change's metadata has what only the Mongo door asks for.
METADATA_KEY = "mongo"
# How the names of the door's own sources begin; the gate refuses them from other doors.
SOURCES = "mongo/"
# Bounds of what a table can hold; what is beyond them is in the exact BSON alone.
COLUMNS_MAX = 900
NAME_LENGTH_MAX = 255
COLUMN_DEPTH_MAX = 60


class Kind(IntEnum):
    """What an operation did. The numbers are stored: never reuse one."""

    INSERT = 1
    UPDATE = 2
    REPLACE = 3
    DELETE = 4


# How change tables call them.
DOCUMENT_OPERATIONS = {Kind.INSERT: "insert", Kind.UPDATE: "update", Kind.REPLACE: "update", Kind.DELETE: "delete"}
# The kind of a collection's table (`tables/kinds`).
DOCUMENTS = "documents"


def table_of(database: str, collection: str) -> TableName:
    """The table of a collection. Dots in a collection's name are levels of the namespace."""
    namespace, _, table = f"{database}.{collection}".rpartition(".")
    return TableName(namespace, table)


def collection_of(table: TableName) -> tuple[str, str]:
    """The database and the collection that a table is: the first level, and the rest."""
    database, _, collection = str(table).partition(".")
    return database, collection


class DocumentOperation(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """One change of one document."""

    kind: Kind
    database: str
    collection: str
    # The row's key, by `keys.key_text` of the id.
    key: str
    # `{_id: …}` as BSON: the id with its exact type.
    id: bytes
    # The document after the operation; None for a delete.
    document: bytes | None = None
    # Fields that the document had before and has not any more: their columns become null.
    gone: tuple[str, ...] = ()
    # For change streams: `{updatedFields, removedFields, truncatedArrays}` as BSON, and the document before.
    description: bytes | None = None
    before: bytes | None = None
    # A part of something larger (a drop, a rename): change streams do not tell of it.
    silent: bool = False
    # What else a change stream has to tell, as BSON: `{rename: …}`, `{drop: 1}`.
    event: bytes | None = None


class DocumentBatch(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """All that one command or transaction wrote."""

    version: int = VERSION
    operations: tuple[DocumentOperation, ...]
    # The session and its number, where the command may be retried or is a transaction.
    session: bytes | None = None
    number: int | None = None
    transaction: bool = False
    # By statement of the command, what a retry of it is answered: BSON, or nothing where there is nothing to say.
    answers: dict[int, bytes] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(DocumentBatch).decode
_to_json = msgspec.json.Encoder().encode


def encode_batch(batch: DocumentBatch) -> bytes:
    """The payload of a batch."""
    return _encode(batch)


def decode_batch(payload: bytes | memoryview, place: str) -> DocumentBatch:
    """Read a payload back. Raises Corrupt."""
    try:
        batch = _decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Corrupt(f"documents cannot be read. got={error}", place=place) from error
    if batch.version != VERSION:
        raise Corrupt(f"documents. expected=version {VERSION} got={batch.version}", place=place)
    return batch


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a segment keeps of an operation beside its row, in base64 where it is BSON."""

    kind: int
    id: str
    description: str | None = None
    before: str | None = None
    silent: bool = False
    event: str | None = None
    session: str | None = None
    number: int | None = None
    # By statement; with the first operation of the batch.
    answers: dict[str, str] | None = None
    # The place in its batch and the batch's size: a transaction's changes belong together.
    index: int = 0
    count: int = 1
    transaction: bool = False


def metadata_of(batch: DocumentBatch, indexes: Sequence[int]) -> list[bytes]:
    """The metadata of these operations, as JSON."""
    session, count = _text(batch.session), len(batch.operations)
    answers = {str(number): _text(each) or "" for number, each in batch.answers.items()} or None
    found = []
    for index in indexes:
        operation = batch.operations[index]
        stored = Metadata(
            operation.kind,
            _text(operation.id) or "",
            _text(operation.description),
            _text(operation.before),
            operation.silent,
            _text(operation.event),
            session,
            batch.number,
            None if index else answers,
            index,
            count,
            batch.transaction,
        )
        found.append(_to_json({METADATA_KEY: stored}))
    return found


def _text(data: bytes | None) -> str | None:
    return None if data is None else b2a_base64(data, newline=False).decode()


def bytes_of(text: str | None) -> bytes | None:
    """What `metadata_of` wrote as text."""
    return None if text is None else base64.b64decode(text)


# Which names of documents are columns: most documents of a batch have the same.
KnownNames = dict[tuple[str, ...], tuple[str, ...]]


def columns_of(operation: DocumentOperation, known: KnownNames) -> dict[str, Any] | None:
    """The row of a document, as values that JSON has; None for a delete. `known` is the batch's to keep."""
    if operation.document is None:
        return None
    try:
        fields = decode_document(operation.document)
    except Invalid:
        # The writer refuses these. Should one be in the log all the same, the others must be sealed with it.
        fields = {}
    named = tuple(fields)
    names = known.get(named)
    if names is None:
        names = known[named] = tuple(filter(_is_column, named))[:COLUMNS_MAX]
    if len(names) < len(fields):
        fields = {name: fields[name] for name in names}
    row = {name: value if type(value) in _PLAIN else _typed(value) for name, value in fields.items()}
    # What the document lost, after what it has: one row holds so many columns and no more.
    if operation.gone:
        gone = [name for name in operation.gone if name not in row and _is_column(name)]
        row |= dict.fromkeys(gone[: COLUMNS_MAX - len(row)])
    row[DOCUMENT_COLUMN] = _text(operation.document)
    return row


def _is_column(name: str) -> bool:
    if not name or len(name) > NAME_LENGTH_MAX or name == DOCUMENT_COLUMN:
        return False
    return name.isprintable() or not any(ord(each) < 0x20 or 0x7F <= ord(each) < 0xA0 for each in name)


def _typed(value: Any) -> Any:
    """The value of a column: as `column_value` has it, and of dates and decimals with their type."""
    if type(value) is float or type(value) is ObjectId:
        return column_value(value)
    if isinstance(value, dt.datetime):
        return TimeText(column_value(value))
    if isinstance(value, Decimal128):
        text = column_value(value)
        return DecimalText(text) if text is not None and _fits(value.to_decimal()) else text
    return column_value(value)


def _fits(value: decimal.Decimal) -> bool:
    """Whether a column of exact numbers holds it to the last digit."""
    if not value:
        return True
    _, digits, exponent = value.as_tuple()
    places = -int(exponent) - (len(digits) - len("".join(map(str, digits)).rstrip("0")))
    return value.adjusted() < DECIMAL_PRECISION - DECIMAL_SCALE and places <= DECIMAL_SCALE


_PLAIN = frozenset({str, int, bool, type(None)})


def column_value(value: Any, depth: int = 0) -> Any:  # noqa: PLR0911, PLR0912 - a closed union
    """A value as JSON has it: what has no counterpart there becomes the text that people write for it."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        # JSON has no such number; the exact one is in the document's BSON.
        return value if math.isfinite(value) else None
    if kind is ObjectId:
        return str(value)
    if isinstance(value, dict):
        if depth >= COLUMN_DEPTH_MAX:
            return None
        return {name: column_value(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return None if depth >= COLUMN_DEPTH_MAX else [column_value(item, depth + 1) for item in value]
    if isinstance(value, int):
        return int(value)
    if isinstance(value, dt.datetime):
        return f"{value.isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"
    if isinstance(value, DatetimeMS):
        # Outside of the years that calendars have; the exact one is in the document's BSON.
        return None
    if isinstance(value, Timestamp):
        return value.time
    if isinstance(value, Binary | bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Regex):
        return f"/{value.pattern}/"
    if isinstance(value, DBRef):
        return column_value(dict(value.as_doc()), depth)
    if isinstance(value, Decimal128):
        return str(value) if value.to_decimal().is_finite() else None
    if isinstance(value, Code):
        return str(value)
    if isinstance(value, MinKey | MaxKey):
        return type(value).__name__
    return str(value)
