"""One change as a feed hands it out, and how it is made from what the log and the tables hold."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from mainstem.feeds.columns import KnownColumns
from mainstem.feeds.fitting import Columns, first_misfit
from mainstem.log.seal.expand import Rows
from mainstem.model.position import LogPosition
from mainstem.wire.checkpoints import split_columns
from mainstem.wire.sync import ColumnDelta, Op, RowDelta, encode_delta, response_delta

_OPS = {"insert": Op.INSERT, "read": Op.INSERT, "update": Op.UPDATE, "delete": Op.DELETE}


class Entry(NamedTuple):
    """A change at its place in the log. `encoded` is the delta as it stands in a response."""

    position: LogPosition
    table: str
    row_id: str
    client_id: str
    encoded: bytes


class StoredChange(NamedTuple):
    """A change as a segment or a history table has it: columns as JSON text."""

    position: int
    hlc: int
    table: str
    op: str
    key: str
    columns: str | bytes | None
    source: str
    id: str | None


def entry_of(position: int, delta: RowDelta) -> Entry:
    """A delta at its place."""
    return Entry(LogPosition(position), delta.table, delta.row_id, delta.client_id, encode_delta(delta))


def entries_of_parts(first: LogPosition, deltas: Sequence[RowDelta], parts: Sequence[bytes]) -> list[Entry]:
    """A batch of deltas that begins at a position, passed on as they were pushed."""
    return [
        Entry(LogPosition(first + index), delta.table, delta.row_id, delta.client_id, response_delta(part))
        for index, (delta, part) in enumerate(zip(deltas, parts, strict=True))
    ]


def entries_of_stored(
    changes: Iterable[StoredChange], declared: Mapping[str, Columns], known: KnownColumns | None = None
) -> Iterator[Entry]:
    """Changes read back. What its table has as a dead letter is passed over: what cannot be a row, what does not fit
    the declared types, given by table, and what has a column that its table refuses."""
    for change in changes:
        delta = delta_of_stored(change)
        if delta is None or (known is not None and known.refusal(delta.table, delta.columns) is not None):
            continue
        columns = declared.get(change.table)
        if columns and first_misfit(delta.columns, columns) is not None:
            continue
        yield entry_of(change.position, delta)


def columns_of_changes(changes: Iterable[StoredChange]) -> Iterator[tuple[str, LogPosition, tuple[str, ...]]]:
    """The columns that each change has, as `KnownColumns.learn` is told of them."""
    for change in changes:
        delta = delta_of_stored(change)
        if delta is not None:
            yield delta.table, LogPosition(change.position), tuple([each.column for each in delta.columns])


def delta_of_stored(change: StoredChange) -> RowDelta | None:
    """The delta that a stored change was, or would have been through the sync door."""
    op = _OPS[change.op]
    columns: tuple[ColumnDelta, ...] = ()
    if op is not Op.DELETE:
        try:
            written = split_columns(change.columns)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        columns = tuple([ColumnDelta(name, value) for name, value in written.items()])
    return RowDelta(
        op=op,
        table=change.table,
        row_id=change.key,
        columns=columns,
        hlc=change.hlc,
        client_id=change.source,
        delta_id=change.id or "",
    )


def changes_of_rows(rows: Rows, source: str) -> Iterator[StoredChange]:
    """The rows that one batch has for one table, without those that are dead letters."""
    for index, position in enumerate(rows.positions):
        if rows.errors is not None and rows.errors[index] is not None:
            continue
        yield StoredChange(
            position,
            rows.hlcs[index],
            rows.table.table,
            rows.ops[index],
            rows.keys[index],
            rows.columns[index],
            source,
            None if rows.ids is None else rows.ids[index],
        )
