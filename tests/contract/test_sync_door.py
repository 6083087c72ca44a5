"""The sync protocol through a real server: what is pushed is durable, counted once, and reaches everyone."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from mainstem.model.hlc import pack
from mainstem.runtime.clock import SystemClock
from mainstem.wire import sync
from mainstem.wire.sync.frames import BROADCAST_TAG
from tests.harness.inprocess import gateway_on_socket

PROTOBUF = {"content-type": "application/x-protobuf", "accept": "application/x-protobuf"}


def delta(
    row: str, hlc: int, client: str = "ada", op: sync.Op = sync.Op.UPDATE, table: str = "todos", **columns: bytes
) -> sync.RowDelta:
    listed = tuple(sync.ColumnDelta(name, value) for name, value in columns.items())
    name = sync.delta_id(table=table, row_id=row, columns=listed, hlc=hlc, client_id=client)
    return sync.RowDelta(op=op, table=table, row_id=row, columns=listed, hlc=hlc, client_id=client, delta_id=name)


def now(counter: int = 0) -> int:
    return pack(SystemClock().now_ms(), counter)


@asynccontextmanager
async def client_of(data: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway_on_socket(data) as (_, url):
        base = url.replace("ws://", "http://").removesuffix("/ws")
        async with httpx.AsyncClient(base_url=base, headers=PROTOBUF, timeout=30) as client:
            yield client


async def push(client: httpx.AsyncClient, *deltas: sync.RowDelta, gateway: str = "g", who: str = "ada") -> Any:
    body = sync.encode_push(sync.SyncPush(client_id=who, deltas=deltas))
    return await client.post(f"/sync/{gateway}/push", content=body)


async def pull(client: httpx.AsyncClient, since: int = 0, limit: int = 0, gateway: str = "g") -> sync.SyncResponse:
    answer = await client.get(f"/sync/{gateway}/pull", params={"since": since, "clientId": "x", "limit": limit})
    assert answer.status_code == 200, answer.text
    return sync.decode_response(answer.content)


async def pull_all(client: httpx.AsyncClient, pages: list[sync.SyncResponse] | None = None) -> list[sync.RowDelta]:
    """Every delta there is, page by page; the pages go to `pages`."""
    pages = [] if pages is None else pages
    cursor = 0
    while not pages or pages[-1].has_more:
        pages.append(await pull(client, cursor, limit=10_000))
        cursor = pages[-1].server_hlc
    return [each for page in pages for each in page.deltas]


async def test_a_push_reaches_a_pull_once_also_after_a_restart(tmp_path: Path) -> None:
    first, late = delta("r1", now(), title=b'"milk"', done=b"null"), delta("r1", 5, title=b'"old"')
    async with client_of(tmp_path) as client:
        assert (await push(client, first)).status_code == 200
        page = await pull(client)
        assert list(page.deltas) == [first]
        # A clock from long ago arrives now, and everyone hears of it.
        assert (await push(client, late, first)).status_code == 200
        assert list((await pull(client, page.server_hlc)).deltas) == [late]
    async with client_of(tmp_path) as client:
        assert (await push(client, first, late)).status_code == 200
        assert list((await pull(client)).deltas) == [first, late]
        assert list((await pull(client, gateway="other")).deltas) == []
        answer = await client.get("/v1/sync/g/pull", params={"since": 1 << 40})
        assert (answer.status_code, answer.json()["reason"]) == (410, "cursor_expired")


async def test_pages_continue_exactly(tmp_path: Path) -> None:
    deltas = [delta(f"r{i}", now(i), n=str(i).encode()) for i in range(25)]
    async with client_of(tmp_path) as client:
        assert (await push(client, *deltas)).status_code == 200
    async with client_of(tmp_path) as client:
        assert (await push(client, delta("last", now(), n=b"1"))).status_code == 200
        found: list[sync.RowDelta] = []
        cursor = 0
        while True:
            page = await pull(client, cursor, limit=10)
            assert page.since_hlc == cursor
            found += page.deltas
            cursor = page.server_hlc
            if not page.has_more:
                break
        assert [each.row_id for each in found] == [*(f"r{i}" for i in range(25)), "last"]


async def test_json_form(tmp_path: Path) -> None:
    made = delta("r1", now(), näme=b'{"b": [1, 2.50]}')
    async with client_of(tmp_path) as client:
        headers = {"content-type": "application/json", "accept": "application/json"}
        body = sync.push_to_json(sync.SyncPush(client_id="ada", deltas=[made]))
        answer = await client.post("/v1/sync/g/push", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers["access-control-allow-origin"] == "*"
        answer = await client.get("/sync/g/pull", headers=headers)
        assert list(sync.response_from_json(answer.content).deltas) == [made]


BAD: list[tuple[int, str, dict[str, Any]]] = [
    (400, "invalid_op", {"op": 4}),
    (400, "invalid_op", {"op": 0}),
    (400, "invalid_name", {"table": "a.b"}),
    (400, "invalid_name", {"table": "todos_history"}),
    (400, "invalid_name", {"row_id": ""}),
    (400, "invalid_name", {"row_id": "a\nb"}),
    (400, "invalid_value", {"columns": (sync.ColumnDelta("x", b"{"),)}),
    (400, "invalid_value", {"columns": (sync.ColumnDelta("x", b""),)}),
    (400, "invalid_value", {"columns": (sync.ColumnDelta("x", b"1e999"),)}),
    (400, "invalid_value", {"columns": (sync.ColumnDelta("x", b"[" * 65 + b"]" * 65),)}),
    (400, "clock_range", {"hlc": 1 << 63}),
    (400, "clock_range", {"hlc": (1 << 64) - 1}),
    (400, "delta_id_mismatch", {"delta_id": "0" * 64}),
    (400, "delta_id_mismatch", {"row_id": "another"}),
    (409, "clock_drift", {"hlc": (1 << 63) - 1}),
    (403, "denied", {"client_id": "eve"}),
]


async def test_one_bad_delta_refuses_the_push(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        for status, reason, bad in BAD:
            good = delta("r1", now(), x=b"1")
            fields = {name: getattr(good, name) for name in good.__struct_fields__} | {"row_id": "r2"} | bad
            if "delta_id" not in bad and "row_id" not in bad and reason not in ("invalid_value", "clock_range"):
                hashed = ("table", "row_id", "columns", "hlc", "client_id")
                fields["delta_id"] = sync.delta_id(**{name: fields[name] for name in hashed})
            answer = await push(client, good, sync.RowDelta(**fields))
            told = answer.json()
            assert (answer.status_code, told["reason"]) == (status, reason), (bad, told)
            if reason != "denied":
                assert told["deltaId"] == fields["delta_id"]
            if reason == "clock_drift":
                assert abs(int(told["serverHlc"]) - now()) < 60_000 << 16
        assert list((await pull(client)).deltas) == []


async def test_limits_and_schemas(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        many = [delta("r", 1, x=b"1")] * 10_001
        assert (await push(client, *many)).status_code == 413
        answer = await client.post("/sync/g/push", content=b"\0" * (16 * 1024 * 1024 + 1))
        assert (answer.status_code, answer.json()["reason"]) == (413, "too_large")
        columns = [{"name": "title", "type": "string"}, {"name": "done", "type": "boolean"}]
        schema = {"table": "todos", "columns": columns}
        assert (await client.post("/admin/schema/g", json=schema)).status_code == 204
        assert (await push(client, delta("r", now(), title=b'"x"', done=b"null"))).status_code == 200
        unknown = delta("r", now(3), op=sync.Op.DELETE, table="notes")
        for bad in (delta("r", now(1), title=b"1"), delta("r", now(2), color=b'"red"'), unknown):
            answer = await push(client, delta("s", now(4), title=b'"good"'), bad)
            assert (answer.status_code, answer.json()["reason"]) == (422, "schema_mismatch")
            assert answer.json()["deltaId"] == bad.delta_id
        assert len((await pull(client)).deltas) == 1
    async with client_of(tmp_path) as client:
        assert (await push(client, delta("r", now(1), title=b"1"))).status_code == 422
        assert (await client.get("/v1/admin/schema/g")).json() == [schema]


async def test_websocket(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path) as (_, cdc):
        url = cdc.removesuffix("/ws") + "/sync/g/ws?features=evict"
        async with websockets.connect(url) as ada, websockets.connect(url) as bob:
            await bob.send(sync.encode_request(sync.SyncPull(client_id="bob")))
            reply = sync.decode_response(_bytes(await bob.recv()))
            made = delta("r1", now(), x=b"1")
            await ada.send(sync.encode_request(sync.SyncPush(client_id="ada", deltas=[made])))
            answer = sync.decode_response(_bytes(await ada.recv()))
            told = _bytes(await bob.recv())
            assert told[:1] == BROADCAST_TAG
            broadcast = sync.decode_response(told[1:])
            assert list(broadcast.deltas) == [made]
            assert broadcast.since_hlc == reply.server_hlc
            assert broadcast.server_hlc == answer.server_hlc


CLOSES: list[tuple[bytes | str, int, str]] = [
    ("text", 1003, "binary"),
    # More than a push may have, and less than the server reads at all.
    (b"\x01" + b"\0" * (17 << 20), 1008, "too_large"),
    (b"\x09abc", 1002, "unknown_tag"),
    (b"\x01", 1002, "unknown_tag"),
    (b"\x01\xff\xff", 1008, "invalid_protobuf"),
    (sync.encode_request(sync.SyncPull(client_id="a", since_hlc=1 << 60)), 1008, "cursor_expired"),
    (
        sync.encode_request(sync.SyncPush(client_id="ada", deltas=[delta("r", (1 << 63) - 1)])),
        1008,
        "clock_drift server_hlc=",
    ),
    (
        sync.encode_request(sync.SyncPush(client_id="ada", deltas=[delta("", 1)])),
        1008,
        f"invalid_name delta_id={delta('', 1).delta_id}",
    ),
]


async def test_websocket_closes(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path) as (_, url):
        for frame, code, reason in CLOSES:
            async with websockets.connect(url.removesuffix("/ws") + "/v1/sync/g/ws") as socket:
                await socket.send(frame)
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    await socket.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == code
                assert closed.value.rcvd.reason.startswith(reason)


async def test_the_same_push_many_times_at_once_counts_once(tmp_path: Path) -> None:
    deltas = [delta(f"r{i}", now(i), x=b"1") for i in range(50)]
    async with client_of(tmp_path) as client:
        cuts = [deltas, deltas[:30], deltas[20:], deltas[10:40]]
        answers = await asyncio.gather(*(push(client, *cut) for cut in cuts * 4))
        assert {answer.status_code for answer in answers} == {200}
        found = (await pull(client, limit=1_000)).deltas
        assert sorted(each.delta_id for each in found) == sorted(each.delta_id for each in deltas)


async def test_mutated_pushes_are_refused_by_name_or_are_what_they_say(tmp_path: Path) -> None:
    """Whatever is sent: a refusal with a reason, or a durable delta whose id is its hash. Never our fault."""
    chance = random.Random(11)
    whole = sync.encode_push(
        sync.SyncPush(
            client_id="ada",
            deltas=[delta("r1", now(), title=b'"milk"', tags=b"[1,2]"), delta("r2", now(1), op=sync.Op.DELETE)],
        )
    )
    async with client_of(tmp_path) as client:
        for _ in range(400):
            body = bytearray(whole)
            for _ in range(chance.randint(1, 4)):
                body[chance.randrange(len(body))] = chance.randrange(256)
            if chance.random() < 0.3:
                body = body[: chance.randrange(len(body))]
            answer = await client.post("/sync/g/push", content=bytes(body))
            assert answer.status_code in (200, 400, 403, 409, 422), (bytes(body).hex(), answer.text)
            if answer.status_code != 200:
                assert answer.json()["reason"]
        for bad in (b"[]", b"{", b'{"clientId":1}', b'{"clientId":"a","deltas":[{}]}', b"\xff", b"null"):
            answer = await client.post("/sync/g/push", content=bad, headers={"content-type": "application/json"})
            assert (answer.status_code, bool(answer.json()["reason"])) == (400, True)
        for query in ("since=-1", "since=x", f"since={1 << 64}", "limit=-1", "limit=x"):
            assert (await client.get(f"/sync/g/pull?{query}")).status_code == 400
        for gateway in ("a%2Fb", "%00", "x" * 300, "..", "a.b%20"):
            assert (await client.get(f"/sync/{gateway}/pull")).status_code in (400, 404)
        huge = delta("r9", now(2), blob=b'"' + b"x" * (8 * 1024 * 1024) + b'"')
        assert (await push(client, huge)).status_code == 200
        found = await pull_all(client)
        assert huge in found
        for each in found:
            made = sync.delta_id(
                table=each.table, row_id=each.row_id, columns=each.columns, hlc=each.hlc, client_id=each.client_id
            )
            assert made == each.delta_id


def _bytes(frame: str | bytes) -> bytes:
    assert isinstance(frame, bytes)
    return frame


async def test_large_deltas_come_in_pages_that_fit_a_message(tmp_path: Path) -> None:
    made = [delta(f"r{number}", now(number), blob=b'"' + b"x" * 3_000_000 + b'"') for number in range(4)]
    async with client_of(tmp_path) as client:
        for each in made:
            assert (await push(client, each)).status_code == 200
    async with client_of(tmp_path) as client:
        pages: list[sync.SyncResponse] = []
        assert await pull_all(client, pages) == made
        assert len(pages) >= 4


async def test_a_client_that_reads_no_replies_is_not_served_without_end(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path) as (gateway, cdc):
        url = cdc.removesuffix("/ws") + "/sync/g/ws"
        async with websockets.connect(url) as ada:
            big = delta("r", now(), blob=b'"' + b"x" * 2_000_000 + b'"')
            await ada.send(sync.encode_request(sync.SyncPush(client_id="ada", deltas=[big])))
            await ada.recv()
        async with websockets.connect(url, max_queue=1) as slow:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    for _ in range(200):
                        await slow.send(sync.encode_request(sync.SyncPull(client_id="slow")))
            (connection,) = gateway.sync.door.sockets._connections
            assert connection._outbox_bytes <= 8 * 1024 * 1024
