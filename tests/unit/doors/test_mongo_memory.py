"""Collections larger than memory, by small bounds: sorts go to disk, groups are refused, indexes grow beside others."""

import asyncio
import functools
import math
import random
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from bson.int64 import Int64

from mainstem.documents.aggregation import running
from mainstem.doors.mongo.commands import aggregate, indexes, reads
from mainstem.feeds.documents import drafts, reading, service, trash
from mainstem.feeds.documents.walking import Stored
from mainstem.feeds.documents.writing import Unit
from mainstem.wire.mongo.frames import encode_document
from mainstem.wire.mongo.ordered import ordered
from tests.unit.doors.mongo_world import World, opened

COUNT = 3_000


async def filled(world: World, seed: int = 5) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    documents = [{"_id": number, "n": chance.randrange(500), "pad": "x" * 200} for number in range(COUNT)]
    assert (await world.run({"insert": "c", "documents": documents}))["n"] == COUNT
    return documents


async def every(world: World, command: dict[str, Any]) -> list[dict[str, Any]]:
    """All documents of a cursor, batch by batch."""
    reply = await world.run(command)
    assert reply["ok"] == 1.0, reply
    found = list(reply["cursor"]["firstBatch"])
    while reply["cursor"]["id"]:
        reply = await world.run({"getMore": reply["cursor"]["id"], "collection": "c", "batchSize": 700})
        found += reply["cursor"]["nextBatch"]
    return found


@pytest.mark.parametrize("apart", [True, False], ids=["in a thread", "on the loop"])
async def test_a_sort_larger_than_its_memory_goes_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    monkeypatch.setattr(reading, "SORT_BYTES_MAX", 100_000)
    monkeypatch.setattr(reads, "APART_MIN", 0 if apart else 1 << 40)
    async with opened(tmp_path) as world:
        documents = await filled(world)
        found = await every(world, {"find": "c", "sort": {"n": -1}})
        # Equal ones in the order in which they came.
        assert [each["_id"] for each in found] == [
            each["_id"] for each in sorted(documents, key=lambda each: -each["n"])
        ]
        page = await every(world, {"find": "c", "sort": {"n": 1, "_id": 1}, "skip": 700, "limit": 900})
        inorder = sorted(documents, key=lambda each: (each["n"], each["_id"]))
        assert [each["_id"] for each in page] == [each["_id"] for each in inorder[700:1_600]]
        refused = await world.run({"find": "c", "sort": {"n": -1}, "allowDiskUse": False})
        assert refused["code"] == 292
        assert list((tmp_path / "mongo").glob("tmp*")) == []


async def test_a_pipeline_sorts_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "Run", functools.partial(running.Run, memory_bytes_max=100_000))
    async with opened(tmp_path) as world:
        documents = await filled(world)
        pipeline = {"aggregate": "c", "pipeline": [{"$sort": {"n": 1}}], "cursor": {}}
        found = await every(world, pipeline)
        assert found == sorted(documents, key=lambda each: each["n"])
        assert (await world.run({**pipeline, "allowDiskUse": False}))["code"] == 292
        assert list((tmp_path / "mongo").glob("tmp*")) == []


LARGER_THAN_MEMORY: list[tuple[dict[str, Any], dict[str, int]]] = [
    # Groups that grow, and many groups that do not.
    ({"$group": {"_id": "$n", "ids": {"$push": "$_id"}, "pads": {"$push": "$pad"}}}, {"_id": 1}),
    ({"$group": {"_id": "$_id", "n": {"$sum": "$n"}, "first": {"$first": "$pad"}}}, {"_id": 1}),
    ({"$group": {"_id": {"n": "$n"}, "first": {"$first": "$_id"}, "last": {"$last": "$_id"}}}, {"_id": 1}),
    (
        {
            "$setWindowFields": {
                "partitionBy": "$n",
                "sortBy": {"_id": -1},
                "output": {"rank": {"$rank": {}}, "sum": {"$sum": "$_id", "window": {"documents": ["unbounded", 0]}}},
            }
        },
        {"_id": 1},
    ),
    (
        {"$bucketAuto": {"groupBy": "$n", "buckets": 7, "output": {"n": {"$sum": 1}, "ids": {"$sum": "$_id"}}}},
        {"_id": 1},
    ),
    ({"$bucketAuto": {"groupBy": "$n", "buckets": 400, "output": {"pads": {"$push": "$pad"}}}}, {"_id": 1}),
    ({"$fill": {"partitionBy": "$n", "sortBy": {"_id": 1}, "output": {"gap": {"method": "locf"}}}}, {"_id": 1}),
    ({"$sortByCount": "$n"}, {"count": -1, "_id": 1}),
]


