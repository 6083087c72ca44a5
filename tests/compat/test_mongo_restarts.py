"""What survives restarts and seals at the Mongo door: resume tokens, retries, indexes; and what sync sees of it."""

import asyncio
import socket
import struct
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import bson
import httpx
import pytest
from bson import Binary, Int64
from pymongo.errors import DuplicateKeyError

from mainstem.client.sync.transports.http import HttpTransport
from mainstem.wire.sync import ColumnDelta, Op, RowDelta, SyncPull, SyncPush
from mainstem.wire.sync.identity import delta_id
from tests.compat.mongo_server import MongoServer

LSID = {"id": Binary(uuid.UUID(int=7).bytes, 4)}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[MongoServer]:
    async with MongoServer(tmp_path / "data") as server:
        yield server


def send(server: MongoServer, command: dict[str, Any]) -> dict[str, Any]:
    """One command on a connection of its own, without a driver's own session."""
    body = bson.encode({**command, "$db": "kept"})
    with socket.create_connection(("127.0.0.1", server.port)) as wire:
        wire.sendall(struct.pack("<iiiiI", len(body) + 21, 1, 0, 2013, 0) + b"\x00" + body)
        head = wire.recv(16, socket.MSG_WAITALL)
        return bson.decode(wire.recv(struct.unpack_from("<i", head)[0] - 16, socket.MSG_WAITALL)[5:])


async def _sealed(server: MongoServer) -> None:
    """There is no pipeline: this waits for the segment, and not for the tables."""
    async with httpx.AsyncClient() as http:
        await http.post(f"{server.url}/flush?timeoutS=0.01")


@pytest.mark.parametrize("loses_the_store", [False, True])
async def test_streams_retries_and_indexes_outlive_seals_and_kills(server: MongoServer, loses_the_store: bool) -> None:
    with server.client() as client:
        client.kept.create_collection("a", changeStreamPreAndPostImages={"enabled": True})
        client.kept.a.create_index("u", unique=True)
        with client.watch() as stream:
            client.kept.a.insert_one({"_id": 1, "u": 1, "d": bson.Decimal128("1.0")})
            token = next(stream)["_id"]
        client.kept.a.update_one({"_id": 1}, {"$set": {"x": [1]}})
        with client.start_session() as session, session.start_transaction():
            client.kept.a.insert_one({"_id": 2, "u": 2}, session=session)
            client.kept.b.insert_one({"_id": 2}, session=session)
        client.kept.a.delete_one({"_id": 2})
    retried = {"update": "a", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}], "lsid": LSID}
    assert send(server, {**retried, "txnNumber": Int64(1)})["nModified"] == 1
    await _sealed(server)
    server.kill()
    if loses_the_store:
        for file in (server.data / "mongo").iterdir():
            file.unlink()
        await server.start()
        # Again, before anybody has asked for a collection.
        server.kill()
    await server.start()
    assert send(server, {**retried, "txnNumber": Int64(1)})["nModified"] == 1
    with server.client() as client:
        assert client.kept.a.find_one() == {"_id": 1, "u": 1, "d": bson.Decimal128("1.0"), "x": [1], "n": 1}
        with pytest.raises(DuplicateKeyError):
            client.kept.a.insert_one({"u": 1})
        with client.kept.watch(resume_after=token, full_document_before_change="whenAvailable") as stream:
            events = [next(stream) for _ in range(5)]
        assert [each["operationType"] for each in events] == ["update", "insert", "insert", "delete", "update"]
        assert events[0]["updateDescription"]["updatedFields"] == {"x": [1]}
        assert events[0]["fullDocumentBeforeChange"] == {"_id": 1, "u": 1, "d": bson.Decimal128("1.0")}
        assert events[1]["txnNumber"] == events[2]["txnNumber"]
        assert [each["ns"]["coll"] for each in events[1:3]] == ["a", "b"]
        client.kept.c.insert_one({"_id": 3})
        with client.kept.watch(resume_after=events[-1]["_id"]) as stream:
            assert next(stream)["documentKey"] == {"_id": 3}


async def test_a_client_that_syncs_sees_documents_and_changes_them(server: MongoServer) -> None:
    transport = HttpTransport(server.url, "synced")
    with server.client() as client:
        client.synced.a.insert_one({"_id": 1, "title": "ink", "done": False})
        arrived = (await transport.pull(SyncPull(client_id="browser", max_deltas=100))).deltas
        delta = next(each for each in arrived if each.table == "a")
        assert delta.row_id == "$n:1"
        assert {each.column: each.value for each in delta.columns}["title"] == b'"ink"'
        with client.synced.a.watch(full_document="updateLookup") as stream:
            columns = (ColumnDelta("done", b"true"),)
            hlc = delta.hlc + 1
            number = delta_id(table="a", row_id="$n:1", columns=columns, hlc=hlc, client_id="browser")
            write = RowDelta(
                op=Op.UPDATE, table="a", row_id="$n:1", columns=columns, hlc=hlc, client_id="browser", delta_id=number
            )
            await transport.push(SyncPush(client_id="browser", deltas=(write,)))
            event = await asyncio.to_thread(next, stream)
        assert event["fullDocument"] == {"_id": 1, "title": "ink", "done": True}
        assert client.synced.a.find_one() == {"_id": 1, "title": "ink", "done": True}
    await transport.close()


@pytest.mark.timeout(120)
async def test_a_stream_behind_misses_nothing_that_memory_lets_go_of_meanwhile(server: MongoServer) -> None:
    """It reads the log in parts. Between two of them more is written than is kept in memory for streams."""
    before, large = 600, 6
    with server.client() as client:
        with client.kept.watch() as stream:
            client.kept.a.insert_one({"_id": -1})
            token = next(stream)["_id"]
        for number in range(before):
            client.kept.a.insert_one({"_id": number})
    # What happened before is in the log alone.
    server.kill()
    await server.start()
    with server.client() as client, client.kept.watch(resume_after=token, batch_size=10) as stream:
        told = [next(stream)["documentKey"]["_id"]]
        for number in range(before, before + large):
            client.kept.a.insert_one({"_id": number, "text": "x" * (13 << 20)})
        async with asyncio.timeout(60):
            while len(told) < before + large:
                if (event := await asyncio.to_thread(stream.try_next)) is not None:
                    told.append(event["documentKey"]["_id"])
    assert told == list(range(before + large))
