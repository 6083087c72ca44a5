"""Sync rules through a real server: a hidden row is in no frame, what leaves is evicted, what enters comes whole."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import websockets

from mainstem.app.config import Config
from mainstem.feeds.shadow import row_of_delta
from mainstem.model import Row, join
from mainstem.model.hlc import pack
from mainstem.runtime.clock import SystemClock
from mainstem.wire import sync
from mainstem.wire.sync.frames import BROADCAST_TAG
from tests.harness.inprocess import CONFIG, gateway_on_socket

MINE = {"name": "mine", "tables": ["notes"], "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}
PUBLIC = {"name": "public", "tables": ["notes"], "filters": [{"column": "public", "op": "eq", "value": True}]}


class Replica:
    """What a client has, and every byte that it was ever sent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[str, Row] = {}
        self.cursor = 0
        self.frames: list[bytes] = []

    def apply(self, data: bytes) -> sync.SyncResponse:
        self.frames.append(data)
        response = sync.decode_response(data)
        assert response.since_hlc == self.cursor
        for delta in response.deltas:
            if delta.op == sync.Op.EVICT:
                self.rows.pop(delta.row_id, None)
            else:
                self.rows[delta.row_id] = join(self.rows.get(delta.row_id, Row()), row_of_delta(delta))
        self.cursor = response.server_hlc
        return response

    def values(self) -> dict[str, dict[str, Any]]:
        return {key: row.values() for key, row in self.rows.items() if row.visible}


