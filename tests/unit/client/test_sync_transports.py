"""The transports' reading of what a server says: statuses, close codes, checkpoints in pieces, and a socket's order."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from websockets.asyncio.server import ServerConnection, serve

from mainstem.client.sync import ClockDrift, CursorExpired, HttpTransport, Refused, Unreachable, WebSocketTransport
from mainstem.client.sync.transports.http import refusal, retry_after_s
from mainstem.client.sync.transports.pieces import PieceReader
from mainstem.client.sync.transports.websocket import close_error
from mainstem.model import Denied, MainstemError, Overloaded
from mainstem.wire.sync import SyncPull, SyncResponse, encode_response
from mainstem.wire.varint import varint

NOW_MS = 1_764_000_000_000


def answer(status: int, body: Any = None, **headers: str) -> httpx.Response:
    content = b"<html>Sign in to the hotel</html>" if body is None else json.dumps(body).encode()
    return httpx.Response(status, content=content, headers=headers)


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (answer(400, {"reason": "invalid_value", "deltaId": "d1"}), Refused),
        (answer(413, {"reason": "too_large"}), Refused),
        (answer(422, {"reason": "schema_mismatch"}), Refused),
        (answer(401), Denied),
        (answer(403, {"reason": "denied"}), Denied),
        (answer(409, {"reason": "clock_drift", "serverHlc": "77"}), ClockDrift),
        (answer(410, {"reason": "cursor_expired"}), CursorExpired),
        (answer(429), Overloaded),
        (answer(503), Overloaded),
        # Without the protocol's words nothing is taken for a refusal of our data.
        (answer(400), Unreachable),
        (answer(409), Unreachable),
        (answer(410), Unreachable),
        (answer(413), Unreachable),
        (answer(422, {"error": "a proxy's"}), Unreachable),
        (answer(422, ["not", "ours"]), Unreachable),
        (answer(302), Unreachable),
        (answer(404), Unreachable),
        (answer(500, {"reason": "internal"}), Unreachable),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else str(given.status_code),
)
def test_statuses(response: httpx.Response, kind: type[MainstemError]) -> None:
    error = refusal(response, NOW_MS)
    assert type(error) is kind
    if isinstance(error, ClockDrift):
        assert error.server_hlc == 77
    if isinstance(error, Refused) and response.status_code == 400:
        assert (error.reason, error.delta_id) == ("invalid_value", "d1")


@pytest.mark.parametrize("text", ["", "abc", "-5", "9" * 40, "٣", str(1 << 63)])
def test_a_server_clock_that_cannot_be_one_is_left_out(text: str) -> None:
    error = refusal(answer(409, {"reason": "clock_drift", "serverHlc": text}), NOW_MS)
    assert isinstance(error, ClockDrift)
    assert error.server_hlc is None


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after_s("2.5", NOW_MS) == 2.5
    assert retry_after_s("-3", NOW_MS) == 0.0
    assert retry_after_s(None, NOW_MS) == 1.0
    assert retry_after_s("soon", NOW_MS) == 1.0
    assert retry_after_s("Mon, 24 Nov 2025 16:00:10 GMT", NOW_MS) == 10.0


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (1008, "schema_mismatch delta_id=d1", Refused),
        (1008, "clock_drift server_hlc=77", ClockDrift),
        (1008, "denied", Denied),
        (1009, "", Refused),
        (1008, "cursor_expired", CursorExpired),
        (1013, "overloaded retry_after_s=2", Overloaded),
        (1013, "overloaded retry_after_s=soon", Overloaded),
        (1008, "", Unreachable),
        (1011, "", Unreachable),
        (1002, "unknown_tag", Unreachable),
        (1006, "", Unreachable),
    ],
)
def test_close_codes(code: int, text: str, kind: type[MainstemError]) -> None:
    error = close_error(code, text)
    assert type(error) is kind
    if isinstance(error, Refused):
        assert (error.reason, error.delta_id) == (("too_large", None) if code == 1009 else ("schema_mismatch", "d1"))
    if isinstance(error, ClockDrift):
        assert error.server_hlc == 77


def test_pieces_come_whole_however_the_bytes_are_cut() -> None:
    bodies = [b"", b"x" * 127, b"y" * 128, b"z" * 40_000]
    stream = b"".join(varint(len(body)) + body for body in bodies)
    for size in (1, 2, 3, 1_000, len(stream)):
        reader = PieceReader()
        found = [piece for at in range(0, len(stream), size) for piece in reader.feed(stream[at : at + size])]
        reader.finish()
        assert found == bodies
    reader = PieceReader()
    assert list(reader.feed(stream[:-1])) == bodies[:-1]
    with pytest.raises(Unreachable, match="cut off"):
        reader.finish()
    for hostile in (b"\xff" * 10, varint(17 * 1024 * 1024)):
        with pytest.raises(Unreachable, match="too large"):
            list(PieceReader().feed(hostile))


# A hand-made server, to see what the transport does with an order of frames that a real one would not send.


async def with_server(
    handler: Callable[[ServerConnection], Awaitable[None]], body: Callable[[WebSocketTransport], Awaitable[None]]
) -> None:
    async with serve(handler, "127.0.0.1", 0, subprotocols=["lakesync.v1"]) as server:  # type: ignore[list-item]
        port = server.sockets[0].getsockname()[1]
        transport = WebSocketTransport(f"http://127.0.0.1:{port}", "g/1", timeout_s=60.0)
        try:
            await body(transport)
        finally:
            await transport.close()


class Heard:
    def __init__(self) -> None:
        self.cursors: list[int] = []
        self.losses = 0

    def broadcast(self, response: SyncResponse) -> None:
        self.cursors.append(response.server_hlc)

    def lost(self) -> None:
        self.losses += 1


async def test_replies_belong_to_the_oldest_request_and_broadcasts_to_everyone() -> None:
    async def handler(socket: ServerConnection) -> None:
        assert socket.request is not None
        assert socket.request.path == "/sync/g%2F1/ws?features=evict"
        await socket.recv()
        await socket.recv()
        await socket.send(b"\x03" + encode_response(SyncResponse(server_hlc=5)))
        await socket.send(encode_response(SyncResponse(server_hlc=1)))
        await socket.send(encode_response(SyncResponse(server_hlc=2)))
        await socket.wait_closed()

    async def body(transport: WebSocketTransport) -> None:
        heard = Heard()
        transport.subscribe(heard)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(transport.pull(SyncPull(client_id="a")))
            second = group.create_task(transport.pull(SyncPull(client_id="a")))
        assert (first.result().server_hlc, second.result().server_hlc) == (1, 2)
        assert heard.cursors == [5]

    await with_server(handler, body)


async def test_a_refusal_is_about_the_oldest_request_and_the_next_one_connects_again() -> None:
    connections = 0

    async def handler(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await socket.recv()
        if connections == 1:
            await socket.recv()
            await socket.close(1008, "schema_mismatch delta_id=d1")
        await socket.send(encode_response(SyncResponse(server_hlc=9)))
        await socket.wait_closed()

    async def body(transport: WebSocketTransport) -> None:
        heard = Heard()
        transport.subscribe(heard)
        outcomes = await asyncio.gather(
            transport.pull(SyncPull(client_id="a")), transport.pull(SyncPull(client_id="a")), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [Refused, Unreachable]
        assert heard.losses == 1
        assert (await transport.pull(SyncPull(client_id="a"))).server_hlc == 9

    await with_server(handler, body)


@pytest.mark.parametrize("frame", ["text", b"\x0a\xff", b"\x03\x0a\xff"], ids=str)
async def test_a_frame_that_cannot_be_read_ends_the_connection(frame: Any) -> None:
    async def handler(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(frame)
        await socket.wait_closed()

    async def body(transport: WebSocketTransport) -> None:
        with pytest.raises(Unreachable):
            await transport.pull(SyncPull(client_id="a"))

    await with_server(handler, body)


async def test_a_request_that_is_given_up_on_takes_its_connection_along() -> None:
    connections: list[ServerConnection] = []

    async def handler(socket: ServerConnection) -> None:
        connections.append(socket)
        # Each connection has one answer to give.
        await socket.recv()
        await socket.send(encode_response(SyncResponse(server_hlc=len(connections))))
        await socket.wait_closed()

    async def body(transport: WebSocketTransport) -> None:
        assert (await transport.pull(SyncPull(client_id="a"))).server_hlc == 1
        transport._timeout_s = 0.2
        with pytest.raises(Unreachable, match="no answer within"):
            await transport.pull(SyncPull(client_id="a"))
        transport._timeout_s = 60.0
        assert (await transport.pull(SyncPull(client_id="a"))).server_hlc == 2
        await connections[0].wait_closed()

    await with_server(handler, body)


async def test_nobody_there_is_unreachable() -> None:
    for transport in (HttpTransport("http://127.0.0.1:1", "g"), WebSocketTransport("http://127.0.0.1:1", "g")):
        with pytest.raises(Unreachable):
            await transport.pull(SyncPull(client_id="a"))
        with pytest.raises(Unreachable):
            await transport.checkpoint("ada")
        await transport.close()
