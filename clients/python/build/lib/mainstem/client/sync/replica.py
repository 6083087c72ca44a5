"""What may happen to the local copy, each as one body of a transaction.

No I/O of its own and no events: `LocalDB` runs these and tells the app. Every body leaves the store in a state that a
crash right after it may keep. The twin of the TypeScript client's `replica.ts`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from mainstem.client.sync.records import DeadLetter, MergedMark, RowRecord, State, Touched
from mainstem.client.sync.store import Transaction
from mainstem.client.sync.values import json_text
from mainstem.model.errors import Corrupt, Overloaded
from mainstem.model.hlc import DRIFT_MS_MAX, Hlc, HlcClock, wall_ms
from mainstem.model.merge import EMPTY, Cell, Row, Stamp, join
from mainstem.wire.sync import ColumnDelta, Op, RowDelta, SyncResponse, delta_id, parse_value

RowKey = tuple[str, str]


class LocalWrite(msgspec.Struct, frozen=True):
    """A write that the app asks for. A DELETE has no columns."""

    op: Op
    table: str
    row_id: str
    columns: Mapping[str, Any] = {}


class Effects:
    """The rows that a transaction changed, and the merges that it made."""

    def __init__(self) -> None:
        self.rows: dict[str, set[str]] = {}
        self.merges: list[tuple[str, str, MergedMark]] = []

    def changed(self, table: str, row_id: str) -> None:
        """A reader sees this row differently now."""
        self.rows.setdefault(table, set()).add(row_id)


def read_state(transaction: Transaction) -> State:
    """The state that every opened database has."""
    state = transaction.state()
    if state is None:
        raise Corrupt("the local database has no state", place="_mainstem_state")
    return state


def delta_row(delta: RowDelta) -> Row:
    """The row that one delta makes on its own."""
    stamp = Stamp(Hlc(delta.hlc), delta.client_id)
    if delta.op == Op.DELETE:
        return Row(tombstone=stamp)
    return Row(cells={each.column: Cell(stamp, parse_value(each.value)) for each in delta.columns})


# Writes of the app.


def record_local(
    transaction: Transaction, writes: Sequence[LocalWrite], now_ms: int, queue_max: int, effects: Effects
) -> list[RowDelta | None]:
    """Stamp and queue writes. A write that changes nothing makes no delta; the answer says which ones did."""
    state = read_state(transaction)
    made: list[RowDelta | None] = []
    for write in writes:
        stored = transaction.row(write.table, write.row_id)
        row = stored.row if stored else EMPTY
        columns = _changed_columns(write, row)
        if columns is None:
            made.append(None)
            continue
        if state.pending >= queue_max:
            raise Overloaded(f"the queue is full. expected=at most {queue_max} waiting deltas", retry_after_s=1.0)
        clock = HlcClock(state.clock)
        delta = _with_id(
            RowDelta(
                op=write.op,
                table=write.table,
                row_id=write.row_id,
                columns=columns,
                hlc=clock.tick(now_ms + state.offset_ms),
                client_id=state.client_id,
            )
        )
        state = replace(state, clock=clock.last, pending=state.pending + 1)
        transaction.enqueue(delta)
        transaction.put_row(write.table, write.row_id, join(row, delta_row(delta)))
        _touch(transaction, delta, 1)
        effects.changed(write.table, write.row_id)
        made.append(delta)
    transaction.put_state(state)
    return made


def _changed_columns(write: LocalWrite, row: Row) -> tuple[ColumnDelta, ...] | None:
    if write.op == Op.DELETE:
        return () if row.visible else None
    if write.op == Op.UPDATE and not row.visible:
        return None
    columns = []
    for name, value in write.columns.items():
        text = json_text(value)
        cell = row.cells.get(name)
        if write.op == Op.UPDATE and cell is not None and json_text(cell.value) == text:
            continue
        columns.append(ColumnDelta(name, text))
    return tuple(columns) or None


# What comes from the server.


def apply_page(transaction: Transaction, page: SyncResponse, settles: bool, effects: Effects) -> bool:
    """Apply a page of deltas that follows our cursor, and move the cursor with it.

    False, and nothing done, if the page does not start at the cursor: someone else was faster, or a broadcast was lost;
    the caller pulls. `settles` says that the page ends a pull that began after the last push.
    """
    state = read_state(transaction)
    if page.since_hlc != state.cursor or page.server_hlc < state.cursor:
        return False
    state = _apply_deltas(transaction, page.deltas, state, effects, fresh=frozenset())
    if state.unconfirmed:
        state = _confirm(transaction, page, state, settles, effects)
    if settles:
        for table, row_id in transaction.settle():
            effects.changed(table, row_id)
    transaction.put_state(replace(state, cursor=page.server_hlc))
    return True


def _confirm(transaction: Transaction, page: SyncResponse, state: State, settles: bool, effects: Effects) -> State:
    """What neither the checkpoint nor the pull after it has is not ours to see: of such rows our own edits are left."""
    told = {(delta.table, delta.row_id) for delta in page.deltas}
    left = tuple(key for key in state.unconfirmed if key not in told)
    if not settles:
        return replace(state, unconfirmed=left)
    for key in left:
        stored = transaction.row(*key)
        if stored is not None:
            _keep(transaction, key, stored, _own_row(transaction, *key), stored.merged, effects)
    return replace(state, unconfirmed=())


def apply_checkpoint_piece(
    transaction: Transaction, piece: SyncResponse, fresh: frozenset[RowKey] | set[RowKey], effects: Effects
) -> None:
    """Apply one piece of a checkpoint. The cursor stays: a checkpoint that breaks off is begun again.

    `fresh` has the keys of rows that neither this copy nor an earlier piece had when the checkpoint began: they need
    not be read. Rows that the app writes meanwhile are read all the same.
    """
    transaction.put_state(_apply_deltas(transaction, piece.deltas, read_state(transaction), effects, fresh))


def finish_checkpoint(transaction: Transaction, cursor: int, missing: set[RowKey], effects: Effects) -> None:
    """A whole checkpoint is in: the rows that this copy had and the checkpoint has not are gone, unless they hold edits
    that still wait, or that the server has only just taken: a checkpoint may be older than they are, and then the pull
    that follows brings them."""
    state = read_state(transaction)
    refused = {(letter.delta.table, letter.delta.row_id) for letter in transaction.dead_letters()}
    own = missing & (refused | transaction.touched_keys())
    for table, row_id in missing - own:
        transaction.remove_row(table, row_id)
        effects.changed(table, row_id)
    transaction.put_state(replace(state, cursor=cursor, unconfirmed=tuple(sorted(own))))


def _apply_deltas(
    transaction: Transaction,
    deltas: Iterable[RowDelta],
    state: State,
    effects: Effects,
    fresh: frozenset[RowKey] | set[RowKey],
) -> State:
    observed = state.observed
    groups: dict[RowKey, list[RowDelta]] = {}
    for delta in deltas:
        observed = max(observed, Hlc(delta.hlc))
        groups.setdefault((delta.table, delta.row_id), []).append(delta)
    touched = transaction.touched_keys()
    # Rows that this copy does not have yet; a checkpoint evicts nothing. Most were written once, and need no merge.
    written, merged = [], []
    for key, group in groups.items():
        if key in touched:
            _apply_to_touched_row(transaction, group, state.client_id, effects)
        elif key not in fresh:
            _apply_to_row(transaction, group, effects)
        else:
            if len(group) == 1 and group[0].columns:
                written.append(group[0])
            else:
                merged.append((*key, _merged(group, EMPTY), None))
            effects.changed(*key)
    transaction.put_rows(merged)
    transaction.put_written(written)
    return replace(state, observed=observed, clock=max(observed, state.clock))


def _apply_to_row(transaction: Transaction, deltas: Sequence[RowDelta], effects: Effects) -> None:
    """A row without edits of ours that wait."""
    table, row_id = deltas[0].table, deltas[0].row_id
    stored = transaction.row(table, row_id)
    evicted = max((index for index, delta in enumerate(deltas) if delta.op == Op.EVICT), default=-1)
    # Refused edits are ours too, and outlive the pulls that follow them.
    base = (stored.row if stored else None) if evicted < 0 else _own_row(transaction, table, row_id)
    rest = deltas[evicted + 1 :]
    row = _merged(rest, base or EMPTY) if rest else base
    _keep(transaction, (table, row_id), stored, row, stored.merged if stored else None, effects)


def _apply_to_touched_row(
    transaction: Transaction, deltas: Sequence[RowDelta], client_id: str, effects: Effects
) -> None:
    """A row edited here: what others did to it is marked for the person to see."""
    table, row_id = deltas[0].table, deltas[0].row_id
    stored = transaction.row(table, row_id)
    touched = transaction.touched(table, row_id) or Touched()
    row, mark = (stored.row, stored.merged) if stored else (None, None)
    for delta in deltas:
        if delta.op == Op.EVICT:
            row = _own_row(transaction, table, row_id)
            continue
        before = row or EMPTY
        row = join(before, delta_row(delta))
        if delta.client_id != client_id and not _has(before, delta):
            mark = _mark_of(delta, touched, row, mark)
    _keep(transaction, (table, row_id), stored, row, mark, effects)


def _keep(
    transaction: Transaction,
    key: RowKey,
    stored: RowRecord | None,
    row: Row | None,
    mark: MergedMark | None,
    effects: Effects,
) -> None:
    """Store a row and its mark if either differs from what is stored."""
    before = stored or RowRecord(EMPTY)
    marked = mark is not None and mark != before.merged
    if row == (before.row if stored else None) and not marked:
        return
    if marked and mark is not None:
        effects.merges.append((*key, mark))
    if row is None:
        transaction.remove_row(*key)
    else:
        transaction.put_row(*key, row, mark)
    effects.changed(*key)


def _merged(deltas: Sequence[RowDelta], onto: Row) -> Row:
    if len(deltas) == 1 and onto is EMPTY:
        return delta_row(deltas[0])
    for delta in deltas:
        onto = join(onto, delta_row(delta))
    return onto


def _own_row(transaction: Transaction, table: str, row_id: str) -> Row | None:
    """The row that our own waiting and refused edits make: what is left when the server's view of it goes."""
    own = transaction.own_deltas(table, row_id)
    return _merged(own, EMPTY) if own else None


