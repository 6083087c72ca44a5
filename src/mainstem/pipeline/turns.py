"""Whose turn it is at a table: the pass that carries changes into it, or maintenance that is about to commit.

Both would be right without it: a commit that lost a race is done again. Taking turns makes sure that neither loses
for ever. First come, first served; a pass holds its tables' turns until it is committed and leaves out a table whose
turn it is not; maintenance holds one for a commit, and only after lost races for the rewriting of one group.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from mainstem.model.names import TableName


class Turns:
    """A queue per logical table. Not to be entered twice by one thread."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._queues: dict[TableName, deque[object]] = {}

    def take(self, table: TableName, *, wait: bool = True) -> bool:
        """Take one's turn, to be given back with `release`. Without waiting: False where others are before."""
        ticket = object()
        with self._condition:
            queue = self._queues.setdefault(table, deque())
            if queue and not wait:
                return False
            queue.append(ticket)
            self._condition.wait_for(lambda: queue[0] is ticket)
        return True

    def release(self, table: TableName) -> None:
        """Let the next one have its turn."""
        with self._condition:
            queue = self._queues[table]
            queue.popleft()
            if not queue:
                del self._queues[table]
            self._condition.notify_all()

    @contextmanager
    def of(self, table: TableName) -> Iterator[None]:
        """Wait for one's turn, and hold it for the block."""
        self.take(table)
        try:
            yield
        finally:
            self.release(table)
