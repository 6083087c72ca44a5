"""Collections larger than memory, by small bounds: sorts go to disk, groups are refused, indexes grow beside others."""

import asyncio
import functools
import random
from pathlib import Path
from typing import Any

import pytest

from mainstem.documents.aggregation import running
from mainstem.doors.mongo.commands import aggregate, reads
from mainstem.feeds.documents import reading
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


async def test_a_pipeline_sorts_on_disk_and_groups_within_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregate, "Run", functools.partial(running.Run, memory_bytes_max=100_000))
    async with opened(tmp_path) as world:
        documents = await filled(world)
        pipeline = {"aggregate": "c", "pipeline": [{"$sort": {"n": 1}}], "cursor": {}}
        found = await every(world, pipeline)
        assert found == sorted(documents, key=lambda each: each["n"])
        assert (await world.run({**pipeline, "allowDiskUse": False}))["code"] == 292
        groups = {"aggregate": "c", "pipeline": [{"$group": {"_id": "$_id", "all": {"$push": "$pad"}}}], "cursor": {}}
        assert (await world.run(groups))["code"] == 292
        assert list((tmp_path / "mongo").glob("tmp*")) == []


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


async def test_an_index_is_made_while_others_write(tmp_path: Path) -> None:
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
        assert (await making)["ok"] == 1.0
        assert steps > 1, "nobody wrote meanwhile"
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