def _has(row: Row, delta: RowDelta) -> bool:
    """Whether a row visibly has this very write already: then it comes a second time, and nothing meets."""
    stamp = Stamp(Hlc(delta.hlc), delta.client_id)
    if row.tombstone == stamp:
        return True
    return any((cell := row.cells.get(column.column)) and cell.stamp == stamp for column in delta.columns)


def _mark_of(delta: RowDelta, touched: Touched, after: Row, before: MergedMark | None) -> MergedMark:
    stamp = Stamp(Hlc(delta.hlc), delta.client_id)
    columns = touched.columns if delta.op == Op.DELETE else [column.column for column in delta.columns]
    # Dicts for sets that keep their order.
    took = dict.fromkeys(before.took if before else ())
    kept = dict.fromkeys(before.kept if before else ())
    for column in columns:
        cell = after.cells.get(column)
        theirs = cell is None or cell.stamp == stamp
        (took if theirs else kept)[column] = None
    return MergedMark(delta.client_id, Hlc(delta.hlc), tuple(took), tuple(name for name in kept if name not in took))


# What the server said of our edits.


def acknowledge(transaction: Transaction, deltas: Iterable[RowDelta], effects: Effects) -> int:
    """The server has these: they leave the queue. How many were still in it."""
    state = read_state(transaction)
    observed, removed = state.observed, 0
    for delta in deltas:
        if not _dequeue(transaction, delta, effects):
            continue
        observed = max(observed, Hlc(delta.hlc))
        removed += 1
    transaction.put_state(replace(state, observed=observed, pending=state.pending - removed))
    return removed


