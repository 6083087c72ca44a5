"""Writers that share a transaction: those who came while the last one became durable are part of the next.

To make many commits durable costs as much as one. The first writer leads: it carries out what is waiting, tells the
others what became of theirs, and lets the first of those who came meanwhile lead next. No writer waits for others to
come, so a lone writer is as fast as if it had the store to itself, and there is no thread to hand its work to.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from mainstem.catalog.stores.sql import Connection
from mainstem.catalog.stores.store import CURRENT_MARK
from mainstem.model import OutcomeUnknown

# A bound for the work of one transaction; there are hardly as many threads.
TURNS_MAX = 64

T = TypeVar("T")


class Turn:
    """One writer's statements, and what became of them: a value, or an error that is raised to that writer."""

    __slots__ = ("error", "is_one_write", "is_over", "mark", "statements", "value", "wake")

    def __init__(self, statements: Callable[[Connection], Any], *, is_one_write: bool) -> None:
        self.statements = statements
        self.is_one_write = is_one_write
        # Of the writer's own thread, which may not be the one that runs the statements.
        self.mark = CURRENT_MARK.get()
        self.value: Any = None
        self.error: BaseException | None = None
        self.is_over = False
        # Held until the writer has something to do: a thread's cheapest way to wait for another.
        self.wake = threading.Lock()
        self.wake.acquire()


class SharedWrites:
    """The queue of the writers. `carry_out` runs the turns of one transaction, and sets what became of each."""

    def __init__(self, carry_out: Callable[[list[Turn]], None]) -> None:
        self._carry_out = carry_out
        self._waiting: deque[Turn] = deque()
        self._is_led = False
        self._lock = threading.Lock()

    def run(self, statements: Callable[[Connection], T], *, is_one_write: bool) -> T:
        """Run statements in a transaction; what they did is durable when this returns."""
        turn = Turn(statements, is_one_write=is_one_write)
        with self._lock:
            self._waiting.append(turn)
            leads, self._is_led = not self._is_led, True
        if not leads:
            turn.wake.acquire()
        if not turn.is_over:
            self._lead()
        if turn.error is not None:
            raise turn.error
        value: T = turn.value
        return value

    def _lead(self) -> None:
        with self._lock:
            turns = [self._waiting.popleft() for _ in range(min(TURNS_MAX, len(self._waiting)))]
        try:
            self._carry_out(turns)
        except BaseException as error:
            # End every wait, whatever happened here: a waiter has no time-out of its own.
            for turn in turns:
                turn.error = OutcomeUnknown(f"catalog store failed. got={error!r}")
            raise
        finally:
            self._end(turns)

    def _end(self, turns: list[Turn]) -> None:
        with self._lock:
            following = self._waiting[0] if self._waiting else None
            self._is_led = following is not None
        # Wake the next leader first: the disk is idle until it begins.
        if following is not None:
            following.wake.release()
        for turn in turns:
            turn.is_over = True
            turn.wake.release()
