"""What engines report of their scans and commits, added up for the metrics. Nothing of a single report is kept."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# By what a report calls itself: how it is counted, and which of its timers says how long it took.
_KINDS = {"scan-report": ("scan", "total-planning-duration"), "commit-report": ("commit", "total-duration")}
_OTHER = ("other", "total-duration")
_SECONDS = {"nanoseconds": 1e-9, "microseconds": 1e-6, "milliseconds": 1e-3, "seconds": 1.0}


@dataclass(frozen=True, slots=True)
class Reported:
    """Of one kind of report: how many came, and how long the engines took altogether."""

    count: int = 0
    seconds: float = 0.0


class Reports:
    """Totals since the start. For any thread."""

    def __init__(self) -> None:
        self._totals: dict[str, Reported] = {}
        self._lock = threading.Lock()

    def add(self, report_type: str, metrics: Mapping[str, Any]) -> None:
        """A report came. What cannot be read of it counts as nothing."""
        kind, timer = _KINDS.get(report_type, _OTHER)
        seconds = _seconds(metrics.get(timer))
        with self._lock:
            before = self._totals.get(kind, Reported())
            self._totals[kind] = Reported(before.count + 1, before.seconds + seconds)

    def totals(self) -> dict[str, Reported]:
        """By kind: scan, commit, other."""
        with self._lock:
            return dict(self._totals)


def _seconds(timer: object) -> float:
    if not isinstance(timer, dict):
        return 0.0
    total, unit = timer.get("total-duration"), _SECONDS.get(str(timer.get("time-unit")))
    return total * unit if isinstance(total, int) and unit is not None and total > 0 else 0.0
