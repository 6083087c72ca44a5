"""A circuit breaker around the commits: while the tables' store is in trouble, it is left alone for a while.

    closed     ── so many failures in a row ──▶ open
    open       ── after a pause ──────────────▶ half-open: one pass may try
    half-open  ── it succeeds ────────────────▶ closed
    half-open  ── it fails ───────────────────▶ open

Only trouble of the store counts (see `is_store_trouble`): what is wrong with one table stays with that table. Changes
are durable in the log all the while, and are carried over once the breaker is closed again.
"""

import re
import threading
from enum import StrEnum
from typing import Any

from py4j.protocol import Py4JJavaError

from mainstem.runtime.clock import Clock
from mainstem.wire.reports import BreakerStatus

FAILURES_MAX = 5
OPEN_S = 30.0

# Simple names of exceptions that speak of a store or of the way to it, in Java and in Python.
_TROUBLE = frozenset(
    (
        "CommitStateUnknownException", "ConnectException", "EOFException", "HTTPException", "IOException",
        "NoHttpResponseException", "NoSuchBucketException", "OSError", "RESTException", "RuntimeIOException",
        "S3Exception", "SdkClientException", "ServiceFailureException", "ServiceUnavailableException",
        "SocketException", "SocketTimeoutException", "UncheckedIOException", "UnknownHostException",
    )
)  # fmt: skip
_NAMES = re.compile(r"\b(?:[\w$]+\.)*([A-Z]\w+(?:Exception|Error))\b")
# What Spark says of an executor, or of a Python worker, that died. The stream to a dead worker ends with an
# EOFException, which says nothing of the store.
_WORKER_DIED = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|Executor\w* heartbeat timed out")
_CAUSES_MAX = 32


class State(StrEnum):
    """Whether commits are tried."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Safe to use from every lane."""

    def __init__(self, clock: Clock, *, failures_max: int = FAILURES_MAX, open_s: float = OPEN_S) -> None:
        self._clock = clock
        self._failures_max = failures_max
        self._open_s = open_s
        self._lock = threading.Lock()
        self._state = State.CLOSED
        self._failures = 0
        self._opened_s = 0.0
        self._opened_ms: int | None = None
        self._openings = 0
        self._error: str | None = None
        self._probing = False

    def allow(self) -> bool:
        """Whether a pass may be tried now. Where it is half-open that holds for one, until it is told how it went."""
        with self._lock:
            if self._state is State.OPEN and self._clock.monotonic_s() - self._opened_s >= self._open_s:
                self._state = State.HALF_OPEN
            if self._state is State.HALF_OPEN and not self._probing:
                self._probing = True
                return True
            return self._state is State.CLOSED

    def succeeded(self) -> bool:
        """A commit is in. Whether that closed the breaker."""
        with self._lock:
            was_closed = self._state is State.CLOSED
            self._state, self._failures, self._probing, self._error = State.CLOSED, 0, False, None
            return not was_closed

    def failed(self, error: str) -> None:
        """The store failed."""
        with self._lock:
            self._failures += 1
            self._error = error
            self._probing = False
            if self._state is State.HALF_OPEN or (self._state is State.CLOSED and self._failures >= self._failures_max):
                self._state = State.OPEN
                self._opened_s = self._clock.monotonic_s()
                self._opened_ms = self._clock.now_ms()
                self._openings += 1

    def undecided(self) -> None:
        """A pass that was tried told nothing about the store: another one may try."""
        with self._lock:
            self._probing = False

    def report(self) -> BreakerStatus:
        """How it stands."""
        with self._lock:
            return BreakerStatus(
                state=self._state,
                failures=self._failures,
                opened_ms=self._opened_ms,
                openings=self._openings,
                error=self._error,
            )


def is_store_trouble(error: BaseException) -> bool:
    """Whether an error comes from the tables' store, or from the way to it, and not from a table."""
    if is_worker_loss(error):
        return False
    return any(name in _TROUBLE for cause in _causes(error) for name in _names(cause))


def is_worker_loss(error: BaseException) -> bool:
    """Whether a job failed because executors or Python workers died under it."""
    return any(_WORKER_DIED.search(_text(cause)) for cause in _causes(error))


def _causes(error: BaseException) -> list[BaseException]:
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(causes) < _CAUSES_MAX:
        causes.append(cause)
        # What Spark hands up from Java keeps its cause under a name of its own.
        cause = cause.__cause__ or getattr(cause, "_cause", None)
    return causes


def _names(error: BaseException) -> set[str]:
    names = {each.__name__ for each in type(error).__mro__}
    if isinstance(error, Py4JJavaError):
        java: Any = error.java_exception
        for _ in range(_CAUSES_MAX):
            if java is None:
                break
            names.add(str(java.getClass().getSimpleName()))
            java = java.getCause()
        return names
    # What Spark says of a failed job or stream names its causes in the text, or in the trace that comes with it.
    return names | set(_NAMES.findall(_text(error)))


def _text(error: BaseException) -> str:
    return f"{error}\n{getattr(error, '_stackTrace', '')}"
