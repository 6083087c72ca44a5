"""pymongo, unmodified, against the Mongo door: one server for all of these; tests keep apart by their databases."""

import asyncio
import datetime as dt
import socket
import struct
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import bson
import gridfs
import pymongo
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from pymongo.errors import (
    BulkWriteError,
    CursorNotFound,
    DuplicateKeyError,
    OperationFailure,
    WriteError,
)

from mainstem.client import CdcClient, insert, update
from tests.compat.mongo_server import Client, MongoServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    server = MongoServer(tmp_path_factory.mktemp("mongo"))
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture(scope="module")
def client(server: MongoServer) -> Iterator[Client]:
    with server.client() as client:
        yield client


def test_a_driver_sees_a_replica_set_of_one(client: Client) -> None:
    client.admin.command("ping")
    assert client.topology_description.topology_type_name == "ReplicaSetWithPrimary"
    assert client.server_info()["version"].startswith("7.")


def test_messages_are_compressed_both_ways(server: MongoServer) -> None:
    # The other compressors are modules that pymongo does not bring: `unit/wire/test_mongo_frames` has them.
    with server.client(compressors="zlib") as client:
        a = client.compressed.a
        a.insert_many([{"_id": n, "x": "y" * 1000} for n in range(500)])
        assert sum(len(each["x"]) for each in a.find()) == 500_000


EVERY_TYPE = {
    "_id": ObjectId(),
    "int32": 1,
    "int64": Int64(1),
    "double": 1.0,
    "decimal": Decimal128("1.10"),
    "text": "é\x00",
    "date": dt.datetime(2026, 1, 2, 3, 4, 5, 6000),
    "binary": Binary(b"ab", 128),
    "uuid": Binary(b"0123456789abcdef", 4),
    "regex": Regex("^a", "im"),
    "code": Code("f()"),
    "timestamp": Timestamp(1, 2),
    "min": MinKey(),
    "max": MaxKey(),
    "none": None,
    "yes": True,
    "nan": float("inf"),
    "nested": {"z": [1, [2, {"y": []}]], "a": {}},
}


def test_every_type_comes_back_as_it_went_in(client: Client) -> None:
    raw = bson.encode(EVERY_TYPE)
    options: Any = bson.CodecOptions(document_class=bson.raw_bson.RawBSONDocument)
    exact: Any = client.types.get_collection("a", codec_options=options)
    client.types.a.insert_one(dict(EVERY_TYPE))
    assert bytes(exact.find_one().raw) == raw
    client.types.a.update_one({}, {"$set": {"more": 1}})
    assert bytes(exact.find_one().raw) == bson.encode({**EVERY_TYPE, "more": 1})


def test_documents_are_written_read_changed_and_deleted(client: Client) -> None:
    orders = client.crud.orders
    orders.insert_many([{"_id": n, "n": n, "tags": [n, n + 1]} for n in range(10)])
    assert [each["_id"] for each in orders.find({"tags": 4}).sort("_id", -1)] == [4, 3]
    assert orders.find_one({"_id": 3.0}, {"n": 1}) == {"_id": 3, "n": 3}
    assert orders.update_many({"n": {"$lt": 3}}, {"$inc": {"n": 100}}).modified_count == 3
    assert orders.update_one({"tags": 5}, {"$set": {"tags.$": "five"}}).modified_count == 1
    assert orders.update_one({"_id": "new"}, {"$set": {"x": 1}}, upsert=True).upserted_id == "new"
    assert orders.update_one({"_id": 9}, [{"$set": {"n": {"$add": ["$n", 1]}}}]).modified_count == 1
    assert orders.find_one_and_update({"_id": 9}, {"$inc": {"n": 1}}, return_document=True) == {
        "_id": 9,
        "n": 11,
        "tags": [9, 10],
    }
    assert orders.replace_one({"_id": 8}, {"only": 1}).modified_count == 1
    assert orders.find_one({"_id": 8}) == {"_id": 8, "only": 1}
    assert orders.find_one_and_delete({"_id": 8}) == {"_id": 8, "only": 1}
    assert orders.delete_many({"n": {"$gte": 100}}).deleted_count == 3
    assert orders.count_documents({}) == 7
    assert orders.distinct("tags", {"_id": {"$in": [5, 6]}}) == [5, 6, 7]


