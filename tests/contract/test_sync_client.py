"""The Python sync client against a real gateway, over every transport."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.client import HttpTransport, LocalDB, SyncCoordinator, Table, WebSocketTransport
from mainstem.client.sync import Phase, Transport
from mainstem.runtime.clock import SystemClock
from tests.harness.inprocess import gateway_on_socket

TABLES = [Table("todos", {"title": "text", "done": "boolean", "rank": "integer"})]
TIMEOUT_S = 60.0

Connect = Callable[[str, str], Transport]


@pytest.fixture(params=[HttpTransport, WebSocketTransport])
def connect(request: pytest.FixtureRequest) -> Connect:
    kind: Connect = request.param
    return kind


@asynccontextmanager
async def serving(data: Path) -> AsyncIterator[str]:
    async with gateway_on_socket(data) as (_, url):
        yield url.replace("ws://", "http://").removesuffix("/ws")


class Replica:
    """A database in a file, and its coordinator."""

    def __init__(self, folder: Path, name: str) -> None:
        self.db = LocalDB.open(folder / f"{name}.db", tables=TABLES, client_id=name)
        self.sync: SyncCoordinator

    def connect(self, transport: Transport, **options: Any) -> None:
        self.sync = SyncCoordinator(self.db, transport, **options)

    def values(self, row_id: str) -> dict[str, Any] | None:
        row = self.db.get("todos", row_id)
        return row.values if row else None

    async def close(self) -> None:
        await self.sync.close()
        self.db.close()


async def test_two_clients_meet_also_after_a_restart_of_the_server(tmp_path: Path, connect: Connect) -> None:
    ada, bob = Replica(tmp_path, "ada"), Replica(tmp_path, "bob")
    async with serving(tmp_path / "data") as url:
        ada.connect(connect(url, "team a"))
        bob.connect(connect(url, "team a"))
        ada.sync.tracker.insert("todos", "r1", {"title": "Buy milk", "done": False, "rank": None})
        ada.sync.tracker.insert("todos", "r2", {"title": "漢字 😀", "rank": 2**60})
        await ada.sync.sync_once()
        await bob.sync.sync_once()
        assert bob.values("r1") == {"title": "Buy milk", "done": False, "rank": None}
        assert bob.values("r2") == {"title": "漢字 😀", "rank": 2**60}
        await ada.sync.close()
        await bob.sync.close()
    # Both edit while there is no server, one of them the other's row, and one deletes what the other edits.
    ada.sync.tracker.update("todos", "r1", {"title": "Buy bread"})
    ada.sync.tracker.delete("todos", "r2")
    bob.sync.tracker.update("todos", "r1", {"done": True})
    async with serving(tmp_path / "data") as url:
        ada.connect(connect(url, "team a"))
        bob.connect(connect(url, "team a"))
        for replica in (bob, ada, bob):
            await replica.sync.sync_once()
        for replica in (ada, bob):
            assert replica.db.query("SELECT * FROM todos") == [
                {"_key": "r1", "title": "Buy bread", "done": 1, "rank": None}
            ]
            assert replica.db.state().pending == 0
        await ada.close()
        await bob.close()


async def test_many_pages_and_pushes(tmp_path: Path, connect: Connect) -> None:
    ada, bob = Replica(tmp_path, "ada"), Replica(tmp_path, "bob")
    async with serving(tmp_path / "data") as url:
        ada.connect(connect(url, "g"), push_max=40)
        bob.connect(connect(url, "g"), pull_max=7)
        for number in range(100):
            ada.sync.tracker.insert("todos", f"r{number}", {"rank": number})
        await ada.sync.sync_once()
        await bob.sync.sync_once()
        assert bob.db.query("SELECT count(*) AS n, sum(rank) AS s FROM todos") == [{"n": 100, "s": 4_950}]
        await ada.close()
        await bob.close()


async def test_a_clock_that_runs_ahead_is_mended_with_the_servers_word(tmp_path: Path, connect: Connect) -> None:
    ada, bob = Replica(tmp_path, "ada"), Replica(tmp_path, "bob")
    ada.db.clock = _Ahead()
    async with serving(tmp_path / "data") as url:
        ada.connect(connect(url, "g"))
        bob.connect(connect(url, "g"))
        ada.sync.tracker.insert("todos", "r1", {"title": "from the future"})
        await ada.sync.sync_once()
        assert ada.db.state().pending == 0
        await bob.sync.sync_once()
        bob.sync.tracker.update("todos", "r1", {"title": "bob's, later"})
        await bob.sync.sync_once()
        await ada.sync.sync_once()
        assert ada.values("r1") == {"title": "bob's, later"}
        await ada.close()
        await bob.close()


async def test_what_the_server_refuses_is_put_aside(tmp_path: Path, connect: Connect) -> None:
    ada = Replica(tmp_path, "ada")
    async with serving(tmp_path / "data") as url:
        ada.connect(connect(url, "g"))
        ada.sync.tracker.insert("todos", "r1", {"title": "fine"})
        # The name is reserved for the lake's own tables; the client cannot know that.
        ada.sync.tracker.insert("todos_history", "r1", {"title": "refused"})
        ada.sync.tracker.insert("todos", "r2", {"title": "fine too"})
        await ada.sync.sync_once()
        (letter,) = ada.db.dead_letters()
        assert (letter.delta.table, letter.reason) == ("todos_history", "invalid_name")
        assert ada.db.state().pending == 0
        await ada.close()


async def test_a_row_that_leaves_the_view_is_gone_here_and_comes_back_whole(tmp_path: Path, connect: Connect) -> None:
    ada, bob = Replica(tmp_path, "ada"), Replica(tmp_path, "bob")
    mine = {"name": "mine", "tables": ["todos"], "filters": [{"column": "title", "op": "eq", "value": "jwt:sub"}]}
    async with serving(tmp_path / "data") as url:
        async with httpx.AsyncClient(base_url=url, timeout=60) as admin:
            assert (await admin.post("/admin/rules/g", json={"buckets": [mine]})).status_code == 200
        ada.connect(connect(url, "g"))
        bob.connect(connect(url, "g"))
        ada.sync.tracker.insert("todos", "r1", {"title": "ada", "done": False, "rank": 1})
        ada.sync.tracker.insert("todos", "r2", {"title": "ada"})
        for replica in (ada, bob):
            await replica.sync.sync_once()
        assert bob.db.row_keys() == set()
        # Handed over: it leaves the one view and enters the other, with what was written before.
        ada.sync.tracker.update("todos", "r1", {"title": "bob"})
        for replica in (ada, bob):
            await replica.sync.sync_once()
        assert ada.db.row_keys() == {("todos", "r2")}
        assert ada.db.query("SELECT _key FROM todos") == [{"_key": "r2"}]
        assert bob.values("r1") == {"title": "bob", "done": False, "rank": 1}
        # And back, edited meanwhile.
        bob.sync.tracker.update("todos", "r1", {"title": "ada", "rank": 2})
        for replica in (bob, ada):
            await replica.sync.sync_once()
        assert bob.db.row_keys() == set()
        assert ada.values("r1") == {"title": "ada", "done": False, "rank": 2}
        await ada.close()
        await bob.close()


async def test_changes_come_by_themselves_over_a_socket(tmp_path: Path) -> None:
    ada, bob = Replica(tmp_path, "ada"), Replica(tmp_path, "bob")
    async with serving(tmp_path / "data") as url:
        ada.connect(WebSocketTransport(url, "g"))
        bob.connect(WebSocketTransport(url, "g"), poll_s=3_600.0)
        idle = asyncio.Event()
        bob.sync.status_changed.connect(lambda status: idle.set() if status.phase is Phase.IDLE else None)
        bob.sync.start_auto_sync()
        async with asyncio.timeout(TIMEOUT_S):
            await idle.wait()
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        bob.db.changed.connect(lambda _: loop.call_soon_threadsafe(changed.set))
        ada.sync.start_auto_sync()
        ada.sync.tracker.insert("todos", "r1", {"title": "news"})
        async with asyncio.timeout(TIMEOUT_S):
            await changed.wait()
        assert bob.values("r1") == {"title": "news"}
        await ada.close()
        await bob.close()


class _Ahead:
    """An hour ahead of the machine."""

    def now_ms(self) -> int:
        return SystemClock().now_ms() + 3_600_000

    def monotonic_s(self) -> float:
        return 0.0
