"""Stages and whole pipelines: what comes out, what is refused with which code, and what is bounded."""

# ruff: noqa: E501 - tables of cases, one to a line.

import datetime as dt
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from bson.int64 import Int64

from mainstem.documents import Namespace, Refused, Run, compile_pipeline
from mainstem.documents.aggregation import STAGES, STAGES_MAX, Merge, Out
from mainstem.documents.values import identical

SALES: list[dict[str, Any]] = [
    {"_id": 1, "k": "a", "v": 4, "tags": ["x", "y"]},
    {"_id": 2, "k": "b", "v": 1.5, "tags": []},
    {"_id": 3, "k": "a", "v": 2},
    {"_id": 4, "v": 7, "tags": None},
]
PEOPLE: list[dict[str, Any]] = [
    {"_id": "ann", "boss": None},
    {"_id": "bob", "boss": "ann"},
    {"_id": "cy", "boss": "bob"},
]
DAY = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class Collections:
    """Other collections, in memory."""

    def __init__(self, **items: list[dict[str, Any]]) -> None:
        self.items = items
        self.reads: list[tuple[str, Mapping[str, Any]]] = []
        self.indexed = False

    def read(self, namespace: Namespace, filter: Mapping[str, Any]) -> list[dict[str, Any]]:
        self.reads.append((namespace.name, filter))
        return self.items.get(namespace.name, [])

    def has_index(self, namespace: Namespace, path: str) -> bool:
        return self.indexed


def answer(pipeline: list[Any], documents: Any = SALES, **given: Any) -> list[Any]:
    return list(compile_pipeline(pipeline).run(documents, Run(**given)))