def bury(transaction: Transaction, letter: DeadLetter, effects: Effects) -> None:
    """The server refused this one for good: it is put aside, and the local row keeps it."""
    if not _dequeue(transaction, letter.delta, effects):
        return
    transaction.put_dead_letter(letter)
    state = read_state(transaction)
    transaction.put_state(replace(state, pending=state.pending - 1, dead=state.dead + 1))


def revive(transaction: Transaction, delta_id: str, effects: Effects) -> bool:
    """Put a refused delta back into the queue, as it was. Whether it was there."""
    delta = _exhume(transaction, delta_id)
    if delta is None:
        return False
    transaction.enqueue(delta)
    state = read_state(transaction)
    transaction.put_state(replace(state, pending=state.pending + 1))
    _touch(transaction, delta, 1)
    effects.changed(delta.table, delta.row_id)
    return True


def discard(transaction: Transaction, delta_id: str, effects: Effects) -> bool:
    """Give a refused delta up. What it hid of the row is not here any more, so the row goes back to our waiting edits
    and the cursor to the start: the next sync brings the server's row again."""
    delta = _exhume(transaction, delta_id)
    if delta is None:
        return False
    row = _own_row(transaction, delta.table, delta.row_id)
    if row is None:
        transaction.remove_row(delta.table, delta.row_id)
    else:
        transaction.put_row(delta.table, delta.row_id, row)
    transaction.put_state(replace(read_state(transaction), cursor=0))
    effects.changed(delta.table, delta.row_id)
    return True


