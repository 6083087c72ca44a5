"""The whole API stands under `/lakehouse` too, by the same rules."""

import asyncio
import json
from pathlib import Path

import duckdb
import httpx
import msgspec
import pytest
from pyiceberg.catalog import load_catalog
from websockets.asyncio.client import connect

from mainstem.admission import AuthSettings
from tests.contract.dolake.dolake_messages import batch
from tests.harness.inprocess import CONFIG, gateway_on_socket

PATHS = [
    "/health", "/status", "/metrics", "/v1/config", "/v1/namespaces", "/v1/config/server", "/v1/compaction/candidates"
]  # fmt: skip


def url_of(ws: str) -> str:
    return ws.replace("ws://", "http://").removesuffix("/ws")


async def test_every_answer_is_the_same_by_both_names(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path) as (_, ws), httpx.AsyncClient(base_url=url_of(ws)) as http:
        for path in PATHS:
            plain, long = await http.get(path), await http.get(f"/lakehouse{path}")
            assert (plain.status_code, long.status_code) == (200, 200), path
            assert plain.headers["content-type"] == long.headers["content-type"]
        made = await http.post("/lakehouse/v1/namespaces", json={"namespace": ["shop"]})
        assert made.status_code == 200
        assert (await http.get("/v1/namespaces")).json()["namespaces"] == [["shop"]]
        # As DoLake's examples have it: engines add their own /v1 to it.
        assert (await http.get("/lakehouse/v1/v1/config")).status_code == 200
        for nothing in ("/lakehouse/nothing", "/lakehousehealth", "/lakehouse/lakehouse/health", "/%6Cakehouse/health"):
            assert (await http.get(nothing)).status_code == 404, nothing


@pytest.mark.parametrize("suffix", ["/lakehouse", "/lakehouse/v1"])
async def test_engines_find_the_catalog_there(tmp_path: Path, suffix: str) -> None:
    async with gateway_on_socket(tmp_path) as (_, ws):

        def use() -> list[tuple[str, ...]]:
            catalog = load_catalog("lake", type="rest", uri=url_of(ws) + suffix, warehouse="lake")
            catalog.create_namespace("shop")
            return list(catalog.list_namespaces())

        assert await asyncio.to_thread(use) == [("shop",)]


async def test_the_gate_stands_before_both_names(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, auth=AuthSettings(keys={"k": "s" * 32}))
    async with (
        gateway_on_socket(tmp_path, gateway_config=config) as (_, ws),
        httpx.AsyncClient(base_url=url_of(ws)) as http,
    ):
        for path in PATHS:
            plain, long = await http.get(path), await http.get(f"/lakehouse{path}")
            # A probe needs no token.
            assert plain.status_code == long.status_code == (200 if path == "/health" else 401), path


async def test_the_shard_is_in_the_log_for_the_history(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path) as (gateway, ws):
        for number, path in enumerate(("/ws", "/lakehouse", "/lakehouse/ws"), 1):
            url = ws.removesuffix("/ws") + path
            async with connect(url, additional_headers={"X-Shard-Name": f"users-shard-{number}"}) as socket:
                await socket.send(json.dumps(batch("s", number)))
                assert json.loads(await socket.recv())["status"] == "ok"
        await gateway.flush(0.01)
        files = str(tmp_path / "log" / "segments" / "*.parquet")
        found = duckdb.sql(f"SELECT metadata->>'sourceShardName' FROM '{files}' ORDER BY position").fetchall()
    assert found == [(f"users-shard-{number}",) for number in (1, 2, 3)]
