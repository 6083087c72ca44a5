"""The Kafka door's connections: before a login there is little room and little time; requests that are sent without
waiting are answered in their order, so many at a time."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mainstem.doors.kafka.connection import ConnectionSettings
from mainstem.doors.kafka.dispatch import Context, Table
from mainstem.doors.kafka.door import KafkaDoor
from mainstem.runtime.clock import SystemClock
from mainstem.wire.kafka.messages import encode_request

API_VERSIONS, HANDSHAKE, HEARTBEAT = 18, 17, 12
BEAT = {"group_id": "g", "generation_id": 1, "member_id": "m"}


@asynccontextmanager
async def opened(
    *, is_asked: bool, more: Callable[[Table], None] = lambda table: None, **settings: Any
) -> AsyncIterator[tuple[KafkaDoor, int]]:
    table = Table()

    async def answer(request: Any, context: Context) -> dict[str, Any]:
        return {}

    async def log_in(request: Any, context: Context) -> dict[str, Any]:
        context.is_known = True
        return {}

    table.add(API_VERSIONS, "ApiVersions", 0, 4, answer, is_open=True)
    table.add(HANDSHAKE, "SaslHandshake", 0, 1, log_in, is_open=True)
    table.add(HEARTBEAT, "Heartbeat", 0, 4, answer)
    more(table)
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
        known.write(encode_request(HEARTBEAT, 0, 2, BEAT))
        assert not await is_closed(other, 5.0)
        writer.close()
        known.close()


async def test_requests_sent_at_once_are_answered_in_their_order() -> None:
    begun: list[int] = []
    may_end = [asyncio.Event() for _ in range(3)]

    async def wait(request: Any, context: Context) -> dict[str, Any]:
        number = context.correlation_id
        begun.append(number)
        await may_end[number].wait()
        return {}

    async with opened(is_asked=False, more=lambda table: table.add(HEARTBEAT, "", 0, 4, wait, pipelined=True)) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at[1])
        # The bytes of three requests, in two pieces.
        sent = b"".join([encode_request(HEARTBEAT, 0, number, BEAT) for number in range(3)])
        writer.write(sent[:50])
        await writer.drain()
        writer.write(sent[50:])
        # All of them are begun while the first one waits; the last one is ready first.
        async with asyncio.timeout(5):
            while len(begun) < 3:
                await asyncio.sleep(0)
        for number in (2, 1, 0):
            may_end[number].set()
        answered = [await correlation_of(reader) for _ in range(3)]
        writer.close()
    assert begun == answered == [0, 1, 2]


async def test_who_sends_and_never_reads_has_so_many_requests_under_way_and_no_more() -> None:
    begun = 0
    may_end = asyncio.Event()

    async def wait(request: Any, context: Context) -> dict[str, Any]:
        nonlocal begun
        begun += 1
        await may_end.wait()
        return {}

    async with opened(
        is_asked=False,
        more=lambda table: table.add(HEARTBEAT, "", 0, 4, wait, pipelined=True),
        under_way_max=8,
    ) as (door, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(1_000):
            writer.write(encode_request(HEARTBEAT, 0, number, BEAT))
        async with asyncio.timeout(5):
            while begun < 8:
                await asyncio.sleep(0)
        # Another connection is served, and so often that this one had its turn many times.
        other, asking = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(20):
            asking.write(encode_request(API_VERSIONS, 0, 1, {}))
            assert await correlation_of(other) == 1
        assert begun == 8
        may_end.set()
        assert [await correlation_of(reader) for _ in range(1_000)] == list(range(1_000))
        assert door.connection_count == 2
        writer.close()
        asking.close()


async def correlation_of(reader: asyncio.StreamReader) -> int:
    """Which request the next answer is for."""
    async with asyncio.timeout(5):
        frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    return int.from_bytes(frame[:4], "big")
