"""Changes of other doors that come late, with a clock of their own: merged as the tables merge them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mainstem.model.change import Change, Operation, SourceId
from mainstem.model.hlc import Hlc
from tests.unit.doors.mongo_world import World, opened


def change(operation: Operation, hlc: int, columns: dict[str, Any] | None = None) -> Change:
    return Change(
        namespace="db",
        table="c",
        key="$n:1",
        operation=operation,
        columns=columns,
        source=SourceId("browser"),
        batch_sequence=1,
        hlc=Hlc(hlc),
    )


async def offline_clock(world: World) -> int:
    """The clock of a change that is made now, and comes after what the server does from here on."""
    offline = world.documents.hlc + 1
    while world.documents.clock.now_ms() << 16 <= offline:
        await asyncio.sleep(0)
    return offline


async def delete_by(world: World, door: str) -> None:
    if door == "mongo":
        assert (await world.run({"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}))["n"] == 1
    elif door == "drop":
        assert (await world.run({"drop": "c"}))["ok"] == 1.0
    else:
        await world.cdc({"table": "db.c", "operation": "DELETE", "rowId": "$n:1"})


@pytest.mark.parametrize("door", ["mongo", "cdc", "drop"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_late_change_does_not_bring_a_deleted_document_back(tmp_path: Path, door: str, restarts: bool) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1, "a": 1}]})
        offline = await offline_clock(world)
        await delete_by(world, door)
        if not restarts:
            await world.changes(change(Operation.UPDATE, offline, {"a": 2}))
            assert await world.documents_of("c") == []
    async with opened(tmp_path) as world:
        if restarts:
            await world.changes(change(Operation.UPDATE, offline, {"a": 2}), source="second")
        assert await world.documents_of("c") == []
        # What is newer than the delete makes a document again, of what was written since.
        await world.changes(change(Operation.UPDATE, world.documents.hlc + (1 << 20), {"b": 3}), source="second")
        assert await world.documents_of("c") == [{"_id": 1, "b": 3}]


async def test_a_late_change_of_a_column_loses_to_a_newer_document(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1, "a": 1}]})
        offline = await offline_clock(world)
        await world.run({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 5}}}]})
        await world.changes(change(Operation.UPDATE, offline, {"a": 2}))
        assert await world.documents_of("c") == [{"_id": 1, "a": 5}]


async def test_at_one_clock_the_later_name_of_a_source_wins(tmp_path: Path) -> None:
    """As in the tables: `browser` is before this door's `mongo/…`, and `second` behind it."""
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1, "a": 1}]})
        inserted = world.documents.hlc
        await world.changes(change(Operation.UPDATE, inserted, {"a": 2}), source="browser")
        assert await world.documents_of("c") == [{"_id": 1, "a": 1}]
        await world.changes(change(Operation.DELETE, inserted), source="browser")
        assert await world.documents_of("c") == [{"_id": 1, "a": 1}]
        await world.changes(change(Operation.UPDATE, inserted, {"a": 3}), source="second")
        assert await world.documents_of("c") == [{"_id": 1, "a": 3}]
        await delete_by(world, "mongo")
        deleted = world.documents.hlc
        await world.changes(change(Operation.UPDATE, deleted, {"a": 4}), source="browser")
        assert await world.documents_of("c") == []
        await world.changes(change(Operation.UPDATE, deleted, {"a": 5}), source="second")
        assert await world.documents_of("c") == [{"_id": 1, "a": 5}]