@pytest.mark.parametrize(("stage", "order"), LARGER_THAN_MEMORY, ids=lambda each: next(iter(each)))
async def test_stages_that_are_larger_than_memory_go_on_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: dict[str, Any], order: dict[str, int]
) -> None:
    async with opened(tmp_path) as world:
        await filled(world)
        pipeline = {"aggregate": "c", "pipeline": [stage, {"$sort": order}], "cursor": {}}
        expected = await every(world, pipeline)
        monkeypatch.setattr(aggregate, "Run", functools.partial(running.Run, memory_bytes_max=20_000))
        assert await every(world, pipeline) == expected
        assert list((tmp_path / "mongo").glob("tmp*")) == []
        counted = {"aggregate": "c", "pipeline": [stage, {"$count": "n"}], "cursor": {}, "allowDiskUse": False}
        assert (await world.run(counted))["code"] == 292


async def test_one_group_that_is_larger_than_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "Run", functools.partial(running.Run, memory_bytes_max=100_000))
    async with opened(tmp_path) as world:
        await filled(world)
        for stage in (
            {"$group": {"_id": None, "all": {"$push": "$pad"}}},
            {"$setWindowFields": {"sortBy": {"_id": 1}, "output": {"rank": {"$rank": {}}}}},
            {"$bucketAuto": {"groupBy": "$n", "buckets": 2, "output": {"all": {"$push": "$pad"}}}},
        ):
            assert (await world.run({"aggregate": "c", "pipeline": [stage], "cursor": {}}))["code"] == 292


async def test_a_sort_by_an_index_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SORT_BYTES_MAX", 1)
    async with opened(tmp_path) as world:
        documents = await filled(world)
        await world.run({"createIndexes": "c", "indexes": [{"key": {"n": 1, "_id": -1}, "name": "by_n"}]})
        for sort, sign in (({"n": 1, "_id": -1}, 1), ({"n": -1, "_id": 1}, -1)):
            found = await every(world, {"find": "c", "sort": sort, "allowDiskUse": False})
            expected = sorted(documents, key=lambda each: (sign * each["n"], -sign * each["_id"]))
            assert [each["_id"] for each in found] == [each["_id"] for each in expected]
        told = await world.run({"explain": {"find": "c", "sort": {"n": -1}}, "verbosity": "queryPlanner"})
        plan = told["queryPlanner"]["winningPlan"]
        assert plan["inputStage"]["indexName"] == "by_n" and plan["inputStage"]["direction"] == "backward"
        # An array has an entry for each element: the index does not give the order any more.
        await world.run({"insert": "c", "documents": [{"_id": COUNT, "n": [1, 400]}]})
        told = await world.run({"explain": {"find": "c", "sort": {"n": -1}}, "verbosity": "queryPlanner"})
        assert told["queryPlanner"]["winningPlan"]["stage"] == "SORT"


async def test_an_index_is_made_while_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = asyncio.Semaphore(0)

    async def in_turns(source: Iterator[Stored]) -> AsyncIterator[Stored]:
        for number, stored in enumerate(source):
            if number % 500 == 0:
                await written.acquire()
            yield stored

    monkeypatch.setattr(indexes, "every", in_turns)
    async with opened(tmp_path) as world:
        await filled(world)
        making = asyncio.create_task(world.run({"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n_1"}]}))
        steps = 0
        while not making.done():
            number = steps * 37 % COUNT
            await world.run({"update": "c", "updates": [{"q": {"_id": number}, "u": {"$set": {"n": 1_000 + steps}}}]})
            await world.run({"delete": "c", "deletes": [{"q": {"_id": COUNT - 1 - steps}, "limit": 1}]})
            await world.run({"insert": "c", "documents": [{"_id": 10_000 + steps, "n": 2_000 + steps}]})
            steps += 1
            written.release()
        assert (await making)["ok"] == 1.0
        assert steps >= COUNT // 500
        state = world.documents.state
        collection = state.find("db", "c")
        assert collection is not None and not collection.building
        table = f"x{collection.number}_{collection.indexes[0].index.number}"
        entries = set(state.db.execute(f"SELECT entry, place FROM {table}").fetchall())
        stored = await every(world, {"find": "c"})
        places = dict(state.db.execute(f"SELECT key, place FROM c{collection.number}").fetchall())
        assert entries == {(ordered(each["n"]), places[ordered(each["_id"])]) for each in stored}


