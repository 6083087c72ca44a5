"""The sync door keeps a token to its gateway, namespaces and tables, on every path: who may do what, as tables."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import websockets

from mainstem.admission.auth import principal_of_claims
from mainstem.doors.admin.server import Flushed, FlushedTable
from mainstem.doors.sync.access import Caller
from mainstem.doors.sync.http import seen_flush
from mainstem.model.hlc import pack
from mainstem.model.position import LogId
from mainstem.runtime.clock import SystemClock
from mainstem.wire import sync
from mainstem.wire.checkpoints import DOCUMENT, VERSION, CheckpointMade
from tests.contract.auth_tokens import SECURED, bearer, token
from tests.harness.inprocess import gateway_on_socket

PROTOBUF = {"content-type": "application/x-protobuf", "accept": "application/x-protobuf"}
JSON = {"content-type": "application/json"}
SUB = "ada"
# By name: the claims of a token.
TOKENS: dict[str, dict[str, Any]] = {
    "client": {"role": "client", "namespace": [], "gw": "g"},
    "client, namespace": {"role": "client", "namespace": ["g"], "gw": "g"},
    "client, other namespace": {"role": "client", "namespace": ["other"], "gw": "g"},
    "client, longer namespace": {"role": "client", "namespace": ["g.below", "gg"], "gw": "g"},
    "client, notes": {"role": "client", "namespace": [], "gw": "g", "tables": ["notes"]},
    "client, pattern": {"role": "client", "namespace": [], "gw": "g", "tables": ["g.n*"]},
    "client, no table": {"role": "client", "namespace": [], "gw": "g", "tables": []},
    "client, elsewhere": {"role": "client", "namespace": [], "gw": "other"},
    "writer, no gateway": {"role": "writer", "namespace": "*"},
    "admin": {"role": "admin", "namespace": "*"},
    "admin, namespace": {"role": "admin", "namespace": ["g"]},
    "admin, other namespace": {"role": "admin", "namespace": ["other"]},
    "admin, notes": {"role": "admin", "namespace": ["g"], "tables": ["notes"]},
    "admin, gateway": {"role": "admin", "namespace": "*", "gw": "g"},
}
EVERY = frozenset(["notes", "secrets"])
NOTES = frozenset(["notes"])
NONE: frozenset[str] = frozenset()
# By token: the tables of gateway `g` that it reads and writes; None: the door is shut.
TABLES: dict[str, frozenset[str] | None] = {
    "client": EVERY,
    "client, namespace": EVERY,
    "client, other namespace": None,
    "client, longer namespace": None,
    "client, notes": NOTES,
    "client, pattern": NOTES,
    "client, no table": NONE,
    "client, elsewhere": None,
    "writer, no gateway": None,
    "admin": EVERY,
    "admin, namespace": EVERY,
    "admin, other namespace": None,
    "admin, notes": NOTES,
    "admin, gateway": EVERY,
}
SCHEMA_NOTES, SCHEMA_SECRETS = (
    {"table": table, "columns": [{"name": "owner", "type": "string"}]} for table in ("notes", "secrets")
)
# By request: the tokens that it is answered for; everybody else is refused with 403.
WHOLE = {"admin", "admin, namespace", "admin, gateway"}
ADMIN: list[tuple[str, str, Any, set[str]]] = [
    ("GET", "/admin/schema/g", None, WHOLE | {"admin, notes"}),
    ("POST", "/admin/schema/g", SCHEMA_NOTES, WHOLE | {"admin, notes"}),
    ("POST", "/admin/schema/g", SCHEMA_SECRETS, WHOLE),
    ("GET", "/admin/rules/g", None, WHOLE),
    ("POST", "/admin/rules/g", {"buckets": [{"name": "all"}]}, WHOLE),
    ("GET", "/v1/pipeline/checkpoints", None, {"admin"}),
]


def token_of(name: str) -> dict[str, str]:
    return bearer(token(sub=SUB, **TOKENS[name]))


def push_of(table: str, row: str, client: str = SUB) -> bytes:
    hlc = pack(SystemClock().now_ms(), 0)
    columns = (sync.ColumnDelta("owner", b'"ada"'),)
    name = sync.delta_id(table=table, row_id=row, columns=columns, hlc=hlc, client_id=client)
    delta = sync.RowDelta(op=1, table=table, row_id=row, columns=columns, hlc=hlc, client_id=client, delta_id=name)
    return sync.encode_push(sync.SyncPush(client_id=client, deltas=[delta]))


def write_checkpoint(data: Path, log: LogId) -> None:
    """As the pipeline makes them: one row of each table."""
    folder = data / "sync" / "checkpoints" / "g" / f"{2:020d}"
    folder.mkdir(parents=True)
    cell = {"column": "owner", "value": '"ada"', "hlc": 7, "source": SUB}
    rows = [{"table": table, "row_id": "r", "tombstone": None, "cells": [cell]} for table in sorted(EVERY)]
    stamp = [("hlc", pa.int64()), ("source", pa.string())]
    cells = pa.list_(pa.struct([("column", pa.string()), ("value", pa.string()), *stamp]))
    schema = pa.schema(
        [("table", pa.string()), ("row_id", pa.string()), ("tombstone", pa.struct(stamp)), ("cells", cells)]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "part-0.parquet")
    made = CheckpointMade(namespace="g", position=2, rows=2, version=VERSION, log=log)
    (folder / DOCUMENT).write_bytes(msgspec.json.encode(made))


@asynccontextmanager
async def served(data: Path, *, ruled: bool = False) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A secured server whose gateway `g` has a row in each of two tables, and a checkpoint."""
    async with gateway_on_socket(data, gateway_config=SECURED) as (gateway, url):
        base = url.replace("ws://", "http://").removesuffix("/ws")
        async with httpx.AsyncClient(base_url=base, headers=PROTOBUF, timeout=60) as client:
            for table in sorted(EVERY):
                answer = await client.post("/sync/g/push", content=push_of(table, "r"), headers=token_of("client"))
                assert answer.status_code == 200, answer.text
            if ruled:
                rules = {"buckets": [{"name": "all"}]}
                headers = token_of("admin") | JSON
                assert (await client.post("/admin/rules/g", json=rules, headers=headers)).status_code == 200
            write_checkpoint(data, gateway.lineage.log)
            yield client, url.removesuffix("/ws") + "/sync/g/ws"


