"""Changes of other doors that come late, with a clock of their own: merged as the tables merge them."""

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
        offline = world.documents.hlc + 1
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
        offline = world.documents.hlc + 1
        await world.run({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 5}}}]})
        await world.changes(change(Operation.UPDATE, offline, {"a": 2}))
        assert await world.documents_of("c") == [{"_id": 1, "a": 5}]