def test_an_update_of_many_finds_each_document_once(client: Client) -> None:
    many = client.many.a
    many.insert_many([{"_id": n, "n": n} for n in range(1000)])
    many.create_index("n")
    assert many.update_many({"n": {"$gte": 0}}, {"$inc": {"n": 5}}).modified_count == 1000
    assert many.update_many({}, {"$inc": {"n": 1}}).modified_count == 1000
    assert [each["n"] for each in many.find().sort("_id", 1)] == [n + 6 for n in range(1000)]
    with client.start_session() as session, session.start_transaction():
        many.update_many({}, {"$inc": {"n": 1}}, session=session)
        many.update_many({}, {"$inc": {"n": 1}}, session=session)
    assert [each["n"] for each in many.find().sort("_id", 1)] == [n + 8 for n in range(1000)]


def test_a_bulk_tells_each_error_with_its_index(client: Client) -> None:
    bulk = client.bulks.a
    with pytest.raises(BulkWriteError) as error:
        bulk.insert_many([{"_id": 1}, {"_id": 1}, {"_id": 2}, {"_id": 2}], ordered=False)
    assert [each["index"] for each in error.value.details["writeErrors"]] == [1, 3]
    assert error.value.details["nInserted"] == 2
    with pytest.raises(BulkWriteError) as error:
        bulk.bulk_write([pymongo.InsertOne({"_id": 3}), pymongo.InsertOne({"_id": 3}), pymongo.DeleteOne({"_id": 1})])
    assert error.value.details["writeErrors"][0]["index"] == 1
    assert sorted(each["_id"] for each in bulk.find()) == [1, 2, 3]


def test_a_write_without_acknowledgement_is_applied(client: Client) -> None:
    quiet = client.get_database("quiet", write_concern=pymongo.WriteConcern(w=0)).a
    quiet.insert_one({"_id": 1})
    # The next command of the same connection is answered after it.
    for _ in range(200):
        if client.quiet.a.find_one() is not None:
            break
    assert client.quiet.a.find_one() == {"_id": 1}


def test_duplicate_values_are_refused_with_the_index(client: Client) -> None:
    users = client.unique.users
    users.create_index([("mail", 1)], unique=True)
    users.insert_one({"_id": 1, "mail": "a"})
    with pytest.raises(DuplicateKeyError) as error:
        users.insert_one({"_id": 2, "mail": "a"})
    assert error.value.details is not None
    assert (error.value.details["keyPattern"], error.value.details["keyValue"]) == ({"mail": 1}, {"mail": "a"})
    with pytest.raises(DuplicateKeyError) as error:
        users.insert_one({"_id": 1.0})
    assert error.value.details is not None
    assert error.value.details["keyPattern"] == {"_id": 1}
    users.insert_one({"_id": 3, "mail": "b"})
    with pytest.raises(DuplicateKeyError):
        users.update_one({"_id": 3}, {"$set": {"mail": "a"}})
    users.delete_one({"_id": 1})
    users.update_one({"_id": 3}, {"$set": {"mail": "a"}})
    users.insert_one({})
    with pytest.raises(DuplicateKeyError):
        users.create_index([("missing", 1)], unique=True)
    # What a command that failed had in hand is free again.
    users.insert_one({"_id": 4, "mail": "d"})


def _stage(client: Client, database: str, command: dict[str, Any]) -> str:
    plan = client[database].command("explain", command, verbosity="queryPlanner")["queryPlanner"]["winningPlan"]
    return str(plan.get("inputStage", plan)["stage"])


