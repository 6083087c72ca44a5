"""Hostile keys in both directions: whichever doors write a document, it is one document and one row."""

from pathlib import Path
from typing import Any

from bson.objectid import ObjectId

from mainstem.feeds.documents.carrying import DocumentsBatch
from mainstem.wire.mongo.keys import id_of_key, key_text
from tests.unit.doors.mongo_world import World, opened

OBJECT_ID = "65f000000000000000000000"
HOSTILE = (
    *(
        "",
        " ",
        "42",
        "-0",
        "1e5",
        "true",
        "null",
        OBJECT_ID,
        "a.b",
        "a/b",
        "../x",
        "a\x00b",
        "\ufeff",
        "Ünï🦫",
        "k" * 70_000,
    ),
    *(
        "$",
        "$$",
        "$price",
        ":$",
        "$s:",
        "$s:$",
        "$s:x",
        "$s:$price",
        "$:",
        "$n",
        "$n:",
        "$n:042",
        "$n:+1",
        "$n:1e5",
        "$n:٤٢",
    ),
    *("$n:42", "$n:1.5e0", "$n:1.0e-1", "$n:nan", "$n:-inf", "$n:1e99999", "$n:9e999999999999", "$n:sNaN123", "$n:-0"),
    *("$oid:zz", f"$oid:{OBJECT_ID}", f"$oid:{OBJECT_ID.upper()}", "$b:true", "$b:True", "$uuid:", "$uuid:" + "1" * 32),
    *("$x:", "$x:zz", "$x:ff", "$x:08", "$x:0", "$x:18616200", "$x:280000", "$x:500061000000000000", "$x:5c61000008"),
    *("$s:$n:42", "$s:$s:$n:42", "$s:$b:true", "$s:$x:08", "$s:" * 50 + "$n:1"),
)


def written_keys(world: World) -> list[str]:
    """The rows that the Mongo door wrote, by their keys, newest last."""
    batches = [arrival.batch for arrival in world.heard if isinstance(arrival.batch, DocumentsBatch)]
    return [each.key for batch in batches for each in batch.documents.operations if each.collection == "c"]


async def update(world: World, identity: Any, field: str) -> None:
    statement = {"q": {"_id": identity}, "u": {"$set": {field: 1}}, "upsert": True}
    assert (await world.run({"update": "c", "updates": [statement]}))["n"] == 1


async def test_a_row_of_another_door_is_the_document_that_a_client_changes(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        for key in HOSTILE:
            await world.cdc({"table": "db.c", "operation": "INSERT", "rowId": key, "after": {"a": 1}})
        found = await world.documents_of("c")
        assert [key_text(each["_id"]) for each in found] == list(HOSTILE)
        for document in found:
            by_id = await world.documents_of("c", {"_id": document["_id"]})
            assert [key_text(each["_id"]) for each in by_id] == [key_text(document["_id"])]
            await update(world, document["_id"], "b")
        assert written_keys(world) == list(HOSTILE)
        for key in HOSTILE:
            await world.cdc({"table": "db.c", "operation": "UPDATE", "rowId": key, "after": {"a": 2}})
        assert [(key_text(each["_id"]), each["a"], each["b"]) for each in await world.documents_of("c")] == [
            (key, 2, 1) for key in HOSTILE
        ]
    async with opened(tmp_path) as world:
        assert (await world.run({"count": "c"}))["n"] == len(HOSTILE)
        for key in HOSTILE:
            await world.cdc({"table": "db.c", "operation": "DELETE", "rowId": key}, source="other-db")
        assert await world.documents_of("c") == []


async def test_a_client_may_use_the_same_texts_as_ids(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        # Each text, and beside it what it looks like.
        ids = [*HOSTILE, 42, 1.5, True, None, ObjectId(OBJECT_ID)]
        reply = await world.run({"insert": "c", "documents": [{"_id": each} for each in ids]})
        assert (reply["n"], reply.get("writeErrors")) == (len(ids), None)
        keys = written_keys(world)
        assert len(set(keys)) == len(ids)
        for identity, key in zip(ids, keys, strict=True):
            assert id_of_key(key) == identity
            await world.cdc({"table": "db.c", "operation": "UPDATE", "rowId": key, "after": {"a": 1}})
        found = await world.documents_of("c")
        assert found == [{"_id": each, "a": 1} for each in ids]
