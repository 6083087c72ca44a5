"""The gateway's side of sealing: the child processes, kept alive."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Protocol

import msgspec

from mainstem.model.errors import Corrupt, Overloaded

_CLOSE_TIMEOUT_S = 5.0
# Behind the gateway, but hardly behind a busy pipeline on a small machine: that waits for our segments.
NICE = 1
NICE_BESIDE = 10


class SealRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Seal these whole files of frames, in order, into one segment."""

    files: list[str]
    scratch: str
    # Others wait to be sealed behind them, or will soon.
    more: bool


class SealAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Done, or why not; `corrupt_place` where stored bytes are to blame."""

    error: str | None = None
    corrupt_place: str | None = None


class Sealer(Protocol):
    """Turns whole files of frames into one segment. `lanes` is how many requests it takes at a time."""

    @property
    def lanes(self) -> int:
        """At least one."""

    async def start(self, lock_fd: int) -> None:
        """Get ready. `lock_fd` holds the log's lock; whoever may write segments must keep it open."""

    async def seal(self, files: list[Path], scratch: Path, *, more: bool) -> None:
        """Return when `scratch` is durable. Raises `Corrupt` or `Overloaded`; the same request may be made again."""

    async def close(self) -> None:
        """Give everything back."""


class SealerProcess:
    """A niced child. When it dies it is started again with the next request."""

    lanes = 1

    def __init__(self, nice: int = NICE) -> None:
        self._nice = nice
        self._process: Process | None = None
        self._lock_fd = -1

    @property
    def pid(self) -> int | None:
        """The child's process id, for those who watch it."""
        return self._process.pid if self._process is not None else None

    async def start(self, lock_fd: int) -> None:
        self.prepare(lock_fd)
        self._process = await self._spawn()

    def prepare(self, lock_fd: int) -> None:
        """As `start`, but the child comes with the first request."""
        self._lock_fd = lock_fd

    async def _spawn(self) -> Process:
        # From the event loop's own thread: the death signal is tied to the thread that forks.
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "mainstem.log.sealer",
            str(os.getpid()),
            str(self._nice),
            stdin=PIPE,
            stdout=PIPE,
            # Another gateway must not open the log while this child can still write a segment.
            pass_fds=(self._lock_fd,),
        )

    async def seal(self, files: list[Path], scratch: Path, *, more: bool) -> None:
        request = SealRequest(files=[str(file) for file in files], scratch=str(scratch), more=more)
        answer = await self._ask(msgspec.json.encode(request) + b"\n")
        if answer.corrupt_place is not None:
            raise Corrupt(f"sealing met bad bytes. got={answer.error}", place=answer.corrupt_place)
        if answer.error is not None:
            raise Overloaded(f"sealing failed. got={answer.error}", retry_after_s=1.0, reason="internal_error")

    async def _ask(self, line: bytes) -> SealAnswer:
        if self._process is None or self._process.returncode is not None:
            self._process = await self._spawn()
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(line)
            await process.stdin.drain()
            answer = await process.stdout.readline()
        except ConnectionError:
            answer = b""
        except asyncio.CancelledError:
            # Its answer would be taken for the next request's.
            await self._end(process)
            raise
        if not answer.endswith(b"\n"):
            await self._end(process)
            raise Overloaded(
                f"the sealer died. expected=an answer got=exit code {process.returncode}",
                retry_after_s=1.0,
                reason="internal_error",
            )
        return msgspec.json.decode(answer, type=SealAnswer)

    async def _end(self, process: Process) -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()
        self._process = None

    async def close(self) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            await self._end(process)
        self._process = None


class SealerProcesses:
    """Several children: the first from the start, each of the others once there is work for it."""

    def __init__(self, lanes: int) -> None:
        # The others only take what nobody else wants: on a small machine they would be at the doors' expense.
        self._children = [SealerProcess(NICE if lane == 0 else NICE_BESIDE) for lane in range(lanes)]
        self._idle = list(self._children)

    @property
    def lanes(self) -> int:
        return len(self._children)

    async def start(self, lock_fd: int) -> None:
        for child in self._children:
            child.prepare(lock_fd)
        await self._children[0].start(lock_fd)

    async def seal(self, files: list[Path], scratch: Path, *, more: bool) -> None:
        # The one that was here longest is surely running.
        child = min(self._idle, key=self._children.index)
        self._idle.remove(child)
        try:
            await child.seal(files, scratch, more=more)
        finally:
            self._idle.append(child)

    async def close(self) -> None:
        for child in self._children:
            await child.close()