def test_indexes_are_used_and_shown(client: Client) -> None:
    items = client.indexes.items
    items.insert_many([{"_id": n, "a": n % 10, "b": -n, "t": [n, n + 1]} for n in range(200)])
    assert items.create_index([("a", 1), ("b", -1)]) == "a_1_b_-1"
    items.create_index([("t", 1)])
    items.create_index([("h", "hashed")])
    items.create_index([("p", 1)], partialFilterExpression={"p": {"$exists": True}})
    assert set(items.index_information()) == {"_id_", "a_1_b_-1", "t_1", "h_hashed", "p_1"}
    for filter in ({"a": 3}, {"a": 3, "b": {"$lt": -50}}, {"t": 7}, {"a": {"$in": [1, 2]}}, {"a": {"$gte": 8}}):
        assert _stage(client, "indexes", {"find": "items", "filter": filter}) == "IXSCAN"
        with_index = sorted(each["_id"] for each in items.find(filter))
        scanned = sorted(each["_id"] for each in items.find(filter).hint([("$natural", 1)]))
        assert with_index == scanned
        assert with_index
    assert _stage(client, "indexes", {"find": "items", "filter": {"c": 1}}) == "COLLSCAN"
    items.drop_index("t_1")
    assert _stage(client, "indexes", {"find": "items", "filter": {"t": 7}}) == "COLLSCAN"


def test_expired_documents_go(client: Client) -> None:
    client.ttl.a.create_index("at", expireAfterSeconds=0)
    client.ttl.a.insert_many([{"_id": 1, "at": dt.datetime(2020, 1, 1)}, {"_id": 2, "at": dt.datetime(2999, 1, 1)}])
    with client.ttl.a.watch(max_await_time_ms=5000) as stream:
        if client.ttl.a.find_one({"_id": 1}) is not None:
            assert next(stream)["operationType"] == "delete"
    assert [each["_id"] for each in client.ttl.a.find()] == [2]


def test_cursors_go_on_and_end(client: Client) -> None:
    many = client.cursors.many
    many.insert_many([{"_id": n} for n in range(1000)])
    assert [each["_id"] for each in many.find().batch_size(7)] == list(range(1000))
    exhausted = many.find(cursor_type=pymongo.CursorType.EXHAUST).batch_size(300)
    assert [each["_id"] for each in exhausted] == list(range(1000))
    assert [each["_id"] for each in many.find().sort("_id", -1).skip(10).limit(3)] == [989, 988, 987]
    cursor = many.find().batch_size(10)
    next(cursor)
    client.cursors.command("killCursors", "many", cursors=[cursor.cursor_id])
    with pytest.raises(CursorNotFound):
        list(cursor)


def test_pipelines_run(client: Client) -> None:
    sales = client.agg.sales
    sales.insert_many([{"_id": n, "shop": n % 3, "amount": n} for n in range(3000)])
    client.agg.shops.insert_many([{"_id": n, "name": f"shop {n}"} for n in range(3)])
    found = list(
        sales.aggregate(
            [
                {"$match": {"amount": {"$lt": 30}}},
                {"$group": {"_id": "$shop", "total": {"$sum": "$amount"}}},
                {"$lookup": {"from": "shops", "localField": "_id", "foreignField": "_id", "as": "shop"}},
                {"$set": {"name": {"$first": "$shop.name"}}},
                {"$project": {"shop": 0}},
                {"$sort": {"_id": 1}},
            ]
        )
    )
    assert found == [{"_id": n, "total": 135 + 10 * n, "name": f"shop {n}"} for n in range(3)]
    list(sales.aggregate([{"$match": {"_id": {"$lt": 3}}}, {"$out": "few"}]))
    list(sales.aggregate([{"$match": {"_id": {"$lt": 5}}}, {"$set": {"seen": True}}, {"$merge": {"into": "few"}}]))
    assert [each["seen"] for each in client.agg.few.find().sort("_id", 1)] == [True] * 5
    assert sales.count_documents({"shop": 1}) == 1000


