"""The newest batches of every partition, in memory: what consumers at the tail are served from.

All partitions share one bound in bytes. Beyond it the batch that came first goes, from any partition: a consumer that
is behind reads it from the log or the table, and does not slow down those at the tail.
"""

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

_TRIM_MIN = 256


class Held(NamedTuple):
    """A batch in memory."""

    base: int
    next: int
    max_timestamp: int
    batch: bytes


class TailMemory:
    """The bound that all tails share. Belongs to the event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        # In the order in which batches came; each knows its own tail's oldest.
        self._order: deque[Tail] = deque()

    @property
    def bytes(self) -> int:
        """What is held now."""
        return self._bytes

    def _added(self, tail: "Tail", size: int) -> None:
        self._bytes += size
        self._order.append(tail)
        while self._bytes > self._bytes_max and len(self._order) > 1:
            self._bytes -= self._order.popleft()._drop_oldest()


class Tail:
    """The newest batches of one partition, without a gap."""

    def __init__(self, memory: TailMemory) -> None:
        self._memory = memory
        self._held: list[Held] = []
        self._bases: list[int] = []
        # Those before are dropped, and cut off when there are enough of them.
        self._first = 0

    @property
    def start(self) -> int | None:
        """The first offset that is held; None where nothing is."""
        return self._bases[self._first] if self._first < len(self._bases) else None

    def add(self, held: Held) -> None:
        """The batch that follows the last one."""
        self._held.append(held)
        self._bases.append(held.base)
        self._memory._added(self, len(held.batch))

    def read(self, offset: int, bytes_max: int, *, before: int) -> list[Held] | None:
        """The batches from the one that holds `offset` on: at least one, then up to a size, none that begins at
        `before` or behind it. None where the offset is not held any more."""
        start = self.start
        if start is None or offset < start:
            return None
        at = max(bisect_right(self._bases, offset) - 1, self._first)
        found: list[Held] = []
        size = 0
        for held in self._held[at : at + 10_000]:
            if held.base >= before or (found and size + len(held.batch) > bytes_max):
                break
            if held.next > offset:
                found.append(held)
                size += len(held.batch)
        return found

    def bytes_from(self, offset: int, enough: int) -> int:
        """How much there is from an offset on; it stops counting at `enough`."""
        start = self.start
        if start is None or offset < start:
            return enough
        at = max(bisect_right(self._bases, offset) - 1, self._first)
        size = 0
        for index in range(at, len(self._held)):
            if self._held[index].next > offset:
                size += len(self._held[index].batch)
                if size >= enough:
                    break
        return size

    def batches(self) -> list[Held]:
        """Everything that is held."""
        return self._held[self._first :]

    def _drop_oldest(self) -> int:
        if self._first >= len(self._held):
            return 0
        size = len(self._held[self._first].batch)
        # Not kept until the cut: it may be megabytes.
        self._held[self._first] = _GONE
        self._first += 1
        if self._first >= _TRIM_MIN and self._first * 2 > len(self._held):
            del self._held[: self._first], self._bases[: self._first]
            self._first = 0
        return size


_GONE = Held(-1, -1, -1, b"")
