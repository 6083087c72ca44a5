"""The charts' samples: as many as an hour has, and the latest; and what they tell of a table that lags."""

from mainstem.admission import Dedup
from mainstem.app.pages.activity import SAMPLE_S, SAMPLES_MAX, Activity
from mainstem.app.pages.tables import behind_s
from mainstem.model import LogPosition
from mainstem.runtime.clock import ManualClock


def test_the_charts_have_the_last_hour_and_no_more() -> None:
    clock = ManualClock()
    position = LogPosition(0)
    activity = Activity(
        Dedup(clock), clock, lambda: position, lambda: LogPosition(max(0, position - 3)), lambda: (0, 0)
    )
    assert activity.charts().at_ms == []
    for n in range(SAMPLES_MAX + 10):
        position = LogPosition(n)
        activity.sample()
        clock.advance(SAMPLE_S)
    charts = activity.charts()
    assert len(charts.at_ms) == len(charts.durable) == len(charts.carried) == len(charts.lag_changes) == SAMPLES_MAX
    assert (charts.durable[0], charts.durable[-1], charts.lag_changes[-1]) == (10, SAMPLES_MAX + 9, 3)
    assert charts.at_ms[-1] - charts.at_ms[0] == (SAMPLES_MAX - 1) * SAMPLE_S * 1000 == 3_598_000


def test_a_table_that_was_idle_for_hours_is_behind_since_its_change_came() -> None:
    clock = ManualClock()
    durable = carried = LogPosition(100)
    activity = Activity(Dedup(clock), clock, lambda: durable, lambda: carried, lambda: (0, 0))
    assert activity.waits_since() is None
    committed_ms = clock.now_ms()
    for _ in range(SAMPLES_MAX * 3):
        activity.sample()
        clock.advance(SAMPLE_S)
    # A change comes after three hours, and waits for four seconds.
    durable = LogPosition(101)
    for _ in range(2):
        activity.sample()
        clock.advance(SAMPLE_S)
    assert behind_s(clock.now_ms(), committed_ms, activity.waits_since()) == 4.0 + SAMPLE_S
    assert behind_s(clock.now_ms(), committed_ms, None) > 10_000
    assert behind_s(clock.now_ms(), clock.now_ms() - 1_500, activity.waits_since()) == 1.5
    # Nothing is known of what came before the first sample.
    carried = LogPosition(99)
    assert activity.waits_since() is None
    assert behind_s(clock.now_ms(), None, None) == 0.0
