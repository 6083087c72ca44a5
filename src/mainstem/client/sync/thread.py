"""The sync for programs without an event loop: a coordinator on a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from mainstem.client.closing import Closing
from mainstem.client.sync.coordinator import SyncCoordinator
from mainstem.client.sync.local_db import LocalDB
from mainstem.client.sync.status import SyncStatus
from mainstem.client.sync.tracker import SyncTracker
from mainstem.client.sync.transports.transport import Transport

T = TypeVar("T")


class SyncThread(Closing):
    """A `SyncCoordinator` whose calls block. `transport` makes the transport, in the thread that will use it.

    with LocalDB.open("todos.db") as db, SyncThread(db, lambda: HttpTransport(url, "my-app")) as sync:
        sync.start_auto_sync()
    """

    def __init__(self, db: LocalDB, transport: Callable[[], Transport], **options: Any) -> None:
        """`options` are those of `SyncCoordinator`."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mainstem-sync", daemon=True)
        self._thread.start()
        self.coordinator: SyncCoordinator = self._call(_made(db, transport, options))

    @property
    def tracker(self) -> SyncTracker:
        """The app's way to write."""
        return self.coordinator.tracker

    @property
    def status(self) -> SyncStatus:
        """What the app shows of the sync."""
        return self.coordinator.status

    def start_auto_sync(self) -> None:
        """Sync from now on, until `stop`."""
        self._call(_started(self.coordinator))

    def sync_once(self) -> None:
        """Sync once, now. Raises what went wrong; a later try may mend it."""
        self._call(self.coordinator.sync_once())

    def hurry(self) -> None:
        """End the pause between two tries."""
        self._loop.call_soon_threadsafe(self.coordinator.hurry)

    def stop(self) -> None:
        """Stop and wait until nothing is under way. What is queued stays queued."""
        self._call(self.coordinator.stop())

    def close(self) -> None:
        """Stop, and end the thread."""
        if self._loop.is_closed():
            return
        self._call(self.coordinator.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _made(db: LocalDB, transport: Callable[[], Transport], options: dict[str, Any]) -> SyncCoordinator:
    return SyncCoordinator(db, transport(), **options)


async def _started(coordinator: SyncCoordinator) -> None:
    coordinator.start_auto_sync()
