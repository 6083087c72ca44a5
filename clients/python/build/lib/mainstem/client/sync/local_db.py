"""The local copy: rows that the app reads and writes at once, and the queue of what the server has not seen.

Owns the transactions and tells the app what changed. It never talks to a server.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
from msgspec.structs import replace

from mainstem.client.closing import Closing
from mainstem.client.sync import replica
from mainstem.client.sync.live import LiveQuery, Watch
from mainstem.client.sync.records import DeadLetter, MergedMark, State
from mainstem.client.sync.replica import Effects, LocalWrite, RowKey
from mainstem.client.sync.schema import ColumnType, Table, check_tables
from mainstem.client.sync.signal import Signal
from mainstem.client.sync.store import Store, Transaction
from mainstem.model.errors import Invalid
from mainstem.model.hlc import Hlc
from mainstem.runtime.clock import Clock, SystemClock
from mainstem.wire.sync import RowDelta, SyncResponse

QUEUE_MAX = 100_000
# Beyond this many rows a change is told as "the table changed".
CHANGED_IDS_MAX = 1_000

T = TypeVar("T")


class RowView(msgspec.Struct, frozen=True):
    """A row as the app sees it."""

    row_id: str
    values: dict[str, Any]
    # Whether edits of this row wait for the server.
    pending: bool = False
    merged: MergedMark | None = None


class Changed(msgspec.Struct, frozen=True):
    """Rows that changed, by table; None means "any row of the table". `local`: by a write of the app."""

    rows: dict[str, frozenset[str] | None]
    local: bool


class Merged(msgspec.Struct, frozen=True):
    """Someone else's change met an edit made here."""

    table: str
    row_id: str
    mark: MergedMark


