"""Requests of one source, one after the other, and none past one that failed.

An event that was sent before counts once, by its place in the source's log: so the order in which events first became
durable is the order that the tables see. Posters send the next request while one is under way, or over another
connection. A request that fails, or is refused for what it says, comes again; until it does, the source's others are
refused, for they would overtake it. A poster that gives it up for good is held up for as long as a retry may take.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from mainstem.model import Overloaded

# Longer than a poster waits before it sends a failed request again.
RETRY_S_MAX = 5.0
_RETRY_AFTER_S = 0.5


class Turn:
    """A request at work. `done` counts the events that are durable."""

    def __init__(self, marks: Sequence[object]) -> None:
        self.marks = marks
        self.done = 0


class _Lane:
    __slots__ = ("failed", "failures", "held_until_s", "lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        self.failures = 0
        # The first event of the request that failed which is not durable, while it is waited for.
        self.failed: object = None
        self.held_until_s = 0.0


class Lanes:
    """The sources that have requests under way, or one that failed. Belongs to the event loop."""

    def __init__(self, retry_s_max: float = RETRY_S_MAX) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._retry_s_max = retry_s_max

    def __len__(self) -> int:
        return len(self._lanes)

    @asynccontextmanager
    async def turn(self, source: str, marks: Sequence[object]) -> AsyncIterator[Turn]:
        """Be the only request of a source. `marks` tell its events from all others, in their order.

        Raises Overloaded where an earlier request failed and has to come again first.
        """
        lane = self._lanes.setdefault(source, _Lane())
        lane.users += 1
        failures = lane.failures
        try:
            async with lane.lock:
                if lane.failures != failures:
                    # It was on its way when the earlier one failed.
                    raise _behind()
                self._check(lane, marks)
                turn = Turn(marks)
                try:
                    yield turn
                except BaseException:
                    # Also where the poster went away: it will send again what it was not answered.
                    lane.failures += 1
                    lane.failed = marks[min(turn.done, len(marks) - 1)]
                    lane.held_until_s = self._now_s() + self._retry_s_max
                    raise
                lane.failed = None
        finally:
            lane.users -= 1
            self._leave(source, lane)

    def _check(self, lane: _Lane, marks: Sequence[object]) -> None:
        if lane.failed is not None and lane.failed not in marks and self._now_s() < lane.held_until_s:
            raise _behind()

    def _leave(self, source: str, lane: _Lane) -> None:
        if lane.users:
            return
        wait_s = 0.0 if lane.failed is None else lane.held_until_s - self._now_s()
        if wait_s > 0:
            asyncio.get_running_loop().call_later(wait_s, self._leave, source, lane)
        elif self._lanes.get(source) is lane:
            del self._lanes[source]

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


def _behind() -> Overloaded:
    return Overloaded(
        "an earlier request of this source failed, and has to come again first", retry_after_s=_RETRY_AFTER_S
    )
