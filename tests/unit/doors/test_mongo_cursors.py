"""Cursors: a find has a plan and a place, so that 100,000 are cheap; what others hold is bounded in bytes."""

import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from mainstem.doors.mongo import cursors
from mainstem.doors.mongo.commands import reads
from tests.unit.doors.mongo_world import World, opened

ALL = 700


async def filled(world: World, pad: int = 0) -> list[dict[str, Any]]:
    chance = random.Random(3)
    documents = [
        {"_id": each, "n": chance.randrange(40), "l": chance.sample(range(9), 3), "pad": "x" * pad}
        for each in range(ALL)
    ]
    assert (await world.run({"insert": "c", "documents": documents}))["n"] == ALL
    for key in ({"n": 1}, {"l": 1}, {"n": -1, "_id": 1}):
        name = "_".join(f"{field}_{sign}" for field, sign in key.items())
        assert (await world.run({"createIndexes": "c", "indexes": [{"key": key, "name": name}]}))["ok"] == 1.0
    return documents


async def page_by_page(world: World, command: dict[str, Any], size: int) -> list[Any]:
    reply = (await world.run({**command, "batchSize": size}))["cursor"]
    found = list(reply["firstBatch"])
    while reply["id"]:
        reply = await world.run({"getMore": reply["id"], "collection": "c", "batchSize": size})
        assert reply["ok"] == 1.0, reply
        reply = reply["cursor"]
        found += reply["nextBatch"]
    return [each["_id"] for each in found]


@pytest.mark.parametrize(
    "command",
    [
        {},
        {"filter": {"n": {"$gt": 5}}},
        {"filter": {"n": {"$in": [3, 9, 31, 7]}}},
        {"filter": {"l": {"$gte": 2}}},
        {"filter": {"l": {"$in": [8, 2, 3]}}},
        {"filter": {"n": {"$gte": 9}}, "sort": {"n": -1, "_id": 1}},
        {"filter": {"n": 9}, "sort": {"_id": -1}},
        {"sort": {"n": 1, "_id": -1}},
        {"sort": {"_id": -1}},
        {"sort": {"$natural": -1}, "skip": 13, "limit": 300},
        {"filter": {"_id": {"$in": [5, 600, 44, 7]}}},
        {"filter": {"_id": {"$gt": 100, "$lt": 400}}, "sort": {"_id": -1}, "skip": 3},
        {"filter": {"_id": {"$gt": 100}}, "hint": "_id_", "limit": 250},
        {"filter": {"n": {"$gt": 3}}, "hint": "l_1", "skip": 20},
    ],
    ids=str,
)
async def test_pages_are_what_one_reply_is(tmp_path: Path, command: dict[str, Any]) -> None:
    async with opened(tmp_path) as world:
        await filled(world)
        whole = await page_by_page(world, {"find": "c", **command}, 10_000)
        assert len(set(whole)) == len(whole) > 0
        for size in (1, 7, 101):
            assert await page_by_page(world, {"find": "c", **command}, size) == whole
        assert len(world.door.cursors) == 0


async def test_a_page_that_does_not_fit_a_message_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "BATCH_BYTES_MAX", 3_000)
    async with opened(tmp_path) as world:
        await filled(world, pad=900)
        command = {"find": "c", "filter": {"n": {"$lt": 20}}, "skip": 5, "limit": 120}
        found = await page_by_page(world, command, 50)
        monkeypatch.setattr(cursors, "BATCH_BYTES_MAX", 1 << 24)
        assert found == await page_by_page(world, command, 1_000)


async def test_what_is_written_between_two_pages_moves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await filled(world)
        cursor = (await world.run({"find": "c", "sort": {"_id": 1}, "batchSize": 10}))["cursor"]["id"]
        # The document that it is at goes, and one before it comes.
        await world.run({"delete": "c", "deletes": [{"q": {"_id": {"$in": [9, 10]}}, "limit": 0}]})
        await world.run({"insert": "c", "documents": [{"_id": 3.5}]})
        reply = await world.run({"getMore": cursor, "collection": "c", "batchSize": 2})
        assert [each["_id"] for each in reply["cursor"]["nextBatch"]] == [11, 12]


async def test_a_cursor_ends_with_its_collection_and_its_index(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await filled(world)
        by_index = {"find": "c", "filter": {"n": {"$gte": 0}}, "hint": "n_1", "batchSize": 2}
        first = (await world.run(by_index))["cursor"]["id"]
        second = (await world.run({"find": "c", "batchSize": 2}))["cursor"]["id"]
        await world.run({"dropIndexes": "c", "index": "n_1"})
        assert (await world.run({"getMore": first, "collection": "c"}))["code"] == 175
        await world.run({"drop": "c"})
        await world.run({"insert": "c", "documents": [{"_id": 1}]})
        assert (await world.run({"getMore": second, "collection": "c"}))["code"] == 175
        assert len(world.door.cursors) == 0


async def test_an_open_cursor_costs_little(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await filled(world, pad=2_000)
        command = {"find": "c", "filter": {"n": {"$gt": 1}}, "projection": {"n": 1}, "batchSize": 1}
        await world.run(command)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(500):
                assert (await world.run(command))["cursor"]["id"]
            each = (tracemalloc.get_traced_memory()[0] - before) / 500
        finally:
            tracemalloc.stop()
        # A hundred thousand of them: some 400 MB at most.
        assert each < 4_000, each


async def test_cursors_are_bounded_in_number_and_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "APART_MIN", 0)
    async with opened(tmp_path) as world:
        await filled(world)
        world.door.cursors = cursors.Cursors(cursors_max=20, bytes_max=3 * cursors.SNAPSHOT_BYTES)
        plain, sorted_ = ({"find": "c", "sort": sort, "batchSize": 1} for sort in ({"_id": 1}, {"pad": 1}))
        for _ in range(20):
            assert (await world.run(plain))["ok"] == 1.0
        refused = await world.run(plain)
        assert (refused["code"], refused["errorLabels"]) == (303, ["RetryableReadError"])
        # Those that nobody has used for a while make room.
        monkeypatch.setattr(cursors, "IDLE_S_MIN", 0.0)
        assert (await world.run(plain))["ok"] == 1.0 and len(world.door.cursors) == 20
        for _ in range(10):
            assert (await world.run(sorted_))["ok"] == 1.0
        assert len(world.door.cursors) < 20
        monkeypatch.setattr(cursors, "IDLE_S_MIN", 1.0)
        assert (await world.run(sorted_))["code"] == 303
        # Whoever was refused holds nothing, and what is closed is counted no more.
        world.door.cursors.close()
        assert (await world.run(sorted_))["ok"] == 1.0


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_hundred_thousand_cursors_are_open_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await filled(world, pad=2_000)
        command = {"find": "c", "filter": {"n": {"$gt": 1}}, "projection": {"n": 1}, "batchSize": 1}
        first = (await world.run(command))["cursor"]["id"]
        before = resident_bytes()
        for _ in range(cursors.CURSORS_MAX - 1):
            assert (await world.run(command))["cursor"]["id"]
        assert len(world.door.cursors) == cursors.CURSORS_MAX
        assert resident_bytes() - before < 500 << 20
        more = await world.run({"getMore": first, "collection": "c", "batchSize": 5})
        assert len(more["cursor"]["nextBatch"]) == 5
        # The next one takes the room of the one that has waited longest.
        assert (await world.run(command))["ok"] == 1.0
        assert len(world.door.cursors) == cursors.CURSORS_MAX
        assert (await world.run({"getMore": first, "collection": "c"}))["ok"] == 1.0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
