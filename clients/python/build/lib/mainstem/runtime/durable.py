"""Files that survive a power cut.

Calls of the operating system on plain paths, and no more of them than it takes: each lets another thread have the
interpreter, and under load the way back to it is longer than the call.
"""

import os


def write_new(path: str, data: bytes) -> None:
    """Write a file that does not exist yet, in a folder that does. When this returns, its bytes and its name last."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync(path.rpartition("/")[0] or "/")


def sync(path: str | os.PathLike[str]) -> None:
    """Make what a file holds, or the names in a folder, last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