def tables_in(body: bytes) -> set[str]:
    return {delta.table for delta in sync.decode_response(body).deltas}


@pytest.mark.parametrize("ruled", [False, True])
async def test_what_a_token_reads(tmp_path: Path, ruled: bool) -> None:
    async with served(tmp_path, ruled=ruled) as (client, url):
        for name, tables in TABLES.items():
            pulled = await client.get("/sync/g/pull", headers=token_of(name))
            plain = token_of(name) | {"accept-encoding": "identity"}
            checkpoint = await client.get("/sync/g/checkpoint", headers=plain)
            pull = sync.encode_request(sync.SyncPull(client_id=SUB))
            if tables is None:
                assert (pulled.status_code, checkpoint.status_code) == (403, 403), name
                with pytest.raises(websockets.InvalidStatus, match="403"):
                    await websockets.connect(url, additional_headers=token_of(name))
                continue
            async with websockets.connect(url, additional_headers=token_of(name)) as socket:
                await socket.send(pull)
                over_socket = await socket.recv()
            assert isinstance(over_socket, bytes)
            assert tables_in(pulled.content) == tables_in(over_socket) == tables, name
            pieces = [tables_in(piece) for piece in sync.split_pieces(checkpoint.content)]
            assert set().union(*pieces) == tables, name


async def test_no_answer_is_taken_for_another_token_s(tmp_path: Path) -> None:
    """A checkpoint is cached by its tag, so tokens for other tables have other tags."""
    async with served(tmp_path) as (client, _):
        tags = {
            (await client.get("/sync/g/checkpoint", headers=token_of(name))).headers["etag"]
            for name in ("client", "client, notes", "client, no table")
        }
        assert len(tags) == 3


