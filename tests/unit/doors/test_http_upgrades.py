"""Requests that offer HTTP/2, as Java's client sends them: answered as HTTP/1.1, with their body."""

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from mainstem.doors.http.quick import QuickProtocol

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\nUpgrade: h2c\r\n"
HEAD = b"POST /v1/debezium?key=id HTTP/1.1\r\n%bHost: localhost\r\nContent-Length: %d\r\n\r\n"
BODY = b'{"op": "c", "after": {"id": 1}}'


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    told = b"%b?%b " % (scope["path"].encode(), scope["query_string"])
    names = {name for name, _ in scope["headers"]}
    assert names <= {b"host", b"content-length", b"transfer-encoding", b"connection", b"upgrade"}, names
    headers = [(b"content-length", b"%d" % len(told + body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": told + body})


async def talk(parts: list[bytes], answers: int) -> list[bytes]:
    """Send bytes piece by piece on one connection; the bodies of so many answers."""
    config = uvicorn.Config(echo, lifespan="off", log_config=None, ws="none")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: QuickProtocol(config=config, server_state=ServerState(), app_state={}), "127.0.0.1", 0
    )
    found = []
    async with server, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for part in parts:
            writer.write(part)
            # The server's side reads one piece before the next one is there.
            await writer.drain()
            await asyncio.sleep(0)
        for _ in range(answers):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            found.append(await reader.readexactly(size))
        writer.close()
        await writer.wait_closed()
    return found


WHOLE = b"/v1/debezium?key=id " + BODY
REQUEST = HEAD % (OFFER, len(BODY)) + BODY


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([REQUEST], id="at-once"),
        pytest.param([HEAD % (OFFER, len(BODY)), BODY], id="head-then-body"),
        pytest.param([REQUEST[at : at + 7] for at in range(0, len(REQUEST), 7)], id="in-small-pieces"),
    ],
)
async def test_a_request_that_offers_http2_keeps_its_body(parts: list[bytes]) -> None:
    assert await talk(parts, 1) == [WHOLE]


async def test_requests_behind_one_another_keep_their_bodies_and_their_order() -> None:
    plain = HEAD % (b"", 3) + b"two"
    chunked = b"POST /c HTTP/1.1\r\n" + OFFER + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    got = await talk([REQUEST + plain + chunked + REQUEST], 4)
    assert got == [WHOLE, b"/v1/debezium?key=id two", b"/c? abc", WHOLE]


async def test_an_offer_without_a_body_is_passed_over() -> None:
    assert await talk([b"GET /x HTTP/1.1\r\n" + OFFER + b"Host: a\r\n\r\n"] * 2, 2) == [b"/x? "] * 2
