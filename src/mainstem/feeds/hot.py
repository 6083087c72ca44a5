"""The newest arrivals of one gateway, in memory, up to a bound. What is older is read from the log and the tables."""

from bisect import bisect_right

from mainstem.feeds.entries import Entry
from mainstem.model.position import LogPosition

# What an entry costs beside its bytes, roughly.
ENTRY_OVERHEAD_BYTES = 250


class HotWindow:
    """Every arrival of the gateway after `start`, in the log's order."""

    __slots__ = ("_entries", "_positions", "bytes", "start")

    def __init__(self, start: LogPosition) -> None:
        self.start = start
        self.bytes = 0
        self._positions: list[int] = []
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entries: list[Entry]) -> bool:
        """Take in what arrived; what is not after the start is known to be elsewhere. Whether there was anything."""
        fresh = [entry for entry in entries if entry.position > self.start]
        self._entries += fresh
        self._positions += [entry.position for entry in fresh]
        self.bytes += sum([len(entry.encoded) + ENTRY_OVERHEAD_BYTES for entry in fresh])
        return bool(fresh)

    def after(self, since: LogPosition, limit: int) -> tuple[list[Entry], bool]:
        """Up to `limit` arrivals after a cursor that is not before the start, and whether there are more."""
        index = bisect_right(self._positions, since)
        return self._entries[index : index + limit], index + limit < len(self._entries)

    def trim(self, bytes_max: int) -> None:
        """Let go of the oldest, in large steps, until at most three quarters of the bound are taken."""
        if self.bytes <= bytes_max:
            return
        count = 0
        for entry in self._entries:
            if self.bytes <= bytes_max * 3 // 4:
                break
            self.bytes -= len(entry.encoded) + ENTRY_OVERHEAD_BYTES
            self.start = entry.position
            count += 1
        del self._entries[:count], self._positions[:count]

    def restart(self, start: LogPosition) -> None:
        """Forget everything: what is at or before `start` is read from the log."""
        self.start = max(self.start, start)
        self.bytes = 0
        self._entries, self._positions = [], []
