"""Commands that were meant to break the door, the store or the log, over a real log."""

import asyncio
import base64
import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from bson.binary import Binary
from bson.int64 import Int64

from mainstem.admission import Principal, Role
from mainstem.doors.mongo.ttl import delete_expired
from mainstem.feeds.documents.carrying import DocumentsBatch
from mainstem.feeds.documents.tables import TableRow
from mainstem.log.seal.expand import Expander
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.model.hlc import Hlc
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.wire.mongo.batches import encode_batch
from mainstem.wire.mongo.frames import encode_document
from tests.unit.doors.mongo_world import Lake, opened

LSID = {"id": Binary(bytes(range(16)), 4)}


def in_transaction(body: dict[str, Any], number: int = 1, *, starts: bool = False) -> dict[str, Any]:
    more = {"startTransaction": True} if starts else {}
    return {**body, "lsid": LSID, "txnNumber": Int64(number), "autocommit": False, **more}


async def test_a_transaction_does_not_overwrite_an_insert_after_its_snapshot(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 0}]})
        await world.run(in_transaction({"find": "c"}, starts=True))
        assert (await world.run({"insert": "c", "documents": [{"_id": 1, "by": "other"}]}))["n"] == 1
        reply = await world.run(in_transaction({"insert": "c", "documents": [{"_id": 1, "by": "txn"}]}))
        assert (reply["ok"], reply.get("code")) == (0.0, 112)
        assert await world.documents_of("c", {"_id": 1}) == [{"_id": 1, "by": "other"}]


async def test_a_retry_after_a_lost_connection_is_not_applied_twice(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1, "n": 0}]})
        command = {
            "update": "c",
            "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}],
            "lsid": LSID,
            "txnNumber": Int64(7),
        }
        first = asyncio.create_task(world.run(command))
        while not world.documents.writer._under_way:
            await asyncio.sleep(0)
        # As `connection_lost` does.
        first.cancel()
        reply = await world.run(command)
        assert reply["n"] == 1
        assert await world.documents_of("c") == [{"_id": 1, "n": 1}]


async def test_a_commit_is_not_forgotten_with_its_connection(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 0}]})
        await world.run(in_transaction({"insert": "c", "documents": [{"_id": 1}]}, starts=True))
        commit = in_transaction({"commitTransaction": 1, "$db": "admin"})
        first = asyncio.create_task(world.run(commit))
        while not world.documents.writer._under_way:
            await asyncio.sleep(0)
        first.cancel()
        reply = await world.run(commit)
        assert reply["ok"] == 1.0, reply


async def test_every_statement_of_a_batch_is_answered_again_though_one_had_to_wait(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": each, "n": 0} for each in range(6)]})
        await world.run(
            in_transaction({"update": "c", "updates": [{"q": {"_id": 5}, "u": {"$set": {"x": 1}}}]}, starts=True)
        )
        command = {
            "update": "c",
            "updates": [{"q": {"_id": each}, "u": {"$inc": {"n": 1}}} for each in range(6)],
            "lsid": {"id": Binary(bytes(16), 4)},
            "txnNumber": Int64(1),
        }
        waiting = asyncio.create_task(world.run(command))
        while not (await world.documents_of("c", {"_id": 4}))[0]["n"]:
            await asyncio.sleep(0.001)
        await world.run(in_transaction({"abortTransaction": 1, "$db": "admin"}))
        assert (await waiting)["n"] == 6
        assert (await world.run(command))["n"] == 6
        assert [each["n"] for each in await world.documents_of("c")] == [1] * 6


def _nested() -> dict[str, Any]:
    nested: dict[str, Any] = {"a": "$$ROOT"}
    for _ in range(90):
        nested = {"a": nested}
    return nested


REFERENCE = {"$arrayToObject": {"$literal": [{"k": "$ref", "v": 5}, {"k": "$id", "v": 1}]}}


@pytest.mark.parametrize("stages", [[{"$set": {"d": _nested()}}] * 3, [{"$set": {"d": REFERENCE}}]])
@pytest.mark.parametrize("sink", [{"$out": "o"}, {"$merge": "o"}, None])
async def test_what_is_computed_can_be_sealed(tmp_path: Path, stages: list[Any], sink: Any) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1}]})
        if sink is None:
            await world.run({"update": "c", "updates": [{"q": {"_id": 1}, "u": stages}]})
        else:
            await world.run({"aggregate": "c", "pipeline": [*stages, sink], "cursor": {}})
        await world.log.flush()
        assert world.log.sealed == world.log.durable
        for name in ("c", "o"):
            assert (await world.run({"find": name, "filter": {"x": None}}))["ok"] == 1.0


async def test_a_document_cannot_be_made_too_deep_step_by_step(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1}]})
        step = {"update": "c", "updates": [{"q": {"_id": 1}, "u": [{"$set": {"a": {"b": {"c": {"d": "$$ROOT"}}}}}]}]}
        for _ in range(60):
            reply = await world.run(step)
            if "writeErrors" in reply:
                break
        else:
            raise AssertionError("never refused")
        await world.log.flush()
        assert world.log.sealed == world.log.durable
        assert (await world.run({"find": "c"}))["ok"] == 1.0
        assert (await world.run({"count": "c", "query": {"x": 1}}))["ok"] == 1.0


