"""What happens while the tables are behind the log, by how many bytes on disk that is, and to whom first.

The share of the room that is taken decides, so it recovers by itself. With the default threshold of 0.8:

    over 0.80   acks suggest a delay, which grows
    over 0.85   acks say `buffered`
    over 0.90   what matters least is refused (`load_shedding`): low priority, and sources beyond their share
    over 0.95   only high priority of sources within their share is taken
    from 1.00   everything is refused (`buffer_full`)

A refused batch is told when to come back; it changed nothing.
"""

import math
from collections import OrderedDict
from random import Random

from mainstem.admission.rates import RateSettings, retry_ms
from mainstem.model.batch import Batch, Priority
from mainstem.model.errors import Overloaded
from mainstem.runtime.clock import Clock

DELAY_MS_MIN = 100
DELAY_MS_MAX = 5_000
# After this long a byte counts for 1/e: what a source sent lately is what it takes now.
FADE_S = 10.0
# How many times what the others take on average a source may take before it counts as taking more than its share.
SHARES_MAX = 2.0
SOURCES_MAX = 4_096
REFUSALS_MAX = 16_384


class Pressure:
    """Decides by how full the room is. Belongs to the event loop."""

    def __init__(self, settings: RateSettings | None = None, *, clock: Clock, rng: Random | None = None) -> None:
        self.settings = settings or RateSettings()
        self._clock = clock
        self._rng = rng or Random()
        self._shares = Shares(clock)
        self._refusals: OrderedDict[str, int] = OrderedDict()

    def check(self, batch: Batch, utilization: float) -> None:
        """Refuse a batch where there is no room for it. Raises Overloaded."""
        if utilization < self._at(0.5):
            if self._refusals:
                self._refusals.pop(batch.source, None)
            self._shares.add(batch.source, len(batch.payload))
            return
        if utilization >= 1.0:
            raise self._refused(batch, "the tables are behind. expected=room for changes got=none", "buffer_full")
        if self._rank(batch) < self._rank_needed(utilization):
            raise self._refused(
                batch,
                f"the tables are behind, and others come first. expected=at most {self._at(0.5):.2f} of the room taken"
                f" got={utilization:.2f}",
                "load_shedding",
            )
        self._refusals.pop(batch.source, None)
        self._shares.add(batch.source, len(batch.payload))

    def is_behind(self, utilization: float) -> bool:
        """Whether an ack should say that the tables are behind."""
        return utilization > self._at(0.25)

    def delay_ms(self, utilization: float) -> int | None:
        """How long a producer should wait before its next batch; None where it need not."""
        threshold = self.settings.pressure_threshold
        if utilization <= threshold:
            return None
        excess = min(1.0, (utilization - threshold) / (1.0 - threshold))
        return round(DELAY_MS_MIN + excess * (DELAY_MS_MAX - DELAY_MS_MIN))

    def _at(self, share: float) -> float:
        threshold = self.settings.pressure_threshold
        return threshold + share * (1.0 - threshold)

    def _rank_needed(self, utilization: float) -> int:
        if utilization > self._at(0.75):
            return Priority.HIGH
        return Priority.NORMAL if utilization > self._at(0.5) else Priority.LOW

    def _rank(self, batch: Batch) -> int:
        """A source that takes more than its share counts one priority lower."""
        return batch.priority - self._shares.is_over(batch.source)

    def _refused(self, batch: Batch, message: str, reason: str) -> Overloaded:
        refusals = self._refusals.pop(batch.source, 0) + 1
        self._refusals[batch.source] = refusals
        if len(self._refusals) > REFUSALS_MAX:
            self._refusals.popitem(last=False)
        return Overloaded(message, retry_after_s=retry_ms(refusals, self.settings, self._rng) / 1000, reason=reason)


class Shares:
    """How much each source sent lately, as sums that fade."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By source: bytes, all as of one moment that moves on with the clock; see `_weight`.
        self._sums: OrderedDict[str, float] = OrderedDict()
        self._total = 0.0
        self._start_s = clock.monotonic_s()

    def add(self, source: str, size_bytes: int) -> None:
        """A source sent so much."""
        grown = size_bytes * self._weight()
        self._sums[source] = self._sums.pop(source, 0.0) + grown
        self._total += grown
        if len(self._sums) > SOURCES_MAX:
            _, oldest = self._sums.popitem(last=False)
            self._total -= oldest

    def is_over(self, source: str) -> bool:
        """Whether a source takes more than its share, among several."""
        mine, others = self._sums.get(source, 0.0), len(self._sums) - 1
        return others > 0 and mine * others > SHARES_MAX * (self._total - mine)

    def _weight(self) -> float:
        """Instead of letting every old sum shrink, what is new weighs more; now and then all are brought down."""
        age_s = self._clock.monotonic_s() - self._start_s
        if age_s > 20 * FADE_S:
            fade = math.exp(-age_s / FADE_S)
            kept = {name: value * fade for name, value in self._sums.items() if value * fade > 1.0}
            self._sums = OrderedDict(kept)
            self._total = sum(kept.values())
            self._start_s += age_s
            age_s = 0.0
        return math.exp(age_s / FADE_S)
