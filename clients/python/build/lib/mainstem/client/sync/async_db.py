"""The local database for programs with an event loop: every call in a thread, so that no disk holds the loop up."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mainstem.client.sync.live import LiveQuery, Rows
from mainstem.client.sync.local_db import LocalDB, RowView
from mainstem.client.sync.records import DeadLetter, State
from mainstem.client.sync.replica import LocalWrite
from mainstem.client.sync.schema import Table
from mainstem.client.sync.tracker import SyncTracker


class AsyncLocalDB:
    """`LocalDB` and `SyncTracker` with awaitable calls. `db` is the database itself, for a `SyncCoordinator`.

    async with await AsyncLocalDB.open("todos.db", tables=[...]) as db:
        await db.insert("todos", "r1", {"title": "Buy milk"})
        async with db.live("SELECT title FROM todos") as changes:
            async for rows in changes:
                ...
    """

    def __init__(self, db: LocalDB) -> None:
        self.db = db
        self._tracker = SyncTracker(db)

    @classmethod
    async def open(cls, path: str | Path, *, tables: Iterable[Table] = (), client_id: str | None = None) -> Self:
        """As `LocalDB.open`."""
        return cls(await asyncio.to_thread(lambda: LocalDB.open(path, tables=tables, client_id=client_id)))

    async def close(self) -> None:
        """Close the file. What was written stays."""
        await asyncio.to_thread(self.db.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Reading.

    async def query(self, sql: str, parameters: Any = ()) -> Rows:
        """As `LocalDB.query`."""
        return await asyncio.to_thread(self.db.query, sql, parameters)

    async def get(self, table: str, row_id: str) -> RowView | None:
        """As `LocalDB.get`."""
        return await asyncio.to_thread(self.db.get, table, row_id)

    async def all(self, table: str) -> list[RowView]:
        """As `LocalDB.all`."""
        return await asyncio.to_thread(self.db.all, table)

    async def state(self) -> State:
        """As `LocalDB.state`."""
        return await asyncio.to_thread(self.db.state)

    @asynccontextmanager
    async def live(self, sql: str, parameters: Any = ()) -> AsyncIterator[AsyncIterator[Rows]]:
        """The query's rows now, and then each time that they differ from the last ones."""
        query = await asyncio.to_thread(self.db.live, sql, parameters)
        try:
            yield _follow(query)
        finally:
            query.close()

    # Writing.

    async def insert(self, table: str, row_id: str, columns: Mapping[str, Any]) -> None:
        """As `SyncTracker.insert`."""
        await asyncio.to_thread(self._tracker.insert, table, row_id, columns)

    async def update(self, table: str, row_id: str, columns: Mapping[str, Any]) -> bool:
        """As `SyncTracker.update`."""
        return await asyncio.to_thread(self._tracker.update, table, row_id, columns)

    async def delete(self, table: str, row_id: str) -> bool:
        """As `SyncTracker.delete`."""
        return await asyncio.to_thread(self._tracker.delete, table, row_id)

    async def batch(self, writes: Sequence[LocalWrite]) -> int:
        """As `SyncTracker.batch`."""
        return await asyncio.to_thread(self._tracker.batch, writes)

    # What the server refused.

    async def dead_letters(self) -> list[DeadLetter]:
        """As `LocalDB.dead_letters`."""
        return await asyncio.to_thread(self.db.dead_letters)

    async def retry_dead_letter(self, delta_id: str) -> bool:
        """As `LocalDB.retry_dead_letter`."""
        return await asyncio.to_thread(self.db.retry_dead_letter, delta_id)

    async def discard_dead_letter(self, delta_id: str) -> bool:
        """As `LocalDB.discard_dead_letter`."""
        return await asyncio.to_thread(self.db.discard_dead_letter, delta_id)


async def _follow(query: LiveQuery) -> AsyncIterator[Rows]:
    loop = asyncio.get_running_loop()
    stale = asyncio.Event()
    query.on_stale(_in_loop(loop, stale))
    while not query.closed:
        stale.clear()
        rows = await asyncio.to_thread(query.poll)
        if rows is not None:
            yield rows
        else:
            await stale.wait()


def _in_loop(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> Callable[[], None]:
    def tell() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(event.set)

    return tell