class Writer:
    """Writes notes, and knows what everybody should see."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.rows: dict[str, Row] = {}
        self.count = 0

    async def write(self, row: str, op: sync.Op = sync.Op.UPDATE, **columns: str) -> None:
        self.count += 1
        hlc = pack(SystemClock().now_ms(), self.count)
        listed = tuple(sync.ColumnDelta(name, value.encode()) for name, value in columns.items())
        name = sync.delta_id(table="notes", row_id=row, columns=listed, hlc=hlc, client_id="writer")
        delta = sync.RowDelta(
            op=op, table="notes", row_id=row, columns=listed, hlc=hlc, client_id="writer", delta_id=name
        )
        body = sync.encode_push(sync.SyncPush(client_id="writer", deltas=[delta]))
        answer = await self.client.post("/sync/g/push", content=body)
        assert answer.status_code == 200, answer.text
        self.rows[row] = join(self.rows.get(row, Row()), row_of_delta(delta))

    def seen_by(self, name: str, public: bool = False) -> dict[str, dict[str, Any]]:
        seen = {key: row.values() for key, row in self.rows.items() if row.visible}
        return {
            key: values
            for key, values in seen.items()
            if values.get("owner") == f'"{name}"'.encode() or (public and values.get("public") == b"true")
        }


@asynccontextmanager
async def server(data: Path, config: Config = CONFIG) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway_on_socket(data, gateway_config=config) as (_, url):
        base = url.replace("ws://", "http://").removesuffix("/ws")
        headers = {"accept": "application/x-protobuf", "content-type": "application/x-protobuf"}
        async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60) as client:
            yield client


async def pull(client: httpx.AsyncClient, replica: Replica, features: str = "evict") -> list[sync.RowDelta]:
    found: list[sync.RowDelta] = []
    while True:
        asked = f"since={replica.cursor}&clientId={replica.name}&features={features}&limit=7"
        answer = await client.get(f"/sync/g/pull?{asked}")
        assert answer.status_code == 200, answer.text
        response = replica.apply(answer.content)
        found += response.deltas
        if not response.has_more:
            return found


async def set_rules(client: httpx.AsyncClient, *buckets: Any) -> None:
    answer = await client.post("/admin/rules/g", json={"buckets": buckets})
    assert answer.status_code == 200, answer.text


async def test_rows_move_in_and_out_of_view(tmp_path: Path) -> None:
    async with server(tmp_path) as client:
        writer, ada, bob = Writer(client), Replica("ada"), Replica("bob")
        await writer.write("n1", owner='"ada"', text='"first"')
        await pull(client, ada)
        await pull(client, bob)
        assert ada.values() == bob.values() == writer.seen_by("ada")
        await set_rules(client, MINE)
        assert await pull(client, ada) == []
        # The row was bob's to see, and is not any more.
        (evicted,) = await pull(client, bob)
        assert (evicted.op, evicted.row_id, evicted.columns) == (sync.Op.EVICT, "n1", ())
        await writer.write("n1", text='"for ada alone"')
        await writer.write("n1", owner='"bob"')
        await pull(client, ada)
        entered = await pull(client, bob)
        # Whole, with the stamps that the columns always had.
        assert {each.column for delta in entered for each in delta.columns} == {"owner", "text"}
        assert (ada.values(), bob.values()) == ({}, writer.seen_by("bob"))
        # A delete reaches whoever has the row, and nobody else.
        await writer.write("n1", op=sync.Op.DELETE)
        assert await pull(client, ada) == []
        assert [delta.op for delta in await pull(client, bob)] == [sync.Op.DELETE]
        assert bob.values() == {}


async def test_a_client_that_knows_no_evict_gets_a_delete(tmp_path: Path) -> None:
    async with server(tmp_path) as client:
        writer, ada = Writer(client), Replica("ada")
        await set_rules(client, MINE)
        await writer.write("n1", owner='"ada"', text='"x"')
        await pull(client, ada, features="")
        await writer.write("n1", owner='"bob"')
        (gone,) = await pull(client, ada, features="")
        assert (gone.op, gone.columns) == (sync.Op.DELETE, ())
        assert ada.values() == {}


async def test_what_a_client_writes_and_may_not_see_is_evicted_there(tmp_path: Path) -> None:
    async with server(tmp_path) as client:
        await set_rules(client, MINE)
        writer, itself = Writer(client), Replica("writer")
        await writer.write("n1", owner='"ada"')
        assert [(each.op, each.row_id) for each in await pull(client, itself)] == [(sync.Op.EVICT, "n1")]


async def test_hidden_rows_are_in_no_frame_over_many_changes_and_a_restart(tmp_path: Path) -> None:
    """Every text names its row's owner at that time, so a frame with another's text is seen in the bytes."""
    chance = random.Random(5)
    people = ["ada", "bob", "cyd"]
    replicas = {name: Replica(name) for name in people}
    sockets: dict[str, Any] = {}
    heard = {name: Replica(name) for name in people}
    rows: dict[str, Row] = {}
    for round_number in range(2):
        async with server(tmp_path) as client:
            writer = Writer(client)
            writer.rows = rows
            if not round_number:
                await set_rules(client, MINE)
            url = str(client.base_url).replace("http", "ws", 1).rstrip("/") + "/sync/g/ws?features=evict"
            for name in people:
                sockets[name] = await websockets.connect(url)
                await pull_socket(sockets[name], heard[name])
            owners: dict[str, str] = {}
            for step in range(60):
                row = f"n{chance.randrange(12)}"
                owner = owners.get(row)
                if owner is None or chance.random() < 0.3:
                    owner = owners[row] = chance.choice(people)
                    await writer.write(row, owner=f'"{owner}"', text=f'"only-{owner}-{row}-{step}"')
                elif chance.random() < 0.2:
                    await writer.write(row, op=sync.Op.DELETE)
                    del owners[row]
                else:
                    await writer.write(row, text=f'"only-{owner}-{row}-{step}"')
                if chance.random() < 0.2:
                    name = chance.choice(people)
                    await pull(client, replicas[name])
            for name in people:
                await pull(client, replicas[name])
                await listen(sockets[name], heard[name], writer.seen_by(name))
                await sockets[name].close()
                assert replicas[name].values() == writer.seen_by(name)
    for name in people:
        sent = b"".join(replicas[name].frames + heard[name].frames)
        assert f"only-{name}-".encode() in sent
        for other in people:
            if other != name:
                assert f"only-{other}-".encode() not in sent


async def test_rules_change_while_clients_listen(tmp_path: Path) -> None:
    async with server(tmp_path) as client:
        writer, ada, bob, eve = Writer(client), Replica("ada"), Replica("bob"), Replica("eve")
        await set_rules(client, MINE)
        for number in range(50):
            await writer.write(f"a{number}", owner='"ada"', public="true" if number % 5 == 0 else "false")
        url = str(client.base_url).replace("http", "ws", 1).rstrip("/") + "/sync/g/ws?features=evict"
        async with websockets.connect(url) as hers, websockets.connect(url) as his:
            await pull_socket(hers, ada)
            await pull_socket(his, bob)
            assert (len(ada.values()), bob.values()) == (50, {})
            before = len(ada.frames)
            await set_rules(client, MINE, PUBLIC)
            await listen(his, bob, writer.seen_by("bob", public=True))
            assert len(bob.values()) == 10
            # Nothing that ada sees is different: she is sent nothing.
            await writer.write("a1", text='"after"')
            await listen(hers, ada, writer.seen_by("ada", public=True))
            assert [len(sync.decode_response(frame).deltas) for frame in ada.frames[before:]] == [1]
            await set_rules(client, PUBLIC)
            await listen(hers, ada, writer.seen_by("nobody", public=True))
            assert len(ada.values()) == 10
            assert (await client.get("/admin/rules/g")).json()["buckets"][0]["name"] == "public"
        await pull(client, eve)
        assert eve.values() == writer.seen_by("nobody", public=True)


async def test_views_that_were_different_and_become_the_same(tmp_path: Path) -> None:
    """Broadcasts are shared by those who see the same; what they saw before differs, and so does what has to go."""
    people = [f"p{number}" for number in range(6)]
    async with server(tmp_path) as client:
        writer = Writer(client)
        await set_rules(client, MINE)
        for number, name in enumerate(people * 2):
            await writer.write(f"n{number}", owner=f'"{name}"', public="true" if number % 4 == 0 else "false")
        url = str(client.base_url).replace("http", "ws", 1).rstrip("/") + "/sync/g/ws?features=evict"
        heard = {name: Replica(name) for name in people}
        sockets = {name: await websockets.connect(url) for name in people}
        for name in people:
            await pull_socket(sockets[name], heard[name])
        # Once the columns of both are known, a change of rules breaks no chain.
        for buckets, public in (([MINE, PUBLIC], True), ([PUBLIC], True), ([MINE], False), ([PUBLIC], True)):
            await set_rules(client, *buckets)
            for name in people:
                await listen(sockets[name], heard[name], writer.seen_by(name if MINE in buckets else "", public=public))
        for socket in sockets.values():
            await socket.close()


async def test_rules_that_are_not_right_are_refused(tmp_path: Path) -> None:
    async with server(tmp_path) as client:
        filters: list[Any] = [
            {"column": "a", "op": "like", "value": "x"},
            {"column": "a", "op": "in", "value": "x"},
            {"column": "a", "op": "eq", "value": ["x"]},
            {"column": "a", "op": "eq"},
        ]
        for bad in filters:
            answer = await client.post("/admin/rules/g", json={"buckets": [{"name": "b", "filters": [bad]}]})
            assert answer.status_code == 400, bad
        answer = await client.post("/admin/rules/g", json={"buckets": [MINE, MINE]})
        assert answer.status_code == 400
        assert (await client.get("/admin/rules/g")).json() is None
        # Nor does anybody say in this way which collections there are.
        for gateway, table in (("g", "sync_rules"), ("g.system", "collections")):
            delta = sync.RowDelta(op=1, table=table, row_id="rules", client_id="eve", hlc=1)
            name = sync.delta_id(table=table, row_id="rules", columns=(), hlc=1, client_id="eve")
            push = sync.SyncPush(client_id="eve", deltas=[sync.RowDelta(**{**_fields(delta), "delta_id": name})])
            answer = await client.post(f"/sync/{gateway}/push", content=sync.encode_push(push))
            assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_name")


async def pull_socket(socket: Any, replica: Replica) -> None:
    while True:
        await socket.send(sync.encode_request(sync.SyncPull(client_id=replica.name, since_hlc=replica.cursor)))
        while (frame := await socket.recv())[:1] == BROADCAST_TAG:
            # Sent before the reply, which has all of it too.
            replica.frames.append(frame[1:])
        if not replica.apply(frame).has_more:
            return


async def listen(socket: Any, replica: Replica, expected: dict[str, Any]) -> None:
    """Take broadcasts until the replica is as it should be; a gap makes it pull, as the protocol has it."""
    async with asyncio.timeout(60):
        while replica.values() != expected:
            frame = await socket.recv()
            assert frame[:1] == BROADCAST_TAG
            if sync.decode_response(frame[1:]).since_hlc == replica.cursor:
                replica.apply(frame[1:])
            else:
                await pull_socket(socket, replica)


def _fields(delta: sync.RowDelta) -> dict[str, Any]:
    return {name: getattr(delta, name) for name in delta.__struct_fields__}
