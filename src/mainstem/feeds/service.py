"""What the sync door asks: push, pull, hear of arrivals. Everything it answers is encoded already."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mainstem.feeds.feeds import PULL_DEFAULT, PULL_MAX, Feeds, Page
from mainstem.feeds.pushes import Pushes
from mainstem.feeds.schemas import Schemas
from mainstem.model.position import LogPosition
from mainstem.wire.sync import SyncPush


class Viewer(NamedTuple):
    """Who reads a feed: decides what is in it."""

    client: str
    claims: Mapping[str, Any]
    # Whether it knows the operation EVICT; otherwise a row that leaves its view is deleted there.
    evicts: bool


class Reply(NamedTuple):
    """Encoded deltas, and the cursor after them."""

    encoded: list[bytes]
    cursor: LogPosition
    has_more: bool


class SyncService:
    """The feeds and the way in, as one door sees them."""

    def __init__(self, pushes: Pushes, feeds: Feeds, schemas: Schemas) -> None:
        self._pushes = pushes
        self._feeds = feeds
        self.schemas = schemas

    async def push(self, gateway: str, push: SyncPush) -> LogPosition:
        """Make a push durable; the arrival of its last delta."""
        return await self._pushes.push(gateway, push)

    async def pull(self, gateway: str, viewer: Viewer, since: int, limit: int = 0) -> Reply:
        """What arrived after a cursor, as far as the viewer may see it."""
        del viewer
        page = await self._feeds.pull(gateway, since, min(limit or PULL_DEFAULT, PULL_MAX))
        return _reply(page)

    def arrived(self, gateway: str, viewer: Viewer, since: LogPosition, limit: int) -> Reply | None:
        """The same at once, from memory; None where the viewer is too far behind for that."""
        del viewer
        page = self._feeds.pull_hot(gateway, since, limit)
        return None if page is None else _reply(page)

    def view_key(self, gateway: str, viewer: Viewer) -> object:
        """Viewers with equal keys see the same."""
        del gateway, viewer
        return None

    def listen(self, gateway: str, listener: Callable[[], None]) -> Callable[[], None]:
        """Hear of arrivals; the answer ends that."""
        return self._feeds.listen(gateway, listener)

    @property
    def newest(self) -> LogPosition:
        """The newest arrival."""
        return self._feeds.newest

    async def close(self) -> None:
        """Wait for what is under way, and let go of the files."""
        await self._pushes.settled()
        await self._feeds.close()


def _reply(page: Page) -> Reply:
    return Reply([entry.encoded for entry in page.entries], page.cursor, page.has_more)
