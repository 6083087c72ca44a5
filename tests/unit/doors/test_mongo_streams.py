"""Change streams over a real log: where they begin and go on, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest
from bson.timestamp import Timestamp

from tests.unit.doors.mongo_world import World, opened


async def watch(world: World, asked: dict[str, Any], *stages: Any, size: int = 0) -> dict[str, Any]:
    pipeline = [{"$changeStream": asked}, *stages]
    return await world.run({"aggregate": "c", "pipeline": pipeline, "cursor": {"batchSize": size}})


async def test_a_stream_that_resumes_after_a_part_of_its_events_is_told_the_rest(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        opened_at = (await watch(world, {}))["cursor"]["postBatchResumeToken"]
        await world.run({"insert": "c", "documents": [{"_id": each} for each in range(7)]})
        told: list[int] = []
        token = opened_at
        # Each time as after a lost connection: by the token of the batch, which a driver keeps.
        while len(told) < 7:
            cursor = (await watch(world, {"resumeAfter": token}, size=2))["cursor"]
            assert cursor["firstBatch"]
            told += [each["documentKey"]["_id"] for each in cursor["firstBatch"]]
            token = cursor["postBatchResumeToken"]
        assert told == list(range(7))
        # The cursor itself goes on as well, and its tokens say how far.
        cursor = (await watch(world, {"resumeAfter": opened_at}, size=3))["cursor"]
        more = await world.run({"getMore": cursor["id"], "collection": "c", "batchSize": 3})
        assert [each["documentKey"]["_id"] for each in more["cursor"]["nextBatch"]] == [3, 4, 5]
        assert more["cursor"]["postBatchResumeToken"]["_data"] == more["cursor"]["nextBatch"][-1]["_id"]["_data"]


async def test_a_stream_from_a_time_that_is_gone_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        reply = await world.run({"insert": "c", "documents": [{"_id": 1}]})
        began = reply["operationTime"]
        await world.run({"insert": "c", "documents": [{"_id": 2}]})
        seen = (await watch(world, {"startAtOperationTime": began}, size=10))["cursor"]["firstBatch"]
        assert [each["documentKey"]["_id"] for each in seen] == [1, 2]
        await world.log.flush()
        assert await world.log.drop_segments(lambda segment: True, older_than_ms=0)
        await world.run({"insert": "c", "documents": [{"_id": 3}]})
        reply = await watch(world, {"startAtOperationTime": began}, size=10)
        assert (reply["ok"], reply["code"], reply["codeName"]) == (0.0, 286, "ChangeStreamHistoryLost")


@pytest.mark.parametrize(
    ("asked", "stages", "code"),
    [
        ({}, [{"$group": {"_id": None}}], 20),
        ({}, [{"$limit": 1}], 20),
        ({}, [{"$sort": {"a": 1}}], 20),
        ({"startAtOperationTime": 5}, [], 14),
        ({"startAtOperationTime": Timestamp(1, 1), "resumeAfter": {"_data": "00"}}, [], 40674),
        ({"resumeAfter": {"_data": "nonsense"}}, [], 2),
        ({"fullDocument": "sometimes"}, [], 9),
        ({"allChangesForCluster": True}, [], 72),
        ({"unheardOf": 1}, [], 40415),
    ],
)
async def test_what_a_stream_cannot_do_is_refused(
    tmp_path: Path, asked: dict[str, Any], stages: list[Any], code: int
) -> None:
    async with opened(tmp_path) as world:
        reply = await watch(world, asked, *stages)
        assert (reply["ok"], reply["code"]) == (0.0, code), reply
