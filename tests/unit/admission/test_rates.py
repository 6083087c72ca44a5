"""Limits of rate: inclusive, per connection, source, address and subnet, with delays that grow."""

from random import Random
from typing import Any

import msgspec
import pytest

from mainstem.admission import RateExceeded, Rates, RateSettings
from mainstem.admission.rates import PRIVATE, retry_ms
from mainstem.model import Overloaded
from mainstem.runtime.clock import ManualClock

OUTSIDE = "203.0.113.7"


def rates(**changed: Any) -> tuple[Rates, ManualClock]:
    clock = ManualClock()
    return Rates(RateSettings(**changed), clock=clock, rng=Random(1)), clock


def reason_of(call: Any) -> tuple[str, float]:
    with pytest.raises(Overloaded) as refused:
        call()
    return refused.value.reason, refused.value.retry_after_s


def test_the_defaults_are_the_documented_ones() -> None:
    settings = RateSettings()
    assert (settings.connections_per_s, settings.messages_per_s, settings.burst, settings.refill_per_s) == (
        20, 100, 50, 10.0,
    )  # fmt: skip
    assert (settings.connections_per_source, settings.connections_per_address) == (5, 30)
    assert (settings.connections_per_subnet, settings.pressure_threshold) == (100, 0.8)
    assert (settings.retry_ms_min, settings.retry_ms_max, settings.exempt) == (100, 30_000, PRIVATE)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.9.9", "::1", "::ffff:10.0.0.1"])
def test_private_ranges_are_exempt(address: str) -> None:
    limits, _ = rates(connections_per_s=1)
    assert [limits.connect(address) for _ in range(200)] == [None] * 200
    assert limits.request(address).remaining == 100


@pytest.mark.parametrize("address", [OUTSIDE, "172.32.0.1", "2001:db8::1", "::ffff:203.0.113.7"])
def test_others_are_not(address: str) -> None:
    assert rates()[0].connect(address) is not None


def test_exactly_the_maximum_of_connections_per_second_passes() -> None:
    limits, clock = rates(connections_per_address=1000, connections_per_subnet=1000)
    for _ in range(20):
        assert limits.connect(OUTSIDE) is not None
    reason, wait_s = reason_of(lambda: limits.connect(OUTSIDE))
    assert (reason, 0.1 <= wait_s <= 30) == ("rate_limited", True)
    clock.advance(0.999)
    reason_of(lambda: limits.connect(OUTSIDE))
    clock.advance(0.001)
    assert limits.connect(OUTSIDE) is not None


def test_exactly_the_maximum_per_address_and_per_subnet_passes() -> None:
    limits, _ = rates(connections_per_s=10_000)
    meters = [limits.connect(OUTSIDE) for _ in range(30)]
    assert reason_of(lambda: limits.connect(OUTSIDE))[0] == "ip_limit"
    for host in range(1, 71):
        limits.connect(f"203.0.113.{100 + host}")
    reason, _ = reason_of(lambda: limits.connect("203.0.113.99"))
    assert reason == "ip_limit"
    assert limits.connect("203.0.114.99") is not None
    limits.leave(meters[0])
    assert limits.connect(OUTSIDE) is not None
    assert reason_of(lambda: limits.connect("203.0.113.98"))[0] == "ip_limit"


def test_a_source_has_at_most_its_connections() -> None:
    limits, _ = rates()
    limits.check_source("shop", 4)
    assert reason_of(lambda: limits.check_source("shop", 5))[0] == "connection_limit"


def test_a_connection_has_a_burst_and_then_what_comes_back() -> None:
    limits, clock = rates()
    meter = limits.connect(OUTSIDE)
    assert meter is not None
    for _ in range(50):
        meter.take(1.0)
    assert (meter.tokens, meter.capacity, meter.delay_ms) == (0, 50, 100)
    assert reason_of(lambda: meter.take(1.0))[0] == "rate_limited"
    clock.advance(0.1)
    assert meter.delay_ms is None
    meter.take(1.0)
    clock.advance(60)
    assert meter.tokens == 50


def test_heartbeats_are_lighter_but_count_as_messages() -> None:
    limits, clock = rates()
    meter = limits.connect(OUTSIDE)
    assert meter is not None
    for _ in range(100):
        meter.take(limits.settings.heartbeat_tokens)
    assert meter.tokens == 40
    assert (meter.view.limit, meter.view.remaining, meter.view.reset_s) == (100, 0, 1.0)
    assert reason_of(lambda: meter.take(0.1))[0] == "rate_limited"
    clock.advance(1.0)
    meter.take(0.1)
    assert meter.view.remaining == 99


def test_delays_double_with_jitter_between_their_bounds_and_start_over() -> None:
    settings, rng = RateSettings(), Random(5)
    for refusals in range(1, 40):
        ceiling = min(30_000, 100 * 2 ** (refusals - 1))
        drawn = {retry_ms(refusals, settings, rng) for _ in range(50)}
        assert min(drawn) >= max(100, ceiling / 2) and max(drawn) <= ceiling
        assert len(drawn) > 1 or refusals == 1
    limits, clock = rates()
    meter = limits.connect(OUTSIDE)
    assert meter is not None
    for _ in range(50):
        meter.take(1.0)
    waits = [reason_of(lambda: meter.take(1.0))[1] for _ in range(12)]
    assert waits[0] == pytest.approx(0.1) and 15 <= waits[-1] <= 30
    clock.advance(1)
    meter.take(1.0)
    for _ in range(9):
        meter.take(1.0)
    assert reason_of(lambda: meter.take(1.0))[1] < 0.21


def test_requests_are_counted_per_address() -> None:
    limits, clock = rates(requests_per_s=3)
    assert [limits.request(OUTSIDE).remaining for _ in range(3)] == [2, 1, 0]
    with pytest.raises(RateExceeded) as refused:
        limits.request(OUTSIDE)
    assert refused.value.view == msgspec.structs.replace(refused.value.view, limit=3, remaining=0, reset_s=1.0)
    assert limits.request("203.0.113.8").remaining == 2
    clock.advance(1.0)
    assert limits.request(OUTSIDE).remaining == 2


@pytest.mark.parametrize("wrong", [{"exempt": ["nowhere"]}, {"burst": 0}, {"retry_ms_min": 500, "retry_ms_max": 400}])
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, RateSettings)


def test_an_address_in_the_clothes_of_ipv6_is_the_same_one() -> None:
    limits, _ = rates(connections_per_s=1_000, connections_per_subnet=3)
    for address in ("203.0.113.1", "::ffff:203.0.113.1", "::ffff:203.0.113.2"):
        assert limits.connect(address) is not None
    assert reason_of(lambda: limits.connect("203.0.113.3"))[0] == "ip_limit"
    assert limits.connect("::ffff:198.51.100.1") is not None


def test_requests_of_this_machine_are_never_counted() -> None:
    limits, _ = rates(exempt=(), requests_per_s=1)
    assert {limits.request("127.0.0.1").remaining for _ in range(10)} == {1}
    assert limits.connect("127.0.0.1") is not None
