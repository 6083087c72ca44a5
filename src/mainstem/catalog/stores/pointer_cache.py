"""Pointers that were read before, for a store whose every write goes through this process."""

import threading
from collections.abc import Callable, Iterable

from mainstem.catalog.names import TableIdent
from mainstem.catalog.stores.store import Pointer, Swap

POINTERS_MAX = 65_536


class PointerCache:
    """Answers a lookup without the database, as long as no gateway wrote to that name since.

    A writer calls `forget` or `advance` after its transaction has ended, however it ended, and before it answers
    anybody. A reader that read before that and would remember after it is stopped by the count of writes.
    """

    def __init__(self, read: Callable[[TableIdent], Pointer | None], pointers_max: int = POINTERS_MAX) -> None:
        self._read = read
        self._pointers_max = pointers_max
        self._pointers: dict[TableIdent, Pointer] = {}
        self._writes = 0
        self._lock = threading.Lock()

    def find(self, ident: TableIdent) -> Pointer | None:
        """Where a name stands, None if there is nothing of that name."""
        found = self._pointers.get(ident)
        if found is not None:
            return found
        writes = self._writes
        pointer = self._read(ident)
        if pointer is not None:
            with self._lock:
                if self._writes == writes:
                    if len(self._pointers) >= self._pointers_max:
                        self._pointers.clear()
                    self._pointers[ident] = pointer
        return pointer

    def forget(self, idents: Iterable[TableIdent]) -> None:
        """These names were written to, or may have been."""
        with self._lock:
            self._writes += 1
            for ident in idents:
                self._pointers.pop(ident, None)

    def advance(self, swaps: Iterable[Swap]) -> None:
        """These swaps were made: the next commit to a name need not look up what the last one left.

        Only where what is remembered is what was swapped: two that are told here in the wrong order are forgotten.
        """
        with self._lock:
            self._writes += 1
            for swap in swaps:
                known = self._pointers.pop(swap.ident, None)
                if known is not None and known.metadata_location == swap.expected:
                    self._pointers[swap.ident] = swap.pointer
