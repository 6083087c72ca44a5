"""Two gateways over one PostgreSQL: what is committed through one is known to the other."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import psycopg

from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.catalog import TableIdent
from mainstem.catalog.settings import CatalogSettings
from mainstem.catalog.stores.postgres_watch import PAYLOAD_BYTES_MAX, parse, payload
from mainstem.client import CdcClient, insert
from tests.contract.catalog_client import SCHEMA, new_database

WAIT_S = 60.0


def test_names_survive_a_notification() -> None:
    idents = [TableIdent(("a", "b.c"), "t"), TableIdent(("ü",), "t\u2028x")]
    assert parse(payload("me", idents), "you") == idents
    assert parse(payload("me", idents), "me") == []
    assert parse(payload("me", [TableIdent(("n" * 255,) * 16, "t" * 255)] * 3), "you") is None
    assert len(payload("me", [TableIdent(("ü" * 255,) * 16, "t")]).encode()) <= PAYLOAD_BYTES_MAX


async def test_commits_through_another_gateway_are_persisted_here(tmp_path: Path) -> None:
    database = new_database()
    config = Config(
        server=ServerConfig(port=0),
        pipeline=PipelineConfig(enabled=False),
        catalog=CatalogSettings(postgres=database, warehouse=str(tmp_path / "warehouse")),
    )
    async with ServerProcess(tmp_path / "one", config) as one, ServerProcess(tmp_path / "two", config) as two:
        await _make_tables(two)
        # Two clients: whatever the first finds, the second finds after every connection to the database was cut.
        for turn in range(2):
            async with CdcClient(one.ws_url, source=f"s{turn}") as client:
                receipt = await client.send([insert("orders", str(n), {"n": n}) for n in range(10)])
                _, last = (await receipt.durable()).positions or (0, 0)
                # Seals what is there; no pipeline is there to commit it.
                async with httpx.AsyncClient(timeout=60) as http:
                    sealed = (await http.post(f"{one.url}/flush", params={"timeoutS": "0.01"})).json()
                assert (sealed["complete"], sealed["position"]) == (False, last)
                await _commit(two, str((await one.status())["log"]["id"]), last)
                await asyncio.wait_for(receipt.persisted(), WAIT_S)
            told = await _status(one, last)
            assert (told["lagChanges"], told["snapshotId"]) == (0, last)
            # The other sees the snapshot too, and that it holds nothing of its own log.
            told = await _status(two, 0, snapshot_id=last)
            assert told["lagChanges"] == 0
            await asyncio.to_thread(_cut_connections, database)


async def _make_tables(server: ServerProcess) -> None:
    async with httpx.AsyncClient(base_url=f"{server.url}/v1/", timeout=WAIT_S) as http:
        (await http.post("namespaces", json={"namespace": ["default"]})).raise_for_status()
        for name in ("orders", "orders_history"):
            (await http.post("namespaces/default/tables", json={"name": name, "schema": SCHEMA})).raise_for_status()


async def _commit(server: ServerProcess, log: str, position: int) -> None:
    """As the pipeline does: a snapshot that says how much of a log it covers."""
    snapshot: dict[str, Any] = {
        "snapshot-id": position,
        "sequence-number": position,
        "timestamp-ms": 1_800_000_000_000 + position,
        "summary": {"operation": "append", f"mainstem.position.{log}": str(position)},
        "schema-id": 0,
    }
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": position},
    ]
    async with httpx.AsyncClient(base_url=f"{server.url}/v1/namespaces/default/tables/", timeout=WAIT_S) as http:
        for name in ("orders_history", "orders"):
            loaded = await http.get(name)
            if loaded.status_code == 503:
                loaded = await http.get(name)
            snapshot["manifest-list"] = f"{loaded.json()['metadata']['location']}/metadata/snap.avro"
            answer = await http.post(name, json={"requirements": [], "updates": updates})
            if answer.status_code == 503:
                # The database had cut its connection: nothing was written.
                answer = await http.post(name, json={"requirements": [], "updates": updates})
            answer.raise_for_status()


async def _status(server: ServerProcess, position: int, snapshot_id: int | None = None) -> Any:
    async with asyncio.timeout(WAIT_S), httpx.AsyncClient(timeout=60) as http:
        while True:
            table = (await http.get(f"{server.url}/status")).json()["tables"].get("default.orders")
            is_there = table is not None and snapshot_id in (None, table["snapshotId"])
            if is_there and table["covered"] == position:
                return table
            await asyncio.sleep(0.05)


def _cut_connections(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
