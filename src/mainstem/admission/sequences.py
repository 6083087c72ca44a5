"""A set of sequence numbers, kept as intervals, of bounded size."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable


class SequenceSet:
    """The sequences seen, as disjoint intervals that never touch.

    `add` is told how many intervals are kept: beyond that the two lowest become one, with the gap between them
    counted as seen. Up to `blurred`, the end of the last such gap, a sequence that counts as seen need not have been.
    """

    __slots__ = ("_ends", "_starts", "blurred")

    def __init__(self, starts: Iterable[int] = (), ends: Iterable[int] = (), blurred: int | None = None) -> None:
        # 16 bytes an interval, which lists of numbers would take five times over.
        self._starts = array("q", starts)
        self._ends = array("q", ends)
        self.blurred = blurred

    def __contains__(self, sequence: int) -> bool:
        index = bisect_left(self._ends, sequence)
        return index < len(self._ends) and self._starts[index] <= sequence

    def is_certain(self, sequence: int) -> bool:
        """Whether a sequence that counts as seen was seen without a doubt."""
        return self.blurred is None or sequence > self.blurred

    @property
    def intervals(self) -> tuple[list[int], list[int]]:
        """First and last sequences of the intervals, both ascending."""
        return self._starts.tolist(), self._ends.tolist()

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def lowest(self) -> int | None:
        """The lowest sequence seen."""
        return self._starts[0] if self._starts else None

    @property
    def highest(self) -> int | None:
        """The highest sequence seen."""
        return self._ends[-1] if self._ends else None

    def highest_below(self, sequence: int) -> int | None:
        """The highest sequence seen that is lower than the one given."""
        index = bisect_left(self._starts, sequence) - 1
        return min(self._ends[index], sequence - 1) if index >= 0 else None

    def lowest_missing_above(self, sequence: int) -> int:
        """The lowest sequence above the one given that was not seen."""
        index = bisect_left(self._ends, sequence + 1)
        if index < len(self._ends) and self._starts[index] <= sequence + 1:
            return self._ends[index] + 1
        return sequence + 1

    def add(self, sequence: int, intervals_max: int) -> None:
        """Take a sequence in; one that is there already changes nothing."""
        starts, ends = self._starts, self._ends
        if ends and sequence == ends[-1] + 1:
            ends[-1] = sequence
            return
        index = bisect_left(ends, sequence)
        if index < len(ends) and starts[index] <= sequence:
            return
        touches_left = index > 0 and ends[index - 1] == sequence - 1
        touches_right = index < len(starts) and starts[index] == sequence + 1
        if touches_left and touches_right:
            ends[index - 1] = ends[index]
            del starts[index], ends[index]
        elif touches_left:
            ends[index - 1] = sequence
        elif touches_right:
            starts[index] = sequence
        else:
            starts.insert(index, sequence)
            ends.insert(index, sequence)
            self._blur(intervals_max)

    def _blur(self, intervals_max: int) -> None:
        many = len(self._starts) - intervals_max
        if many > 0:
            gap_end = self._starts[many] - 1
            self.blurred = gap_end if self.blurred is None else max(self.blurred, gap_end)
            del self._starts[1 : many + 1], self._ends[:many]
