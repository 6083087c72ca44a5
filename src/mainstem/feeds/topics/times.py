"""From which offset on a partition may have a record of a time: so that it is found without reading from the start.

For some offsets it is known how late the records before them are at most. Records need not be in the order of their
times, but the latest time so far only grows: the first record of a time or a later one is not before the last offset
that only has earlier ones before it. It is read from there on.
"""

from bisect import bisect_left

import msgspec

# A place is noted each time so much was written; twice as much each time that they have become too many.
STEP_BYTES = 1024 * 1024
PLACES_MAX = 512


class Times(msgspec.Struct, array_like=True):
    """Of one partition. A part of its stored state."""

    # Offsets, ascending, and the latest time of the records before each, ascending as well.
    offsets: list[int] = []
    latest: list[int] = []
    # What had been written of the partition when the last one was noted.
    noted_bytes: int = 0
    step_bytes: int = STEP_BYTES

    def note(self, end: int, latest: int, written_bytes: int) -> None:
        """So much is written of the partition, up to an offset, and the latest time in all of that is this one."""
        if written_bytes - self.noted_bytes < self.step_bytes:
            return
        self.noted_bytes = written_bytes
        if self.latest and latest <= self.latest[-1]:
            # Nothing later came since: who looks for a later time may begin here as well.
            self.offsets[-1] = end
            return
        self.offsets.append(end)
        self.latest.append(latest)
        if len(self.offsets) > PLACES_MAX:
            self.step_bytes *= 2
            # Every second one stays, the last among them.
            del self.offsets[-2::-2], self.latest[-2::-2]

    def before(self, timestamp: int) -> int:
        """An offset before which there is no record of this time or a later one."""
        at = bisect_left(self.latest, timestamp)
        return self.offsets[at - 1] if at else 0
