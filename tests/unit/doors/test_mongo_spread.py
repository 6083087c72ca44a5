"""Aggregations over a table's documents, by what executors run: what is acknowledged is in the answer, once."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mainstem.documents.values import identical, order_key
from mainstem.feeds.documents import pushing
from mainstem.feeds.documents.tables import Told
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.pipeline.passes.aggregate import run_stages
from mainstem.wire.mongo.frames import encode_document
from mainstem.wire.mongo.keys import key_text
from mainstem.wire.mongo.stages import decode_stages
from tests.unit.doors.mongo_world import Lake, World, opened

PIPELINES: list[list[dict[str, Any]]] = [
    [{"$group": {"_id": "$k", "n": {"$sum": 1}, "total": {"$sum": "$v"}, "mean": {"$avg": "$v"}}}],
    [{"$match": {"v": {"$lt": 50}}}, {"$unwind": "$tags"}, {"$group": {"_id": "$tags", "v": {"$max": "$v"}}}],
    [{"$match": {"$expr": {"$gt": ["$v", "$$least"]}}}, {"$count": "n"}],
    [{"$group": {"_id": "$k", "n": {"$count": {}}}}, {"$sort": {"n": -1, "_id": 1}}, {"$limit": 2}],
]


class ExecutorsLake(Lake):
    """A table as it was when it was carried, and two tasks that read it."""

    def __init__(self) -> None:
        super().__init__()
        self.documents: list[dict[str, Any]] = []
        self.ahead = 0
        self.asked: list[frozenset[str]] = []

    def carry(self, documents: list[dict[str, Any]], through: LogPosition) -> None:
        self.documents, self.through = documents, through

    async def columns(self, table: TableName) -> Mapping[str, str]:  # type: ignore[override]
        return {}

    async def is_large(self, table: TableName) -> bool:
        return True

    async def run(self, table: TableName, stages: str, *, rows_max: int, timeout_s: float) -> Told | None:
        self.asked.append(frozenset(decode_stages(stages).without))
        found: list[bytes] = []
        for part in (self.documents[::2], self.documents[1::2]):
            found += [one for batch in run_stages(stages, _rows(part)) for one in batch.column(0).to_pylist()]
        return Told(found, LogPosition(self.through + self.ahead))


def _rows(documents: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    for each in documents:
        document = pa.array([encode_document(each)], pa.binary())
        yield pa.record_batch({"_key": [key_text(each["_id"])], "_document": document})


async def answers(world: World, pipeline: list[dict[str, Any]], **options: Any) -> list[Any]:
    reply = await world.run(
        {"aggregate": "c", "pipeline": pipeline, "cursor": {"batchSize": 1_000}, "let": {"least": 7}, **options}
    )
    assert reply["ok"] == 1.0, reply
    found = reply["cursor"]["firstBatch"]
    return list(found) if any("$sort" in stage for stage in pipeline) else sorted(found, key=order_key)


async def both_ways(world: World) -> None:
    for pipeline in PIPELINES:
        expected = await answers(world, pipeline, hint={"$natural": 1})
        assert identical(await answers(world, pipeline), expected), pipeline


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushing, "DOCUMENTS_MIN", 1)


def made(number: int) -> dict[str, Any]:
    return {"_id": number, "k": [number % 5, "text", None][number % 3], "v": number % 83, "tags": ["a", number % 4]}


async def test_what_is_in_no_table_yet_is_counted_once(tmp_path: Path) -> None:
    lake = ExecutorsLake()
    async with opened(tmp_path, lake) as world:
        documents = [made(number) for number in range(300)]
        await world.run({"insert": "c", "documents": documents})
        lake.carry(documents, world.documents.durable)
        await both_ways(world)
        assert lake.asked == [frozenset()] * len(PIPELINES)
        # New, changed, deleted, deleted and new again; another collection's are not looked at.
        await world.run({"insert": "other", "documents": [made(1)]})
        await world.run({"insert": "c", "documents": [made(number) for number in range(300, 320)]})
        await world.run({"update": "c", "updates": [{"q": {"_id": 5}, "u": {"$set": {"k": "new", "v": 11}}}]})
        await world.run({"delete": "c", "deletes": [{"q": {"_id": {"$in": [7, 8]}}, "limit": 0}]})
        await world.run({"insert": "c", "documents": [{**made(8), "k": "again"}]})
        await both_ways(world)
        assert lake.asked[-1] == {key_text(number) for number in (5, 7, 8, *range(300, 320))}
        told = await world.run({"explain": {"aggregate": "c", "pipeline": PIPELINES[3], "cursor": {}}})
        assert told["pushDown"] | {"reason": ""} == {
            "answeredBy": "spark", "reason": "", "stages": 1, "laysOverTheLog": True,
        }  # fmt: skip


async def test_a_table_newer_than_the_snapshot_does_not_answer(tmp_path: Path) -> None:
    lake = ExecutorsLake()
    async with opened(tmp_path, lake) as world:
        await world.run({"insert": "c", "documents": [made(number) for number in range(30)]})
        # What it says has nothing to do with the documents.
        lake.carry([made(1)] * 50, world.documents.durable)
        lake.ahead = 1
        assert await answers(world, [{"$match": {"v": {"$gte": 0}}}, {"$count": "n"}]) == [{"n": 30}]
        assert len(lake.asked) > 1


async def test_rows_of_another_door_are_not_read_from_the_table(tmp_path: Path) -> None:
    lake = ExecutorsLake()
    async with opened(tmp_path, lake) as world:
        await world.run({"insert": "c", "documents": [made(number) for number in range(30)]})
        lake.carry([made(number) for number in range(30)], world.documents.durable)
        await world.cdc({"table": "db.c", "operation": "UPDATE", "rowId": "$n:1", "sequence": 1, "after": {"v": 500}})
        assert await answers(world, [{"$match": {"v": 500}}, {"$count": "n"}]) == [{"n": 1}]
        assert not lake.asked