def test_a_transaction_is_seen_whole_or_not_at_all(client: Client) -> None:
    bank = client.bank
    bank.a.insert_one({"_id": 1, "n": 100})
    with client.start_session() as session:
        with session.start_transaction():
            bank.a.update_one({"_id": 1}, {"$inc": {"n": -30}}, session=session)
            bank.b.insert_one({"_id": 1, "n": 30}, session=session)
            assert bank.a.find_one({"_id": 1}) == {"_id": 1, "n": 100}
            assert bank.a.find_one({"_id": 1}, session=session) == {"_id": 1, "n": 70}
        assert (bank.a.find_one(), bank.b.find_one()) == ({"_id": 1, "n": 70}, {"_id": 1, "n": 30})
        session.start_transaction()
        bank.a.delete_many({}, session=session)
        session.abort_transaction()
    assert bank.a.count_documents({}) == 1


def test_a_transaction_reads_one_snapshot_and_a_later_write_is_a_conflict(client: Client) -> None:
    bank = client.snapshots
    bank.a.insert_many([{"_id": 1, "n": 1}, {"_id": 2, "n": 1}])
    with client.start_session() as session:
        session.start_transaction()
        assert bank.a.find_one({"_id": 1}, session=session) == {"_id": 1, "n": 1}
        bank.a.update_one({"_id": 2}, {"$set": {"n": 2}})
        assert bank.a.find_one({"_id": 2}, session=session) == {"_id": 2, "n": 1}
        with pytest.raises(OperationFailure) as error:
            bank.a.update_one({"_id": 2}, {"$set": {"n": 3}}, session=session)
        assert error.value.code == 112
        assert error.value.has_error_label("TransientTransactionError")
    assert bank.a.find_one({"_id": 2}) == {"_id": 2, "n": 2}


def test_transactions_of_many_clients_add_up(client: Client) -> None:
    client.sums.a.insert_one({"_id": 1, "n": 0})

    def add() -> None:
        def once(session: Any) -> None:
            found = client.sums.a.find_one({"_id": 1}, session=session)
            assert found is not None
            client.sums.a.update_one({"_id": 1}, {"$set": {"n": found["n"] + 1}}, session=session)

        with client.start_session() as session:
            for _ in range(10):
                session.with_transaction(once)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.sums.a.find_one() == {"_id": 1, "n": 40}


