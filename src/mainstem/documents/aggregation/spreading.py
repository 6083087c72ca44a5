"""Which start of a pipeline may run over parts of a collection, each by itself, and how the parts' answers become one.

That is so of stages which look at one document at a time, up to a `$group` whose accumulators do not ask in which order
documents come. Every part runs the very stages that one run over all documents would; only the totals are put together
here. Sums of doubles may differ in the last digit, for they are added up in another order.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from mainstem.documents.accumulators import mean
from mainstem.documents.aggregation.pipeline import compile_pipeline
from mainstem.documents.aggregation.running import Document, Run

# They give the same for a document, whichever others there are.
_OF_ONE_DOCUMENT: Final = frozenset(
    {
        "$match",
        "$project",
        "$addFields",
        "$set",
        "$unset",
        "$replaceRoot",
        "$replaceWith",
        "$redact",
        "$unwind",
    }
)
# What gives something else each time it runs.
_CHANCE: Final = ("'$rand'", "'$sampleRate'")


class Spread(msgspec.Struct, frozen=True):
    """The first `stages` stages of a pipeline: `part` is run over each part, `merged` makes one answer of all."""

    stages: int
    part: tuple[Mapping[str, Any], ...]
    merging: Mapping[str, Any]
    # The accumulated fields, each with where its total is, and where its count is if it is a mean.
    fields: tuple[tuple[str, str, str | None], ...]
    # Of `$count` the answer has no `_id`.
    has_key: bool

    def merged(self, parts: Iterable[Document], run: Run) -> list[dict[str, Any]]:
        """What the first stages give for all documents. `parts`: what they gave for each part, in any order."""
        return [self._answer(each) for each in compile_pipeline([{"$group": self.merging}]).run(parts, run)]

    def _answer(self, group: Document) -> dict[str, Any]:
        answer = {"_id": group["_id"]} if self.has_key else {}
        for name, total, count in self.fields:
            answer[name] = group[total] if count is None else mean(group[total], group[count])
        return answer


def spread(stages: Sequence[Mapping[str, Any]]) -> Spread | None:
    """The start of a pipeline, which has been read before and is right, up to its first `$group`; None where it may not
    be run over parts."""
    for at, stage in enumerate(stages):
        name, operand = next(iter(stage.items()))
        if name in _OF_ONE_DOCUMENT:
            continue
        if name == "$count":
            operand = {"_id": None, operand: {"$sum": 1}}
        elif name != "$group":
            return None
        if any(word in repr(stages[: at + 1]) for word in _CHANCE):
            return None
        return _grouped(stages[:at], operand, has_key=name == "$group")
    return None


def _grouped(before: Sequence[Mapping[str, Any]], group: Mapping[str, Any], *, has_key: bool) -> Spread | None:
    part: dict[str, Any] = {"_id": group["_id"]}
    merging: dict[str, Any] = {"_id": "$_id"}
    fields: list[tuple[str, str, str | None]] = []
    for number, (name, source) in enumerate((name, source) for name, source in group.items() if name != "_id"):
        accumulator, operand = next(iter(source.items()))
        total, count = f"total{number}", None
        match accumulator:
            case "$count":
                part[total] = {"$sum": 1}
            case "$sum" | "$min" | "$max":
                part[total] = {accumulator: operand}
            case "$avg":
                count = f"count{number}"
                part[total] = {"$sum": operand}
                part[count] = {"$sum": {"$cond": [{"$isNumber": operand}, 1, 0]}}
                merging[count] = {"$sum": f"${count}"}
            case _:
                return None
        merging[total] = {accumulator if accumulator in ("$min", "$max") else "$sum": f"${total}"}
        fields.append((name, total, count))
    return Spread(len(before) + 1, (*before, {"$group": part}), merging, tuple(fields), has_key)
