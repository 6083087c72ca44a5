"""From durable batches to the store: every change, whichever door it came through, in the log's order.

A batch of documents replaces rows as a whole and is stamped by the log, so it always wins over what came before. Rows
of other doors are merged column by column, by the same rule as in the tables.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from mainstem.feeds.documents.buried import bury, is_buried
from mainstem.feeds.documents.checks import is_reserved
from mainstem.feeds.documents.past import Past
from mainstem.feeds.documents.shapes import Shapes, shape_of
from mainstem.feeds.documents.state import COLLECTIONS, Collection, State
from mainstem.feeds.documents.tables import forget_untracked
from mainstem.model.position import LogPosition
from mainstem.wire.mongo.batches import (
    DOCUMENT_COLUMN,
    SOURCES,
    DocumentBatch,
    DocumentOperation,
    Kind,
    collection_of,
    table_of,
)
from mainstem.wire.mongo.frames import decode_document, encode_document
from mainstem.wire.mongo.keys import id_of_key, key_bytes

# Clocks of single columns, and of the row's last delete or whole write: column -> (clock, source).
Clocks = dict[str, tuple[int, str]]
_clocks = msgspec.msgpack.Decoder(Clocks).decode
_INT64 = 1 << 63
# Says of a collection in the store, and nowhere else, that its documents are still to be read from table and log.
UNLOADED = "unloaded"


class RowChange(NamedTuple):
    """A change of another door: what it did to which document, for change streams."""

    database: str
    collection: str
    operation: str
    id: Any
    position: int
    # Among the rows at the position.
    number: int
    hlc: int
    # The document after it and before it; None where there is none.
    after: bytes | None
    before: bytes | None
    columns: dict[str, Any]


def apply_batch(
    state: State,
    batch: DocumentBatch,
    keys: Sequence[bytes],
    first: LogPosition,
    hlc_first: int,
    at_ms: int,
    shapes: Shapes | None = None,
) -> None:
    """Take over a batch of the Mongo door. `shapes` are those of its documents, where somebody has looked already."""
    shapes = shapes_of(batch) if shapes is None else shapes
    changed: set[tuple[str, str]] = set()
    # Documents of one collection in a row are stored at once.
    waiting: list[tuple[bytes, bytes, int]] = []
    owner: Collection | None = None
    for index, (operation, key) in enumerate(zip(batch.operations, keys, strict=True)):
        database, name = operation.database, operation.collection
        if owner is not None:
            # Most batches have one collection: this is all that is done for most documents.
            if operation.document is not None and owner.name == name and owner.database == database:
                waiting.append((key, operation.document, hlc_first + index))
                continue
            state.put_all(owner, waiting)
            owner, waiting = None, []
        if name == COLLECTIONS:
            _describe(state, operation)
            continue
        collection = state.find(database, name)
        if collection is None:
            if operation.kind is Kind.DELETE:
                continue
            # A table of another door that was taken over after the store's position: its rows are read again.
            collection = state.describe(database, name, {**bare_description(name), UNLOADED: True})
        if (database, name) not in changed:
            changed.add((database, name))
            state.touched(collection, LogPosition(first + len(batch.operations) - 1))
            state.shaped(collection, shapes.get((database, name), ()))
        if operation.document is None:
            state.delete(collection, key)
            bury(state, collection, key, hlc_first + index)
        else:
            owner, waiting = collection, [(key, operation.document, hlc_first + index)]
    if owner is not None:
        state.put_all(owner, waiting)
    if batch.session is not None and batch.number is not None and batch.answers:
        state.answer(batch.session, batch.number, first, batch.answers, at_ms)


def shapes_of(batch: DocumentBatch) -> Shapes:
    """The shapes of a batch's documents, by collection."""
    found: Shapes = {}
    for operation in batch.operations:
        if operation.document is not None and operation.collection != COLLECTIONS:
            shapes = found.setdefault((operation.database, operation.collection), set())
            shapes.add(shape_of(decode_document(operation.document)))
    return found


def _describe(state: State, operation: DocumentOperation) -> None:
    database, name = operation.database, decode_document(operation.id)["_id"]
    if operation.document is None:
        state.drop(database, name)
        forget_untracked(state.db, table_of(database, name))
        return
    document = decode_document(operation.document)
    known = state.find(database, name)
    if known is not None and known.document.get(UNLOADED):
        document = {**document, UNLOADED: True}
    state.describe(database, name, document)


