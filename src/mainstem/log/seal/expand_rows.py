"""From rows that were posted (`wire/rows`) to the rows of a segment: JSON row by row, Arrow column by column."""

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from mainstem.log.frames import Buffer
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.model.errors import Corrupt
from mainstem.model.names import TableName
from mainstem.wire.rows import Mode, RowsHead, key_of_row, unpack
from mainstem.wire.rows_arrow import batches_of
from mainstem.wire.rows_arrow_values import column_types, json_texts, key_texts, not_finite

if TYPE_CHECKING:
    from mainstem.log.seal.expand import Expander, Rows

_OPS = {Mode.UPSERT: "update", Mode.APPEND: "insert", Mode.DELETE: "delete"}
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_objects = msgspec.json.Decoder(list[dict[str, Any]])
_to_json = msgspec.json.Encoder().encode


def expand_rows(expander: "Expander", header: BatchHeader, payload: Buffer, place: str) -> "list[Rows]":
    """The rows of one request: all of one table."""
    try:
        head, body = unpack(payload)
        if header.encoding is Encoding.ROWS_JSON:
            found = [_of_json(expander, header, head, body)]
        else:
            found = _of_arrow(expander, header, head, body)
        if head.metadata is not None:
            told = _to_json(head.metadata)
            for rows in found:
                rows.metadata = [told] * len(rows.ops)
    except (ValueError, KeyError, pa.ArrowException, msgspec.MsgspecError) as error:
        raise Corrupt(f"rows cannot be read. got={error}", place=place) from error
    count = sum(len(rows.ops) for rows in found)
    if count != header.count:
        raise Corrupt(f"rows in a batch. expected={header.count} got={count}", place=place)
    return found


def own_keys(header: BatchHeader, start: int, count: int) -> list[str]:
    """Keys for rows that have none of their own: in the order of the log, and never again the same."""
    first = header.hlc_first + start
    return [f"{first + index:016x}-{header.fingerprint:08x}" for index in range(count)]


def _of_json(expander: "Expander", header: BatchHeader, head: RowsHead, body: memoryview) -> "Rows":
    table = _table(head)
    raws = _raws.decode(body)
    count = len(raws)
    if head.mode is Mode.APPEND:
        keys = own_keys(header, 0, count)
    else:
        keys = [key_of_row(row, head.key) for row in _objects.decode(body)]
    if head.mode is Mode.DELETE:
        return _rows(header, table, head.mode, 0, count, keys=keys, columns=[None] * count)
    columns, errors, unjudged = expander.judge_json(table, raws, [])
    return _rows(header, table, head.mode, 0, count, keys=keys, columns=columns, errors=errors, unjudged=unjudged)


def _of_arrow(expander: "Expander", header: BatchHeader, head: RowsHead, body: memoryview) -> "list[Rows]":
    table = _table(head)
    found: list[Rows] = []
    start = 0
    for batch in batches_of(body):
        if batch.num_rows:
            try:
                rows = _of_batch(expander, header, head, table, batch, start)
            # Whatever it is: the batch is durable, and a seal that fails would fail for ever, for every table.
            except Exception as error:
                rows = _unreadable(header, head, table, batch.num_rows, start, error)
            found.append(rows)
            start += batch.num_rows
    return found


def _unreadable(
    header: BatchHeader, head: RowsHead, table: TableName, count: int, start: int, error: Exception
) -> "Rows":
    """Rows that cannot be written as text: each is a dead letter with the reason."""
    reason = f"the row cannot be written as JSON. {type(error).__name__}: {error}"[:500]
    keys = own_keys(header, start, count)
    return _rows(header, table, head.mode, start, count, keys=keys, columns=[None] * count, errors=[reason] * count)


def _of_batch(
    expander: "Expander", header: BatchHeader, head: RowsHead, table: TableName, batch: pa.RecordBatch, start: int
) -> "Rows":
    count = batch.num_rows
    if head.mode is Mode.APPEND:
        keys = pa.array(own_keys(header, start, count), pa.string())
    else:
        keys = key_texts(batch, head.key)
    errors: list[str | None] | None = None
    if head.mode is Mode.DELETE:
        texts = pa.nulls(count, pa.string())
    else:
        texts = json_texts(batch)
        bad = not_finite(batch)
        errors = [bad.get(index) for index in range(count)] if bad else None
        if bad:
            mask = np.ones(count, bool)
            mask[list(bad)] = False
            batch = batch.filter(pa.array(mask))
        if batch.num_rows:
            expander.shape(table).note(column_types(batch))
    if expander.takes_arrow:
        return _rows(header, table, head.mode, start, count, arrow=(keys, texts), errors=errors)
    columns = [None if text is None else text.encode() for text in texts.to_pylist()]
    return _rows(header, table, head.mode, start, count, keys=keys.to_pylist(), columns=columns, errors=errors)


def _rows(header: BatchHeader, table: TableName, mode: Mode, start: int, count: int, **more: Any) -> "Rows":
    from mainstem.log.seal.expand import Rows

    first, hlc = header.first + start, header.hlc_first + start
    return Rows(
        table=table,
        positions=range(first, first + count),
        hlcs=range(hlc, hlc + count),
        ops=[_OPS[mode]] * count,
        keys=more.get("keys", []),
        columns=more.get("columns", []),
        before=None,
        sequences=None,
        ids=None,
        source_times_ms=None,
        metadata=None,
        errors=more.get("errors"),
        unjudged=more.get("unjudged"),
        arrow=more.get("arrow"),
    )


def _table(head: RowsHead) -> TableName:
    namespace, _, table = head.table.rpartition(".")
    return TableName(namespace, table)
