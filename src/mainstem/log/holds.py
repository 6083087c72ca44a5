"""Keeps the order of a source over a refusal.

When a batch is refused for now, its source sends it again. Those that the source sent behind it must not overtake it,
or an older value would win over a newer one: they are refused as well, until the batch has come back or the time that
its sender was told is over. `Holds` is that rule for what comes; the writer has its own for what is on its way already.
"""

from mainstem.model.errors import Overloaded
from mainstem.runtime.clock import Clock


class Holds:
    """By source, what must come first. Lives on the event loop; bounded by the sources refused within `retry_s`."""

    def __init__(self, clock: Clock, retry_s: float) -> None:
        self._clock = clock
        self._retry_s = retry_s
        # Until when (monotonic), and the lowest sequence that was refused.
        self._held: dict[str, tuple[float, int]] = {}

    def refused(self, source: str, sequence: int) -> None:
        """A batch was refused for now."""
        now_s = self._clock.monotonic_s()
        held = self._held.pop(source, None)
        lowest = sequence if held is None or held[0] <= now_s else min(held[1], sequence)
        # Put back at the end, so that the oldest is always the first.
        self._held[source] = (now_s + self._retry_s, lowest)
        while self._held[oldest := next(iter(self._held))][0] <= now_s:
            del self._held[oldest]

    def check(self, source: str, sequence: int) -> None:
        """Raise Overloaded where another batch of the source must come first."""
        held = self._held.get(source)
        if held is None:
            return
        until_s, lowest = held
        left_s = until_s - self._clock.monotonic_s()
        if left_s > 0 and sequence > lowest:
            raise Overloaded(
                f"an earlier batch waits for its retry. expected={lowest} got={sequence}",
                retry_after_s=left_s,
                reason="internal_error",
            )
        if left_s <= 0 or sequence == lowest:
            del self._held[source]
