"""Random commands at the door beside a plain model: with indexes, cursors, retries, transactions and restarts between.

In the end a change stream from the beginning has to lead a copy of the collection to the same documents.
"""

import copy
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64, Regex

from mainstem.documents import apply_update
from mainstem.documents.values import order_key
from mainstem.model.errors import Invalid
from mainstem.wire.mongo.frames import decode_document, encode_document
from tests.harness.mongo_model import NAME, VALUES, Commands, Duplicate, Model, keyed
from tests.harness.seeds import soak_seeds
from tests.unit.doors.mongo_world import World, opened

STEPS = 60
LSID = {"id": Binary(bytes(range(16)), 4)}


class Door:
    """The door, asked as the model is. Opened again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self.world: World
        self._number = 0

    async def open(self, *, loses_the_store: bool = False) -> None:
        await self._stack.aclose()
        if loses_the_store:
            for file in (self._folder / "mongo").iterdir():
                file.unlink()
        self.world = await self._stack.enter_async_context(opened(self._folder))

    async def close(self) -> None:
        await self._stack.aclose()

    async def run(self, command: dict[str, Any], **more: Any) -> Any:
        """What is comparable of the reply."""
        reply = await self.world.run({**command, **more})
        return await self._told(command, reply, more)

    async def _told(self, command: dict[str, Any], reply: dict[str, Any], more: dict[str, Any]) -> Any:  # noqa: PLR0911
        if not reply["ok"]:
            return reply["code"]
        match next(iter(command)):
            case "insert":
                return reply["n"], [(each["index"], each["code"] == 11000) for each in reply.get("writeErrors", ())]
            case "update":
                if "writeErrors" in reply:
                    return reply["writeErrors"][0]["code"]
                upserted = [(each["index"], order_key(each["_id"])) for each in reply.get("upserted", ())]
                return reply["n"], reply["nModified"], upserted
            case "delete" | "count":
                return reply["n"]
            case "findAndModify":
                return [] if reply["value"] is None else [encode_document(reply["value"])]
            case "find":
                found = [encode_document(each) for each in await self._every(reply, more)]
                return found if command["sort"] else sorted(found)
            case "aggregate":
                return keyed(await self._every(reply, more))
            case "distinct":
                return [order_key(each) for each in reply["values"]]
            case "createIndexes":
                return "made"
            case _:
                return "dropped"

    async def _every(self, reply: dict[str, Any], more: dict[str, Any]) -> list[Any]:
        found = list(reply["cursor"]["firstBatch"])
        more = {name: value for name, value in more.items() if name != "startTransaction"}
        while reply["cursor"]["id"]:
            asked = {"getMore": Int64(reply["cursor"]["id"]), "collection": NAME, "batchSize": 2, **more}
            reply = await self.world.run(asked)
            found += reply["cursor"]["nextBatch"]
        return found

    async def retried(self, command: dict[str, Any]) -> Any:
        """As a driver whose first answer was lost."""
        self._number += 1
        more = {"lsid": LSID, "txnNumber": Int64(self._number)}
        first = await self.run(command, **more)
        # Who was refused may be refused again, or not: that is no answer to keep.
        return first if isinstance(first, int) and command.get("deletes") is None else await self.run(command, **more)

    async def transaction(self, commands: Any, *, commits: bool) -> None:
        self._number += 1
        more = {"lsid": LSID, "txnNumber": Int64(self._number), "autocommit": False}
        starts: dict[str, Any] = {"startTransaction": True}
        async for command, expected in commands:
            assert await self.run(command, **more, **starts) == expected, command
            starts = {}
        if not starts:
            final = "commitTransaction" if commits else "abortTransaction"
            assert (await self.world.run({final: 1, **more, "$db": "admin"}))["ok"] == 1.0


@asynccontextmanager
async def door_at(folder: Path) -> AsyncIterator[Door]:
    door = Door(folder)
    await door.open()
    yield door
    await door.close()


def answered(model: Model, command: dict[str, Any]) -> Any:
    before = copy.deepcopy(model.documents)
    try:
        return model.run(copy.deepcopy(command))
    except Duplicate:
        model.documents = before
        return 11000


async def beside_the_model(folder: Path, seed: int, steps: int) -> None:
    model = Model()
    commands = Commands(seed, model)
    async with door_at(folder) as door:
        assert (await door.world.run({"create": NAME}))["ok"] == 1.0
        opening = {"aggregate": NAME, "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": 0}}
        token = (await door.world.run(opening))["cursor"]["postBatchResumeToken"]
        for step in range(steps):
            where = f"seed={seed} step={step}"
            kind = commands.random.random()
            if kind < 0.08 and model.documents:
                await _transaction(door, model, commands)
            elif kind < 0.12:
                await door.open(loses_the_store=kind < 0.1)
            else:
                command = commands.command()
                expected = answered(model, command)
                ask = door.retried if _may_be_retried(command) and kind < 0.4 else door.run
                got = await ask(command)
                assert got == expected, f"{where} {command}\n  expected={expected}\n  got={got}"
            found = await door.run(EVERYTHING)
            assert found == model.run(EVERYTHING), where
        await _replayed(door, model, token, f"seed={seed}")


EVERYTHING: dict[str, Any] = {
    "find": NAME, "filter": {}, "sort": {}, "skip": 0, "limit": 0, "projection": {}, "batchSize": 1_000,
}  # fmt: skip


def _may_be_retried(command: dict[str, Any]) -> bool:
    name = next(iter(command))
    if name not in ("insert", "update", "delete", "findAndModify"):
        return False
    statements = [*command.get("updates", ()), *command.get("deletes", ())]
    return not any(each.get("multi") or each.get("limit") == 0 for each in statements) and (
        name != "insert" or len({repr(each["_id"]) for each in command["documents"]}) == 1
    )


async def _transaction(door: Door, model: Model, commands: Commands) -> None:
    before = copy.deepcopy(model.documents)
    commits = commands.random.random() < 0.6
    count = commands.random.randrange(1, 5)

    async def chosen() -> AsyncIterator[tuple[dict[str, Any], Any]]:
        for _ in range(count):
            while True:
                command = commands.command(writes=True)
                trial = copy.deepcopy(model)
                answer = answered(trial, command)
                # What is refused would end the transaction.
                if answer != 11000 and not (command.get("insert") and answer[1]):
                    break
            yield command, answered(model, command)

    await door.transaction(chosen(), commits=commits)
    if not commits:
        model.documents = before


async def _replayed(door: Door, model: Model, token: Any, where: str) -> None:
    """The change stream from the first token on makes the same collection."""
    opening = {"aggregate": NAME, "pipeline": [{"$changeStream": {"resumeAfter": dict(token)}}], "cursor": {}}
    cursor = (await door.world.run(opening))["cursor"]
    # As bytes until here: the events of a reply are not decoded.
    events: list[dict[str, Any]] = []
    batch = cursor["firstBatch"]
    while batch:
        events += [decode_document(encode_document(each)) for each in batch]
        more = {"getMore": Int64(cursor["id"]), "collection": NAME, "maxTimeMS": 1}
        batch = (await door.world.run(more))["cursor"]["nextBatch"]
    made: dict[Any, dict[str, Any]] = {}
    for event in events:
        key = order_key(event["documentKey"]["_id"])
        match event["operationType"]:
            case "insert":
                assert key not in made, where
                made[key] = event["fullDocument"]
            case "replace":
                assert key in made, where
                made[key] = event["fullDocument"]
            case "delete":
                del made[key]
            case "update":
                made[key] = _updated(made[key], event["updateDescription"])
    assert keyed(map(_sorted, made.values())) == keyed(map(_sorted, model.documents)), where


def _sorted(document: dict[str, Any]) -> dict[str, Any]:
    # Fields of the top level that moved are in another order; their values are the same.
    return {name: document[name] for name in sorted(document)}


def _updated(document: dict[str, Any], description: dict[str, Any]) -> dict[str, Any]:
    # Names that no path can have are set as they are.
    for name in description["removedFields"]:
        if name in document:
            document = {key: value for key, value in document.items() if key != name}
        else:
            document = apply_update({"$unset": {name: ""}}, document, now_ms=0).document
    for path, value in description["updatedFields"].items():
        if path in document or "." not in path:
            document = {**document, path: value}
        else:
            document = apply_update({"$set": {path: value}}, document, now_ms=0).document
    for cut in description["truncatedArrays"]:
        pushed = {"$push": {cut["field"]: {"$each": [], "$slice": cut["newSize"]}}}
        document = apply_update(pushed, document, now_ms=0).document
    return document


@pytest.mark.parametrize("seed", range(8))
async def test_the_door_does_what_the_model_does(tmp_path: Path, seed: int) -> None:
    await beside_the_model(tmp_path, seed, STEPS)


async def test_a_seed_that_a_long_run_has_found(tmp_path: Path) -> None:
    await beside_the_model(tmp_path, 1_010, 140)


@pytest.mark.parametrize("key", [{"n": 1}, {"n": -1}, {"s": 1, "n": -1}, {"n": -1, "s": 1}], ids=str)
async def test_an_index_gives_what_a_scan_gives_at_its_bounds(tmp_path: Path, key: dict[str, Any]) -> None:
    values = [*VALUES, [1, "a"], [[1]], []]
    async with opened(tmp_path) as world:
        documents = [{"_id": number, "s": "x", "n": value} for number, value in enumerate(values)]
        assert (await world.run({"insert": NAME, "documents": documents}))["n"] == len(values)
        await world.run({"createIndexes": NAME, "indexes": [{"key": key, "name": "i"}]})
        for value in VALUES:
            for operator in ("$eq", "$lt", "$lte", "$gt", "$gte"):
                if isinstance(value, Regex) and operator != "$eq":
                    continue
                filter = {"s": "x", "n": {operator: value}}
                found, scanned = [
                    {each["_id"] for each in await world.documents_of(NAME, filter, hint=hint)}
                    for hint in ("i", {"$natural": 1})
                ]
                assert found == scanned, (operator, value)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_the_door_does_what_the_model_does_for_long(tmp_path: Path) -> None:
    for seed in soak_seeds(1_000, 300):
        await beside_the_model(tmp_path / str(seed), seed, 150)


def test_the_model_refuses_what_is_there() -> None:
    model = Model()
    documents = [{"_id": 1}, {"_id": 1.0}, {"_id": [2]}, {"_id": 3}]
    assert model.run({"insert": NAME, "documents": documents, "ordered": False}) == (2, [(1, True), (2, False)])
    with pytest.raises(Invalid):
        model.run({"update": NAME, "updates": [{"q": {}, "u": {"$nonsense": 1}, "multi": True, "upsert": False}]})