async def test_an_index_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await filled(world)
        reply = await world.run({"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n_1", "unique": True}]})
        assert reply["code"] == 11000
        collection = world.documents.state.find("db", "c")
        assert collection is not None and not collection.building and not collection.indexes
        again = await world.run({"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n_1"}]})
        assert again["ok"] == 1.0
        assert len(await every(world, {"find": "c", "filter": {"n": 7}})) == len(
            [each for each in await every(world, {"find": "c"}) if each["n"] == 7]
        )


async def test_inserting_many_refuses_what_inserting_one_refuses(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await filled(world)
        await world.run(
            {"createIndexes": "c", "indexes": [{"key": {"u": 1}, "name": "u", "unique": True, "sparse": True}]}
        )
        documents: list[dict[str, Any]] = [{"_id": 5_000 + number} for number in range(1_000)]
        documents[3] = {"_id": 7}
        documents[500] = {"_id": 5_100}
        documents[600] = {"_id": 6_600, "u": 1}
        documents[700] = {"_id": 6_700, "u": 1}
        reply = await world.run({"insert": "c", "documents": documents, "ordered": False})
        assert reply["n"] == 997
        assert [each["index"] for each in reply["writeErrors"]] == [3, 500, 700]
        again = await world.run({"insert": "c", "documents": documents, "ordered": True})
        assert again["n"] == 0 and [each["index"] for each in again["writeErrors"]] == [0]


async def test_documents_of_a_new_collection_are_inserted_many_at_once(tmp_path: Path) -> None:
    documents: list[dict[str, Any]] = [{"_id": number} for number in range(500)]
    encoded = [(encode_document(each), each) for each in documents]
    async with opened(tmp_path) as world:
        unit = Unit(world.documents.writer)
        made = unit.ensure_collection("db", "c")
        # The last one has an id that is taken: it is looked at by itself.
        assert unit.insert_free(made, [*encoded, encoded[7]]) == len(documents)
        await unit.flush()
        assert await every(world, {"find": "c"}) == documents
        reply = await world.run({"insert": "d", "documents": [*documents, documents[7], {"_id": [1]}, {"_id": 500}]})
        assert reply["n"] == len(documents) and [each["index"] for each in reply["writeErrors"]] == [500]
        reply = await world.run(
            {"insert": "e", "documents": [*documents, documents[7], {"_id": [1]}, 5, {"_id": 500}], "ordered": False}
        )
        assert reply["n"] == len(documents) + 1
        assert [(each["index"], each["code"]) for each in reply["writeErrors"]] == [(500, 11000), (501, 53), (502, 14)]


async def test_the_types_of_fields_are_those_that_are_stored(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1, "n": 1}, {"_id": 2, "n": math.inf, "s": None}]})
        await world.run({"update": "c", "updates": [{"q": {"_id": 1}, "u": [{"$set": {"n": {"$add": [1 << 40, 0]}}}]}]})
        await world.run({"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$set": {"s": "x"}}, "upsert": True}]})
        known = {"_id": {"int"}, "n": {"int", "long", "double that is not finite"}, "s": {"null", "string"}}
        collection = world.documents.state.find("db", "c")
        assert collection is not None and collection.fields.types == known
        changed = collection.changed
        assert changed == world.documents.durable
    async with opened(tmp_path) as world:
        collection = world.documents.state.find("db", "c")
        assert collection is not None and collection.fields.types == known and collection.changed == changed
        await world.run({"drop": "c"})
        await world.run({"insert": "c", "documents": [{"_id": "a"}]})
        collection = world.documents.state.find("db", "c")
        assert collection is not None and collection.fields.types == {"_id": {"string"}}
        # A row of another door: its columns are of any type.
        await world.cdc({"table": "db.c", "operation": "INSERT", "rowId": "r", "after": {"x": 1}})
        assert not collection.fields.is_known


