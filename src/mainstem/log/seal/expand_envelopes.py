"""From Debezium's envelopes to the rows that they tell of: those of a topic (`Mode.DEBEZIUM`), and those that its
server posts (`Encoding.ENVELOPE`).

A topic's rows are of the topic's table, whatever an envelope says of its source: a connector has a topic per table.
What is no envelope is a dead letter of that table; the record itself is kept all the same, in the records' table.
"""

from collections.abc import Callable, Sequence

import msgspec

from mainstem.log.frames import Buffer
from mainstem.log.seal.expand import Rows
from mainstem.log.seal.shapes import KnownNames, Shape, row_error
from mainstem.model.batch import BatchHeader
from mainstem.model.change import Operation
from mainstem.model.errors import Corrupt, Invalid
from mainstem.model.names import TableName
from mainstem.wire import debezium_posts
from mainstem.wire.debezium import Event, Tombstone, decode_event
from mainstem.wire.kafka.opening import Record

_to_json = msgspec.json.Encoder().encode


def envelope_rows(shape: Shape, header: BatchHeader, table: TableName, records: Sequence[Record]) -> list[Rows]:
    """One row per envelope; a tombstone has none: the delete came before it."""
    built = _Building(table, shape)
    for index, record in enumerate(records):
        try:
            event = decode_event(record.value, record.key, topic=table.table, source=header.source)
        except Invalid as refused:
            built.add_unreadable(header, index, record.value or b"", f"no envelope. {refused}")
            continue
        if not isinstance(event, Tombstone):
            built.add(header, index, event)
    return built.rows()


def posted_rows(shape_of: Callable[[TableName], Shape], header: BatchHeader, payload: Buffer, place: str) -> list[Rows]:
    """The row of an event that was posted. The door has read it before; what cannot be read now is bad bytes."""
    try:
        head, text = debezium_posts.unpack(payload)
        if head.is_truncate:
            return []
        event = debezium_posts.read(text, head)
    except (Invalid, ValueError, msgspec.MsgspecError) as error:
        raise Corrupt(f"an event cannot be read. got={error}", place=place) from error
    table = TableName(event.change.namespace, event.change.table)
    built = _Building(table, shape_of(table))
    built.add(header, 0, event)
    return built.rows()


class _Building:
    """The rows of one table, as they are read."""

    def __init__(self, table: TableName, shape: Shape) -> None:
        self._table = table
        self._shape = shape
        self._positions: list[int] = []
        self._hlcs: list[int] = []
        self._ops: list[str] = []
        self._keys: list[str] = []
        self._columns: list[bytes | None] = []
        self._before: list[bytes | None] = []
        self._times: list[int | float | None] = []
        self._metadata: list[bytes | None] = []
        self._errors: list[str | None] = []
        self._names: KnownNames = {}

    def add(self, header: BatchHeader, index: int, event: Event) -> None:
        change = event.change
        error = None
        is_delete = change.operation is Operation.DELETE
        if not is_delete:
            error = row_error(change.columns, self._names)
            if error is None:
                self._shape.learn([change.columns or {}])
                self._shape.declare(event.types)
        self._place(header, index, str(change.operation), change.key, error)
        self._columns.append(None if is_delete else _to_json(change.columns))
        self._before.append(None if change.before is None else _to_json(change.before))
        self._times.append(change.source_time_ms)
        self._metadata.append(None if change.metadata is None else _to_json(change.metadata))

    def add_unreadable(self, header: BatchHeader, index: int, value: bytes, error: str) -> None:
        """What is no envelope, with why."""
        self._place(header, index, str(Operation.INSERT), str(header.first + index), error)
        self._columns.append(_to_json({"value": value.decode("utf-8", "replace")}))
        self._before.append(None)
        self._times.append(None)
        self._metadata.append(None)

    def rows(self) -> list[Rows]:
        """All of them; none where there is none."""
        if not self._positions:
            return []
        return [
            Rows(
                table=self._table,
                positions=self._positions,
                hlcs=self._hlcs,
                ops=self._ops,
                keys=self._keys,
                columns=self._columns,
                before=self._before,
                sequences=None,
                ids=None,
                source_times_ms=self._times,
                metadata=self._metadata,
                errors=self._errors if any(self._errors) else None,
            )
        ]

    def _place(self, header: BatchHeader, index: int, op: str, key: str, error: str | None) -> None:
        self._positions.append(header.first + index)
        self._hlcs.append(header.hlc_first + index)
        self._ops.append(op)
        self._keys.append(key)
        self._errors.append(error)
