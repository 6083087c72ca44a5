"""Files that survive a power cut.

Calls of the operating system on plain paths, and no more of them than it takes: each lets another thread have the
interpreter, and under load the way back to it is longer than the call.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Syncs that are asked for at once: a file system makes them last together, in about the time of one.
SYNCED_AT_ONCE = 16


def write_new(path: str, data: bytes, mode: int = 0o644) -> None:
    """Write a file that does not exist yet, in a folder that does. When this returns, its bytes and its name last."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync(path.rpartition("/")[0] or "/")


def replace(path: Path, data: bytes) -> None:
    """Put a file, that only its owner may read, in the place of one that may be there. When this returns, it lasts; a
    crash before leaves the one that was there."""
    scratch = path.with_name(path.name + ".new")
    scratch.unlink(missing_ok=True)
    write_new(str(scratch), data, mode=0o600)
    scratch.rename(path)
    sync(path.parent)


def sync(path: str | os.PathLike[str]) -> None:
    """Make what a file holds, or the names in a folder, last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_files(files: Iterable[Path]) -> None:
    """Make files and their names last. Raises the first error, once all of them were tried."""
    paths = list(files)
    if not paths:
        return
    paths += {path.parent for path in paths}
    with ThreadPoolExecutor(min(SYNCED_AT_ONCE, len(paths)), "sync") as threads:
        list(threads.map(sync, paths))
