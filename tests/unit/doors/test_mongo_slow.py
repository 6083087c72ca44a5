"""Clients that send faster than they read, or more than they may: what they hold in memory is bounded."""

import asyncio
import socket
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import bson
import pytest

from mainstem.admission import Role, Users, UserSettings
from mainstem.admission.scram import derive, to_text
from mainstem.doors.mongo.connection import (
    LOGIN_MESSAGE_BYTES_MAX,
    READ_AHEAD_BYTES_MAX,
    Connection,
)
from tests.unit.doors.mongo_world import World, opened

HEAD = struct.Struct("<iiii")
DOCUMENT_BYTES = 10_000


def message(body: dict[str, Any], flags: int = 0) -> bytes:
    payload = struct.pack("<I", flags) + b"\x00" + bson.encode({**body, "$db": "db"})
    return HEAD.pack(len(payload) + HEAD.size, 1, 0, 2013) + payload


def compressed(body: dict[str, Any]) -> bytes:
    plain = message(body)[HEAD.size :]
    packed = struct.pack("<iiB", 2013, len(plain), 2) + zlib.compress(plain)
    return HEAD.pack(len(packed) + HEAD.size, 1, 0, 2012) + packed


class Transport(asyncio.Transport):
    """A socket that takes everything, and says whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read, self.closed, self.written = True, False, 0

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def write(self, data: Any) -> None:
        self.written += 1

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


@asynccontextmanager
async def connected(world: World) -> AsyncIterator[tuple[Connection, Transport]]:
    connection, transport = Connection(world.door, 1), Transport()
    connection.connection_made(transport)
    yield connection, transport
    connection.connection_lost(None)


async def until(holds: Any) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.001)


async def test_who_does_not_read_holds_little_and_nobody_up(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        port = await world.door.listen(socket.create_server(("127.0.0.1", 0)))
        documents = [{"_id": number, "x": "x" * DOCUMENT_BYTES} for number in range(200)]
        assert (await world.run({"insert": "c", "documents": documents}))["n"] == len(documents)
        # It reads so much and no more, until it is asked for it.
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=64 * 1024)
        asked = 3_000
        writer.write(message({"find": "c", "batchSize": 200}) * asked)
        (connection,) = world.door.connections
        await until(lambda: connection._is_paused)
        replies = connection._replies
        for number in range(50):
            assert (await world.run({"find": "c", "filter": {"_id": number}}))["ok"] == 1.0
        # Of what it asked for next to nothing was looked up, and one answer of two million bytes is held.
        assert connection._replies == replies < 20
        assert connection._transport.get_write_buffer_size() < 2 * DOCUMENT_BYTES * len(documents)
        # Now it reads: everything is answered, in order.
        size, _, _, _ = HEAD.unpack(await reader.readexactly(HEAD.size))
        first = await reader.readexactly(size - HEAD.size)
        assert len(bson.decode(first[5:])["cursor"]["firstBatch"]) == len(documents)
        writer.transport.abort()
        await until(lambda: not world.door.connections)


@pytest.mark.parametrize("pack", [message, compressed])
async def test_what_is_read_ahead_is_bounded_in_bytes(tmp_path: Path, pack: Any) -> None:
    async with opened(tmp_path) as world, connected(world) as (connection, transport):
        sent = 0
        while transport.is_read:
            documents = [{"_id": sent, "x": "x" * 6_000_000}]
            connection.data_received(pack({"insert": "c", "documents": documents}))
            sent += 1
            assert sent * 6_000_000 <= READ_AHEAD_BYTES_MAX + 6_000_000
        await until(lambda: transport.written == sent)
        assert transport.is_read
        assert (await world.run({"count": "c"}))["n"] == sent


@pytest.mark.parametrize("pack", [message, compressed])
async def test_who_has_not_logged_in_sends_little(tmp_path: Path, pack: Any) -> None:
    async with opened(tmp_path) as world:
        credential = to_text(derive("secret", iterations=4096))
        world.door.users = Users({"root": UserSettings((credential,), Role.ADMIN)}, tmp_path / "users.json")
        async with connected(world) as (connection, transport):
            connection.data_received(pack({"hello": 1, "comment": "x" * 1_000}))
            await until(lambda: transport.written == 1)
            connection.data_received(pack({"hello": 1, "comment": "x" * LOGIN_MESSAGE_BYTES_MAX}))
            await until(lambda: transport.closed)
            assert transport.written == 1
        async with connected(world) as (connection, transport):
            principal = world.door.users.find("root", 0)
            assert principal is not None
            connection.log_in(principal)
            connection.data_received(pack({"hello": 1, "comment": "x" * LOGIN_MESSAGE_BYTES_MAX}))
            await until(lambda: transport.written == 1)
