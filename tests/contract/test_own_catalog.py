"""A gateway whose tables are in a catalog of somebody else's: here another gateway's, which asks for tokens."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.gateway import Gateway
from mainstem.catalog import TableIdent
from mainstem.catalog.settings import CatalogSettings
from mainstem.model import MainstemError, NotFound, TableName
from mainstem.tables.marks import position_mark
from tests.contract.test_auth_gate import http_url
from tests.harness.inprocess import gateway_on_socket

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "_key", "type": "string", "required": False}]}
SECRET = {"us": "open sesame"}
QUIET: dict[str, Any] = {"server": ServerConfig(port=0), "pipeline": PipelineConfig(enabled=False)}


class Theirs:
    """The other catalog, as an engine talks to it."""

    def __init__(self, url: str) -> None:
        form = {"grant_type": "client_credentials", "client_id": "us", "client_secret": SECRET["us"]}
        token = httpx.post(f"{url}/v1/oauth/tokens", data=form).json()["access_token"]
        self._http = httpx.Client(base_url=f"{url}/v1", headers={"Authorization": f"Bearer {token}"})

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def make(self, namespace: str, name: str) -> None:
        self.post("/namespaces", {"namespace": namespace.split(".")})
        self.post(f"/namespaces/{namespace.replace('.', '%1F')}/tables", {"name": name, "schema": SCHEMA})

    def commit(self, namespace: str, name: str, snapshot_id: int, summary: dict[str, str]) -> None:
        place = self._http.get(f"/namespaces/{namespace}/tables/{name}").json()["metadata"]["location"]
        snapshot = {
            "snapshot-id": snapshot_id, "sequence-number": snapshot_id, "timestamp-ms": int(time.time() * 1000),
            "manifest-list": f"{place}/metadata/snap-{snapshot_id}.avro", "schema-id": 0,
            "summary": {"operation": "append", **summary},
        }  # fmt: skip
        head = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
        body = {
            "identifier": {"namespace": [namespace], "name": name},
            "requirements": [],
            "updates": [{"action": "add-snapshot", "snapshot": snapshot}, head],
        }
        self.post(f"/namespaces/{namespace}/tables/{name}", body)

    def drop(self, namespace: str, name: str) -> None:
        assert self._http.delete(f"/namespaces/{namespace}/tables/{name}").status_code == 204


@pytest.fixture
async def theirs(tmp_path: Path) -> AsyncIterator[tuple[Theirs, str, Path]]:
    config = Config(**QUIET, catalog=CatalogSettings(clients=SECRET, token_secret="s" * 32))
    async with gateway_on_socket(tmp_path / "theirs", gateway_config=config) as (_, url):
        yield await asyncio.to_thread(Theirs, http_url(url)), http_url(url), tmp_path / "theirs" / "warehouse"


async def until(what: Any, wanted: Any) -> None:
    async with asyncio.timeout(20):
        while (found := what()) != wanted:
            await asyncio.sleep(0.02)
    assert found == wanted


async def test_their_tables_are_seen_and_never_changed_from_here(
    theirs: tuple[Theirs, str, Path], tmp_path: Path
) -> None:
    other, url, warehouse = theirs
    await asyncio.to_thread(other.make, "shop", "orders")
    await asyncio.to_thread(other.make, "deep.down", "lines")
    settings = CatalogSettings(uri=url, credential=f"us:{SECRET['us']}", warehouse=str(warehouse), poll_s=0.1)
    config = Config(**QUIET, catalog=settings)
    async with gateway_on_socket(tmp_path / "ours", gateway_config=config) as (gateway, ours):
        catalog = gateway.catalog
        orders = TableName("shop", "orders")
        assert sorted(str(each.table) for each in catalog.tables()) == ["deep.down.lines", "shop.orders"]
        assert catalog.list_namespaces() == [("deep",), ("shop",)]
        assert catalog.list_namespaces(("deep",)) == [("deep", "down")]
        log = gateway.lineage.log
        await asyncio.to_thread(other.commit, "shop", "orders", 1, {position_mark(log): "7"})
        await until(lambda: dict(catalog.marks(orders)), {log: 7})
        async with httpx.AsyncClient(base_url=http_url(ours)) as http:
            loaded = (await http.get("/v1/namespaces/shop/tables/orders")).json()
            assert loaded["metadata"]["current-snapshot-id"] == 1
            body = {"name": "mine", "schema": SCHEMA}
            for answer in (
                await http.post("/v1/namespaces/shop/tables", json=body),
                await http.delete("/v1/namespaces/shop/tables/orders"),
                await http.delete("/v1/namespaces/shop"),
            ):
                assert answer.status_code == 403 and "catalog of yours" in answer.text, answer.text
        await asyncio.to_thread(other.drop, "shop", "orders")
        await until(lambda: [str(each.table) for each in catalog.tables()], ["deep.down.lines"])
        with pytest.raises(NotFound):
            catalog.load_table(TableIdent(("shop",), "orders"))


async def test_a_log_that_their_tables_are_ahead_of_goes_on_as_another(
    theirs: tuple[Theirs, str, Path], tmp_path: Path
) -> None:
    """As with a backup: the tables are looked at before anything is accepted."""
    other, url, warehouse = theirs
    settings = CatalogSettings(uri=url, credential=f"us:{SECRET['us']}", warehouse=str(warehouse))
    config = Config(**QUIET, catalog=settings)
    gateway = await Gateway.open(config, tmp_path / "ours")
    log = gateway.lineage.log
    await gateway.close()
    await asyncio.to_thread(other.make, "shop", "orders")
    await asyncio.to_thread(other.commit, "shop", "orders", 1, {position_mark(log): "1000"})
    gateway = await Gateway.open(config, tmp_path / "ours")
    assert gateway.lineage.log != log
    await gateway.close()


async def test_what_does_not_go_together_is_said_at_the_start(theirs: tuple[Theirs, str, Path], tmp_path: Path) -> None:
    _, url, warehouse = theirs
    good: dict[str, Any] = {"uri": url, "warehouse": str(warehouse), "credential": f"us:{SECRET['us']}"}
    for number, (change, message) in enumerate(
        (
            ({"warehouse": ""}, "expected=warehouse"),
            ({"credential": "us:wrong"}, "lets us not in|does not answer"),
            ({"uri": "http://127.0.0.1:9"}, "cannot be reached"),
        )
    ):
        config = Config(**QUIET, catalog=CatalogSettings(**{**good, **change}))
        with pytest.raises(MainstemError, match=message):
            await Gateway.open(config, tmp_path / f"ours{number}")
