"""Variables of commands: `let` and $$NOW mean the same in every command that has expressions."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.doors.mongo_world import World, opened

LET = {"least": {"$add": [1, 1]}, "of": {"city": "Ulm"}}
OVER = {"$expr": {"$gt": ["$n", "$$least"]}}


async def filled(world: World) -> None:
    await world.run({"insert": "c", "documents": [{"_id": each, "n": each} for each in range(5)]})


async def test_find_knows_variables_in_its_filter_and_its_projection(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await filled(world)
        command = {"find": "c", "filter": OVER, "projection": {"_id": 1, "city": "$$of.city"}, "let": LET}
        assert (await world.run(command))["cursor"]["firstBatch"] == [
            {"_id": 3, "city": "Ulm"},
            {"_id": 4, "city": "Ulm"},
        ]
        past = {"find": "c", "filter": {"$expr": {"$lt": ["$n", "$$NOW"]}}}
        assert len((await world.run(past))["cursor"]["firstBatch"]) == 5
        assert (await world.run({"count": "c", "query": {"$expr": {"$gt": ["$n", "$$NOW"]}}}))["n"] == 0


async def test_an_inner_variable_of_the_same_name_comes_first(tmp_path: Path) -> None:
    inner = {"$let": {"vars": {"least": 3}, "in": {"$gt": ["$n", "$$least"]}}}
    mapped = {"$in": ["$n", {"$map": {"input": ["$$least"], "as": "least", "in": {"$add": ["$$least", 1]}}}]}
    folded = {
        "$eq": ["$n", {"$reduce": {"input": [1, "$$value"], "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}}]
    }
    async with opened(tmp_path) as world:
        await filled(world)
        for expression, let, expected in ((inner, LET, [4]), (mapped, LET, [3]), (folded, {"value": 2}, [3])):
            reply = await world.run({"find": "c", "filter": {"$expr": expression}, "let": let})
            assert [each["_id"] for each in reply["cursor"]["firstBatch"]] == expected


async def test_updates_know_variables_in_filter_and_pipeline(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await filled(world)
        pipeline = [{"$set": {"n": {"$add": ["$n", "$$least"]}, "at": "$$NOW"}}]
        update = {"update": "c", "updates": [{"q": OVER, "u": pipeline, "multi": True}], "let": LET}
        reply = await world.run(update)
        assert (reply["n"], reply["nModified"]) == (2, 2)
        assert [each["n"] for each in await world.documents_of("c")] == [0, 1, 2, 5, 6]
        missing = {
            "q": {"_id": 9, "$expr": {"$eq": ["$n", "$$least"]}},
            "u": [{"$set": {"n": "$$least"}}],
            "upsert": True,
        }
        assert (await world.run({"update": "c", "updates": [missing], "let": LET}))["upserted"][0]["_id"] == 9
        assert await world.documents_of("c", {"_id": 9}) == [{"_id": 9, "n": 2}]


async def test_delete_and_find_and_modify_know_variables(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await filled(world)
        change = {"query": OVER, "sort": {"_id": -1}, "update": [{"$set": {"n": "$$least"}}], "new": True}
        found = await world.run({"findAndModify": "c", **change, "fields": {"n": 1, "c": "$$of.city"}, "let": LET})
        assert found["value"] == {"_id": 4, "n": 2, "c": "Ulm"}
        gone = await world.run({"delete": "c", "deletes": [{"q": OVER, "limit": 0}], "let": LET})
        assert gone["n"] == 1
        assert [each["_id"] for each in await world.documents_of("c")] == [0, 1, 2, 4]


async def test_a_leading_match_of_a_pipeline_knows_variables(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await filled(world)
        pipeline = [{"$match": OVER}, {"$project": {"least": "$$least"}}]
        command = {"aggregate": "c", "pipeline": pipeline, "cursor": {}, "let": LET}
        assert (await world.run(command))["cursor"]["firstBatch"] == [{"_id": 3, "least": 2}, {"_id": 4, "least": 2}]
        told = await world.run({"explain": command, "verbosity": "queryPlanner"})
        assert told["ok"] == 1.0, told


@pytest.mark.parametrize(
    ("let", "code"), [({"Least": 1}, 16867), ({"least": "$$unheardOf"}, 17276), ({"least": {"$nope": 1}}, 168), (5, 14)]
)
async def test_variables_that_are_none_are_refused(tmp_path: Path, let: Any, code: int) -> None:
    async with opened(tmp_path) as world:
        await filled(world)
        reply = await world.run({"find": "c", "filter": OVER, "let": let})
        assert (reply["ok"], reply["code"]) == (0.0, code), reply
