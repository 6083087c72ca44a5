"""While the tables are behind: delays, `buffered`, shedding by priority and share, `buffer_full`, and back again."""

from random import Random
from typing import Any

import pytest

from mainstem.admission import Pressure, RateSettings
from mainstem.model import Overloaded
from mainstem.model.batch import Batch, Encoding, Priority
from mainstem.model.change import SourceId
from mainstem.runtime.clock import ManualClock


def batch(source: str = "shop", priority: Priority = Priority.NORMAL, size: int = 100) -> Batch:
    return Batch(
        source=SourceId(source),
        sequence=1,
        count=1,
        encoding=Encoding.CDC_JSON,
        payload=b"x" * size,
        fingerprint=0,
        tables=frozenset(),
        priority=priority,
    )


def pressure(**settings: Any) -> tuple[Pressure, ManualClock]:
    clock = ManualClock()
    return Pressure(RateSettings(**settings), clock=clock, rng=Random(3)), clock


def verdict(gate: Pressure, utilization: float, offered: Batch) -> str:
    try:
        gate.check(offered, utilization)
    except Overloaded as refusal:
        assert 0.1 <= refusal.retry_after_s <= 30
        return refusal.reason
    return "taken"


def test_it_degrades_in_order_and_recovers_by_itself() -> None:
    gate, _ = pressure()
    seen = []
    for utilization in (0.5, 0.8, 0.81, 0.86, 0.91, 0.96, 1.0, 2.0, 0.96, 0.91, 0.5):
        told = (gate.delay_ms(utilization) is not None, gate.is_behind(utilization))
        taken = tuple(verdict(gate, utilization, batch(priority=priority)) for priority in Priority)
        seen.append((utilization, *told, *taken))
    shed, full = "load_shedding", "buffer_full"
    assert seen == [
        (0.5, False, False, "taken", "taken", "taken"),
        (0.8, False, False, "taken", "taken", "taken"),
        (0.81, True, False, "taken", "taken", "taken"),
        (0.86, True, True, "taken", "taken", "taken"),
        (0.91, True, True, shed, "taken", "taken"),
        (0.96, True, True, shed, shed, "taken"),
        (1.0, True, True, full, full, full),
        (2.0, True, True, full, full, full),
        (0.96, True, True, shed, shed, "taken"),
        (0.91, True, True, shed, "taken", "taken"),
        (0.5, False, False, "taken", "taken", "taken"),
    ]


def test_the_delay_grows_with_the_buffer() -> None:
    gate, _ = pressure()
    assert [gate.delay_ms(u) for u in (0.0, 0.8, 0.9, 1.0, 1.5)] == [None, None, 2550, 5000, 5000]
    early, _ = pressure(pressure_threshold=0.5)
    assert [early.delay_ms(0.5), early.is_behind(0.63)] == [None, True]


def test_who_takes_more_than_its_share_is_shed_first() -> None:
    gate, clock = pressure()
    for _ in range(20):
        gate.check(batch("flood", size=100_000), 0.5)
        for polite in range(5):
            gate.check(batch(f"polite-{polite}"), 0.5)
    assert verdict(gate, 0.92, batch("flood")) == "load_shedding"
    assert verdict(gate, 0.92, batch("polite-1")) == "taken"
    assert verdict(gate, 0.97, batch("flood", Priority.HIGH)) == "load_shedding"
    # Long after, what it sent is forgotten.
    clock.advance(300)
    for source in ("polite-1", "polite-2", "flood"):
        gate.check(batch(source), 0.5)
    assert verdict(gate, 0.92, batch("flood")) == "taken"


def test_alone_nobody_takes_more_than_a_share() -> None:
    gate, _ = pressure()
    for _ in range(100):
        gate.check(batch("only", size=1 << 20), 0.5)
    assert verdict(gate, 0.94, batch("only")) == "taken"


def test_delays_of_a_refused_source_grow_until_it_is_taken() -> None:
    gate, _ = pressure()

    def wait_s() -> float:
        with pytest.raises(Overloaded) as refused:
            gate.check(batch(), 1.0)
        return refused.value.retry_after_s

    waits = [wait_s() for _ in range(12)]
    assert waits[0] == pytest.approx(0.1) and waits[-1] >= 15
    gate.check(batch(), 0.1)
    assert wait_s() == pytest.approx(0.1)


def test_what_is_remembered_of_sources_is_bounded() -> None:
    gate, _ = pressure()
    for number in range(20_000):
        gate.check(batch(f"s{number}"), 0.1)
        verdict(gate, 1.0, batch(f"r{number}"))
    assert len(gate._shares._sums) <= 4_096
    assert len(gate._refusals) <= 16_384
