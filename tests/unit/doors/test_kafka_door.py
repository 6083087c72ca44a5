"""The Kafka door before a login: who has not said who it is gets little room and little time."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mainstem.doors.kafka.connection import ConnectionSettings
from mainstem.doors.kafka.dispatch import Context, Table
from mainstem.doors.kafka.door import KafkaDoor
from mainstem.runtime.clock import SystemClock
from mainstem.wire.kafka.messages import encode_request

API_VERSIONS, HANDSHAKE, HEARTBEAT = 18, 17, 12


@asynccontextmanager
async def opened(*, is_asked: bool, **settings: Any) -> AsyncIterator[tuple[KafkaDoor, int]]:
    table = Table()

    async def answer(request: Any, context: Context) -> dict[str, Any]:
        return {}

    async def log_in(request: Any, context: Context) -> dict[str, Any]:
        context.is_known = True
        return {}

    table.add(API_VERSIONS, "ApiVersions", 0, 4, answer, is_open=True)
    table.add(HANDSHAKE, "SaslHandshake", 0, 1, log_in, is_open=True)
    table.add(HEARTBEAT, "Heartbeat", 0, 4, answer)
    door = KafkaDoor(table, SystemClock(), connections_max=10, settings=ConnectionSettings(**settings))
    door.is_allowed = lambda context: context.is_known or not is_asked
    listener = socket.create_server(("127.0.0.1", 0))
    await door.start(listener)
    try:
        yield door, listener.getsockname()[1]
    finally:
        await door.close()


async def is_closed(reader: asyncio.StreamReader, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            return await reader.read(1) == b""
    except TimeoutError:
        return False


@pytest.mark.parametrize("is_asked", [True, False])
async def test_large_frames_are_for_those_who_logged_in(is_asked: bool) -> None:
    async with opened(is_asked=is_asked) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((1024 * 1024).to_bytes(4, "big"))
        assert await is_closed(reader, 5.0 if is_asked else 0.3) is is_asked
        writer.close()


async def test_who_does_not_log_in_in_time_is_closed_and_who_did_is_not() -> None:
    async with opened(is_asked=True, login_s=0.2) as (door, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        other, known = await asyncio.open_connection("127.0.0.1", port)
        known.write(encode_request(HANDSHAKE, 1, 1, {"mechanism": "PLAIN"}))
        await other.readexactly(4)
        # It says something now and then, and never who it is.
        writer.write(encode_request(API_VERSIONS, 0, 1, {}))
        await reader.readexactly(4)
        async with asyncio.timeout(5):
            while await reader.read(1024):
                pass
        assert door.connection_count == 1
        known.write(encode_request(HEARTBEAT, 0, 2, {"group_id": "g", "generation_id": 1, "member_id": "m"}))
        assert not await is_closed(other, 5.0)
        writer.close()
        known.close()