@pytest.mark.parametrize("ruled", [False, True])
async def test_broadcasts_keep_to_a_token_s_tables(tmp_path: Path, ruled: bool) -> None:
    """Two connections at the same cursor: frames are shared, but not between tokens for different tables."""
    async with served(tmp_path, ruled=ruled) as (client, url):
        sockets = {}
        for name in ("client", "client, notes"):
            sockets[name] = await websockets.connect(url, additional_headers=token_of(name))
            await sockets[name].send(sync.encode_request(sync.SyncPull(client_id=SUB)))
            await sockets[name].recv()
        for table in ("secrets", "notes"):
            answer = await client.post("/sync/g/push", content=push_of(table, "new"), headers=token_of("client"))
            assert answer.status_code == 200
        found: dict[str, set[str]] = {}
        for name, socket in sockets.items():
            found[name] = set()
            while "notes" not in found[name]:
                frame = await asyncio.wait_for(socket.recv(), 30)
                assert isinstance(frame, bytes)
                # Without the tag of a broadcast.
                found[name] |= tables_in(frame[1:])
            await socket.close()
        assert found == {"client": set(EVERY), "client, notes": set(NOTES)}


async def test_what_a_token_writes(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, url):
        for number, (name, tables) in enumerate(TABLES.items()):
            for table in sorted(EVERY):
                allowed = tables is not None and table in tables
                body = push_of(table, f"by-{number}")
                answer = await client.post("/sync/g/push", content=body, headers=token_of(name))
                assert answer.status_code == (200 if allowed else 403), (name, table, answer.text)
                if tables is None:
                    with pytest.raises(websockets.InvalidStatus, match="403"):
                        await websockets.connect(url, additional_headers=token_of(name))
                    continue
                async with websockets.connect(url, additional_headers=token_of(name)) as socket:
                    # The tag of a push.
                    try:
                        await socket.send(b"\x01" + push_of(table, f"over-{number}"))
                        await socket.recv()
                        assert allowed, (name, table)
                    except websockets.ConnectionClosed:
                        assert not allowed, (name, table)
        everything = await client.get("/sync/g/pull?limit=1000", headers=token_of("admin"))
        deltas = sync.decode_response(everything.content).deltas
        written = {(delta.table, delta.row_id) for delta in deltas if delta.row_id != "r"}
        assert written == {
            (table, f"{way}-{number}")
            for number, tables in enumerate(TABLES.values())
            for table in tables or ()
            for way in ("by", "over")
        }


async def test_what_an_admin_may(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        for method, path, body, allowed in ADMIN:
            for name in TOKENS:
                headers = token_of(name) | JSON
                answer = await client.request(method, path, json=body, headers=headers)
                expected = {200, 204} if name in allowed else {403}
                assert answer.status_code in expected, (method, path, name, answer.status_code, answer.text)
        for name in TOKENS.keys() - WHOLE:
            answer = await client.post("/admin/checkpoint/g", headers=token_of(name))
            assert answer.status_code == 403, name
        shown = await client.get("/admin/schema/g", headers=token_of("admin, notes"))
        assert [schema["table"] for schema in shown.json()] == ["notes"]


def test_a_flush_names_only_the_token_s_tables() -> None:
    table = FlushedTable(covered=1, snapshot_id=None, error=None)
    names = ("g.notes", "g.secrets", "g.below.notes", "gg.notes", "other.notes")
    flushed = Flushed(complete=True, position=1, elapsed_ms=1, tables=dict.fromkeys(names, table))
    for name, expected in {
        "admin": set(names),
        "admin, namespace": {"g.notes", "g.secrets", "g.below.notes"},
        "admin, notes": {"g.notes", "g.below.notes"},
        "admin, gateway": {"g.notes", "g.secrets"},
    }.items():
        principal = principal_of_claims({"sub": SUB, **TOKENS[name]}, None)
        assert seen_flush(flushed, Caller(SUB, principal)).tables.keys() == expected, name