def bare_description(name: str) -> dict[str, Any]:
    """What is known of a collection that was not created by name: a table of another door, for one."""
    return {"_id": name, "options": {}, "indexes": [], "foreign": True}


def keys_of(batch: DocumentBatch) -> list[bytes]:
    """The documents' ids as ordered bytes, of a batch that was read from the log."""
    return [key_bytes(operation.key) for operation in batch.operations]


def apply_rows(state: State, past: Past) -> list[RowChange]:
    """Take over the rows that a batch of another door has for one table."""
    rows = past.rows
    assert rows is not None
    database, name = collection_of(rows.table)
    if not name or is_reserved(name):
        return []
    collection = state.find(database, name) or state.describe(database, name, bare_description(name))
    # Columns that another door wrote may be of any type, whatever the document made of them is.
    state.shaped(collection, None)
    state.touched(collection, LogPosition(rows.positions[-1]))
    changes = []
    for index, place in enumerate(zip(rows.positions, past.numbers, strict=True)):
        if rows.errors is not None and rows.errors[index] is not None:
            continue
        text = rows.columns[index]
        columns = {} if text is None else msgspec.json.decode(text)
        change = _apply_row(
            state, collection, rows.ops[index], rows.keys[index], columns, rows.hlcs[index], past.source, place
        )
        if change is not None:
            changes.append(change)
    return changes


def told_by(past: Past) -> Iterator[RowChange]:
    """The changes of rows that the store has not applied: of these only what they wrote is known."""
    rows = past.rows
    if rows is None:
        return
    database, collection = collection_of(rows.table)
    for index, place in enumerate(zip(rows.positions, past.numbers, strict=True)):
        if rows.errors is not None and rows.errors[index] is not None:
            continue
        text = rows.columns[index]
        columns = {} if text is None else msgspec.json.decode(text)
        operation = "insert" if rows.ops[index] == "read" else rows.ops[index]
        identity = id_of_key(rows.keys[index])
        after = encode_document({"_id": identity, **columns}) if operation == "insert" else None
        yield RowChange(database, collection, operation, identity, *place, rows.hlcs[index], after, None, columns)


def _apply_row(
    state: State,
    collection: Collection,
    op: str,
    row_key: str,
    columns: dict[str, Any],
    hlc: int,
    source: str,
    place: tuple[int, int],
) -> RowChange | None:
    key = key_bytes(row_key)
    stored = state.get(collection, key)
    identity = id_of_key(row_key)
    before = None if stored is None else stored.document
    if op == "delete":
        bury(state, collection, key, hlc, source)
        if stored is None or (stored.hlc, SOURCES) > (hlc, source):
            return None
        state.delete(collection, key)
        identity = decode_document(stored.document).get("_id", identity)
        return RowChange(collection.database, collection.name, "delete", identity, *place, hlc, None, before, {})
    columns = {column: bson_value(value) for column, value in columns.items() if column not in ("_id", DOCUMENT_COLUMN)}
    if stored is None:
        if is_buried(state, collection, key, hlc, source):
            return None
        document = {"_id": identity, **columns}
        clocks: Clocks = {}
        row_hlc = hlc
    else:
        document = decode_document(stored.document)
        identity = document.get("_id", identity)
        clocks = {} if stored.clocks is None else _clocks(stored.clocks)
        row_hlc = stored.hlc
        columns = {
            column: value for column, value in columns.items() if clocks.get(column, (row_hlc, SOURCES)) < (hlc, source)
        }
        document |= columns
        clocks |= dict.fromkeys(columns, (hlc, source))
    after = encode_document(document)
    state.put(collection, key, after, row_hlc, msgspec.msgpack.encode(clocks) if clocks else None)
    return RowChange(
        collection.database,
        collection.name,
        "insert" if stored is None else "update",
        identity,
        *place,
        hlc,
        after,
        before,
        columns,
    )


def bson_value(value: Any) -> Any:
    """A value of JSON as BSON can hold it."""
    if isinstance(value, bool) or not isinstance(value, int | dict | list):
        return value
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else str(value)
    if isinstance(value, dict):
        return {name.replace("\x00", ""): bson_value(item) for name, item in value.items()}
    return [bson_value(item) for item in value]
