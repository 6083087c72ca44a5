"""The CDC door on a real server, with a real WebSocket client at the other end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from litestar import Litestar
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from mainstem.admission import Dedup, Gate, Intake, Limits
from mainstem.doors.cdc.ports import CdcSettings
from mainstem.doors.cdc.ws import FRAME_BYTES_MAX, SERVER_FRAME_BYTES_MAX, CdcDoor, cdc_route
from mainstem.doors.http.ws_protocol import RawTextProtocol
from mainstem.runtime.clock import SystemClock
from tests.harness.memory_lake import MemoryLake


class Server:
    def __init__(self, settings: CdcSettings, limits: Limits, *, by_hand: bool) -> None:
        clock = SystemClock()
        self.dedup = Dedup(clock)
        self.lake = MemoryLake(self.dedup, clock, by_hand=by_hand)
        self.door = CdcDoor(
            intake=Intake(Gate(self.dedup, limits), self.lake),
            persisted=self.lake,
            flusher=self.lake,
            status=self.lake,
            clock=clock,
            settings=settings,
        )
        self.url = ""


@asynccontextmanager
async def serving(
    settings: CdcSettings | None = None, limits: Limits | None = None, *, by_hand: bool = False
) -> AsyncIterator[Server]:
    world = Server(settings or CdcSettings(), limits or Limits(), by_hand=by_hand)
    config = uvicorn.Config(
        Litestar([cdc_route(world.door)], openapi_config=None),
        port=0,
        ws=RawTextProtocol,
        ws_max_size=SERVER_FRAME_BYTES_MAX,
        ws_per_message_deflate=False,
        log_level="critical",
        lifespan="off",
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        world.url = f"ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/ws"
        yield world
    finally:
        await world.door.drain(5)
        await server.shutdown()


def batch(sequence: int, **changed: Any) -> dict[str, Any]:
    event = {"operation": "INSERT", "table": "orders", "rowId": 1, "after": {"id": 1}}
    message = {"type": "cdc_batch", "sourceDoId": "shop", "events": [event], "sequenceNumber": sequence, "timestamp": 1}
    return message | changed


async def ask(socket: ClientConnection, message: dict[str, Any] | str | bytes) -> dict[str, Any]:
    await socket.send(json.dumps(message) if isinstance(message, dict) else message)
    return await hear(socket)


async def hear(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(60):
        answer: dict[str, Any] = json.loads(await socket.recv())
        return answer


async def test_the_quick_start_works_in_text_and_in_binary_frames() -> None:
    async with serving() as server, connect(server.url, additional_headers={"X-Client-ID": "shop"}) as socket:
        assert (await ask(socket, batch(1)))["status"] == "ok"
        assert (await ask(socket, json.dumps(batch(2)).encode()))["batchId"] == "2-2"
        anonymous = batch(3)
        del anonymous["sourceDoId"]
        assert (await ask(socket, anonymous))["status"] == "ok"
        assert {taken.source for taken in server.lake.batches} == {"shop"}


async def test_the_shard_name_is_the_source_where_nothing_else_is() -> None:
    async with serving() as server, connect(server.url, additional_headers={"X-Shard-Name": "users-1"}) as socket:
        hello = await ask(socket, {"type": "connect"})
        assert hello["sequenceNumber"] == 0
        assert server.door.source_count == 1


async def test_the_connection_survives_everything_malformed() -> None:
    async with serving() as server, connect(server.url) as socket:
        for bad in (b"\xff\x00", "{", "[" * 100_000, '{"type":"zzz"}', ""):
            assert (await ask(socket, bad))["reason"] == "invalid_format"
        deep = json.dumps(batch(9)).replace('{"id": 1}', '{"x": ' + "[" * 10_000 + "]" * 10_000 + "}")
        nack = await ask(socket, deep)
        assert (nack["reason"], "nested too deeply" in nack["errorMessage"]) == ("invalid_format", True)
        assert (await ask(socket, batch(1)))["status"] == "ok"


async def test_a_payload_beyond_the_limit_is_answered_and_a_frame_beyond_all_is_closed() -> None:
    async with serving() as server, connect(server.url, max_size=None) as socket:
        large = json.dumps(batch(4)).replace('"id": 1', '"id": "' + "x" * (5 << 20) + '"')
        nack = await ask(socket, large)
        assert (nack["reason"], nack["maxSize"], nack["sequenceNumber"]) == ("payload_too_large", 4 << 20, 4)
        event = json.dumps(batch(5)).replace('"id": 1', '"id": "' + "x" * (2 << 20) + '"')
        nack = await ask(socket, event)
        assert (nack["reason"], nack["maxSize"]) == ("event_too_large", 1 << 20)
        assert (await ask(socket, batch(6)))["status"] == "ok"
        with pytest.raises(ConnectionClosed):
            await ask(socket, b"x" * (FRAME_BYTES_MAX + 1))
        assert socket.close_code == 1009


async def test_connections_are_bounded_and_the_bound_is_told() -> None:
    async with serving(CdcSettings(connections_max=1)) as server:
        async with connect(server.url) as first, connect(server.url) as second:
            nack = await hear(second)
            assert (nack["reason"], nack["shouldRetry"]) == ("connection_limit", True)
            with pytest.raises(ConnectionClosed):
                await second.recv()
            assert second.close_code == 1013
            assert (await ask(first, batch(1)))["status"] == "ok"
        assert server.door.stats.connections_refused == 1


async def test_drain_answers_what_is_under_way_then_says_goodbye() -> None:
    async with serving(by_hand=True) as server, connect(server.url) as socket:
        await socket.send(json.dumps(batch(1)))
        await server.lake.until_pending(1)
        drained = asyncio.ensure_future(server.door.drain(60))
        await asyncio.wait([drained], timeout=0)
        assert (await ask_later(server, socket))["status"] == "ok"
        with pytest.raises(ConnectionClosed):
            await hear(socket)
        assert socket.close_code == 1001
        assert await drained is True
        async with connect(server.url) as late:
            assert (await hear(late))["reason"] == "shutting_down"


async def ask_later(server: Server, socket: ClientConnection) -> dict[str, Any]:
    server.lake.make_durable()
    return await hear(socket)


async def test_a_drain_that_takes_too_long_says_so() -> None:
    async with serving(by_hand=True) as server, connect(server.url) as socket:
        await socket.send(json.dumps(batch(1)))
        await server.lake.until_pending(1)
        assert await server.door.drain(0.01) is False
        server.lake.make_durable()


async def test_a_goodbye_of_the_client_closes_normally() -> None:
    async with serving() as server, connect(server.url) as socket:
        await socket.send(json.dumps({"type": "disconnect"}))
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1000
    assert server.door.connection_count == 0