def of(name: str, documents: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [item.get(name) for item in documents]


PIPELINES: list[tuple[list[Any], list[Any]]] = [
    ([{"$match": {"k": "a"}}, {"$count": "n"}], [{"n": 2}]),
    ([{"$match": {"k": "none"}}, {"$count": "n"}], []),
    (
        [{"$group": {"_id": "$k", "n": {"$sum": "$v"}, "a": {"$avg": "$v"}, "l": {"$push": "$_id"}}}, {"$sort": {"_id": 1}}],
        [
            {"_id": None, "n": 7, "a": 7.0, "l": [4]},
            {"_id": "a", "n": 6, "a": 3.0, "l": [1, 3]},
            {"_id": "b", "n": 1.5, "a": 1.5, "l": [2]},
        ],
    ),
    (
        [{"$group": {"_id": None, "f": {"$first": "$k"}, "l": {"$last": "$k"}, "mi": {"$min": "$v"}, "ma": {"$max": "$v"},
                     "s": {"$addToSet": "$k"}, "c": {"$count": {}}, "t": {"$topN": {"n": 2, "sortBy": {"v": -1}, "output": "$v"}},
                     "b": {"$bottom": {"sortBy": {"v": -1}, "output": "$_id"}}, "fn": {"$firstN": {"input": "$k", "n": 9}},
                     "p": {"$percentile": {"input": "$v", "p": [0.5, 1], "method": "approximate"}}}}],
        [{"_id": None, "f": "a", "l": None, "mi": 1.5, "ma": 7, "s": ["a", "b"], "c": 4, "t": [7, 4], "b": 2,
          "fn": ["a", "b", "a", None], "p": [2.0, 7.0]}],
    ),
    ([{"$unwind": "$tags"}, {"$project": {"tags": 1}}], [{"_id": 1, "tags": "x"}, {"_id": 1, "tags": "y"}]),
    (
        [{"$unwind": {"path": "$tags", "preserveNullAndEmptyArrays": True, "includeArrayIndex": "at"}}, {"$project": {"at": 1}}],
        [{"_id": 1, "at": Int64(0)}, {"_id": 1, "at": Int64(1)}, {"_id": 2, "at": None}, {"_id": 3, "at": None},
         {"_id": 4, "at": None}],
    ),
    ([{"$sort": {"v": -1}}, {"$skip": 1}, {"$limit": 2}, {"$project": {"v": 1, "_id": 0}}], [{"v": 4}, {"v": 2}]),
    ([{"$match": {"_id": 1}}, {"$set": {"v": "$$REMOVE", "n.m": {"$add": ["$v", 1]}}}, {"$addFields": {"n.m": "$n.m"}}, {"$unset": ["k", "tags"]}],
     [{"_id": 1, "n": {"m": 5}}]),
    ([{"$match": {"_id": 1}}, {"$replaceWith": {"a": "$k"}}], [{"a": "a"}]),
    ([{"$sortByCount": "$k"}, {"$limit": 1}], [{"_id": "a", "count": 2}]),
    ([{"$bucket": {"groupBy": "$v", "boundaries": [0, 2, 5], "default": "more"}}],
     [{"_id": 0, "count": 1}, {"_id": 2, "count": 2}, {"_id": "more", "count": 1}]),
    ([{"$bucketAuto": {"groupBy": "$_id", "buckets": 2}}],
     [{"_id": {"min": 1, "max": 3}, "count": 2}, {"_id": {"min": 3, "max": 4}, "count": 2}]),
    ([{"$facet": {"n": [{"$count": "c"}], "top": [{"$sort": {"v": -1}}, {"$limit": 1}, {"$project": {"v": 1}}]}}],
     [{"n": [{"c": 4}], "top": [{"_id": 4, "v": 7}]}]),
    ([{"$match": {"_id": 1}}, {"$redact": {"$cond": [{"$eq": ["$_id", 1]}, "$$KEEP", "$$PRUNE"]}}, {"$project": {"_id": 1}}],
     [{"_id": 1}]),
    ([{"$documents": [{"a": 1}, {"a": 2}]}, {"$match": {"a": 2}}], [{"a": 2}]),
]  # fmt: skip


@pytest.mark.parametrize(("pipeline", "expected"), PIPELINES, ids=[str(case[0])[:70] for case in PIPELINES])
def test_pipeline(pipeline: list[Any], expected: list[Any]) -> None:
    found = answer(pipeline)
    assert identical(found, expected), found


def test_redact_descends_level_by_level() -> None:
    document = {"_id": 1, "level": 1, "a": {"level": 5, "x": 1}, "b": [{"level": 1, "y": 2}, {"level": 9}]}
    pipeline = [{"$redact": {"$cond": [{"$lte": ["$level", 3]}, "$$DESCEND", "$$PRUNE"]}}]
    assert answer(pipeline, [document]) == [{"_id": 1, "level": 1, "b": [{"level": 1, "y": 2}]}]


def test_lookup_by_field_and_by_pipeline() -> None:
    sources = Collections(other=[{"_id": 1, "k": "a"}, {"_id": 2, "k": ["a", "b"]}, {"_id": 3}])
    by_field = [
        {"$lookup": {"from": "other", "localField": "k", "foreignField": "k", "as": "o"}},
        {"$sort": {"_id": 1}},
    ]
    found = answer(by_field, sources=sources)
    assert [of("_id", item["o"]) for item in found] == [[1, 2], [2], [1, 2], [3]]
    assert len(sources.reads) == 1, "without an index the other side is read once"
    sources.indexed = True
    assert [of("_id", item["o"]) for item in answer(by_field, sources=sources)] == [[1, 2], [2], [1, 2], [3]]
    assert sources.reads[1] == ("other", {"k": {"$in": ["a"]}})
    correlated = [
        {"$lookup": {"from": "other", "let": {"mine": "$_id"}, "as": "o",
                     "pipeline": [{"$match": {"$expr": {"$gt": ["$_id", "$$mine"]}}}, {"$project": {"_id": 1}}]}}
    ]  # fmt: skip
    assert [of("_id", item["o"]) for item in answer(correlated, sources=sources)] == [[2, 3], [3], [], []]


def test_graph_lookup_and_union() -> None:
    sources = Collections(people=PEOPLE)
    chain = {"from": "people", "startWith": "$boss", "connectFromField": "boss", "connectToField": "_id", "as": "up"}
    found = answer([{"$graphLookup": {**chain, "depthField": "d"}}], PEOPLE, sources=sources)
    assert [sorted(of("_id", item["up"])) for item in found] == [[], ["ann"], ["ann", "bob"]]
    near = answer([{"$graphLookup": {**chain, "maxDepth": 0}}], PEOPLE, sources=sources)
    assert of("_id", near[2]["up"]) == ["bob"]
    union = [{"$unionWith": {"coll": "people", "pipeline": [{"$match": {"boss": None}}]}}, {"$count": "n"}]
    assert answer(union, sources=sources) == [{"n": 5}]
    assert compile_pipeline(union).reads == {Namespace(None, "people")}


def test_windows() -> None:
    output = {
        "run": {"$sum": "$v", "window": {"documents": ["unbounded", "current"]}},
        "near": {"$avg": "$v", "window": {"documents": [-1, 1]}},
        "span": {"$count": {}, "window": {"range": [-2, 0]}},
        "rank": {"$rank": {}},
        "before": {"$shift": {"output": "$v", "by": -1, "default": 0}},
    }
    rows = [{"_id": at, "v": value} for at, value in enumerate([1, 2, 2, 5])]
    found = answer([{"$setWindowFields": {"sortBy": {"v": 1}, "output": output}}], rows)
    assert of("run", found) == [1, 3, 5, 10]
    assert of("near", found) == [1.5, 5 / 3, 3.0, 3.5]
    assert of("span", found) == [1, 3, 3, 1]
    assert of("rank", found) == [1, 2, 2, 4]
    assert of("before", found) == [0, 1, 2, 2]


def test_gaps_are_filled() -> None:
    rows = [{"t": DAY, "v": 1}, {"t": DAY + dt.timedelta(days=3), "v": 7}]
    dense = [{"$densify": {"field": "t", "range": {"step": 1, "unit": "day", "bounds": "full"}}}]
    found = answer([*dense, {"$fill": {"sortBy": {"t": 1}, "output": {"v": {"method": "linear"}}}}], rows)
    assert of("v", found) == [1, 3.0, 5.0, 7]
    assert of("v", answer([*dense, {"$fill": {"output": {"v": {"value": 0}}}}], rows)) == [1, 0, 0, 7]


REFUSALS: list[tuple[Any, int]] = [
    ([{"$nope": 1}], 40324),
    ([{"$search": {}}], 115),
    ([{"$match": 1}], 15959),
    ([{"$limit": 0}], 15958),
    ([{"$sort": {}}], 15976),
    ([{"$group": {"a": {"$sum": 1}}}], 15955),
    ([{"$group": {"_id": 1, "a": 1}}], 40234),
    ([{"$group": {"_id": 1, "a": {"$nope": 1}}}], 15952),
    ([{"$unwind": "a"}], 28818),
    ([{"$project": {}}], 51272),
    ([{"$project": {"a": 1, "b": 0}}], 31254),
    ([{"$project": {"a": 0, "b": 1}}], 31253),
    ([{"$project": {"a": 1, "a.b": 1}}], 31249),
    ([{"$count": "$a"}], 40158),
    ([{"$out": "x"}, {"$limit": 1}], 40601),
    ([{"$limit": 1}, {"$documents": []}], 40602),
    ([{"$facet": {"a": [{"$out": "x"}]}}], 40600),
    ([{"a": 1, "b": 2}], 40323),
    ({"$match": {}}, 14),
    ([{"$replaceRoot": {"newRoot": "$v"}}], 40228),
    ([{"$match": {"$where": "1"}}], 115),
    ([{"$match": {"$text": {}}}], 27),
    ([{"$bucket": {"groupBy": "$v", "boundaries": [0, 1]}}], 40066),
]


@pytest.mark.parametrize(("pipeline", "code"), REFUSALS, ids=[str(case[0])[:60] for case in REFUSALS])
def test_refusal(pipeline: Any, code: int) -> None:
    with pytest.raises(Refused) as refused:
        answer(pipeline)
    assert refused.value.code == code


def test_sinks_are_told_and_pass_their_documents_on() -> None:
    out = compile_pipeline([{"$match": {"v": 7}}, {"$out": {"db": "d", "coll": "c"}}])
    assert out.sink == Out(Namespace("d", "c")) and out.filter == {"v": 7}
    assert of("_id", list(out.run(SALES))) == [4]
    merge = compile_pipeline([{"$merge": {"into": "c", "on": ["a", "b"], "whenMatched": "fail"}}]).sink
    assert merge == Merge(Namespace(None, "c"), ("a", "b"), "fail", "insert", {"new": "$$ROOT"})


def test_documents_stream_one_by_one() -> None:
    def endless() -> Iterator[dict[str, Any]]:
        for at in itertools.count():
            yield {"_id": at}

    pipeline = compile_pipeline([{"$match": {"_id": {"$gt": 2}}}, {"$addFields": {"x": 1}}, {"$limit": 2}])
    assert list(pipeline.run(endless())) == [{"_id": 3, "x": 1}, {"_id": 4, "x": 1}]


@pytest.mark.parametrize(
    "stage",
    [
        {"$sort": {"v": 1}},
        {"$group": {"_id": "$_id"}},
        {"$group": {"_id": None, "all": {"$push": "$$ROOT"}}},
        {"$facet": {"a": []}},
        {"$bucketAuto": {"groupBy": "$v", "buckets": 2}},
        {"$setWindowFields": {"output": {"n": {"$sum": "$v"}}}},
        {"$sample": {"size": 100000}},
    ],
    ids=str,
)
def test_memory_is_bounded(stage: dict[str, Any]) -> None:
    rows = ({"_id": at, "v": at, "text": "x" * 50} for at in itertools.count())
    with pytest.raises(Refused) as refused:
        answer([stage], rows, memory_bytes_max=100_000)
    assert refused.value.code == 292


def test_a_limited_sort_holds_only_what_it_gives() -> None:
    rows = ({"_id": at, "text": "x" * 50} for at in range(20_000))
    found = answer([{"$sort": {"_id": -1}}, {"$skip": 1}, {"$limit": 2}], rows, memory_bytes_max=10_000)
    assert of("_id", found) == [19_998, 19_997]


@pytest.mark.parametrize("step", [0.5, 1e-9, float("inf")])
def test_densify_ends(step: float) -> None:
    span = {"step": step, "bounds": "full", **({"unit": "day"} if step == 0.5 else {})}
    rows = [{"v": DAY}, {"v": DAY}] if step == 0.5 else [{"v": 1e16}, {"v": 2e16}]
    with pytest.raises(Refused):
        answer([{"$densify": {"field": "v", "range": span}}], rows)


def test_length_and_nesting_are_bounded() -> None:
    with pytest.raises(Refused, match="too long"):
        compile_pipeline([{"$match": {}}] * (STAGES_MAX + 1))
    pipeline: list[Any] = []
    for _ in range(30):
        pipeline = [{"$lookup": {"from": "x", "pipeline": pipeline, "as": "o"}}]
    with pytest.raises(Refused, match="too deep"):
        compile_pipeline(pipeline)


def test_a_pipeline_runs_again_from_the_start() -> None:
    pipeline = compile_pipeline([{"$group": {"_id": "$k", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}])
    assert list(pipeline.run(SALES)) == list(pipeline.run(SALES))


def test_variables_of_the_command() -> None:
    pipeline = compile_pipeline([{"$match": {"$expr": {"$eq": ["$k", "$$wanted"]}}}], frozenset({"wanted"}))
    assert of("_id", list(pipeline.run(SALES, Run({"wanted": "b"})))) == [2]


def test_every_stage_has_a_case() -> None:
    cases = str(PIPELINES) + str(REFUSALS) + Path(__file__).read_text()
    door = {"$collStats", "$indexStats", "$currentOp", "$changeStream"}
    assert [name for name in STAGES if f'"{name}"' not in cases and f"'{name}'" not in cases and name not in door] == []
