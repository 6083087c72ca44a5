"""A pipeline's start, run over parts of a collection by what executors run, gives what one run over all of it gives."""

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId

from mainstem.documents import Refused, Run, compile_pipeline
from mainstem.documents.aggregation.spreading import spread
from mainstem.documents.values import identical, order_key
from mainstem.pipeline.passes.aggregate import run_stages
from mainstem.wire.mongo.frames import decode_document, encode_document
from mainstem.wire.mongo.stages import StagesOrder, decode_stages, encode_stages

NOW = dt.datetime(2026, 11, 19, tzinfo=dt.UTC)
SCOPE = {"NOW": NOW, "bound": 3}
# Values of one field are of any type. Doubles are exact in any order of adding them up.
VALUES: list[Any] = [
    1, -7, Int64(1 << 40), Int64(2), 0.5, -2.25, float("nan"), Decimal128("1.10"), "ink", "", True, None,
    [1, 2.5, "x"], [], {"a": 1}, ObjectId("5f5f5f5f5f5f5f5f5f5f5f5f"), NOW,
]  # fmt: skip
PIPELINES: list[list[dict[str, Any]]] = [
    [{"$group": {"_id": "$k", "n": {"$sum": 1}, "s": {"$sum": "$v"}, "a": {"$avg": "$v"}}}],
    [{"$group": {"_id": {"k": "$k", "t": {"$type": "$v"}}, "low": {"$min": "$v"}, "high": {"$max": "$v"}}}],
    [{"$group": {"_id": None, "a": {"$avg": "$missing"}, "s": {"$sum": "$missing"}, "m": {"$min": "$missing"}}}],
    [{"$match": {"k": {"$gt": 1}, "v": {"$exists": True}}}, {"$count": "how many"}],
    [{"$match": {"$expr": {"$gte": ["$k", "$$bound"]}}}, {"$group": {"_id": "$v", "n": {"$count": {}}}}],
    [{"$unwind": "$v"}, {"$group": {"_id": "$v", "n": {"$sum": "$k"}, "m": {"$avg": {"$ifNull": ["$k", 0.5]}}}}],
    [{"$set": {"w": {"$cond": [{"$isArray": "$v"}, {"$size": "$v"}, 0]}}}, {"$group": {"_id": "$w", "n": {"$sum": 2}}}],
    [{"$project": {"k": 1, "y": {"$year": "$$NOW"}}}, {"$group": {"_id": "$y", "k": {"$max": "$k"}}}],
    [{"$replaceRoot": {"newRoot": {"q": "$k"}}}, {"$unset": "x"}, {"$group": {"_id": "$q", "": {"$sum": 1}}}],
    [{"$match": {"k": 99}}, {"$group": {"_id": "$k", "n": {"$sum": 1}}}],
    [{"$match": {"k": 99}}, {"$count": "n"}],
]  # fmt: skip


def documents(chance: random.Random, count: int) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for number in range(count):
        document = {"_id": number, "k": chance.choice([1, 2, 3, 4, "five", None]), "v": chance.choice(VALUES)}
        made.append({name: value for name, value in document.items() if chance.random() < 0.95 or name == "_id"})
    return made


def on_an_executor(text: str, part: list[dict[str, Any]]) -> list[bytes]:
    rows = [
        pa.record_batch({"_key": [f"$n:{each['_id']}"], "_document": pa.array([encode_document(each)], pa.binary())})
        for each in part
    ]
    return [answer for batch in run_stages(text, iter(rows)) for answer in batch.column(0).to_pylist()]


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: str(pipeline)[:60])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_parts_come_to_what_the_whole_gives(pipeline: list[dict[str, Any]], seed: int) -> None:
    chance = random.Random(seed)
    given = documents(chance, 300)
    expected = list(compile_pipeline(pipeline, frozenset(SCOPE)).run(given, Run(SCOPE)))
    plan = spread(pipeline)
    assert plan is not None and plan.stages == len(pipeline)
    text = encode_stages(StagesOrder(plan.part, SCOPE, set()))
    cuts = sorted(chance.randrange(len(given)) for _ in range(4))
    parts = [given[low:high] for low, high in zip([0, *cuts], [*cuts, None], strict=True)]
    answers = [decode_document(each) for part in parts for each in on_an_executor(text, part)]
    got = plan.merged(answers, Run(SCOPE))
    by_key = lambda found: order_key(found.get("_id"))  # noqa: E731
    assert identical(sorted(got, key=by_key), sorted(expected, key=by_key)), (got, expected)


def test_rows_that_are_newer_elsewhere_are_left_out() -> None:
    plan = spread([{"$group": {"_id": None, "ids": {"$sum": "$_id"}}}])
    assert plan is not None
    text = encode_stages(StagesOrder(plan.part, {}, {"$n:1", "$n:4"}))
    assert decode_stages(text).without == {"$n:1", "$n:4"}
    (answer,) = on_an_executor(text, [{"_id": number} for number in range(5)])
    assert decode_document(answer)["total0"] == 5


@pytest.mark.parametrize(
    "pipeline",
    [
        [],
        [{"$match": {"k": 1}}],
        [{"$sort": {"k": 1}}, {"$group": {"_id": "$k", "n": {"$sum": 1}}}],
        [{"$limit": 5}, {"$count": "n"}],
        [{"$group": {"_id": "$k", "first": {"$first": "$v"}}}],
        [{"$group": {"_id": "$k", "all": {"$push": "$v"}}}],
        [{"$lookup": {"from": "b", "localField": "k", "foreignField": "k", "as": "b"}}, {"$count": "n"}],
        [{"$match": {"$expr": {"$lt": [{"$rand": {}}, 0.5]}}}, {"$count": "n"}],
    ],
)
def test_what_asks_for_other_documents_or_their_order_is_not_spread(pipeline: list[dict[str, Any]]) -> None:
    assert spread(pipeline) is None


def test_an_executor_refuses_what_the_gateway_refuses() -> None:
    plan = spread([{"$set": {"x": {"$divide": [1, "$_id"]}}}, {"$count": "n"}])
    assert plan is not None
    with pytest.raises(Refused):
        on_an_executor(encode_stages(StagesOrder(plan.part, {}, set())), [{"_id": 0}])
