"""The only way to the time. Everything that waits or stamps takes a `Clock`."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for stamps, monotonic time for durations."""

    def now_ms(self) -> int:
        """Milliseconds since 1970. May go backwards."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start. Never goes backwards."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock for tests: it moves when it is told to."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_s = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._now_ms += round(seconds * 1000)
        self._monotonic_s += seconds

    def set_wall(self, now_ms: int) -> None:
        """Move the wall clock alone, as an operator or NTP does."""
        self._now_ms = now_ms
