"""Where the log's files have the batches of a partition, as they came: what consumers behind the tail are served from.

A batch is read by its place alone: nothing is searched for, decoded or put together anew. All partitions share one
bound in number; beyond it the place that came first is forgotten, of any partition, and its records are read from
segments.
"""

from array import array
from bisect import bisect_right
from collections import deque

from mainstem.log.kept import Place
from mainstem.model.position import LogPosition

_TRIM_MIN = 256
_READ_MAX = 10_000


class PlaceMemory:
    """The bound that all partitions share. Belongs to the event loop."""

    def __init__(self, places_max: int) -> None:
        self._places_max = places_max
        # In the order in which batches came; each knows its own partition's oldest.
        self._order: deque[Places] = deque()

    def _added(self, places: "Places") -> None:
        self._order.append(places)
        while len(self._order) > self._places_max:
            self._order.popleft()._drop_oldest()


class Places:
    """The places of one partition's batches, without a gap up to its end. Belongs to the event loop."""

    def __init__(self, memory: PlaceMemory) -> None:
        self._memory = memory
        self._bases = array("q")
        self._files = array("q")
        self._starts = array("q")
        self._sizes = array("q")
        # Those before are dropped, and cut off when there are enough of them.
        self._first = 0

    @property
    def start(self) -> int | None:
        """The first offset whose place is known; None where none is."""
        return self._bases[self._first] if self._first < len(self._bases) else None

    def add(self, base: int, place: Place) -> None:
        """The batch that follows the last one."""
        self._bases.append(base)
        self._files.append(place.file)
        self._starts.append(place.start)
        self._sizes.append(place.size)
        self._memory._added(self)

    def find(self, offset: int, bytes_max: int, *, before: int) -> list[Place]:
        """The batches from the one that holds `offset` on: at least one, then up to a size, none that begins at
        `before` or behind it. Empty where its place is not known."""
        start = self.start
        if start is None or offset < start:
            return []
        at = max(bisect_right(self._bases, offset) - 1, self._first)
        found: list[Place] = []
        size = 0
        for index in range(at, min(len(self._bases), at + _READ_MAX)):
            size += self._sizes[index]
            if self._bases[index] >= before or (found and size > bytes_max):
                break
            found.append(Place(LogPosition(self._files[index]), self._starts[index], self._sizes[index]))
        return found

    def _drop_oldest(self) -> None:
        if self._first < len(self._bases):
            self._first += 1
        if self._first >= _TRIM_MIN and self._first * 2 > len(self._bases):
            for column in (self._bases, self._files, self._starts, self._sizes):
                del column[: self._first]
            self._first = 0
