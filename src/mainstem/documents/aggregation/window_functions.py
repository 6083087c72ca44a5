"""The functions that only windows have: ranks, neighbours, slopes, areas and gaps filled."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from mainstem.documents.aggregation.rows import plain_value
from mainstem.documents.aggregation.running import Document, Run
from mainstem.documents.errors import Refused
from mainstem.documents.expressions import Evaluator, Names, compiled, evaluate, field_path, parse_expression
from mainstem.documents.expressions.dates import FIXED_MS
from mainstem.documents.expressions.numbers import integer
from mainstem.documents.values import MISSING, Rank, date_ms, is_array, is_document, is_number, number_of, rank_of


class Ordered:
    """One partition in order, with its sort keys."""

    def __init__(self, documents: list[Document], keys: list[Any] | None, order: Any) -> None:
        self.documents = documents
        self.keys = keys
        self.order = order
        self._numbers: list[Any] | None = None

    def numbers(self, value_of: Callable[[Document], Any]) -> list[Any]:
        """The values that the partition is sorted by, read once."""
        if self._numbers is None:
            self._numbers = [value_of(item) for item in self.documents]
        return self._numbers


Bounds = Callable[[Ordered, int], tuple[int, int]]
Compute = Callable[[Ordered, Run], list[Any]]


def _needs_order(name: str, order: Any) -> None:
    if not order:
        raise Refused(f"{name} needs a sortBy", code=5371602)


def _arguments(name: str, operand: Any, wanted: set[str], optional: set[str]) -> Mapping[str, Any]:
    if not is_document(operand) or wanted - set(operand) or set(operand) - wanted - optional:
        raise Refused(f"{name} takes {', '.join(sorted(wanted | optional))}", code=9)
    fields: Mapping[str, Any] = operand
    return fields


def _rank(name: str) -> Any:
    def build(operand: Any, order: Any, names: Names, bounds: Bounds) -> Compute:
        if not is_document(operand) or operand:
            raise Refused(f"{name} takes an empty document", code=5371603)
        _needs_order(name, order)

        def compute(ordered: Ordered, given: Run) -> list[Any]:
            found: list[Any] = []
            rank = dense = 0
            assert ordered.keys is not None
            for at, key in enumerate(ordered.keys):
                if not at or key != ordered.keys[at - 1]:
                    rank, dense = at + 1, dense + 1
                found.append(at + 1 if name == "$documentNumber" else rank if name == "$rank" else dense)
            return found

        return compute

    return build


def _shift(operand: Any, order: Any, names: Names, bounds: Bounds) -> Compute:
    fields = _arguments("$shift", operand, {"output", "by"}, {"default"})
    _needs_order("$shift", order)
    by, output = integer(fields["by"], "$shift (by)", 9), compiled(parse_expression(fields["output"], names))
    default = evaluate(parse_expression(fields.get("default"), names), {})

    def compute(ordered: Ordered, given: Run) -> list[Any]:
        size = len(ordered.documents)
        values = [output(item, given.scope) for item in ordered.documents]
        return [
            (None if values[at + by] is MISSING else values[at + by]) if 0 <= at + by < size else default
            for at in range(size)
        ]

    return compute


def _ema(operand: Any, order: Any, names: Names, bounds: Bounds) -> Compute:
    fields = _arguments("$expMovingAvg", operand, {"input"}, {"N", "alpha"})
    _needs_order("$expMovingAvg", order)
    if ("N" in fields) == ("alpha" in fields):
        raise Refused("$expMovingAvg takes N or alpha", code=9)
    alpha = 2 / (float(number_of(fields["N"])) + 1) if "N" in fields else float(number_of(fields["alpha"]))
    if not 0 < alpha <= 1:
        raise Refused("$expMovingAvg takes an alpha between 0 and 1", code=9)
    value_of = compiled(parse_expression(fields["input"], names))

    def compute(ordered: Ordered, given: Run) -> list[Any]:
        found: list[Any] = []
        mean: float | None = None
        for item in ordered.documents:
            value = value_of(item, given.scope)
            if value is not MISSING and is_number(value):
                number = float(number_of(value))
                mean = number if mean is None else number * alpha + mean * (1 - alpha)
            found.append(mean)
        return found

    return compute


def _place(order: Any, unit: Any) -> Callable[[Document], float | None]:
    """Where a document stands on the axis it is sorted by, in units of time where it is one."""
    path = field_path(next(iter(order)))

    def place(document: Document) -> float | None:
        value = plain_value(document, path)
        if rank_of(value) is Rank.DATE:
            if unit is None:
                raise Refused("a sort by dates needs a unit", code=5624901)
            return date_ms(value) / FIXED_MS[unit]
        return float(number_of(value)) if value is not MISSING and is_number(value) else None

    return place


def _slope(name: str) -> Any:
    def build(operand: Any, order: Any, names: Names, bounds: Bounds) -> Compute:
        fields = _arguments(name, operand, {"input"}, {"unit"})
        _needs_order(name, order)
        unit = fields.get("unit")
        if unit is not None and unit not in FIXED_MS:
            raise Refused(f"{name} takes a unit of week or less. got={unit!r}", code=5490704)
        place, value_of = _place(order, unit), compiled(parse_expression(fields["input"], names))
        return lambda ordered, given: [
            _along(name, ordered, given, bounds(ordered, at), place, value_of) for at in range(len(ordered.documents))
        ]

    return build


def _along(
    name: str, ordered: Ordered, given: Run, around: tuple[int, int], place: Any, value_of: Evaluator
) -> float | None:
    points = []
    for item in ordered.documents[around[0] : around[1]]:
        value = value_of(item, given.scope)
        if value is not MISSING and rank_of(value) is Rank.NUMBER and place(item) is not None:
            points.append((place(item), float(number_of(value))))
    if name == "$integral":
        pairs = itertools.pairwise(points)
        return sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in pairs) if points else None
    if len(points) < 2 or points[0][0] == points[-1][0]:
        return None
    return float((points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0]))


def _covariance(name: str) -> Any:
    def build(operand: Any, order: Any, names: Names, bounds: Bounds) -> Compute:
        if not is_array(operand) or len(operand) != 2:
            raise Refused(f"{name} takes an array of two expressions", code=9)
        pair = compiled(parse_expression(operand, names))

        def compute(ordered: Ordered, given: Run) -> list[Any]:
            held = ordered.documents
            return [_covaried(held[slice(*bounds(ordered, at))], given) for at in range(len(held))]

        def _covaried(documents: list[Document], given: Run) -> float | None:
            points = [pair(item, given.scope) for item in documents]
            numbers = [(float(number_of(x)), float(number_of(y))) for x, y in points if is_number(x) and is_number(y)]
            count = len(numbers) - (name == "$covarianceSamp")
            if count <= 0:
                return None
            mean_x = sum(x for x, _ in numbers) / len(numbers)
            mean_y = sum(y for _, y in numbers) / len(numbers)
            return sum((x - mean_x) * (y - mean_y) for x, y in numbers) / count

        return compute

    return build


def _carried(operand: Any, order: Any, names: Names, bounds: Bounds) -> Compute:
    value_of = compiled(parse_expression(operand, names))

    def compute(ordered: Ordered, given: Run) -> list[Any]:
        found: list[Any] = []
        last: Any = None
        for item in ordered.documents:
            value = value_of(item, given.scope)
            if value is not MISSING and value is not None:
                last = value
            found.append(last)
        return found

    return compute


def _interpolated(operand: Any, order: Any, names: Names, bounds: Bounds) -> Compute:
    if not order or len(order) != 1:
        raise Refused("$linearFill needs a sort by one field", code=605001)
    value_of, place = compiled(parse_expression(operand, names)), _place(order, "millisecond")

    def compute(ordered: Ordered, given: Run) -> list[Any]:
        values = [value_of(item, given.scope) for item in ordered.documents]
        places = [place(item) for item in ordered.documents]
        known = [at for at, value in enumerate(values) if value is not MISSING and value is not None]
        for at in known:
            if not is_number(values[at]):
                raise Refused("$linearFill takes numbers", code=14)
        found = [None if value is MISSING else value for value in values]
        for low, high in itertools.pairwise(known):
            x1, x2 = places[low], places[high]
            if x1 is None or x2 is None or x1 == x2:
                continue
            y1, y2 = float(number_of(values[low])), float(number_of(values[high]))
            for at in range(low + 1, high):
                found[at] = y1 + (y2 - y1) * ((places[at] or 0.0) - x1) / (x2 - x1)
        return found

    return compute


FUNCTIONS: dict[str, Callable[[Any, Any, Names, Bounds], Compute]] = {
    "$rank": _rank("$rank"),
    "$denseRank": _rank("$denseRank"),
    "$documentNumber": _rank("$documentNumber"),
    "$shift": _shift,
    "$expMovingAvg": _ema,
    "$derivative": _slope("$derivative"),
    "$integral": _slope("$integral"),
    "$covariancePop": _covariance("$covariancePop"),
    "$covarianceSamp": _covariance("$covarianceSamp"),
    "$locf": _carried,
    "$linearFill": _interpolated,
}
