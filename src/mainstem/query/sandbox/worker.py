"""The sandbox process: the only place where SQL from outside is parsed, planned and run.

    python -P -m mainstem.query.sandbox.worker DESCRIPTOR

The gateway starts it with an empty environment and one socket, and kills it at a query's time-out. It bounds its own
memory by the system before the first order: DuckDB's own bound does not hold for every function. It holds no key but
the warehouse's, and writes no file.
"""

import os
import resource
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from mainstem.model import MainstemError
from mainstem.query.sandbox import orders
from mainstem.query.sandbox.execution import Execution, mapped
from mainstem.query.sandbox.orders import Check, Hello, Next, PlanScans, Ready, Run, Stop, Translate
from mainstem.query.sandbox.session import SandboxSettings, Sessions
from mainstem.query.statements.predicates import scans
from mainstem.query.statements.spark_sql import spark_statement
from mainstem.query.statements.statement import Parser

# After the time that the gateway gave: it kills first, if it still lives.
_GRACE_S = 5.0


class Worker:
    """Answers orders, one at a time."""

    def __init__(self, channel: socket.socket, settings: SandboxSettings) -> None:
        self._channel = channel
        self._sessions = Sessions(settings)
        self._parser = Parser()
        self._running: Execution | None = None
        self._spent_bytes: int | None = None
        self._ran_short = False

    def warm(self, folder: str | None) -> None:
        """Have a session ready before the first query needs it: loading the extensions takes some 150 ms."""
        self._sessions.give_back(self._sessions.take({folder} if folder else set()), reusable=True)

    def bound(self, room_bytes: int) -> None:
        """From here on the system refuses this process more memory than `room_bytes`."""
        self._spent_bytes = bound_memory(room_bytes)

    def serve(self) -> None:
        """Until the gateway goes away."""
        while (taken := orders.take_order(self._channel)) is not None:
            seconds, order = taken
            # The kernel ends this process then, whatever it is busy with: there is no handler.
            signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE_S)
            try:
                kind, body = mapped(lambda order=order: self._answer(order))  # type: ignore[misc]
            except MainstemError as error:
                self._end(reusable=False)
                # What is left may be too little for the next query's session.
                self._ran_short |= getattr(error, "reason", None) == "query_memory"
                kind, body = orders.ERROR, msgspec.json.encode(orders.failure_of(error))
            except RecursionError:
                self._end(reusable=False)
                failure = orders.Failure("Invalid", "the statement is nested too deeply", "sql_syntax")
                kind, body = orders.ERROR, msgspec.json.encode(failure)
            orders.send_answer(self._channel, kind, body)
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _answer(self, order: orders.Order) -> tuple[bytes, Any]:
        match order:
            case Check(sql):
                return _json(self._parser.check(sql))
            case PlanScans(sql, tables):
                return _json(scans(self._parser, sql, tables))
            case Translate(statement, names):
                return _json(spark_statement(self._parser, statement, names))
            case Run():
                return self._start(order)
            case Next():
                return self._next()
            case Stop():
                return self._stopped()
            case _:
                raise MainstemError(f"unknown order. got={type(order).__name__}")

    def _start(self, order: Run) -> tuple[bytes, Any]:
        self._running = execution = Execution(self._sessions)
        execution.start(order)
        # The columns' SQL types go with the schema, which is what a stream without rows is.
        types = msgspec.json.encode(execution.columns)
        schema = execution.schema.with_metadata({**(execution.schema.metadata or {}), orders.COLUMNS: types})
        return orders.ROWS, orders.stream_of(schema, None)

    def _next(self) -> tuple[bytes, Any]:
        assert self._running is not None
        batch = self._running.read()
        if batch is None:
            return orders.END, b""
        return orders.ROWS, orders.stream_of(self._running.schema, batch)

    def _stopped(self) -> tuple[bytes, Any]:
        self._end(reusable=True)
        has_grown = self._spent_bytes is not None and _data_bytes() > self._spent_bytes
        return _json(Ready(has_grown or self._ran_short))

    def _end(self, *, reusable: bool) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.end(reusable=reusable)


def bound_memory(room_bytes: int) -> int | None:
    """Bound this process's own memory to what it has now and `room_bytes`; from when on it counts as spent.

    None where the system has no such bound (it is Linux's): DuckDB's own then has to do.
    """
    for bound in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(bound, (0, 0))
    used = _data_bytes()
    if not used:
        return None
    # Should the machine itself run short, this is the process to end.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Memory that is written, files that are mapped not counted. What asks for more is told no, and says so.
    resource.setrlimit(resource.RLIMIT_DATA, (used + room_bytes, used + room_bytes))
    return used + room_bytes // 2


def _data_bytes() -> int:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmData:")), "VmData: 0 kB")
    return int(line.split()[1]) * 1024


def _json(answer: Any) -> tuple[bytes, bytes]:
    body = msgspec.json.encode(answer)
    if len(body) > orders.FRAME_BYTES_MAX:
        raise MainstemError(f"the answer is too large. expected=at most {orders.FRAME_BYTES_MAX} got={len(body)}")
    return orders.JSON, body


def _end_with(channel: socket.socket, end: Callable[[int], Any] = os._exit) -> None:
    """End when the other side of the socket closes, even in the middle of a query."""
    poll = select.poll()
    poll.register(channel, 0)
    poll.poll()
    end(1)


def main() -> int:
    """Serve the gateway that holds the other end of the socket."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    taken = orders.take_order(channel)
    if taken is None or not isinstance(taken[1], Hello):
        return 1
    hello = taken[1]
    worker = Worker(channel, hello.settings)
    worker.warm(hello.folder)
    worker.bound(hello.settings.process_bytes_max)
    orders.send_answer(channel, *_json(Ready(spent=False)))
    worker.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
