"""One commit at a time per table, in this process.

The store would sort out a race by itself, but every loser would have written a metadata file for nothing. The locks
are striped, so their number is bounded whatever the number of tables.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from mainstem.catalog.names import TableIdent

STRIPES = 256


class TableLocks:
    """Mutual exclusion by table name."""

    def __init__(self) -> None:
        self._stripes = [threading.Lock() for _ in range(STRIPES)]

    @contextmanager
    def hold(self, idents: Iterable[TableIdent]) -> Iterator[None]:
        """Hold the locks of all the tables; always taken in one order, so that no two commits wait for each other."""
        with ExitStack() as stack:
            for stripe in sorted({hash(ident) % STRIPES for ident in idents}):
                stack.enter_context(self._stripes[stripe])
            yield
