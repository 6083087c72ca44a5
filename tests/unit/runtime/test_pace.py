"""A process that has much to do leaves the processors to others for a part of the time."""

import pytest

from mainstem.runtime.pace import REST_S_MAX, STEP_S, Pace


class Machine:
    """The clocks of a process that works and sleeps."""

    def __init__(self) -> None:
        self.now_s = self.cpu_s = 0.0
        self.slept_s: list[float] = []

    def work(self, seconds: float, waited_s: float = 0.0) -> None:
        self.cpu_s += seconds
        self.now_s += seconds + waited_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds

    def pace(self, share: float) -> Pace:
        return Pace(share, cpu_s=lambda: self.cpu_s, now_s=lambda: self.now_s, sleep=self.sleep)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
def test_work_takes_its_share_and_no_more(share: float) -> None:
    machine = Machine()
    pace = machine.pace(share)
    for number in range(1_000):
        machine.work(0.001 * (1 + number % 20))
        pace.rest()
        assert machine.cpu_s <= share * machine.now_s + STEP_S
    assert machine.cpu_s >= share * machine.now_s * 0.99


def test_short_steps_are_done_in_one_go() -> None:
    machine = Machine()
    pace = machine.pace(0.5)
    for _ in range(30):
        machine.work(STEP_S * 0.4)
        pace.rest()
    # Every third one.
    assert machine.slept_s == pytest.approx([STEP_S * 1.2] * 10)


def test_time_without_work_counts_as_rest() -> None:
    machine = Machine()
    pace = machine.pace(0.5)
    for _ in range(10):
        # For the disk, or for a processor that others have.
        machine.work(0.020, waited_s=0.015)
        pace.rest()
    assert machine.slept_s == pytest.approx([0.005] * 10)


def test_a_pause_is_not_made_up_for_later() -> None:
    machine = Machine()
    pace = machine.pace(0.5)
    machine.work(0.010, waited_s=60.0)
    pace.rest()
    assert machine.slept_s == []
    machine.work(0.010)
    pace.rest()
    assert machine.slept_s == pytest.approx([0.010])


def test_a_rest_is_bounded() -> None:
    machine = Machine()
    pace = machine.pace(0.01)
    machine.work(30.0)
    pace.rest()
    assert machine.slept_s == [REST_S_MAX]


def test_with_processors_enough_nothing_rests() -> None:
    machine = Machine()
    pace = machine.pace(1.0)
    machine.work(30.0)
    pace.rest()
    assert machine.slept_s == []