class LocalDB(Closing):
    """A local database, safe to use from several threads.

        db = LocalDB.open("todos.db", tables=[Table("todos", {"title": "text", "done": "boolean"})])
        db.query("SELECT _key, title FROM todos WHERE NOT done ORDER BY title")

    Writes go through a `SyncTracker`.
    """

    def __init__(self, store: Store, client_id: str, *, clock: Clock, queue_max: int) -> None:
        self.client_id = client_id
        self.clock = clock
        self.changed: Signal[Changed] = Signal()
        self.merged: Signal[Merged] = Signal()
        self._store = store
        self._queue_max = queue_max

    @classmethod
    def open(
        cls,
        path: str | Path | Store,
        *,
        tables: Iterable[Table] = (),
        client_id: str | None = None,
        queue_max: int = QUEUE_MAX,
        clock: Clock | None = None,
    ) -> Self:
        """Open or make a database; `":memory:"` keeps nothing.

        `tables` are made, or get the columns that they lack. `client_id` says who writes: a random one by default; with
        tokens it must be the token's subject. `queue_max` bounds the deltas that may wait before writes are refused.
        """
        declared = check_tables(tables)
        store = path if isinstance(path, Store) else Store(path)
        try:
            with store.transaction(strict=True) as transaction:
                named = _identify(transaction, client_id)
            store.migrate(declared)
        except BaseException:
            store.close()
            raise
        return cls(store, named, clock=clock or SystemClock(), queue_max=queue_max)

    def close(self) -> None:
        """Close the file. What was written stays."""
        self._store.close()

    # Reading.

    def columns(self, table: str) -> Mapping[str, ColumnType] | None:
        """The columns of a table that can be read by SQL; None where it was not declared."""
        writer = self._store.tables.get(table)
        return writer.columns if writer else None

    def query(self, sql: str, parameters: Any = ()) -> list[dict[str, Any]]:
        """The rows that a SELECT over the declared tables gives. A boolean is 0 or 1, a JSON column is text."""
        return self._store.query(sql, parameters)

    def live(self, sql: str, parameters: Any = ()) -> LiveQuery:
        """A query that knows when its answer may have changed; iterate over it, or ask it for its rows."""
        return LiveQuery(self, self._store.tables_read(sql, parameters), sql, parameters)

    def watch(self, sql: str, listener: Callable[[list[dict[str, Any]]], object], parameters: Any = ()) -> Watch:
        """Call the listener with the query's rows now and whenever they changed, in a thread of its own. Changes that
        come faster than the listener returns are told together."""
        return Watch(self.live(sql, parameters), listener)

    def get(self, table: str, row_id: str) -> RowView | None:
        """One row, with its exact JSON values; of any table that was synced, declared or not."""
        with self._store.reading() as reading:
            record = reading.row(table, row_id)
            if record is None or not record.row.visible:
                return None
            touched = reading.touched(table, row_id)
            return RowView(row_id, record.row.values(), bool(touched and touched.pending), record.merged)

    def all(self, table: str) -> list[RowView]:
        """The rows of a table that are there, by id."""
        with self._store.reading() as reading:
            pending = reading.touched_pending(table)
            return [
                RowView(row_id, record.row.values(), pending.get(row_id, 0) > 0, record.merged)
                for row_id, record in reading.rows(table)
                if record.row.visible
            ]

    def state(self) -> State:
        """Clock, cursor, and how much waits."""
        with self._store.reading() as reading:
            return replica.read_state(reading)

    # Writing: for SyncTracker.

    def write(self, writes: Sequence[LocalWrite]) -> list[RowDelta | None]:
        """All of the writes or none. The deltas that they made, in their order; None where nothing changed."""
        now_ms = self.clock.now_ms()
        return self._transact(
            lambda transaction, effects: replica.record_local(transaction, writes, now_ms, self._queue_max, effects),
            local=True,
            strict=True,
        )

    # What the server refused.

    def dead_letters(self) -> list[DeadLetter]:
        """The deltas that the server refused for good, oldest first."""
        with self._store.reading() as reading:
            return reading.dead_letters()

    def retry_dead_letter(self, delta_id: str) -> bool:
        """Queue a dead letter again, as it is. Whether it was there."""
        return self._transact(lambda *given: replica.revive(given[0], delta_id, given[1]), local=True, strict=True)

    def discard_dead_letter(self, delta_id: str) -> bool:
        """Give a dead letter up: its row goes back to what the server has, with the next sync."""
        return self._transact(lambda *given: replica.discard(given[0], delta_id, given[1]), local=True, strict=True)

    def dismiss_merged(self, table: str, row_id: str) -> None:
        """Take the merge mark off a row that the person has looked at."""

        def body(transaction: Transaction, effects: Effects) -> None:
            record = transaction.row(table, row_id)
            if record is not None and record.merged is not None:
                transaction.put_row(table, row_id, record.row)
                effects.changed(table, row_id)

        self._transact(body)

    # For SyncCoordinator.

    def queued(self, limit: int) -> list[RowDelta]:
        """The oldest deltas that wait."""
        with self._store.reading() as reading:
            return reading.queued(limit)

    def acknowledge(self, deltas: Sequence[RowDelta]) -> int:
        """The server has these."""
        return self._transact(lambda *given: replica.acknowledge(given[0], deltas, given[1]))

    def bury(self, delta: RowDelta, reason: str, message: str) -> None:
        """The server refused this one for good."""
        letter = DeadLetter(delta, reason, message, self.clock.now_ms())
        self._transact(lambda *given: replica.bury(given[0], letter, given[1]), strict=True)

    def restamp(self, server_hlc: Hlc) -> int:
        """The server refused our clock. How many deltas were stamped again."""
        now_ms = self.clock.now_ms()
        return self._transact(lambda *given: replica.restamp(given[0], server_hlc, now_ms, given[1]), strict=True)

    def apply_page(self, page: SyncResponse, *, settles: bool) -> bool:
        """Apply what follows our cursor. False, and nothing done, where it does not."""
        return self._transact(lambda *given: replica.apply_page(given[0], page, settles, given[1]))

    def row_keys(self) -> set[RowKey]:
        """Table and id of every row, deleted ones too."""
        with self._store.reading() as reading:
            return reading.row_keys()

    def apply_checkpoint_piece(self, piece: SyncResponse, fresh: set[RowKey]) -> None:
        """Apply a part of the first sync."""
        self._transact(lambda *given: replica.apply_checkpoint_piece(given[0], piece, fresh, given[1]))

    def finish_checkpoint(self, cursor: int, missing: set[RowKey]) -> None:
        """The first sync's checkpoint is whole; `missing` are the rows from before that it has not."""
        self._transact(lambda *given: replica.finish_checkpoint(given[0], cursor, missing, given[1]))

    def reset_cursor(self) -> None:
        """Go back to before the first sync: the next one begins with a checkpoint."""
        with self._store.transaction(strict=False) as transaction:
            transaction.put_state(replace(replica.read_state(transaction), cursor=0))

    def _transact(self, body: Callable[[Transaction, Effects], T], *, local: bool = False, strict: bool = False) -> T:
        effects = Effects()
        with self._store.transaction(strict=strict) as transaction:
            result = body(transaction, effects)
        if effects.rows:
            rows = {
                table: None if len(ids) > CHANGED_IDS_MAX else frozenset(ids) for table, ids in effects.rows.items()
            }
            self.changed.emit(Changed(rows, local))
        for table, row_id, mark in effects.merges:
            self.merged.emit(Merged(table, row_id, mark))
        return result


def _identify(transaction: Transaction, client_id: str | None) -> str:
    state = transaction.state()
    if state is not None and client_id in {None, state.client_id}:
        return state.client_id
    if state is not None and (state.pending or state.dead):
        raise Invalid(
            f"edits of another client wait here. expected={state.client_id} got={client_id}", reason="client_id_changed"
        )
    named = client_id or str(uuid.uuid4())
    transaction.put_state(replace(state, client_id=named) if state else State(named))
    return named
