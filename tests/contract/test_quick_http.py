"""Answers that the socket sends by itself: the bytes of the ordinary way, to the same callers, in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from mainstem.admission import Rates, RateSettings
from mainstem.app.config import Config, PipelineConfig
from mainstem.doors.http.at_hand import AtHand
from mainstem.doors.http.rates import Limited
from mainstem.runtime.clock import ManualClock
from tests.contract.auth_tokens import AUTH, bearer, token
from tests.contract.catalog_client import SCHEMA
from tests.harness.inprocess import CONFIG, gateway_on_socket

TABLE = "/v1/namespaces/db/tables/t"
LOAD = f"GET {TABLE} HTTP/1.1\r\nHost: localhost\r\n"


class Counting:
    """Around the application: which requests were answered by the socket, and which went the ordinary way."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.quick = 0
        self.ordinary = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.ordinary += 1
        await self._app(scope, receive, send)

    def at_hand(self, scope: Any) -> Any:
        found = self._app.at_hand(scope)
        self.quick += found is not None
        return found


class Room:
    """A server with one table, and a client that counts."""

    def __init__(self, url: str, counting: Counting, client: httpx.AsyncClient) -> None:
        self.port = urlsplit(url).port or 0
        self.counting = counting
        self.client = client

    async def quick(self, headers: dict[str, str] | None = None) -> tuple[httpx.Response, bool]:
        """A load, and whether the socket answered it."""
        before = self.counting.quick
        return await self.client.get(TABLE, headers=headers), self.counting.quick > before

    async def raw(self, *parts: bytes, answers: int = 1) -> list[tuple[bytes, bytes]]:
        """Send bytes in pieces; the heads and bodies of the answers."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for part in parts:
            writer.write(part)
            await writer.drain()
        found = []
        for _ in range(answers):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            found.append((head, await reader.readexactly(length)))
        writer.close()
        await writer.wait_closed()
        return found


@asynccontextmanager
async def room_of(folder: Path, config: Config, headers: dict[str, str] | None = None) -> AsyncIterator[Room]:
    made: list[Counting] = []

    def around(app: Any) -> Counting:
        made.append(Counting(app))
        return made[0]

    async with gateway_on_socket(folder, gateway_config=config, around=around) as (_, url):
        base = url.replace("ws://", "http://").removesuffix("/ws")
        async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60) as client:
            (await client.post("/v1/namespaces", json={"namespace": ["db"]})).raise_for_status()
            (await client.post("/v1/namespaces/db/tables", json={"name": "t", "schema": SCHEMA})).raise_for_status()
            yield Room(url, made[0], client)


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with room_of(tmp_path, CONFIG) as made:
        yield made


async def test_both_ways_give_the_same_answer(room: Room) -> None:
    quick, was_quick = await room.quick()
    # Whoever comes through a proxy goes the ordinary way.
    ordinary, was_quick_too = await room.quick({"X-Forwarded-For": "127.0.0.1"})
    assert (was_quick, was_quick_too) == (True, False)
    assert quick.content == ordinary.content
    changing = ("date", "x-ratelimit-reset")
    assert [{k: v for k, v in one.headers.items() if k not in changing} for one in (quick, ordinary)] == [
        {k: v for k, v in ordinary.headers.items() if k not in changing}
    ] * 2
    known, was_quick = await room.quick({"If-None-Match": quick.headers["etag"]})
    assert (known.status_code, known.content, was_quick) == (304, b"", True)


async def test_what_was_committed_is_what_the_socket_answers(room: Room) -> None:
    for number in range(3):
        update = {"action": "set-properties", "updates": {"value": str(number)}}
        done = await room.client.post(TABLE, json={"requirements": [], "updates": [update]})
        loaded, was_quick = await room.quick()
        assert was_quick, "the answer to a commit is that to the next load"
        assert loaded.content == done.content
        assert loaded.headers["etag"] == done.headers["etag"]
    assert (await room.client.delete(TABLE)).status_code == 204
    gone, was_quick = await room.quick()
    assert (gone.status_code, was_quick) == (404, False)


async def test_requests_in_one_packet_are_answered_in_their_order(room: Room) -> None:
    slow = "GET /v1/namespaces HTTP/1.1\r\nHost: localhost\r\n\r\n"
    sent = (f"{LOAD}\r\n" + slow + f"{LOAD}\r\n" + slow + f"{LOAD}\r\n").encode()
    found = await room.raw(sent, answers=5)
    assert [b"metadata-location" in body for _, body in found] == [True, False, True, False, True]
    assert [b'"namespaces"' in body for _, body in found] == [False, True, False, True, False]


async def test_a_request_may_come_byte_by_byte(room: Room) -> None:
    sent = f"{LOAD}\r\n{LOAD}\r\n".encode()
    found = await room.raw(*(sent[n : n + 1] for n in range(len(sent))), answers=2)
    assert found[0][1] == found[1][1]
    assert room.counting.quick == 2


async def test_the_same_bytes_are_asked_for_anew_each_time(room: Room) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", room.port)

    async def ask(data: bytes) -> bytes:
        writer.write(data)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        return await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))

    load = f"{LOAD}\r\n".encode()
    seen = [await ask(load) for _ in range(3)]
    assert seen[0] == seen[1] == seen[2]
    update = {"action": "set-properties", "updates": {"value": "new"}}
    done = await room.client.post(TABLE, json={"requirements": [], "updates": [update]})
    assert await ask(load) == done.content
    assert room.counting.quick == 4
    # As the body of another request the same bytes are no request.
    post = f"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(load)}\r\n\r\n"
    writer.write(post.encode())
    await writer.drain()
    assert b"BadRequestException" in await ask(load)
    assert await ask(load) == done.content
    assert (await room.client.delete(TABLE)).status_code == 204
    assert b"NoSuchTableException" in await ask(load)
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("request_line", "headers"),
    [
        (f"GET {TABLE} HTTP/1.1", "Connection: close\r\n"),
        (f"GET {TABLE} HTTP/1.0", ""),
        (f"GET {TABLE} HTTP/1.1", "Content-Length: 2\r\n\r\nhi"),
        (f"GET {TABLE}?snapshots=refs HTTP/1.1", ""),
        (f"GET {TABLE}#piece HTTP/1.1", ""),
    ],
)
async def test_what_is_unusual_goes_the_ordinary_way(room: Room, request_line: str, headers: str) -> None:
    end = "" if "\r\n\r\n" in headers else "\r\n"
    found = await room.raw(f"{request_line}\r\nHost: localhost\r\n{headers}{end}".encode())
    assert found[0][0].startswith(b"HTTP/1.1 200")
    assert room.counting.quick == 0


async def test_the_gate_stands_before_the_socket_too(tmp_path: Path) -> None:
    config = Config(pipeline=PipelineConfig(enabled=False), auth=AUTH)
    async with room_of(tmp_path, config, bearer(token())) as room:
        allowed, was_quick = await room.quick()
        assert (allowed.status_code, was_quick) == (200, True)
        for headers, status in (
            ({"Authorization": "Bearer none"}, 401),
            (bearer(token(lifetime_s=-600)), 401),
            (bearer(token("reader", "elsewhere")), 404),
            (bearer(token("client", "*")), 403),
        ):
            refused, was_quick = await room.quick(headers)
            assert (refused.status_code, was_quick) == (status, False)
        assert (await room.quick(bearer(token("writer"))))[1]


async def test_pages_of_other_origins_are_refused(room: Room) -> None:
    refused, was_quick = await room.quick({"Origin": "https://elsewhere.example"})
    assert (refused.status_code, was_quick) == (401, False)


async def test_a_client_that_does_not_read_holds_nothing_up(room: Room) -> None:
    update = {"action": "set-properties", "updates": {"large": "x" * 1_000_000}}
    (await room.client.post(TABLE, json={"requirements": [], "updates": [update]})).raise_for_status()
    wanted = 40
    reader, writer = await asyncio.open_connection("127.0.0.1", room.port, limit=1024)
    writer.write(f"{LOAD}\r\n".encode() * wanted)
    await writer.drain()
    for _ in range(3):
        assert (await room.client.get("/v1/namespaces")).status_code == 200
    assert room.counting.quick < wanted, "what nobody reads is not piled up"
    read = 0
    while read < wanted * 1_000_000:
        read += len(await reader.read(1 << 20))
    writer.close()
    await writer.wait_closed()


def test_loads_count_towards_the_limit_of_requests() -> None:
    clock = ManualClock()
    rates = Rates(RateSettings(requests_per_s=2), clock=clock)
    loaded = AtHand(200, ((b"content-length", b"0"),), b"")
    limited = Limited(_unreachable, rates, clock, find=lambda scope: loaded)
    scope: Any = {"type": "http", "client": ("203.0.113.5", 1)}
    left = [limited.at_hand(scope) for _ in range(3)]
    assert [one and dict(one.headers)[b"x-ratelimit-remaining"] for one in left] == [b"1", b"0", None]


async def _unreachable(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nothing is passed on here")