async def test_rows_of_other_doors_that_an_index_refuses_stop_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"createIndexes": "c", "indexes": [{"key": {"a": 1, "b": 1}, "name": "ab"}]})
        await world.cdc({"table": "db.c", "operation": "INSERT", "rowId": "r", "after": {"a": [1, 2], "b": [3, 4]}})
        assert len(world.heard) == 2
        assert len(await world.documents_of("c")) == 1
    async with opened(tmp_path) as world:
        assert len(await world.documents_of("c")) == 1


async def test_metadata_of_another_door_is_not_taken_for_the_mongo_doors(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1}]})
        told = {"mongo": {"kind": 99, "id": base64.b64encode(encode_document({"_id": 1})).decode(), "count": 7}}
        await world.cdc({"table": "db.c", "operation": "INSERT", "rowId": "r", "after": {"a": 1}, "metadata": told})
        await world.log.flush()
    (tmp_path / "mongo" / "documents.db").unlink()
    for left in (tmp_path / "mongo").iterdir():
        left.unlink()
    async with opened(tmp_path) as world:
        assert len(await world.documents_of("c")) == 2


async def test_a_stream_resumes_in_the_middle_of_a_sealed_batch(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 0}]})
        opening = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
        cursor = (await world.run(opening))["cursor"]
        await world.run({"insert": "c", "documents": [{"_id": each} for each in range(1, 6)]})
        await world.run({"insert": "c", "documents": [{"_id": 6}]})
        more = {"getMore": Int64(cursor["id"]), "collection": "c", "maxTimeMS": 50}
        events = (await world.run(more))["cursor"]["nextBatch"]
        token = events[2]["_id"]
        await world.log.flush()
    async with opened(tmp_path) as world:
        opening = {"aggregate": "c", "pipeline": [{"$changeStream": {"resumeAfter": dict(token)}}], "cursor": {}}
        reply = (await world.run(opening))["cursor"]
        seen = list(reply["firstBatch"])
        for _ in range(3):
            more = {"getMore": Int64(reply["id"]), "collection": "c", "maxTimeMS": 20}
            seen += (await world.run(more))["cursor"]["nextBatch"]
        assert [each["documentKey"]["_id"] for each in seen] == [4, 5, 6]


async def test_the_description_of_collections_is_not_a_collection(tmp_path: Path) -> None:
    lake = Lake()
    lake.tables[TableName("db.system", "collections")] = []
    lake.tables[TableName("db", "sync_rules")] = []
    async with opened(tmp_path, lake) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1}]})
        for name in ("system.collections", "sync_rules"):
            await world.run({"find": name})
            reply = await world.run({"insert": name, "documents": [{"_id": "c", "indexes": [{}]}]})
            assert reply.get("writeErrors") or not reply["ok"], reply
            await world.run({"drop": name})
        assert await world.documents_of("c") == [{"_id": 1}]
    async with opened(tmp_path, lake) as world:
        assert await world.documents_of("c") == [{"_id": 1}]


async def test_a_table_that_was_taken_over_is_whole_after_a_crash(tmp_path: Path) -> None:
    lake = Lake()
    lake.tables[TableName("db", "c")] = [TableRow("a", 1, None, {"x": 1}, {})]
    async with opened(tmp_path, lake) as world:
        await world.run({"insert": "other", "documents": [{"_id": 1}]})
        await asyncio.sleep(0)
        world.documents.state.commit()
        before = {each.name: each.read_bytes() for each in (tmp_path / "mongo").iterdir()}
        assert len(await world.documents_of("c")) == 1
        assert (await world.run({"insert": "c", "documents": [{"_id": 1}]}))["n"] == 1
    # The store is as the disk had it before: it is synced only now and then.
    for each in (tmp_path / "mongo").iterdir():
        each.unlink()
    for name, data in before.items():
        if not name.endswith("-shm"):
            (tmp_path / "mongo" / name).write_bytes(data)
    async with opened(tmp_path, lake) as world:
        assert len(await world.documents_of("c")) == 2