@pytest.mark.parametrize(
    "command",
    [
        {"count": "c"},
        {"collStats": "c"},
        {"dbStats": 1},
        {"listDatabases": 1, "$db": "admin"},
        {"aggregate": "c", "pipeline": [{"$collStats": {"count": {}, "storageStats": {}}}], "cursor": {}},
    ],
    ids=lambda each: next(iter(each)),
)
async def test_statistics_of_a_large_collection_hold_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: dict[str, Any]
) -> None:
    monkeypatch.setattr(reads, "APART_MIN", 0)
    others_are_answered = threading.Event()
    async with opened(tmp_path) as world:
        await filled(world)
        state = world.documents.state
        for name in ("count", "size_bytes"):
            measure = getattr(state, name)

            def patient(*given: Any, measure: Any = measure) -> int:
                assert others_are_answered.wait(20), "nobody else was answered meanwhile"
                return int(measure(*given))

            monkeypatch.setattr(state, name, patient)
        asked = asyncio.create_task(world.run(command))
        for _ in range(3):
            assert (await world.run({"find": "c", "filter": {"_id": 5}}))["ok"] == 1.0
        assert not asked.done()
        others_are_answered.set()
        assert (await asked)["ok"] == 1.0


async def test_distinct_gives_each_value_once_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "RUN_ROWS", 7)
    values: list[Any] = [2, 2.0, Int64(2), "b", None, [3, [4], "b", []], {"a": 1}, {"a": 1.0}, True, "a", 1, []]
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": number, "v": v} for number, v in enumerate(values)]})
        reply = await world.run({"distinct": "c", "key": "v"})
        assert reply["values"] == [None, 1, 2, 3, "a", "b", {"a": 1}, [], [4], True]
        assert "operationTime" in reply
        assert (await world.run({"distinct": "none", "key": "v"}))["values"] == []
        monkeypatch.setattr(reads, "BATCH_BYTES_MAX", 20)
        assert (await world.run({"distinct": "c", "key": "v"}))["code"] == 17217


async def test_a_large_index_is_put_aside_and_emptied_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash, "ROWS_MAX", 100)
    monkeypatch.setattr(service, "CHECKPOINT_INTERVAL_S", 3_600.0)
    async with opened(tmp_path) as world:
        await filled(world)
        db = world.documents.state.db
        make = {"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n_1"}]}
        for _ in range(2):
            # Made anew it has the same number.
            assert (await world.run(make))["ok"] == 1.0
            assert (await world.run({"dropIndexes": "c", "index": "n_1"}))["ok"] == 1.0
        world.documents.state.commit()
        assert tables(db) == ["trash_x_1", "trash_x_2"]
        assert (await world.run(make))["ok"] == 1.0
        steps = sum(1 for _ in trash.emptying(db))
        assert steps > 2 * COUNT // 1_000 and tables(db) == []
        assert len(await every(world, {"find": "c", "hint": "n_1"})) == COUNT
    async with opened(tmp_path) as world:
        # What was left by a server that stopped is found again.
        assert (await world.run({"dropIndexes": "c", "index": "n_1"}))["ok"] == 1.0
    async with opened(tmp_path) as world:
        assert tables(world.documents.state.db) == ["trash_x_1"]


def tables(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'trash%' ORDER BY name")]


async def test_a_pipeline_that_writes_to_its_own_collection_reads_all_of_it_first(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await filled(world)
        stages: list[dict[str, Any]] = [{"$match": {"n": {"$lt": 250}}}, {"$set": {"n": {"$add": ["$n", 1]}}}]
        expected = [{**each, "n": each["n"] + 1} for each in await every(world, {"find": "c"}) if each["n"] < 250]
        for sink in ({"$merge": {"into": "c"}}, {"$out": "c"}):
            reply = await world.run({"aggregate": "c", "pipeline": [*stages[:1], *stages[1:], sink], "cursor": {}})
            assert reply["ok"] == 1.0, reply
            found = await every(world, {"find": "c", "filter": {"_id": {"$in": [each["_id"] for each in expected]}}})
            assert found == expected
            expected = [{**each, "n": each["n"] + 1} for each in expected if each["n"] < 250]
        assert len(await every(world, {"find": "c"})) == len(found)


async def test_a_batch_is_no_more_work_than_others_may_wait_for(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await filled(world)
        assert [each.batch.count for each in world.heard] == [COUNT + 1]
        indexes = [{"key": {name: 1}, "name": name} for name in ("n", "pad")]
        await world.run({"createIndexes": "c", "indexes": indexes})
        world.heard.clear()
        everything = {"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}
        assert (await world.run({"update": "c", "updates": [everything]}))["nModified"] == COUNT
        # One with two indexes is six times the work of one without.
        assert max(each.batch.count for each in world.heard) <= drafts.WORK_MAX // 6 + 1
        assert sum(each.batch.count for each in world.heard) == COUNT
