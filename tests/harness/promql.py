"""As much of Prometheus' query language as our alert rules use, over scrapes of our own metrics.

A rule is tried on what the server says, as Prometheus would: samples are matched by all their labels, a comparison
leaves those for which it holds, and `rate` of a counter is its growth over what the window has. There is no server of
Prometheus' own in a package that can be installed here.
"""

import itertools
import operator
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]

_TOKEN = re.compile(r"\s*(=~|==|>=|<=|[-><(){},=\[\]]|\"[^\"]*\"|[\w:.]+)")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, "==": operator.eq, ">=": operator.ge, "<=": operator.le
}  # fmt: skip
_UNITS = {"s": 1, "m": 60, "h": 3600}


class Scrape(NamedTuple):
    """What one look at `/metrics` found, by the metric's name."""

    at_s: float
    samples: dict[str, Vector]


def scrape(at_s: float, text: str, target: Labels) -> Scrape:
    """A scrape as Prometheus stores it: with the labels of the target, and `up`."""
    samples: dict[str, Vector] = {"up": {target: 1.0}}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[frozenset(sample.labels.items()) | target] = sample.value
    return Scrape(at_s, samples)


def firing(expression: str, scrapes: Sequence[Scrape]) -> Vector:
    """The samples of an expression at the last scrape: an alert for each."""
    reader = _Reader(expression, scrapes)
    found = reader.conjunction()
    assert reader.token is None, f"not understood: {reader.token!r} in {expression}"
    return found


class _Reader:
    def __init__(self, text: str, scrapes: Sequence[Scrape]) -> None:
        self._tokens = _TOKEN.findall(text)
        assert "".join(self._tokens) == re.sub(r"\s", "", text), text
        self._scrapes = scrapes

    @property
    def token(self) -> str | None:
        return self._tokens[0] if self._tokens else None

    def _take(self, *wanted: str) -> str:
        token = str(self._tokens.pop(0))
        assert not wanted or token in wanted, (token, wanted)
        return token

    def conjunction(self) -> Vector:
        found = self._comparison()
        while self.token == "and":
            self._take()
            other = self._comparison()
            found = {labels: value for labels, value in found.items() if labels in other}
        return found

    def _comparison(self) -> Vector:
        found = self._difference()
        if self.token in _COMPARE:
            holds = _COMPARE[self._take()]
            bound = float(self._take())
            found = {labels: value for labels, value in found.items() if holds(value, bound)}
        return found

    def _difference(self) -> Vector:
        found = self._term()
        while self.token == "-":
            self._take()
            other = self._term()
            found = {labels: value - other[labels] for labels, value in found.items() if labels in other}
        return found

    def _term(self) -> Vector:
        name = self._take()
        if name == "sum":
            return self._sum()
        if name in ("rate", "increase", "changes"):
            self._take("(")
            found = self._over(name)
            self._take(")")
            return found
        return self._select(name, self._scrapes[-1])

    def _sum(self) -> Vector:
        self._take("by")
        self._take("(")
        by = []
        while self.token != ")":
            by.append(self._take())
            if self.token == ",":
                self._take()
        self._take(")")
        self._take("(")
        total: Vector = {}
        for labels, value in self.conjunction().items():
            kept = frozenset((name, text) for name, text in labels if name in by)
            total[kept] = total.get(kept, 0.0) + value
        self._take(")")
        return total

    def _over(self, name: str) -> Vector:
        """Growth, or changes, in a window. A sample that its first scrapes lack counts from where it began."""
        metric, matchers = self._take(), self._matchers()
        self._take("[")
        window = self._take()
        self._take("]")
        length_s = float(window[:-1]) * _UNITS[window[-1]]
        seen = [each for each in self._scrapes if each.at_s >= self._scrapes[-1].at_s - length_s]
        series: dict[Labels, list[float]] = {}
        for each in seen:
            for labels, value in _matching(each.samples.get(metric, {}), matchers).items():
                series.setdefault(labels, []).append(value)
        found: Vector = {}
        for labels, values in series.items():
            pairs = list(itertools.pairwise(values))
            # A counter that is smaller than it was began anew.
            grown = sum(now - before if now >= before else now for before, now in pairs)
            changed = sum(now != before for before, now in pairs)
            found[labels] = {"rate": grown / length_s, "increase": grown, "changes": changed}[name]
        return found

    def _select(self, metric: str, at: Scrape) -> Vector:
        return _matching(at.samples.get(metric, {}), self._matchers())

    def _matchers(self) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = []
        if self.token != "{":
            return found
        while self._take("{", ",") and self.token != "}":
            found.append((self._take(), self._take("=", "=~"), self._take().strip('"')))
            if self.token == "}":
                break
        self._take("}")
        return found


def _matching(samples: Vector, matchers: Sequence[tuple[str, str, str]]) -> Vector:
    def fits(labels: Labels) -> bool:
        told = dict(labels)
        return all(
            (told.get(name, "") == text) if how == "=" else re.fullmatch(text, told.get(name, "")) is not None
            for name, how, text in matchers
        )

    return {labels: value for labels, value in samples.items() if fits(labels)}
