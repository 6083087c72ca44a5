"""Queries that follow the data."""

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mainstem.client.closing import Closing
from mainstem.client.sync.signal import Signal

if TYPE_CHECKING:
    from mainstem.client.sync.local_db import Changed, LocalDB

Rows = list[dict[str, Any]]


class LiveQuery(Closing):
    """A query and whether its answer may have changed.

        with db.live("SELECT count(*) AS open FROM todos WHERE NOT done") as query:
            for rows in query:
                show(rows)

    The iteration gives the rows now and then each time that they differ from the last ones; it ends with `close`.
    """

    def __init__(self, db: "LocalDB", tables: frozenset[str], sql: str, parameters: Any) -> None:
        # SQLite does not tell upper from lower case in a table's name.
        self.tables = frozenset(name.lower() for name in tables)
        self._db = db
        self._sql = sql
        self._parameters = parameters
        self._wake = threading.Condition()
        self._stale = True
        self._closed = False
        self._last: Rows | None = None
        self._told: Signal[None] = Signal()
        self._disconnect = db.changed.connect(self._note)

    def rows(self) -> Rows:
        """What the query gives now."""
        return self._db.query(self._sql, self._parameters)

    def poll(self) -> Rows | None:
        """The rows if they differ from those given last; None otherwise. Does not wait."""
        with self._wake:
            if not self._stale:
                return None
            # Before the read: what changes during it makes the answer stale again.
            self._stale = False
        rows = self.rows()
        if rows == self._last:
            return None
        self._last = rows
        return rows

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the rows may have changed or the query is closed. Whether that came about in time."""
        with self._wake:
            return self._wake.wait_for(lambda: self._stale or self._closed, timeout_s)

    def on_stale(self, listener: Callable[[], object]) -> None:
        """Be called, in whatever thread, when the rows may have changed or the query is closed."""
        self._told.connect(lambda _: listener())

    def __iter__(self) -> Iterator[Rows]:
        while not self.closed:
            rows = self.poll()
            if rows is not None:
                yield rows
            else:
                self.wait()

    @property
    def closed(self) -> bool:
        """Whether nothing will come any more."""
        return self._closed

    def close(self) -> None:
        """Stop following; iterations over it end."""
        self._disconnect()
        self._tell(closed=True)

    def _note(self, changed: "Changed") -> None:
        if not self.tables.isdisjoint(name.lower() for name in changed.rows):
            self._tell(stale=True)

    def _tell(self, *, stale: bool = False, closed: bool = False) -> None:
        with self._wake:
            self._stale |= stale
            self._closed |= closed
            self._wake.notify_all()
        self._told.emit(None)


class Watch:
    """A listener that is called with a live query's rows, in a thread of its own."""

    def __init__(self, query: LiveQuery, listener: Callable[[Rows], object]) -> None:
        self._query = query
        self._thread = threading.Thread(target=self._run, args=(listener,), name="mainstem-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Call no more, and wait for a call that is under way; the listener itself may call this."""
        self._query.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self, listener: Callable[[Rows], object]) -> None:
        for rows in self._query:
            listener(rows)
