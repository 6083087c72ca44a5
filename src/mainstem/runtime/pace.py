"""Keeps a process that has much to do, and no hurry, to its share of the machine's processors.

A low priority is not enough for that. It decides who goes first where two want a processor at once, and within one
group of processes only: a process that computes without a pause still keeps a processor busy. The kernel's own workers
then wait for one, tens of milliseconds where all processors are so, and with them every sync of a file: they are what
tells of a write's end. So the process rests between its steps.
"""

import time
from collections.abc import Callable

# Work that is done in one go: a rest for less costs more than it is worth.
STEP_S = 0.005
# The longest rest at once: behind a step that was much longer than others.
REST_S_MAX = 1.0


class Pace:
    """`share` is of one processor, over all threads of the process; 1 and more never rests. Called in one thread."""

    def __init__(
        self,
        share: float,
        *,
        cpu_s: Callable[[], float] = time.process_time,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share = share
        self._cpu_s = cpu_s
        self._now_s = now_s
        self._sleep = sleep
        # The processor time that was rested for, and when the last rest was over.
        self._paid_s = cpu_s()
        self._since_s = now_s()

    def rest(self) -> None:
        """Called between two steps: sleep until the work since the last rest is no more than the share of the time
        since then. Time without work counts as rest."""
        worked_s = self._cpu_s() - self._paid_s
        if worked_s < STEP_S or self._share >= 1:
            return
        left_s = self._since_s + worked_s / self._share - self._now_s()
        if left_s > 0:
            self._sleep(min(left_s, REST_S_MAX))
        self._paid_s += worked_s
        self._since_s = self._now_s()
