"""Keeps the order of a source on one connection over a batch that is refused for now.

The producer sends such a batch again later. Those behind it that are on the wire already must not overtake it, or an
older value would win over a newer one: they are refused as well until it has come back. How long that takes is not for
a clock to say, since they may have waited on the wire for any time; the clock only ends it where a producer has given
the batch up.
"""

from typing import NamedTuple

from mainstem.doors.cdc import replies
from mainstem.model.change import SourceId
from mainstem.model.errors import Overloaded
from mainstem.runtime.clock import Clock

# What is told of a batch whose predecessor is late.
_RETRY_S_MIN = 0.05


class _Hold(NamedTuple):
    """What must come first: the batch `after` which everything else of its source is refused, and until when."""

    after: int
    # When it may come back, and when it is not waited for any more (monotonic).
    retry_s: float
    ends_s: float
    reason: str


class Holding:
    """By source, the batch that must come back first. Bounded by the sources of the connection."""

    def __init__(self, clock: Clock, hold_s_max: float) -> None:
        self._clock = clock
        self._hold_s_max = hold_s_max
        self._held: dict[str, _Hold] = {}

    def refused(self, source: SourceId, sequence: int, error: Exception) -> None:
        """A batch was refused. Where the error says when to come back, those behind it wait for it."""
        retry_ms = replies.retry_delay_ms(error)
        if retry_ms is None:
            return
        now_s = self._clock.monotonic_s()
        held = self._held.get(source)
        after = sequence if held is None or held.ends_s <= now_s else min(held.after, sequence)
        retry_s = now_s + retry_ms / 1000
        reason = getattr(error, "reason", "internal_error")
        self._held[source] = _Hold(after, retry_s, retry_s + self._hold_s_max, reason)

    def check(self, source: SourceId, sequence: int) -> None:
        """Raise Overloaded where another batch of the source must come first."""
        held = self._held.get(source)
        if held is None:
            return
        now_s = self._clock.monotonic_s()
        if sequence > held.after and now_s < held.ends_s:
            raise Overloaded(
                f"an earlier batch waits for its retry. expected={held.after} got={sequence}",
                retry_after_s=max(held.retry_s - now_s, _RETRY_S_MIN),
                reason=held.reason,
            )
        if sequence == held.after or now_s >= held.ends_s:
            del self._held[source]
