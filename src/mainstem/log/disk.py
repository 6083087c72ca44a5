"""The one boundary between the log and the operating system.

Everything that may fail because a disk is full, broken or read-only goes through `Disk`, so that tests can stage it.
Every method raises OSError as the system gave it.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

# Linux takes at most this many buffers in one vectored write.
_BUFFERS_MAX = 1024

Buffer = bytes | memoryview


class Disk(Protocol):
    """What the log asks of a disk. A file is durable after `sync`, its name after `sync_dir` of its folder."""

    def create(self, path: Path) -> int:
        """Open a new or emptied file for writing and return its descriptor."""

    def write(self, fd: int, buffers: Sequence[Buffer]) -> None:
        """Append all the buffers. After an error any part of them may be in the file."""

    def sync(self, fd: int) -> None:
        """Return when the file's bytes are durable. After an error nothing written since the last one is."""

    def close(self, fd: int) -> None:
        """Give the descriptor back."""

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file to `size` bytes, durably."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in one step."""

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is fine."""

    def sync_dir(self, path: Path) -> None:
        """Return when the names in a folder are durable."""


class OsDisk:
    """The real one."""

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def write(self, fd: int, buffers: Sequence[Buffer]) -> None:
        pending = list(buffers)
        while pending:
            wrote = os.writev(fd, pending[:_BUFFERS_MAX])
            done = 0
            while done < len(pending) and wrote >= len(pending[done]):
                wrote -= len(pending[done])
                done += 1
            del pending[:done]
            if wrote:
                pending[0] = memoryview(pending[0])[wrote:]

    def sync(self, fd: int) -> None:
        # macOS has no fdatasync.
        getattr(os, "fdatasync", os.fsync)(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def truncate(self, path: Path, size: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def store(disk: Disk, scratch: Path, target: Path, data: bytes) -> None:
    """Put a whole file in place, durably, in one step: readers see it as it was or as it is now."""
    fd = disk.create(scratch)
    try:
        disk.write(fd, [data])
        disk.sync(fd)
    finally:
        disk.close(fd)
    disk.rename(scratch, target)
    disk.sync_dir(target.parent)
