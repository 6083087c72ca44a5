"""The gateway's side of sealing: the child processes, kept alive."""

import asyncio
import os
import signal
import socket
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from mainstem.log.settings import TimesRule
from mainstem.model.errors import Corrupt, Overloaded
from mainstem.model.position import UNNAMED, LogId
from mainstem.runtime.children import python_module

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
    # The log that issued their positions.
    log: str = UNNAMED
    times: TimesRule = TimesRule()


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
        """Get ready. `lock_fd` holds the log's lock; a process that may write segments must keep it open."""

    async def seal(self, files: list[Path], scratch: Path, *, more: bool, log: LogId) -> None:
        """Return when `scratch` is durable. Raises `Corrupt` or `Overloaded`; the same request may be made again."""

    async def close(self) -> None:
        """Give everything back."""


class SealerProcesses:
    """Niced children, one for each lane that was ever needed. One that dies is followed by another.

    They are forks of a child that is started for this alone: by the time there is work it has loaded everything, so
    that a lane more costs next to nothing, where a new interpreter would take half a second of a busy processor.
    """

    def __init__(self, lanes: int, times: TimesRule | None = None) -> None:
        self._mother = _Mother()
        self._times = times or TimesRule()
        self._lanes: list[_Lane | None] = [None] * lanes
        self._idle = list(range(lanes))

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    @property
    def pids(self) -> list[int]:
        """The process ids of the lanes that were needed so far, for those who watch them."""
        return [lane.pid for lane in self._lanes if lane is not None]

    async def start(self, lock_fd: int) -> None:
        await self._mother.start(lock_fd)

    async def seal(self, files: list[Path], scratch: Path, *, more: bool, log: LogId) -> None:
        names = [str(file) for file in files]
        request = SealRequest(files=names, scratch=str(scratch), more=more, log=log, times=self._times)
        # The first one is surely running, if any is.
        number = min(self._idle)
        self._idle.remove(number)
        try:
            answer = await self._ask(number, msgspec.json.encode(request) + b"\n")
        finally:
            self._idle.append(number)
        if answer.corrupt_place is not None:
            raise Corrupt(f"sealing met bad bytes. got={answer.error}", place=answer.corrupt_place)
        if answer.error is not None:
            raise Overloaded(f"sealing failed. got={answer.error}", retry_after_s=1.0, reason="internal_error")

    async def _ask(self, number: int, line: bytes) -> SealAnswer:
        lane = self._lanes[number]
        if lane is None:
            # The others run at the lowest priority: on a small machine they would take time from the doors.
            lane = self._lanes[number] = await self._mother.fork(NICE if number == 0 else NICE_BESIDE)
        try:
            answer = await lane.ask(line)
        except BaseException:
            # Its answer would be taken for the next request's.
            self._lanes[number] = None
            await lane.end()
            raise
        return msgspec.json.decode(answer, type=SealAnswer)

    async def close(self) -> None:
        for lane in filter(None, self._lanes):
            await lane.close()
        self._lanes = [None] * len(self._lanes)
        await self._mother.close()


class _Lane:
    """A child that seals, at the other end of a socket."""

    def __init__(self, pid: int, reader: StreamReader, writer: StreamWriter) -> None:
        self.pid = pid
        self._reader = reader
        self._writer = writer

    async def ask(self, line: bytes) -> bytes:
        try:
            self._writer.write(line)
            await self._writer.drain()
            answer = await self._reader.readline()
        except ConnectionError:
            answer = b""
        if not answer.endswith(b"\n"):
            raise _died()
        return answer

    async def end(self) -> None:
        """Kill it, and wait until it is gone: only it had the other end."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ConnectionError):
            await self._reader.read()
        self._writer.close()

    async def close(self) -> None:
        """Let it finish what it does."""
        with suppress(OSError):
            self._writer.write_eof()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._reader.read()
        except (TimeoutError, ConnectionError):
            await self.end()
        self._writer.close()


class _Mother:
    """The child that the lanes are forks of. When it dies they do, and it is started again with the next request."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._control: socket.socket | None = None
        self._lock_fd = -1
        self._forking = asyncio.Lock()

    async def start(self, lock_fd: int) -> None:
        self._lock_fd = lock_fd
        self._control, theirs = socket.socketpair()
        with theirs:
            # From the event loop's own thread: the death signal is tied to the thread that forks.
            self._process = await asyncio.create_subprocess_exec(
                *python_module("mainstem.log.seal.sealer", str(os.getpid())),
                stdin=theirs.fileno(),
                # Another gateway must not open the log while this child's children can still write a segment.
                pass_fds=(self._lock_fd,),
            )

    async def fork(self, nice: int) -> _Lane:
        """A new lane, once it is ready."""
        async with self._forking:
            # It may have died, and we may not have heard of that yet.
            for _ in range(2):
                if self._process is None or self._process.returncode is not None:
                    await self.close()
                    await self.start(self._lock_fd)
                if (lane := await self._forked(nice)) is not None:
                    return lane
                await self.close()
            raise _died()

    async def _forked(self, nice: int) -> _Lane | None:
        assert self._control is not None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [str(nice).encode()], [theirs.fileno()])
            except OSError:
                ours.close()
                return None
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        hello = b""
        try:
            with suppress(ConnectionError):
                hello = await reader.readline()
        finally:
            if not hello.endswith(b"\n"):
                writer.close()
        return _Lane(int(hello), reader, writer) if hello.endswith(b"\n") else None

    async def close(self) -> None:
        """End it, and with it whatever it forked."""
        if self._control is not None:
            self._control.close()
            self._control = None
        process, self._process = self._process, None
        if process is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _died() -> Overloaded:
    return Overloaded(
        "the sealer died. expected=an answer got=the end of its socket", retry_after_s=1.0, reason="internal_error"
    )
