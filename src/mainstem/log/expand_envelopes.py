"""From Debezium's envelopes to the rows that they tell of (`Mode.DEBEZIUM`).

The table is the topic's, whatever an envelope says of its source: a connector has a topic per table. What is no
envelope is a dead letter of that table; the record itself is kept all the same, in the records' table.
"""

from collections.abc import Sequence

import msgspec

from mainstem.log.expand import Rows
from mainstem.log.shapes import Shape, row_error
from mainstem.model.batch import BatchHeader
from mainstem.model.change import Operation
from mainstem.model.errors import Invalid
from mainstem.model.names import TableName
from mainstem.wire.debezium import Tombstone, decode_message
from mainstem.wire.kafka.opening import Record

_to_json = msgspec.json.Encoder().encode


def envelope_rows(shape: Shape, header: BatchHeader, table: TableName, records: Sequence[Record]) -> list[Rows]:
    """One row per envelope; a tombstone has none: the delete came before it."""
    rows = Rows(
        table=table,
        positions=[],
        hlcs=[],
        ops=[],
        keys=[],
        columns=[],
        before=[],
        sequences=None,
        ids=None,
        source_times_ms=[],
        metadata=None,
        errors=[],
    )
    positions: list[int] = []
    hlcs: list[int] = []
    assert rows.before is not None and rows.source_times_ms is not None and rows.errors is not None
    for index, record in enumerate(records):
        error: str | None = None
        try:
            change = decode_message(record.value, record.key, topic=table.table, source=header.source)
        except Invalid as refused:
            change, error = None, f"no envelope. {refused}"
        if isinstance(change, Tombstone):
            continue
        positions.append(header.first + index)
        hlcs.append(header.hlc_first + index)
        rows.errors.append(error)
        if change is None:
            rows.ops.append(str(Operation.INSERT))
            rows.keys.append(str(header.first + index))
            rows.columns.append(_to_json({"value": (record.value or b"").decode("utf-8", "replace")}))
            rows.before.append(None)
            rows.source_times_ms.append(None)
            continue
        is_delete = change.operation is Operation.DELETE
        if not is_delete:
            rows.errors[-1] = error = row_error(change.columns)
            if error is None:
                shape.learn([change.columns or {}])
        rows.ops.append(str(change.operation))
        rows.keys.append(change.key)
        rows.columns.append(None if is_delete else _to_json(change.columns))
        rows.before.append(None if change.before is None else _to_json(change.before))
        rows.source_times_ms.append(change.source_time_ms)
    if not positions:
        return []
    rows.positions, rows.hlcs = positions, hlcs
    if not any(rows.errors):
        rows.errors = None
    return [rows]
