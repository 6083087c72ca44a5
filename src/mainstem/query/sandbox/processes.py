"""The gateway's side of the sandbox: processes that are kept ready, lent to one query at a time, killed and replaced.

Everything blocks, and is called from worker threads; only `kill` is for other threads too. A process that was killed or
died is replaced at once, so that the next query finds one that is warm.
"""

import socket
import subprocess
import threading
from typing import TypeVar

import pyarrow as pa

from mainstem.model import Invalid, MainstemError
from mainstem.query.sandbox import orders
from mainstem.query.sandbox.session import SandboxSettings
from mainstem.runtime.children import bare_environment, python_module

T = TypeVar("T")

# What a process may take to give up a statement that is not busy.
STOP_S_MAX = 5.0
# Arrow's own allocator takes a gigabyte of addresses with its first byte, which the process's bound would refuse.
_ARROW = {"ARROW_DEFAULT_MEMORY_POOL": "system"}


class SandboxDied(Invalid):
    """The process ended in the middle of an order, by itself or because it was killed."""

    def __init__(self) -> None:
        super().__init__(
            "the query ended its process: it needed more memory than it may use, or the engine failed on it",
            reason="query_memory",
        )


class SandboxProcess:
    """One process. It serves one query at a time."""

    def __init__(self, settings: SandboxSettings, folder: str | None) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                python_module("mainstem.query.sandbox.worker", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=bare_environment() | _ARROW,
                # Ctrl-C in a terminal reaches the whole group: queries end when the gateway says so.
                start_new_session=True,
            )
        self._is_broken = False
        self._is_ready = False
        self._send(orders.Hello(settings, folder), 60.0)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can take another order."""
        # The system takes a moment to end a process that was told to.
        return not self._is_broken and self._process.poll() is None

    def ask(self, order: orders.Order, kind: type[T], seconds: float) -> T:
        """An order that is answered by one value."""
        code, body = self._asked(order, seconds)
        if code != orders.JSON:
            raise SandboxDied
        return self._decoded(body, kind)

    def start(self, order: orders.Run, seconds: float) -> tuple[tuple[orders.Column, ...], pa.Schema]:
        """Start a statement: its columns, and the Arrow schema of its rows."""
        _, body = self._asked(order, seconds)
        schema, _ = orders.read_stream(body)
        told = dict(schema.metadata or {})
        columns = self._decoded(bytearray(told.pop(orders.COLUMNS, b"")), tuple[orders.Column, ...])
        return columns, schema.with_metadata(told or None)

    def next(self, seconds: float) -> pa.RecordBatch | None:
        """The next rows of the statement; None after the last."""
        code, body = self._asked(orders.Next(), seconds)
        return None if code == orders.END else orders.read_stream(body)[1]

    def kill(self) -> None:
        """At once, whatever it is busy with. Who waits for an answer gets `SandboxDied`."""
        self._is_broken = True
        self._process.kill()

    def close(self) -> None:
        """Kill it, and let go of what it had."""
        self._process.kill()
        self._process.wait()
        self._channel.close()

    def _asked(self, order: orders.Order, seconds: float) -> tuple[bytes, bytearray]:
        if not self._is_ready:
            self._await_start()
        self._send(order, seconds)
        answer = orders.take_answer(self._channel)
        if answer is None:
            self.kill()
            raise SandboxDied
        code, body = answer
        if code == orders.ERROR:
            raise self._decoded(body, orders.Failure).error()
        return code, body

    def _await_start(self) -> None:
        """The first question waits until the process is ready: until then nothing of a user's has reached it."""
        if orders.take_answer(self._channel) is None:
            self.kill()
            raise MainstemError("the process for queries did not start: the server's log says why")
        self._is_ready = True

    def _send(self, order: orders.Order, seconds: float) -> None:
        try:
            orders.send_order(self._channel, order, seconds)
        except OSError as error:
            self.kill()
            raise SandboxDied from error

    def _decoded(self, body: bytearray, kind: type[T]) -> T:
        try:
            return orders.decoded(body, kind)
        except (ValueError, RecursionError) as error:
            self.kill()
            raise MainstemError("the sandbox gave no answer that can be read") from error


class Sandboxes:
    """Processes kept ready. At most `size_max` are lent or idle; who takes one more starts it."""

    def __init__(self, settings: SandboxSettings, folder: str | None, size_max: int) -> None:
        self._settings = settings
        self._folder = folder
        self._size_max = size_max
        self._idle: list[SandboxProcess] = []
        self._lent: set[SandboxProcess] = set()
        self._lock = threading.Lock()
        self._closed = False
        # Processes that were killed or died, since the start.
        self.replaced = 0

    @property
    def pids(self) -> list[int]:
        """Of the processes that wait for a query."""
        with self._lock:
            return [each.pid for each in self._idle]

    def warm(self) -> None:
        """Have all of them ready."""
        while True:
            with self._lock:
                if self._closed or len(self._idle) >= self._size_max:
                    return
            self._keep(self._new(), first=False)

    def take(self) -> SandboxProcess:
        """One that is ready, or a new one. The one that was used last is taken first: its sessions are warm."""
        while True:
            with self._lock:
                if self._closed:
                    raise MainstemError("the server is stopping")
                process = self._idle.pop() if self._idle else None
            if process is None:
                return self._lend(self._new())
            if process.is_alive:
                return self._lend(process)
            process.close()

    def _lend(self, process: SandboxProcess) -> SandboxProcess:
        with self._lock:
            if not self._closed:
                self._lent.add(process)
                return process
        process.close()
        raise MainstemError("the server is stopping")

    def give_back(self, process: SandboxProcess, *, reusable: bool) -> None:
        """Keep a process for the next query, or end it and start another in its place."""
        with self._lock:
            self._lent.discard(process)
        if reusable and process.is_alive:
            self._keep(process)
            return
        process.close()
        with self._lock:
            self.replaced += 1
            if self._closed or len(self._idle) >= self._size_max:
                return
        self._keep(self._new(), first=False)

    def free(self, process: SandboxProcess) -> None:
        """Take a process back whose statement may still have rows: it is told to forget them."""
        try:
            ready = process.ask(orders.Stop(), orders.Ready, STOP_S_MAX)
        except MainstemError:
            self.give_back(process, reusable=False)
        else:
            self.give_back(process, reusable=not ready.spent)

    def close(self) -> None:
        """End idle processes and lent ones: a query that waits for an answer hears that its process died."""
        with self._lock:
            self._closed = True
            leaving, self._idle = self._idle, []
            for process in self._lent:
                process.kill()
        for process in leaving:
            process.close()

    def _new(self) -> SandboxProcess:
        return SandboxProcess(self._settings, self._folder)

    def _keep(self, process: SandboxProcess, *, first: bool = True) -> None:
        """`first`: it is the next to be taken. A new one is still getting ready, and waits behind the others."""
        with self._lock:
            if not self._closed and len(self._idle) < self._size_max:
                self._idle.insert(len(self._idle) if first else 0, process)
                return
        process.close()
