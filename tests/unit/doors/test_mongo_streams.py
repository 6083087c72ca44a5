"""Change streams over a real log: where they begin and go on, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS
from bson.timestamp import Timestamp

from mainstem.wire.mongo.frames import decode_document, encode_document
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


async def test_a_stream_looks_into_every_kind_of_value(tmp_path: Path) -> None:
    far, nested = DatetimeMS(1 << 60), {"a": [{"b": 1}], "at": DatetimeMS(-(1 << 60))}
    stages: list[Any] = [
        {"$match": {"fullDocument.far": {"$gt": DatetimeMS(1 << 59)}, "fullDocument.nested.a": {"b": 1}}},
        {"$set": {"same": {"$eq": ["$fullDocument.nested", nested]}, "kind": {"$type": "$fullDocument.far"}}},
        {"$project": {"same": 1, "kind": 1, "ns": 1, "fullDocument": {"nested": 1}}},
    ]
    async with opened(tmp_path) as world:
        await world.run({"create": "c"})
        opened_at = (await watch(world, {}))["cursor"]["postBatchResumeToken"]
        await world.run({"insert": "c", "documents": [{"_id": 1, "far": far, "nested": nested}, {"_id": 2}]})
        reply = await watch(world, {"resumeAfter": opened_at}, *stages, size=10)
        assert reply["ok"] == 1.0, reply
        (event,) = [decode_document(encode_document(each)) for each in reply["cursor"]["firstBatch"]]
        assert (event["same"], event["kind"]) == (True, "date")
        assert event["fullDocument"] == {"nested": nested}


def row(table: str, key: str, **columns: Any) -> dict[str, Any]:
    return {"table": table, "operation": "INSERT", "rowId": key, "after": columns}


@pytest.mark.parametrize("asked", [{"aggregate": "c"}, {"aggregate": 1}], ids=["collection", "database"])
async def test_tables_that_nobody_asked_for_are_in_the_stream(tmp_path: Path, asked: dict[str, Any]) -> None:
    """Rows of another door, in a table that is not there yet when the stream begins; live, and resumed."""
    opening = {**asked, "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": 0}}
    async with opened(tmp_path) as world:
        cursor = (await world.run(opening))["cursor"]
        token = cursor["postBatchResumeToken"]
        await world.cdc(row("db.c", "a", n=1), row("elsewhere.c", "x"))
        more = {"getMore": cursor["id"], "collection": cursor["ns"].partition(".")[2], "maxTimeMS": 50}
        live = (await world.run(more))["cursor"]["nextBatch"]
        assert [(each["operationType"], each["fullDocument"]["n"]) for each in live] == [("insert", 1)]
        await world.run({"killCursors": "c", "cursors": [cursor["id"]]})
        # Nobody listens now, and nobody has asked for the table.
        await world.cdc(row("db.c", "b", n=2))
        opening["pipeline"] = [{"$changeStream": {"resumeAfter": dict(token)}}]
        cursor = (await world.run(opening))["cursor"]
        told = [each["fullDocument"]["n"] for each in await every(world, cursor["id"], more["collection"], 2)]
        assert told == [1, 2]


async def every(world: World, cursor: int, collection: str, count: int) -> list[Any]:
    told: list[Any] = []
    for _ in range(10):
        more = {"getMore": cursor, "collection": collection, "maxTimeMS": 20}
        told += (await world.run(more))["cursor"]["nextBatch"]
        if len(told) >= count:
            break
    return told


@pytest.mark.parametrize("seals", [False, True])
@pytest.mark.parametrize("opens", [(), ("a",), ("b",), ("a", "b")], ids=str)
async def test_a_batch_of_several_tables_is_told_in_the_order_of_the_log(
    tmp_path: Path, opens: tuple[str, ...], seals: bool
) -> None:
    """Live and resumed, whichever of the tables a Mongo client has asked for."""
    opening = {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": 0}}
    async with opened(tmp_path) as world:
        await world.cdc(row("db.a", "0", n=-1), row("db.b", "0", n=-1))
        for name in opens:
            assert len(await world.documents_of(name)) == 1
        cursor = (await world.run(opening))["cursor"]
        token = cursor["postBatchResumeToken"]
        await world.cdc(*[row(f"db.{'ab'[n % 2]}", str(n), n=n) for n in range(1, 7)])
        live = await every(world, cursor["id"], "$cmd.aggregate", 6)
        assert [each["fullDocument"]["n"] for each in live] == [1, 2, 3, 4, 5, 6]
        if seals:
            await world.log.flush()
    async with opened(tmp_path) as world:
        opening["pipeline"] = [{"$changeStream": {"resumeAfter": dict(token)}}]
        cursor = (await world.run(opening))["cursor"]
        told = await every(world, cursor["id"], "$cmd.aggregate", 6)
        assert [each["fullDocument"]["n"] for each in told] == [1, 2, 3, 4, 5, 6]
        assert [each["_id"] for each in told] == [each["_id"] for each in live]


@pytest.mark.parametrize("seals", [False, True])
async def test_tables_that_nobody_asked_for_are_collections_after_a_restart(tmp_path: Path, seals: bool) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "mine", "documents": [{"_id": 1}]})
        await world.cdc(row("db.c", "a", n=1))
        if seals:
            await world.log.flush()
    for _ in range(2):
        async with opened(tmp_path) as world:
            listed = (await world.run({"listCollections": 1}))["cursor"]["firstBatch"]
            assert sorted(each["name"] for each in listed) == ["c", "mine"]
    async with opened(tmp_path) as world:
        assert [each["n"] for each in await world.documents_of("c")] == [1]
        await world.run({"drop": "c"})
    async with opened(tmp_path) as world:
        assert await world.documents_of("c") == []
        assert len((await world.run({"listCollections": 1}))["cursor"]["firstBatch"]) == 1


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
