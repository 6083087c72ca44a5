"""The sync door of a secured server: whose token, for which gateway, and what it may ask."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from mainstem.model.hlc import pack
from mainstem.runtime.clock import SystemClock
from mainstem.wire import sync
from tests.contract.auth_tokens import SECURED, bearer, token
from tests.harness.inprocess import gateway_on_socket

PROTOBUF = {"content-type": "application/x-protobuf", "accept": "application/x-protobuf"}


def client_token(sub: str, gateway: str, **more: Any) -> str:
    return token(role="client", namespace=[], sub=sub, gw=gateway, **more)


def push_of(client: str, row: str = "r1") -> bytes:
    hlc = pack(SystemClock().now_ms(), 0)
    columns = (sync.ColumnDelta("owner", b'"ada"'),)
    name = sync.delta_id(table="notes", row_id=row, columns=columns, hlc=hlc, client_id=client)
    delta = sync.RowDelta(op=1, table="notes", row_id=row, columns=columns, hlc=hlc, client_id=client, delta_id=name)
    return sync.encode_push(sync.SyncPush(client_id=client, deltas=[delta]))


async def test_who_may_do_what(tmp_path: Path) -> None:
    ada, admin = bearer(client_token("ada", "g")), bearer(token())
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as (_, url):
        base = url.replace("ws://", "http://").removesuffix("/ws")
        async with httpx.AsyncClient(base_url=base, headers=PROTOBUF, timeout=60) as client:
            for headers, path, body, status in [
                ({}, "/sync/g/push", push_of("ada"), 401),
                (bearer("nonsense"), "/sync/g/push", push_of("ada"), 401),
                (ada, "/sync/other/push", push_of("ada"), 403),
                (ada, "/sync/g/push", push_of("eve"), 403),
                (ada, "/admin/schema/g", b"{}", 403),
                (ada, "/admin/rules/g", b"{}", 403),
                (ada, "/admin/flush/g", b"", 403),
                (ada, "/sync/g/push", push_of("ada"), 200),
                (admin, "/admin/rules/g", b'{"buckets": []}', 200),
            ]:
                answer = await client.post(path, content=body, headers=headers)
                assert answer.status_code == status, (path, answer.text)
                if status in (401, 403):
                    assert answer.json()["reason"] == "denied"
                    # What an admin sets is not for pages of other origins.
                    assert ("access-control-allow-origin" in answer.headers) == path.startswith("/sync/")
            preflight = await client.options(
                "/sync/g/push", headers={"access-control-request-method": "POST", "origin": "http://elsewhere"}
            )
            assert preflight.status_code == 204
            assert (await client.get("/v1/pipeline/checkpoints", headers=ada)).status_code == 403


async def test_rules_look_at_the_token_and_not_at_what_a_client_says(tmp_path: Path) -> None:
    rules = {"buckets": [{"name": "team", "filters": [{"column": "owner", "op": "in", "value": "jwt:teams"}]}]}
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as (_, url):
        base = url.replace("ws://", "http://").removesuffix("/ws")
        async with httpx.AsyncClient(base_url=base, headers=PROTOBUF, timeout=60) as client:
            assert (await client.post("/admin/rules/g", json=rules, headers=bearer(token()))).status_code == 200
            body = push_of("ada")
            ada = bearer(client_token("ada", "g"))
            assert (await client.post("/sync/g/push", content=body, headers=ada)).status_code == 200
            seen = {}
            for name, teams in {"member": ["ada", "x"], "stranger": ["x"], "nobody": None}.items():
                claims: dict[str, Any] = {} if teams is None else {"teams": teams}
                headers = bearer(client_token(name, "g", **claims))
                answer = await client.get("/sync/g/pull", params={"clientId": "ada", "teams": "ada"}, headers=headers)
                seen[name] = len(sync.decode_response(answer.content).deltas)
            assert seen == {"member": 1, "stranger": 0, "nobody": 0}


async def test_websockets_take_a_token_in_three_ways(tmp_path: Path) -> None:
    good = client_token("ada", "g")
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as (_, cdc):
        url = cdc.removesuffix("/ws") + "/sync/g/ws"
        pull = sync.encode_request(sync.SyncPull(client_id="ada"))
        async with websockets.connect(url, additional_headers=bearer(good)) as socket:
            await socket.send(pull)
            assert sync.decode_response(_bytes(await socket.recv())).deltas == []
        async with websockets.connect(f"{url}?token={good}") as socket:
            await socket.send(pull)
            await socket.recv()
        protocols = [websockets.Subprotocol("lakesync.v1"), websockets.Subprotocol(f"bearer.{good}")]
        async with websockets.connect(url, subprotocols=protocols) as socket:
            assert socket.subprotocol == "lakesync.v1"
            await socket.send(sync.encode_request(sync.SyncPull(client_id="eve")))
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "denied")
        # Told before there is a connection. A page, which is not told why, learns it by a request to the same gateway.
        other = url.replace("/g/", "/other/")
        for bad, status in ((url, 401), (f"{url}?token=nonsense", 401), (f"{other}?token={good}", 403)):
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(bad)
            assert refused.value.response.status_code == status


def _bytes(frame: str | bytes) -> bytes:
    assert isinstance(frame, bytes)
    return frame
