"""The files of frames: their names, and what is durable in each."""

import re
from dataclasses import dataclass
from pathlib import Path

from mainstem.model.position import LogPosition

_NAME = re.compile(r"(\d{20})\.wal")


def wal_path(folder: Path, first: LogPosition) -> Path:
    """The file whose first frame holds `first`."""
    return folder / f"{first:020d}.wal"


def first_of(path: Path) -> LogPosition | None:
    """The first position of a file by its name; None for a file that is not ours."""
    match = _NAME.fullmatch(path.name)
    return LogPosition(int(match[1])) if match else None


@dataclass(slots=True)
class WalFile:
    """A file of frames and what is durable in it."""

    path: Path
    first: LogPosition
    bytes: int = 0
    changes: int = 0
    batches: int = 0
    # When its oldest and newest batch arrived; 0 while it is empty.
    oldest_ms: int = 0
    newest_ms: int = 0

    @property
    def last(self) -> LogPosition:
        """The last durable position in it; one before `first` while it is empty."""
        return LogPosition(self.first + self.changes - 1)

    def add(self, batches: int, changes: int, size: int, arrival_ms: int) -> None:
        """Count a group that became durable."""
        self.oldest_ms = self.oldest_ms or arrival_ms
        self.newest_ms = arrival_ms
        self.batches += batches
        self.changes += changes
        self.bytes += size
