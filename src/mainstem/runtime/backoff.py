"""How long to wait before the next try."""

import random


def doubled(failures: int, least: float, most: float) -> float:
    """The wait after so many failures in a row: the least one after the first, twice as long after each, to a bound."""
    # The exponent is bounded, since a float is not: after a week of failures 2**n would overflow.
    return min(most, least * 2.0 ** min(max(0, failures - 1), 32))


class Backoff:
    """Exponential, with jitter, so that many clients that lost the same server do not come back at once."""

    def __init__(self, *, wait_s_min: float = 0.1, wait_s_max: float = 30.0, rng: random.Random | None = None) -> None:
        self._wait_s_min = wait_s_min
        self._wait_s_max = wait_s_max
        self._rng = rng or random.Random()
        self._failures = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """One more failure: the time to wait, never less than what the server asked for."""
        self._failures += 1
        ceiling_s = doubled(self._failures, self._wait_s_min, self._wait_s_max)
        return max(at_least_s, self._rng.uniform(self._wait_s_min, ceiling_s))

    def reset(self) -> None:
        """It worked: the next failure is a first one again."""
        self._failures = 0
