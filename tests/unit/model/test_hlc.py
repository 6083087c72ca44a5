"""The clock only grows, carries its counter, survives a backward wall clock and refuses drift."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.model import hlc
from mainstem.model.errors import Invalid
from mainstem.model.hlc import COUNTER_MAX, DRIFT_MS_MAX, HLC_MAX, Hlc, HlcClock

WALL_MS = st.integers(min_value=0, max_value=(1 << 46) - 1)


@given(WALL_MS, st.integers(min_value=0, max_value=COUNTER_MAX))
def test_parts_come_back_as_they_went_in(wall_ms: int, counter: int) -> None:
    value = hlc.pack(wall_ms, counter)
    assert (hlc.wall_ms(value), hlc.counter(value)) == (wall_ms, counter)


@given(st.lists(st.tuples(WALL_MS, st.integers(min_value=1, max_value=200_000)), min_size=1, max_size=50))
def test_every_value_is_above_all_before_it_whatever_the_wall_clock_does(ticks: list[tuple[int, int]]) -> None:
    clock = HlcClock()
    highest = 0
    for now_ms, count in ticks:
        first = clock.tick(now_ms, count)
        assert first > highest
        assert first >= hlc.pack(now_ms, 0)
        highest = first + count - 1
        assert clock.last == highest


def test_a_counter_past_its_bits_carries_into_the_wall_part() -> None:
    assert hlc.pack(1000, COUNTER_MAX + 1) == hlc.pack(1001, 0)
    clock = HlcClock(last=hlc.pack(1000, COUNTER_MAX))
    assert clock.tick(1000) == hlc.pack(1001, 0)


def test_a_wall_clock_that_goes_back_does_not_take_the_clock_with_it() -> None:
    clock = HlcClock()
    later = clock.tick(5_000)
    assert clock.tick(1_000) == later + 1


@given(WALL_MS, st.integers(min_value=-(10**6), max_value=10**6))
def test_a_remote_clock_is_refused_only_when_it_is_over_five_seconds_ahead(now_ms: int, ahead_ms: int) -> None:
    remote_ms = max(0, now_ms + ahead_ms)
    clock = HlcClock()
    remote = hlc.pack(remote_ms, 7)
    if remote_ms - now_ms > DRIFT_MS_MAX:
        with pytest.raises(Invalid, match="clock drift") as refused:
            clock.observe(remote, now_ms)
        assert refused.value.reason == "clock_drift"
        assert clock.last == 0
    else:
        clock.observe(remote, now_ms)
        assert clock.tick(now_ms) > remote


@pytest.mark.parametrize("value", [-1, HLC_MAX + 1, (1 << 64) - 1])
def test_a_clock_outside_signed_64_bits_is_refused(value: int) -> None:
    with pytest.raises(Invalid, match="out of range"):
        hlc.check_drift(Hlc(value), now_ms=1_700_000_000_000)


def test_a_clock_at_its_end_is_refused_rather_than_wrapped() -> None:
    with pytest.raises(Invalid, match="out of range"):
        HlcClock(last=Hlc(HLC_MAX)).tick(0)
