"""Hybrid logical clocks: 64 bits, wall milliseconds << 16 | counter.

A clock value is a plain int that fits a signed 64-bit column. This module owns the arithmetic and the rules; the
wall time is an argument, so that tests and fault runs decide what time it is.
"""

from dataclasses import dataclass
from typing import NewType

from mainstem.model.errors import Invalid

Hlc = NewType("Hlc", int)

COUNTER_BITS = 16
COUNTER_MAX = (1 << COUNTER_BITS) - 1
DRIFT_MS_MAX = 5_000
# Parquet, Iceberg and Delta have no unsigned 64-bit column.
HLC_MAX = (1 << 63) - 1


def pack(wall_ms: int, counter: int) -> Hlc:
    """Build a clock value; a counter past 65,535 carries into the wall part."""
    value = (wall_ms << COUNTER_BITS) + counter
    if wall_ms < 0 or counter < 0 or value > HLC_MAX:
        raise Invalid(f"clock out of range. expected=0..{HLC_MAX} got={wall_ms}ms+{counter}", reason="clock_range")
    return Hlc(value)


def wall_ms(hlc: Hlc) -> int:
    """The wall-clock part, in milliseconds since 1970."""
    return hlc >> COUNTER_BITS


def counter(hlc: Hlc) -> int:
    """The logical part: the order within a millisecond."""
    return hlc & COUNTER_MAX


def check_drift(remote: Hlc, now_ms: int) -> None:
    """Refuse a remote clock that runs more than 5 s ahead of ours. One that is behind is fine."""
    if not 0 <= remote <= HLC_MAX:
        raise Invalid(f"clock out of range. expected=0..{HLC_MAX} got={remote}", reason="clock_range")
    ahead_ms = wall_ms(remote) - now_ms
    if ahead_ms > DRIFT_MS_MAX:
        raise Invalid(f"clock drift. expected=at most {DRIFT_MS_MAX} ms ahead got={ahead_ms} ms", reason="clock_drift")


@dataclass(slots=True)
class HlcClock:
    """Issues clock values that only ever grow, whatever the wall clock does.

    `last` is the highest value issued or observed; to restart a clock, pass the last durable one.
    """

    last: Hlc = Hlc(0)

    def tick(self, now_ms: int, count: int = 1) -> Hlc:
        """Issue `count` consecutive values and return the first one."""
        if count < 1:
            raise ValueError(f"a tick issues at least one value. got={count}")
        first = max(pack(now_ms, 0), self.last + 1)
        self.last = pack(0, first + count - 1)
        return Hlc(first)

    def observe(self, remote: Hlc, now_ms: int) -> None:
        """Take note of a remote clock, so that what is issued next comes after it."""
        check_drift(remote, now_ms)
        self.last = max(self.last, remote)