def test_updates_of_one_document_are_atomic(client: Client) -> None:
    client.atomic.a.insert_one({"_id": 1, "n": 0})
    threads = [
        threading.Thread(target=lambda: [client.atomic.a.update_one({"_id": 1}, {"$inc": {"n": 1}}) for _ in range(25)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.atomic.a.find_one() == {"_id": 1, "n": 200}


@contextmanager
def bare_session(client: Client) -> Iterator[Any]:
    """Sends commands with a session that the driver does not know of."""
    lsid = {"id": Binary(uuid.uuid4().bytes, 4)}
    host, port = client.address or ("", 0)
    with socket.create_connection((host, port)) as wire:

        def send(command: dict[str, Any]) -> dict[str, Any]:
            body = bson.encode({**command, "lsid": lsid, "$db": "retried"})
            wire.sendall(struct.pack("<iiiiI", len(body) + 21, 1, 0, 2013, 0) + b"\x00" + body)
            head = wire.recv(16, socket.MSG_WAITALL)
            rest = wire.recv(struct.unpack_from("<i", head)[0] - 16, socket.MSG_WAITALL)
            return bson.decode(rest[5:])

        yield send


def test_a_retried_write_counts_once(client: Client) -> None:
    client.retried.a.insert_one({"_id": 1, "n": 0})
    # A session of the test's own: the driver's would go back into its pool.
    with bare_session(client) as send:
        command = {"update": "a", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}], "txnNumber": Int64(77)}
        assert [send(command)["nModified"] for _ in range(2)] == [1, 1]
        modify = {"findAndModify": "a", "query": {"_id": 1}, "update": {"$inc": {"n": 10}}, "txnNumber": Int64(78)}
        assert [send(modify)["value"]["n"] for _ in range(2)] == [1, 1]
    assert client.retried.a.find_one() == {"_id": 1, "n": 11}


def test_a_change_stream_tells_what_happened_and_resumes(client: Client) -> None:
    a = client.streams.a
    with a.watch(full_document="updateLookup") as stream:
        a.insert_one({"_id": 1, "x": 1, "y": 1})
        inserted = next(stream)
        a.update_one({"_id": 1}, {"$set": {"x": 2}, "$unset": {"y": 1}})
        updated = next(stream)
    assert (inserted["operationType"], inserted["fullDocument"]) == ("insert", {"_id": 1, "x": 1, "y": 1})
    assert updated["updateDescription"] == {"updatedFields": {"x": 2}, "removedFields": ["y"], "truncatedArrays": []}
    assert updated["fullDocument"] == {"_id": 1, "x": 2}
    a.replace_one({"_id": 1}, {"z": 1})
    a.delete_one({"_id": 1})
    with a.watch(resume_after=inserted["_id"]) as stream:
        assert [next(stream)["operationType"] for _ in range(3)] == ["update", "replace", "delete"]
    with client.streams.watch([{"$match": {"operationType": "delete"}}], start_after=inserted["_id"]) as stream:
        assert next(stream)["documentKey"] == {"_id": 1}
    with client.watch(start_at_operation_time=updated["clusterTime"]) as stream:
        assert next(stream)["_id"] == updated["_id"]
    with a.watch() as stream:
        a.drop()
        assert [next(stream)["operationType"] for _ in range(2)] == ["drop", "invalidate"]
        assert not stream.alive


def test_documents_before_their_changes_are_told_where_they_are_kept(client: Client) -> None:
    client.images.create_collection("a", changeStreamPreAndPostImages={"enabled": True})
    client.images.a.insert_one({"_id": 1, "x": 1})
    with client.images.a.watch(full_document_before_change="required", full_document="required") as stream:
        client.images.a.update_one({"_id": 1}, {"$set": {"x": 2}})
        event = next(stream)
    assert event["fullDocumentBeforeChange"] == {"_id": 1, "x": 1}
    assert event["fullDocument"] == {"_id": 1, "x": 2}


def test_a_token_of_another_log_says_so(client: Client) -> None:
    token = {"_data": "0000000000000001" + "01" + b"elsewhere".hex()}
    with pytest.raises(OperationFailure) as error:
        client.streams.b.watch(resume_after=token)
    assert error.value.code == 286


async def test_changes_of_another_door_are_documents_and_in_the_stream(server: MongoServer, client: Client) -> None:
    async with CdcClient(server.ws_url, source="other-door") as producer:
        receipt = await producer.send([insert("mixed.rows", "r1", {"a": 1, "n": {"x": [1]}})])
        await receipt.durable()
        assert client.mixed.rows.find_one() == {"_id": "r1", "a": 1, "n": {"x": [1]}}
        with client.mixed.rows.watch(full_document="updateLookup") as stream:
            await (await producer.send([update("mixed.rows", "r1", {"a": 2})])).durable()
            event = await asyncio.to_thread(next, stream)
            assert event["updateDescription"]["updatedFields"] == {"a": 2}
            client.mixed.rows.update_one({"_id": "r1"}, {"$set": {"b": 3}})
            event = await asyncio.to_thread(next, stream)
            assert event["fullDocument"] == {"_id": "r1", "a": 2, "n": {"x": [1]}, "b": 3}


def test_validators_are_kept_to(client: Client) -> None:
    schema = {"$jsonSchema": {"required": ["name"], "properties": {"name": {"bsonType": "string"}}}}
    client.valid.create_collection("a", validator=schema)
    client.valid.a.insert_one({"name": "x"})
    with pytest.raises(WriteError) as error:
        client.valid.a.insert_one({"name": 1})
    assert error.value.code == 121
    assert client.valid.command("insert", "a", documents=[{"name": 2}], bypassDocumentValidation=True)["n"] == 1
    with pytest.raises(OperationFailure, match="capped"):
        client.valid.create_collection("b", capped=True, size=1000)


def test_collections_are_listed_renamed_and_dropped(client: Client) -> None:
    client.names.a.insert_one({"_id": 1})
    client.names["dotted.name"].insert_one({"_id": 1})
    assert sorted(client.names.list_collection_names()) == ["a", "dotted.name"]
    client.names.a.rename("b")
    assert client.names.b.find_one() == {"_id": 1}
    assert "a" not in client.names.list_collection_names()
    assert "names" in client.list_database_names()
    client.drop_database("names")
    assert client.names.list_collection_names() == []


def test_files_of_gridfs_are_whole(client: Client) -> None:
    files = gridfs.GridFS(client.files)
    data = bytes(range(256)) * 4000
    number = files.put(data, filename="f")
    assert files.get(number).read() == data
    assert files.find_one({"filename": "f"}).length == len(data)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"nonsense": 1}, 59),
        ({"find": "a", "nonsense": 1}, 40415),
        ({"find": "a", "filter": {"$nonsense": 1}}, 2),
        ({"find": "a", "collation": {"locale": "de"}}, 238),
        ({"insert": "a", "documents": []}, 16),
        ({"insert": "x_history", "documents": [{}]}, 73),
        ({"update": "a", "updates": [{"q": {}, "u": {"$nonsense": 1}}]}, 9),
        ({"aggregate": "a", "pipeline": [{"$nonsense": {}}], "cursor": {}}, 40324),
        ({"getMore": Int64(12345), "collection": "a"}, 43),
        ({"create": "v", "viewOn": "a"}, 238),
        ({"find": "a", "writeConcern": {"w": 5}}, 100),
    ],
)
def test_what_is_not_known_is_refused_with_mongodbs_code(client: Client, command: dict[str, Any], code: int) -> None:
    answer = client.refused.command(command, check=False)
    got = answer["code"] if not answer["ok"] else answer["writeErrors"][0]["code"]
    assert got == code


