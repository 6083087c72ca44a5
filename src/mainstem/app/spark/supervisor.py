"""Keeps the pipeline's process up: starts it, sees it die, says so, and starts it again with backoff.

The gateway goes on accepting whatever happens here. The child holds the read end of a pipe of ours as its standard
input, and asks the kernel to be told of our death: it does not outlive us even when we are killed.
"""

import asyncio
import logging
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from mainstem.runtime.backoff import doubled
from mainstem.runtime.clock import Clock
from mainstem.runtime.lifetime import die_with_parent

log = logging.getLogger(__name__)

BACKOFF_S_MIN = 0.5
BACKOFF_S_MAX = 30.0
# A child that stayed up this long starts again with the shortest backoff.
HEALTHY_S = 60.0
# A child that ends with this (EX_CONFIG) says in its last line what it lacks, Java say. It is tried again so often.
CANNOT_RUN = 78
CANNOT_RUN_S = 30.0
# What the child has to end in, and then what it started (Java, which removes Spark's folders): together with the doors'
# own ends less than the eight seconds in which the server is gone.
STOP_S_MAX = 4.5
STOP_REST_S_MAX = 1.0
LAST_LINES_MAX = 40
POLL_S = 0.02


class ChildStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What `/status` says of a supervised process."""

    running: bool
    pid: int | None
    restarts: int
    last_exit: str | None
    last_exit_ms: int | None
    last_lines: list[str]


class Supervisor:
    """One child process, restarted until it is told to stop."""

    def __init__(
        self, command: Sequence[str], *, log_path: Path, clock: Clock, environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = command
        # None: ours.
        self._environment = environment
        self._log_path = log_path
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._restarts = 0
        self._last_exit: str | None = None
        self._last_exit_ms: int | None = None
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES_MAX)
        self._stopping = asyncio.Event()
        # Set when the child and every process that it started have closed the child's output.
        self._ended = asyncio.Event()
        self._is_restarting = False

    def restart(self) -> None:
        """Let the child finish what it has in hand, and start it anew: it has new settings to read."""
        process = self._process
        if process is not None and process.returncode is None:
            self._is_restarting = True
            process.terminate()

    def status(self) -> ChildStatus:
        """A snapshot for `/status`."""
        running = self._process is not None and self._process.returncode is None
        return ChildStatus(
            running=running,
            pid=self._process.pid if self._process and running else None,
            restarts=self._restarts,
            last_exit=self._last_exit,
            last_exit_ms=self._last_exit_ms,
            last_lines=list(self._last_lines) if self._last_exit else [],
        )

    async def run(self) -> None:
        """Keep the child up until `stop`."""
        deaths = 0
        while not self._stopping.is_set():
            started_s = self._clock.monotonic_s()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            if self._is_restarting:
                self._is_restarting = False
                log.info("the pipeline is started anew with other settings")
                continue
            if self._clock.monotonic_s() - started_s > HEALTHY_S:
                deaths = 0
            if code == CANNOT_RUN:
                self._lacks_something()
                await self._pause(CANNOT_RUN_S)
                continue
            self._restarts += 1
            deaths += 1
            backoff_s = doubled(deaths, BACKOFF_S_MIN, BACKOFF_S_MAX)
            self._last_exit = _describe(code)
            self._last_exit_ms = self._clock.now_ms()
            log.error("the pipeline died (%s); starting it again in %.1f s", self._last_exit, backoff_s)
            await self._pause(backoff_s)

    def _lacks_something(self) -> None:
        """Say what the child lacks, in its own words, and once."""
        words = self._last_lines[-1].removeprefix("mainstem: ") if self._last_lines else "it does not say why"
        sentence = f"Changes are accepted, and the tables wait: {words}"
        if sentence != self._last_exit:
            log.error(sentence)
        self._last_exit, self._last_exit_ms = sentence, self._clock.now_ms()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def stop(self) -> None:
        """Let the child finish what it has in hand, and kill it if that takes too long."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        if not await _within(STOP_S_MAX, lambda: process.returncode is not None):
            log.warning(
                "the pipeline did not end in %.1f s and is killed; what it had in hand is done again", STOP_S_MAX
            )
            process.kill()
        if not await _within(STOP_REST_S_MAX, self._ended.is_set):
            # The child was the first of its session, and what it started is in it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    async def _run_once(self) -> int:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
            preexec_fn=die_with_parent,
            # Ctrl-C in a terminal reaches the whole group; the child is told by us, once the door is shut.
            start_new_session=True,
        )
        self._ended.clear()
        if self._stopping.is_set():
            self._process.terminate()
        assert self._process.stdout is not None
        with self._log_path.open("ab", buffering=0) as sink:
            async for line in _lines(self._process.stdout):
                sink.write(line)
                self._last_lines.append(line.decode(errors="replace").rstrip()[:500])
        self._ended.set()
        return await self._process.wait()


async def _within(seconds: float, is_over: Callable[[], bool]) -> bool:
    """Whether something comes to its end in time. Asked again and again: asyncio's own `wait` for a process also waits
    for everybody who has inherited its output."""
    for _ in range(round(seconds / POLL_S)):
        if is_over():
            return True
        await asyncio.sleep(POLL_S)
    return is_over()


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines as they come; one that is longer than the reader's buffer comes in pieces."""
    while True:
        try:
            line = await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            if end.partial:
                yield end.partial + b"\n"
            return
        except asyncio.LimitOverrunError as over:
            line = await stream.readexactly(over.consumed)
        yield line


def _describe(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
