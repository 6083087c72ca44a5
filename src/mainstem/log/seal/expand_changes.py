"""From batches of typed changes to rows: a door's own changes, MongoDB's operations, deltas of sync clients."""

from typing import TYPE_CHECKING

import msgspec

from mainstem.log.frames import Buffer
from mainstem.log.seal.expand import DELETED, Rows, check_count, judge_rows, shifted
from mainstem.model.batch import BatchHeader
from mainstem.model.change import Change, Operation
from mainstem.model.errors import Corrupt, Invalid
from mainstem.model.names import TableName
from mainstem.wire.mongo.batches import (
    DOCUMENT_OPERATIONS,
    DOCUMENTS,
    DocumentBatch,
    KnownNames,
    columns_of,
    decode_batch,
    metadata_of,
    table_of,
)
from mainstem.wire.sync import Op, RowDelta, decode_push

if TYPE_CHECKING:
    from mainstem.log.seal.expand import Expander

# Sources of the Kafka door: what it notes of itself is of a kind of its own. (`tables.kinds.INTERNAL`, which this layer
# does not know.)
_TOPICS_SOURCE = "kafka/"
INTERNAL = "internal"
_changes = msgspec.msgpack.Decoder(list[Change])
_to_json = msgspec.json.Encoder().encode
# For rows with texts that know their type (`model.typed_text`): a subclass of `str` is not written by itself.
_typed_to_json = msgspec.json.Encoder(enc_hook=str).encode
_DELTA_OPS: dict[int, str] = {Op.INSERT: "insert", Op.UPDATE: "update", Op.DELETE: "delete"}


def expand_changes(expander: "Expander", header: BatchHeader, payload: Buffer, place: str) -> list[Rows]:
    """Changes that a door made: of several tables."""
    try:
        changes = _changes.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Corrupt(f"changes cannot be read. got={error}", place=place) from error
    check_count(header, len(changes), place)
    places: dict[TableName, list[int]] = {}
    for index, change in enumerate(changes):
        places.setdefault(TableName(change.namespace, change.table), []).append(index)
    return [
        _change_rows(expander, header, table, indexes, [changes[index] for index in indexes])
        for table, indexes in places.items()
    ]


def _change_rows(
    expander: "Expander", header: BatchHeader, table: TableName, indexes: list[int], changes: list[Change]
) -> Rows:
    rows = [DELETED if change.operation is Operation.DELETE else change.columns for change in changes]
    return Rows(
        table=table,
        positions=shifted(indexes, header.first),
        hlcs=[
            header.hlc_first + index if change.hlc is None else change.hlc
            for index, change in zip(indexes, changes, strict=True)
        ],
        ops=[str(change.operation) for change in changes],
        keys=[change.key for change in changes],
        columns=[None if row is DELETED else _to_json(row) for row in rows],
        before=[None if change.before is None else _to_json(change.before) for change in changes],
        sequences=[change.sequence for change in changes],
        ids=[change.id for change in changes],
        source_times_ms=[change.source_time_ms for change in changes],
        metadata=[None if change.metadata is None else _to_json(change.metadata) for change in changes],
        errors=judge_rows(expander.shape(table), rows),
        kind=INTERNAL if header.source.startswith(_TOPICS_SOURCE) else "",
    )


def expand_documents(expander: "Expander", header: BatchHeader, payload: Buffer, place: str) -> list[Rows]:
    """What one command or transaction of MongoDB's did."""
    batch = decode_batch(payload, place)
    check_count(header, len(batch.operations), place)
    places: dict[TableName, list[int]] = {}
    for index, operation in enumerate(batch.operations):
        places.setdefault(table_of(operation.database, operation.collection), []).append(index)
    return [_document_rows(expander, header, table, indexes, batch) for table, indexes in places.items()]


def _document_rows(
    expander: "Expander", header: BatchHeader, table: TableName, indexes: list[int], batch: DocumentBatch
) -> Rows:
    operations = [batch.operations[index] for index in indexes]
    known: KnownNames = {}
    rows = [DELETED if operation.document is None else columns_of(operation, known) for operation in operations]
    return Rows(
        table=table,
        positions=shifted(indexes, header.first),
        hlcs=shifted(indexes, header.hlc_first),
        ops=[DOCUMENT_OPERATIONS[operation.kind] for operation in operations],
        keys=[operation.key for operation in operations],
        columns=[None if row is DELETED else _typed_to_json(row) for row in rows],
        before=None,
        sequences=None,
        ids=None,
        source_times_ms=None,
        metadata=[*metadata_of(batch, indexes)],
        errors=judge_rows(expander.shape(table), rows),
        kind=DOCUMENTS,
    )


def expand_deltas(expander: "Expander", header: BatchHeader, payload: Buffer, place: str) -> list[Rows]:
    """What one client pushed into one namespace."""
    namespace, _, push = bytes(payload).partition(b"\0")
    try:
        deltas = decode_push(push).deltas
    except Invalid as error:
        raise Corrupt(f"deltas cannot be read. got={error}", place=place) from error
    check_count(header, len(deltas), place)
    places: dict[str, list[int]] = {}
    for index, delta in enumerate(deltas):
        places.setdefault(delta.table, []).append(index)
    return [
        _delta_rows(
            expander, header, TableName(namespace.decode(), table), indexes, [deltas[index] for index in indexes]
        )
        for table, indexes in places.items()
    ]


def _delta_rows(
    expander: "Expander", header: BatchHeader, table: TableName, indexes: list[int], deltas: list[RowDelta]
) -> Rows:
    texts = [b"" if delta.op == Op.DELETE else delta_columns(delta) for delta in deltas]
    deletes = [index for index, delta in enumerate(deltas) if delta.op == Op.DELETE]
    columns, errors, unjudged = expander.judge_json(table, texts, deletes)
    return Rows(
        table=table,
        positions=shifted(indexes, header.first),
        hlcs=[delta.hlc for delta in deltas],
        ops=[_DELTA_OPS[delta.op] for delta in deltas],
        keys=[delta.row_id for delta in deltas],
        columns=columns,
        before=None,
        sequences=None,
        ids=[delta.delta_id for delta in deltas],
        source_times_ms=None,
        metadata=None,
        errors=errors,
        unjudged=unjudged,
    )


def delta_columns(delta: RowDelta) -> bytes:
    """A delta's columns as one JSON object, each value in the text that its writer sent."""
    return b"{%b}" % b",".join([b"%b:%b" % (_to_json(each.column), each.value) for each in delta.columns])