def restamp(transaction: Transaction, server_hlc: Hlc, now_ms: int, effects: Effects) -> int:
    """Our clock ran ahead and the server refused: learn the difference and stamp the refused part of the queue again.

    Only what lies beyond the drift limit is stamped anew: no server can have accepted that already, whatever became of
    its reply. The rest keeps its stamps, and the new ones come after it. How many were stamped again.
    """
    state = read_state(transaction)
    server_ms = wall_ms(server_hlc)
    queue = transaction.queued()
    ahead = [delta for delta in queue if wall_ms(Hlc(delta.hlc)) > server_ms + DRIFT_MS_MAX]
    within = [delta.hlc for delta in queue if wall_ms(Hlc(delta.hlc)) <= server_ms + DRIFT_MS_MAX]
    clock = HlcClock(Hlc(max(server_hlc, state.observed, *within)))
    for old in ahead:
        delta = _with_id(replace(old, hlc=clock.tick(server_ms)))
        transaction.dequeue(old.hlc)
        transaction.enqueue(delta)
        stored = transaction.row(old.table, old.row_id)
        if stored is not None:
            transaction.put_row(old.table, old.row_id, _with_stamp(stored.row, old, Hlc(delta.hlc)), stored.merged)
        effects.changed(old.table, old.row_id)
    transaction.put_state(replace(state, offset_ms=min(server_ms - now_ms, 0), clock=clock.last))
    return len(ahead)


def _with_stamp(row: Row, old: RowDelta, hlc: Hlc) -> Row:
    before, after = Stamp(Hlc(old.hlc), old.client_id), Stamp(hlc, old.client_id)
    cells = {name: Cell(after, cell.value) if cell.stamp == before else cell for name, cell in row.cells.items()}
    return Row(cells=cells, tombstone=after if row.tombstone == before else row.tombstone)


def _exhume(transaction: Transaction, delta_id: str) -> RowDelta | None:
    for letter in transaction.dead_letters():
        if letter.id == delta_id:
            transaction.remove_dead_letter(letter.delta.hlc)
            state = read_state(transaction)
            transaction.put_state(replace(state, dead=state.dead - 1))
            return letter.delta
    return None


def _dequeue(transaction: Transaction, delta: RowDelta, effects: Effects) -> bool:
    queued = transaction.queued_delta(delta.hlc)
    if queued is None or queued.delta_id != delta.delta_id:
        return False
    transaction.dequeue(delta.hlc)
    _touch(transaction, delta, -1)
    effects.changed(delta.table, delta.row_id)
    return True


def _touch(transaction: Transaction, delta: RowDelta, step: int) -> None:
    before = transaction.touched(delta.table, delta.row_id) or Touched()
    columns = dict.fromkeys((*before.columns, *(column.column for column in delta.columns)))
    after = Touched(max(0, before.pending + step), tuple(columns))
    transaction.put_touched(delta.table, delta.row_id, after)


def _with_id(delta: RowDelta) -> RowDelta:
    id_ = delta_id(
        table=delta.table, row_id=delta.row_id, columns=delta.columns, hlc=delta.hlc, client_id=delta.client_id
    )
    return replace(delta, delta_id=id_)