def test_tools_get_their_answers(client: Client) -> None:
    client.admin.command("serverStatus")
    for name in ("buildInfo", "hostInfo", "connectionStatus", "currentOp", "getCmdLineOpts", "listCommands"):
        assert client.admin.command(name)["ok"] == 1
    assert client.admin.command({"getParameter": 1, "featureCompatibilityVersion": 1})["ok"] == 1
    client.tools.a.insert_one({})
    assert client.tools.command("collStats", "a")["count"] == 1
    assert client.tools.command("dbStats")["objects"] == 1


async def test_the_asynchronous_client_does_the_same(server: MongoServer) -> None:
    asynchronous: pymongo.AsyncMongoClient[dict[str, Any]] = pymongo.AsyncMongoClient(server.mongo_url)
    async with asynchronous as client:
        a = client.asynchronous.a
        await a.insert_many([{"_id": n, "g": n % 2} for n in range(300)])
        assert len(await a.find({"g": 1}).to_list()) == 150
        assert await (await a.aggregate([{"$count": "n"}])).to_list() == [{"n": 300}]
        async with await a.watch() as stream, client.start_session() as session:
            async with await session.start_transaction():
                await a.insert_one({"_id": "t"}, session=session)
                await a.update_one({"_id": 2}, {"$inc": {"g": 5}}, session=session)
                await a.delete_one({"_id": 1}, session=session)
            assert [(await stream.next())["operationType"] for _ in range(3)] == ["insert", "update", "delete"]
        assert await a.distinct("g") == [0, 1, 5]
