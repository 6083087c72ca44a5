"""A small gateway in memory that keeps the server's rules: for tests and demos of apps, without durability.

A push is all or nothing and counts once; a cursor is the arrival clock; a checkpoint is the merged state with the
stamps that each column has. `docs/protocol/sync.md` is what it follows.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

from mainstem.client.sync.errors import ClockDrift, CursorExpired, Refused
from mainstem.client.sync.replica import RowKey, delta_row
from mainstem.client.sync.signal import Signal
from mainstem.client.sync.values import json_text
from mainstem.model.hlc import HlcClock
from mainstem.model.merge import EMPTY, Row, Stamp, join
from mainstem.runtime.clock import Clock, SystemClock
from mainstem.wire import sync as wire
from mainstem.wire.sync import ColumnDelta, Op, RowDelta, SyncPull, SyncPush, SyncResponse

PULL_DEFAULT = 100
PULL_MAX = 10_000
PIECE_DELTAS = 1_000


class MemoryGateway:
    """One gateway. `accept` may refuse a delta by raising Invalid: what a schema does on a real server."""

    def __init__(self, *, clock: Clock | None = None, accept: Callable[[RowDelta], object] | None = None) -> None:
        self.rows: dict[RowKey, Row] = {}
        self._clock = clock or SystemClock()
        self._accept = accept
        self._hlc = HlcClock()
        self._arrivals: list[int] = []
        self._deltas: list[RowDelta] = []
        self._seen: set[tuple[str, str]] = set()
        self._arrived: Signal[None] = Signal()

    @property
    def newest(self) -> int:
        """The arrival clock of the newest delta; 0 while there is none."""
        return self._arrivals[-1] if self._arrivals else 0

    @property
    def deltas(self) -> list[RowDelta]:
        """All that arrived, in order."""
        return list(self._deltas)

    def push(self, push: SyncPush) -> SyncResponse:
        """Take all deltas, or raise and take none."""
        try:
            wire.check_push(push, "memory", self._clock.now_ms())
            for delta in push.deltas if self._accept else ():
                self._accept and self._accept(delta)
        except wire.ClockDrift as error:
            raise ClockDrift(str(error), server_hlc=error.server_hlc) from error
        except wire.BadDelta as error:
            raise Refused(str(error), reason=error.reason, delta_id=error.delta_id) from error
        for delta in push.deltas:
            self._append(delta)
        self._arrived.emit(None)
        return SyncResponse(server_hlc=self.newest)

    def pull(self, pull: SyncPull) -> SyncResponse:
        """A page of what arrived after a cursor."""
        since = pull.since_hlc
        if since > self.newest:
            raise CursorExpired(f"the cursor is not from here. expected=at most {self.newest} got={since}")
        start = bisect_right(self._arrivals, since)
        end = min(start + min(pull.max_deltas or PULL_DEFAULT, PULL_MAX), len(self._deltas))
        return SyncResponse(
            deltas=self._deltas[start:end],
            server_hlc=self._arrivals[end - 1] if end > start else since,
            has_more=end < len(self._deltas),
            since_hlc=since,
        )

    def checkpoint(self) -> Iterator[SyncResponse]:
        """The merged state, in pieces."""
        deltas = [delta for key, row in self.rows.items() for delta in deltas_of(key, row)]
        for start in range(0, len(deltas), PIECE_DELTAS):
            piece = deltas[start : start + PIECE_DELTAS]
            yield SyncResponse(deltas=piece, server_hlc=self.newest, has_more=True)
        yield SyncResponse(server_hlc=self.newest)

    def on_arrival(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call the listener after each push; the answer stops it."""
        return self._arrived.connect(lambda _: listener())

    def _append(self, delta: RowDelta) -> None:
        if (delta.client_id, delta.delta_id) in self._seen:
            return
        self._seen.add((delta.client_id, delta.delta_id))
        self._arrivals.append(self._hlc.tick(self._clock.now_ms()))
        self._deltas.append(delta)
        key = (delta.table, delta.row_id)
        self.rows[key] = join(self.rows.get(key, EMPTY), delta_row(delta))


def deltas_of(key: RowKey, row: Row) -> Iterable[RowDelta]:
    """The fewest deltas that make this row: one for its tombstone, one for each stamp that its columns have."""
    table, row_id = key
    if row.tombstone is not None:
        hlc, source = row.tombstone
        yield RowDelta(op=Op.DELETE, table=table, row_id=row_id, hlc=hlc, client_id=source)
    writes: dict[Stamp, list[ColumnDelta]] = {}
    for name, cell in row.cells.items():
        writes.setdefault(cell.stamp, []).append(ColumnDelta(name, json_text(cell.value)))
    for (hlc, source), columns in sorted(writes.items()):
        yield RowDelta(op=Op.INSERT, table=table, row_id=row_id, columns=tuple(columns), hlc=hlc, client_id=source)
