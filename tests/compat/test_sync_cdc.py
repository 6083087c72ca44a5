"""Doors meet on the log: what a CDC producer changes reaches sync clients, and what they push is in the same table."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, HttpTransport, LocalDB, SyncCoordinator, Table, WebSocketTransport
from mainstem.client.changes import delete, insert, update
from mainstem.client.duck import connect_duckdb

GATEWAY = "shopfloor"
TABLES = [Table("orders", {"item": "text", "amount": "integer", "note": "text"})]
TIMEOUT_S = 120.0


async def until(db: LocalDB, expected: dict[str, dict[str, Any]]) -> None:
    """Wait until a replica is as it should be, told by its own changes."""
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    disconnect = db.changed.connect(lambda _: loop.call_soon_threadsafe(changed.set))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while rows(db) != expected:
                changed.clear()
                await changed.wait()
    finally:
        disconnect()


def rows(db: LocalDB) -> dict[str, dict[str, Any]]:
    return {row.row_id: row.values for row in db.all("orders")}


def in_the_table(url: str) -> dict[str, tuple[Any, ...]]:
    with connect_duckdb(url) as connection:
        found = connection.execute(f"SELECT _key, item, amount, note FROM lake.{GATEWAY}.orders").fetchall()
    return {key: tuple(values) for key, *values in found}


@pytest.mark.spark
async def test_a_row_is_edited_through_both_doors(live_server: ServerProcess, tmp_path: Path) -> None:
    table = f"{GATEWAY}.orders"
    async with (
        CdcClient(live_server.ws_url, source="shop-db") as producer,
        httpx.AsyncClient(base_url=live_server.url, timeout=TIMEOUT_S) as http,
    ):
        # Before anyone follows the gateway: pulled from where it rests.
        first = [insert(table, "o1", {"item": "tea", "amount": 1}), insert(table, "o2", {"item": "pot"})]
        await (await producer.send(first)).durable()
        screen = LocalDB.open(tmp_path / "screen.db", tables=TABLES, client_id="screen")
        watching = SyncCoordinator(screen, WebSocketTransport(live_server.url, GATEWAY))
        watching.start_auto_sync()
        try:
            await until(screen, {"o1": {"item": "tea", "amount": 1}, "o2": {"item": "pot"}})
            # From here on it is broadcast.
            await (await producer.send([update(table, "o1", {"amount": 2}), delete(table, "o2")])).durable()
            await until(screen, {"o1": {"item": "tea", "amount": 2}})
            watching.tracker.update("orders", "o1", {"note": "for table 4"})
            watching.tracker.insert("orders", "o3", {"item": "cake", "amount": 3})
            await watching.sync_once()
            await (await producer.send([update(table, "o1", {"item": "mint tea"})])).durable()
            both = {
                "o1": {"item": "mint tea", "amount": 2, "note": "for table 4"},
                "o3": {"item": "cake", "amount": 3},
            }
            await until(screen, both)
        finally:
            await watching.close()
        # A client that comes late sees the same, and so does whoever queries the table.
        late = LocalDB.open(tmp_path / "late.db", tables=TABLES, client_id="late")
        pulling = SyncCoordinator(late, HttpTransport(live_server.url, GATEWAY))
        await pulling.sync_once()
        await pulling.close()
        assert rows(late) == rows(screen) == both
        assert (await http.post(f"/admin/flush/{GATEWAY}")).status_code == 200
    assert in_the_table(live_server.url) == {
        "o1": ("mint tea", 2, "for table 4"),
        "o3": ("cake", 3, None),
    }
    late.close()
    screen.close()
