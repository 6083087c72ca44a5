"""One process at a time has a log open."""

import asyncio
import fcntl
import os
from pathlib import Path

from mainstem.model.errors import Conflict

# A gateway that was killed leaves a sealer behind for an instant, and that holds the lock too.
_WAIT_S = 5.0
_POLL_S = 0.02


class FolderLock:
    """Held as long as its descriptor, or a child's copy of it, is open."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    async def acquire(cls, path: Path, wait_s: float = _WAIT_S) -> "FolderLock":
        """Wait a little for the holder to end, then give up with `Conflict`."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if loop.time() >= deadline_s:
                        raise Conflict(f"log is open in another process. got={path}") from None
                    await asyncio.sleep(_POLL_S)
                else:
                    return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    def release(self) -> None:
        """Let go."""
        os.close(self.fd)