async def test_indexes_that_are_made_at_once_are_all_made(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": n, "a": n, "b": -n} for n in range(300)]})
        await asyncio.gather(
            *[world.run({"createIndexes": "c", "indexes": [{"key": {name: 1}, "name": name}]}) for name in "ab"]
        )
        listed = (await world.run({"listIndexes": "c"}))["cursor"]["firstBatch"]
        assert [each["name"] for each in listed] == ["_id_", "a", "b"]
        assert [each["_id"] for each in await world.documents_of("c", {"b": -7})] == [7]
        assert [each["_id"] for each in await world.documents_of("c", {"a": 7})] == [7]


async def test_fields_that_are_gone_are_columns_only_where_they_can_be(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1, "a\x01": 1, "": 2}]})
        wide = {"_id": 2, **{f"f{n}": n for n in range(1_500)}}
        await world.run({"insert": "c", "documents": [wide]})
        updates = [{"q": {"_id": each}, "u": {"b": 1}} for each in (1, 2)]
        await world.run({"update": "c", "updates": updates})
        batch = world.heard[-1].batch
        assert isinstance(batch, DocumentsBatch)
        header = BatchHeader(
            first=LogPosition(1),
            count=2,
            hlc_first=Hlc(1),
            arrival_ms=1,
            source=batch.source,
            sequence=1,
            fingerprint=1,
            encoding=Encoding.DOCUMENTS,
        )
        (rows,) = Expander().expand(header, encode_batch(batch.documents), "here")
        assert rows.errors is None
        assert all(b'"b":1' in (each or b"") for each in rows.columns)


async def test_a_writer_is_not_left_waiting_for_who_let_go_meanwhile(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]})
        await world.run(
            in_transaction({"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$set": {"x": 1}}}]}, starts=True)
        )
        updates = [{"q": {"_id": each}, "u": {"$set": {"y": 1}}} for each in (1, 2)]
        waiting = asyncio.create_task(world.run({"update": "c", "updates": updates}))
        while not world.documents.writer._under_way:
            await asyncio.sleep(0)
        # While what was decided first is on its way to the log.
        await world.run(in_transaction({"abortTransaction": 1, "$db": "admin"}))
        async with asyncio.timeout(5):
            assert (await waiting)["n"] == 2


async def test_a_store_that_fails_is_brought_up_to_date_from_the_log(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1}]})
        state = world.documents.state
        await asyncio.sleep(0)
        state.db.execute("CREATE TEMP TRIGGER full BEFORE INSERT ON c1 BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
        await world.cdc({"table": "db.c", "operation": "INSERT", "rowId": "r", "after": {"a": 1}})
        assert len(world.heard) == 2
        state.db.execute("DROP TRIGGER full")
        # Both at once: neither may see the store before it has everything.
        found = await asyncio.gather(world.documents_of("c"), world.documents_of("c"))
        assert [len(each) for each in found] == [2, 2]


async def test_nobody_learns_of_or_takes_room_from_others(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": 1}]})
        stranger = Principal(sub="ann", role=Role.READER, namespaces=("other",))
        assert (await world.run({"dbStats": 1}, principal=stranger))["objects"] == 0
        refresh = {"refreshSessions": [LSID], "$db": "admin"}
        assert (await world.run(refresh, principal=None))["code"] == 13
        assert len(world.door.sessions) == 0


async def test_a_batch_of_a_change_stream_fits_a_message(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": -1}]})
        opening = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
        cursor = (await world.run(opening))["cursor"]
        for number in range(4):
            await world.run({"insert": "c", "documents": [{"_id": number, "x": "x" * 6_000_000}]})
        seen: list[int] = []
        while len(seen) < 4:
            more = {"getMore": Int64(cursor["id"]), "collection": "c", "maxTimeMS": 50}
            events = (await world.run(more))["cursor"]["nextBatch"]
            assert 1 <= len(events) <= 2
            seen += [each["documentKey"]["_id"] for each in events]
        assert seen == [0, 1, 2, 3]


async def test_a_rename_goes_on_after_a_document_that_somebody_held(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": each} for each in range(3)]})
        await world.run(
            in_transaction({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}]}, starts=True)
        )
        rename = asyncio.create_task(world.run({"renameCollection": "db.c", "to": "db.d", "$db": "admin"}))
        while len(await world.documents_of("d")) < 1:
            await asyncio.sleep(0.001)
        await world.run(in_transaction({"abortTransaction": 1, "$db": "admin"}))
        async with asyncio.timeout(5):
            assert (await rename)["ok"] == 1.0
        assert [each["_id"] for each in await world.documents_of("d")] == [0, 1, 2]


async def test_what_expires_is_deleted_though_an_index_refuses_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        index = [{"key": {"at": 1}, "name": "at", "expireAfterSeconds": 0}, {"key": {"a": 1, "b": 1}, "name": "ab"}]
        await world.run({"createIndexes": "c", "indexes": index})
        await world.run({"insert": "c", "documents": [{"_id": 1, "at": dt.datetime(2020, 1, 1)}]})
        await world.cdc({"table": "db.c", "operation": "UPDATE", "rowId": "$n:1", "after": {"a": [1], "b": [2]}})
        assert await delete_expired(world.documents) == 1
        assert not world.documents.writer.held._holders


async def test_a_transaction_does_not_overwrite_what_another_door_changed_after_its_snapshot(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.run({"insert": "c", "documents": [{"_id": "r", "a": 1}]})
        await world.run(in_transaction({"find": "c"}, starts=True))
        await world.cdc({"table": "db.c", "operation": "UPDATE", "rowId": "r", "after": {"a": 2}})
        update = {"update": "c", "updates": [{"q": {"_id": "r"}, "u": {"$set": {"b": 1}}}]}
        assert (await world.run(in_transaction(update)))["code"] == 112
