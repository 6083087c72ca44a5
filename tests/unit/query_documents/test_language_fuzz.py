"""Whatever a client sends is answered, or refused by name: no other error leaves the languages."""

# ruff: noqa: E501 - tables of choices.

import datetime as dt
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from mainstem.documents import (
    Namespace,
    Run,
    apply_update,
    compile_pipeline,
    error_code,
    matches,
    parse_projection,
    sort_documents,
    upsert_document,
)
from mainstem.documents.aggregation import ACCUMULATORS, STAGES, WINDOW_OPERATORS
from mainstem.documents.expressions import FORMS, OPERATORS, evaluate, parse_expression
from mainstem.documents.filters.parse import FILTER_OPERATORS
from mainstem.documents.updates.operators import OPERATORS as UPDATES
from mainstem.model.errors import Invalid
from tests.harness.seeds import soak_seeds

_SCALARS: list[Any] = [
    None, True, False, 0, 1, -1, 3, 2.5, float("nan"), float("inf"), -float("inf"), -0.0, Int64(1 << 62), 1 << 31,
    Decimal128("1.5"), Decimal128("NaN"), Decimal128("Infinity"), Decimal128("1E+6000"), "", "a", "$a", "$$ROOT", "$$this",
    "$a.b", "$$NOW", "$", "a.b", "day", "%Y", "UTC", "UTC+99", "int", "array", MinKey(), MaxKey(), Regex("a"), Regex("("),
    Timestamp(1, 2), ObjectId("0" * 24), Code("x"), Code("x", {"a": 1}), DBRef("a", 1), DatetimeMS(1 << 60),
    dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, tzinfo=dt.UTC), b"x", Binary(b"y", 5), -(1 << 63),
]  # fmt: skip
_PARAMETERS = {item.name: item.parameters for item in OPERATORS.values()}
_NAMES = sorted({*OPERATORS, *FORMS, *STAGES, *ACCUMULATORS, *WINDOW_OPERATORS, *FILTER_OPERATORS, *UPDATES, "$each"})
_KEYS = [
    "a", "b", "_id", "a.b", "a.0", "a.$", "a.$[]", "a.$[x]", "", "$x", "as", "in", "vars", "cond", "branches", "case", "then",
    "default", "path", "from", "localField", "foreignField", "let", "pipeline", "boundaries", "buckets", "groupBy", "step",
    "range", "bounds", "window", "documents", "newRoot", "startWith", "connectFromField", "connectToField", "partitionBy",
    "coll", "into", "size", "properties", "required", *sorted({name for names in _PARAMETERS.values() for name in names}),
]  # fmt: skip


class Made:
    """Nonsense with the right words in it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 0) -> Any:
        kind = self.random.random()
        if depth > 3 or kind < 0.4:
            return self.random.choice(_SCALARS)
        if kind < 0.55:
            return [self.value(depth + 1) for _ in range(self.random.randrange(4))]
        if kind < 0.85:
            name = self.random.choice(_NAMES)
            names = _PARAMETERS.get(name)
            if names and self.random.random() < 0.8:
                return {name: {item: self.value(depth + 1) for item in names if self.random.random() < 0.9}}
            return {name: self.value(depth + 1)}
        return self.fields(self.random.randrange(4), depth)

    def fields(self, count: int, depth: int = 0) -> dict[str, Any]:
        return {self.random.choice(_KEYS): self.value(depth + 1) for _ in range(count)}

    def one(self, names: Any) -> str:
        return str(self.random.choice(sorted(names)))


class Others:
    """Two documents, whatever is asked."""

    def read(self, namespace: Namespace, filter: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"_id": 1, "a": 2}, {"_id": 2, "a": [1, {"b": 1}]}]

    def has_index(self, namespace: Namespace, path: str) -> bool:
        return False


def attempts(made: Made) -> list[tuple[Any, Callable[[], Any]]]:
    documents = [{"_id": at, "a": made.value(2), "b": made.value(2)} for at in range(3)]
    expression, filter, projection = (
        made.value(),
        made.fields(1) | {made.one(FILTER_OPERATORS): made.value()},
        made.fields(2),
    )
    update = {made.one(UPDATES): made.fields(1)}
    stages = [
        [{made.one(STAGES): made.value()}],
        [{made.one(STAGES): made.fields(3)}],
        [{"$group": {"_id": made.value(), "x": {made.one(ACCUMULATORS): made.value()}}}],
        [{"$setWindowFields": {"sortBy": {"_id": 1}, "output": {"x": {made.one(WINDOW_OPERATORS): made.value()}}}}],
    ]
    changing = [{made.one(["$set", "$project", "$unset", "$replaceWith"]): made.value()}]
    order = {made.random.choice(_KEYS): made.value()}
    return [
        (expression, lambda: [evaluate(parse_expression(expression), item) for item in documents]),
        (filter, lambda: [matches(filter, item) for item in documents]),
        (update, lambda: [apply_update(update, item, now_ms=0, offset=0) for item in documents]),
        ((filter, update), lambda: upsert_document(filter, update, now_ms=0, new_id=1)),
        (changing, lambda: [apply_update(changing, item, now_ms=0) for item in documents]),
        (projection, lambda: [parse_projection(projection).apply(item) for item in documents]),
        (order, lambda: sort_documents(documents, order)),
        *(
            (item, lambda item=item: list(compile_pipeline(item).run(documents, Run(sources=Others()))))
            for item in stages
        ),
    ]


def run_seed(seed: int) -> None:
    for source, attempt in attempts(Made(seed)):
        try:
            attempt()
        except Invalid as error:
            assert error_code(error) > 0
        except Exception as error:
            raise AssertionError(f"seed={seed} {source!r}") from error


@pytest.mark.parametrize("seed", [26_415, 34_601, 43_568])
def test_seeds_that_long_runs_have_found(seed: int) -> None:
    run_seed(seed)


def test_nothing_but_a_named_refusal() -> None:
    for seed in range(1_500):
        run_seed(seed)


@pytest.mark.soak
def test_nothing_but_a_named_refusal_in_a_long_run() -> None:
    for seed in soak_seeds(10_000, 190_000):
        run_seed(seed)
