"""What an open log has: its segments, the files of frames behind them, and how far both go. Values only, no I/O."""

from collections import deque

from mainstem.log.opening import Found
from mainstem.log.seal.segments import SegmentInfo
from mainstem.log.wal.files import WalFile
from mainstem.log.wal.outcomes import Committed
from mainstem.model.position import LogPosition


class Shelf:
    """Lives on the event loop. `active` is set once the writer has begun a file."""

    def __init__(self, found: Found) -> None:
        self.segments = found.segments
        self.segment_bytes = sum(segment.bytes for segment in found.segments)
        # The last position that is durable, and the last one that is in a segment, or was.
        self.durable = found.last
        self.sealed = found.sealed
        # Files that are full and wait to be sealed, and the one that is written.
        self.unsealed: deque[WalFile] = deque(found.unsealed)
        self.unsealed_bytes = sum(file.bytes for file in self.unsealed)
        self.active: WalFile

    def committed(self, committed: Committed) -> None:
        """A group is durable."""
        changes = committed.headers[-1].last - self.durable
        self.durable = committed.headers[-1].last
        self.active.add(len(committed.group), changes, committed.bytes, committed.headers[0].arrival_ms)
        self.unsealed_bytes += committed.bytes

    def rolled(self, file: WalFile, active: WalFile) -> None:
        """The active file is full."""
        # The writer counts too; ours is the same count as far as it was delivered.
        self.unsealed.append(file)
        self.active = active

    def sealed_into(self, info: SegmentInfo, files: list[WalFile]) -> None:
        """The oldest files are in a segment now."""
        self.segments.append(info)
        self.segment_bytes += info.bytes
        for _ in files:
            self.unsealed.popleft()
        self.unsealed_bytes -= sum(file.bytes for file in files)
        self.sealed = info.last

    def dropped(self, segments: list[SegmentInfo]) -> None:
        """The oldest segments are gone."""
        del self.segments[: len(segments)]
        self.segment_bytes -= sum(segment.bytes for segment in segments)

    def files_past(self, position: LogPosition) -> list[WalFile]:
        """The files that hold what is durable past a position and not sealed, in order."""
        return [file for file in (*self.unsealed, self.active) if file.last > position]
