"""Quotas: over time nobody gets more, whoever is past one is told how long to be silent, and memory is bounded."""

import pytest

from mainstem.admission.principal import ANYONE, Principal, Role
from mainstem.admission.quotas import BURST_S, DELAY_S_MAX, PRINCIPALS_MAX, Quota, Quotas, QuotaSettings, QuotasSettings
from mainstem.runtime.clock import ManualClock


def somebody(name: str) -> Principal:
    return Principal(sub=name, role=Role.WRITER, namespaces=None)


def test_over_time_a_principal_gets_its_quota_and_no_more() -> None:
    clock = ManualClock()
    quotas = Quotas(QuotasSettings(produce_bytes_per_s=1_000), clock)
    began_s, sent = clock.monotonic_s(), 0
    for _ in range(200):
        delay_s = quotas.charge(somebody("a"), "", {Quota.PRODUCE: 300})
        sent += 300
        clock.advance(delay_s)
    took_s = clock.monotonic_s() - began_s
    assert took_s == pytest.approx(sent / 1_000 - BURST_S, abs=0.01)
    assert quotas.throttled[Quota.PRODUCE] > 100


def test_principals_and_quotas_are_apart_and_users_have_their_own() -> None:
    settings = QuotasSettings(requests_per_s=10, users={"big": QuotaSettings(requests_per_s=0, fetch_bytes_per_s=5)})
    quotas = Quotas(settings, ManualClock())
    assert quotas.charge(somebody("a"), "", {Quota.REQUESTS: 20, Quota.FETCH: 10_000}) == pytest.approx(1.0)
    assert quotas.charge(somebody("b"), "", {Quota.REQUESTS: 10}) == 0
    assert quotas.charge(somebody("big"), "", {Quota.REQUESTS: 1_000}) == 0
    assert quotas.charge(somebody("big"), "", {Quota.FETCH: 10}) == pytest.approx(1.0)
    # Who did not have to say who it is is known by its client's name.
    assert quotas.charge(ANYONE, "one", {Quota.REQUESTS: 20}) == pytest.approx(1.0)
    assert quotas.charge(ANYONE, "two", {Quota.REQUESTS: 5}) == 0


def test_nobody_is_silenced_for_ever_and_what_is_kept_is_bounded() -> None:
    clock = ManualClock()
    quotas = Quotas(QuotasSettings(produce_bytes_per_s=1), clock)
    assert quotas.charge(somebody("a"), "", {Quota.PRODUCE: 1 << 30}) == DELAY_S_MAX
    for number in range(PRINCIPALS_MAX * len(Quota) + 5):
        quotas.charge(somebody(str(number)), "", {Quota.PRODUCE: 1})
    assert len(quotas._debts) == PRINCIPALS_MAX * len(Quota)


def test_without_quotas_nothing_is_counted() -> None:
    quotas = Quotas(QuotasSettings(), ManualClock())
    assert not quotas.is_on
    assert quotas.charge(ANYONE, "", {Quota.PRODUCE: 1 << 40}) == 0
    assert not quotas._debts
