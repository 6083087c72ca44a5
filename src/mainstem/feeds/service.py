"""What the sync door asks: push, pull, hear of arrivals, checkpoints, rules. What it answers is encoded already."""

from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from mainstem.feeds.checkpoints import Checkpoint, CheckpointRow, Checkpoints, pieces_of
from mainstem.feeds.cursors import Cursors
from mainstem.feeds.feeds import PULL_DEFAULT, PULL_MAX, Feeds, Page
from mainstem.feeds.pushes import Pushes
from mainstem.feeds.rules import RULES_COLUMN, RULES_ROW, Rules, TableScope, read_rules
from mainstem.feeds.schemas import Schemas, TableSchema
from mainstem.feeds.shadow import Shadow
from mainstem.feeds.shadows import Shadows
from mainstem.feeds.views import page_for, sees_at, visible_entries
from mainstem.model.hlc import HlcClock
from mainstem.model.names import RULES_TABLE
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.runtime.clock import Clock
from mainstem.wire.sync import ColumnDelta, Op, RowDelta, SyncPush, delta_id, parse_value

SERVER = "mainstem"
# How long a first sync waits for a checkpoint that it cannot do without. It is told when to come back then.
CHECKPOINT_S_MAX = 20.0

# Brings a gateway's schema into the lake. Raises Invalid where a column is there with another type.
Declare = Callable[[str, TableSchema], Awaitable[None]]


class Viewer(NamedTuple):
    """Who reads a feed: decides what is in it."""

    client: str
    claims: Mapping[str, Any]
    # Whether it knows the operation EVICT; otherwise a row that leaves its view is deleted there.
    evicts: bool
    # The tables that its token is for; None: every one.
    scope: TableScope | None = None


class Reply(NamedTuple):
    """Encoded deltas, and the cursor after them."""

    encoded: list[bytes]
    cursor: LogPosition
    has_more: bool


class SyncService:
    """The feeds and the way in, as one door sees them."""

    def __init__(
        self,
        pushes: Pushes,
        feeds: Feeds,
        shadows: Shadows,
        schemas: Schemas,
        checkpoints: Checkpoints,
        clock: Clock,
        declare: Declare | None = None,
        cursors: Cursors | None = None,
    ) -> None:
        self._pushes = pushes
        self._feeds = feeds
        self._shadows = shadows
        self._clock = clock
        self._declare = declare
        # Positions as clients hold them: what leaves by the door and comes back.
        self.cursors = cursors or Cursors()
        self._hlc = HlcClock()
        self.schemas = schemas
        self.checkpoints = checkpoints

    async def push(self, gateway: str, push: SyncPush, parts: Sequence[bytes] | None = None) -> LogPosition:
        """Make a push durable; the arrival of its last delta. `parts` are the deltas as they were encoded."""
        return await self._pushes.push(gateway, push, parts)

    async def declare(self, gateway: str, schema: TableSchema) -> None:
        """Declare a table: in the lake first, which decides whether that can be, then for pushes."""
        self.schemas.check_schema(gateway, schema)
        if self._declare is not None:
            await self._declare(gateway, schema)
        self.schemas.register(gateway, schema)

    async def pull(self, gateway: str, viewer: Viewer, since: int, limit: int = 0) -> Reply:
        """What arrived after a cursor, as far as the viewer may see it."""
        page = await self._feeds.pull(gateway, since, min(limit or PULL_DEFAULT, PULL_MAX))
        if not self._shadows.is_ruled(gateway):
            return Reply(visible_entries(page.entries, viewer.scope), page.cursor, page.has_more)
        shadow = await self._shadows.ready(gateway)
        return _seen(shadow, page, LogPosition(since), viewer)

    def arrived(self, gateway: str, viewer: Viewer, since: LogPosition, limit: int) -> Reply | None:
        """The same at once, from memory; None where the viewer is too far behind for that."""
        page = self._feeds.pull_hot(gateway, since, limit)
        if page is None:
            return None
        if not self._shadows.is_ruled(gateway):
            return Reply(visible_entries(page.entries, viewer.scope), page.cursor, page.has_more)
        shadow = self._shadows.current(gateway)
        return None if shadow is None else _seen(shadow, page, since, viewer)

    def is_ruled(self, gateway: str) -> bool:
        """Whether not everyone is sent the same."""
        return self._shadows.is_ruled(gateway)

    def view_key(
        self, gateway: str, viewer: Viewer, since: LogPosition | None = None, writers: Container[str] = ()
    ) -> object:
        """Viewers with equal keys are sent the same: of what arrives after the cursor `since`, or of a checkpoint.
        `writers` are those whose changes it is about: they are told of what they wrote and may not see."""
        if not self._shadows.is_ruled(gateway):
            return viewer.scope
        shadow = self._shadows.current(gateway)
        views: object
        if shadow is None:
            views = None
        elif since is None:
            views = shadow.view_at(shadow.position, viewer.claims)
        else:
            views = tuple(shadow.views_since(since, viewer.claims))
        return viewer.client if viewer.client in writers else None, viewer.evicts, views, viewer.scope

    def writers(self, gateway: str, since: LogPosition) -> frozenset[str]:
        """Who wrote what arrived after a cursor, as far as it is in memory."""
        page = self._feeds.pull_hot(gateway, since, PULL_MAX)
        return frozenset() if page is None else frozenset([entry.client_id for entry in page.entries])

    async def checkpoint(self, gateway: str, viewer: Viewer) -> "tuple[Checkpoint, Iterator[bytes]] | None":
        """The newest checkpoint as the viewer may see it; a newer one is ordered where that pays.

        The pieces are made as they are asked for, which blocks: to be done in a thread.
        """
        self.checkpoints.consider(gateway, self._feeds.newest)
        found = self.checkpoints.newest(gateway)
        if found is None and await self._feeds.has_others(gateway):
            # No pull brings what another log wrote, or what a part of ours did that was lost: a checkpoint does.
            found = await self.checkpoints.reach(gateway, NOWHERE, CHECKPOINT_S_MAX)
        if found is None:
            return None
        cursor = self.cursors.encode(found.position)
        if not self._shadows.is_ruled(gateway):
            scope = viewer.scope
            shown = None if scope is None else lambda each: scope.sees(each.table)
            return found, pieces_of(found, shown, cursor)
        shadow = await self._shadows.ready(gateway)
        position = shadow.position
        view = shadow.view_at(position, viewer.claims).within(viewer.scope)

        def keep(each: CheckpointRow) -> bool:
            # As it was then and as it is now: the pull that follows brings what came into view in between.
            texts = {name: each.value(name) for name in shadow.columns}
            values = {name: parse_value(text) for name, text in texts.items() if text is not None}
            visible = bool(each.names) and view.sees(each.table, values)
            return visible and sees_at(shadow, view, position, each.table, each.row_id)

        return found, pieces_of(found, keep, cursor)

    async def rules(self, gateway: str) -> Rules | None:
        """The rules that hold now; None where there are none."""
        if not self._shadows.is_ruled(gateway):
            return None
        shadow = await self._shadows.ready(gateway)
        return shadow.rules_at(shadow.position)

    async def set_rules(self, gateway: str, document: Any) -> LogPosition:
        """Make rules hold from here on, or none with a document of None. Raises Invalid where they are not right."""
        columns: tuple[ColumnDelta, ...] = ()
        if document is not None:
            rules = msgspec.json.encode(read_rules(document))
            columns = (ColumnDelta(RULES_COLUMN, rules),)
        self._shadows.mark(gateway)
        hlc = self._hlc.tick(self._clock.now_ms())
        name = delta_id(table=RULES_TABLE, row_id=RULES_ROW, columns=columns, hlc=hlc, client_id=SERVER)
        delta = RowDelta(
            op=Op.UPDATE if columns else Op.DELETE,
            table=RULES_TABLE,
            row_id=RULES_ROW,
            columns=columns,
            hlc=hlc,
            client_id=SERVER,
            delta_id=name,
        )
        position = await self._pushes.write(gateway, SyncPush(client_id=SERVER, deltas=[delta]))
        # Made now rather than with the next pull, so that broadcasts go on.
        await self._shadows.ready(gateway)
        return position

    def listen(self, gateway: str, listener: Callable[[], None]) -> Callable[[], None]:
        """Hear of arrivals; the answer ends that."""
        return self._feeds.listen(gateway, listener)

    @property
    def newest(self) -> LogPosition:
        """The newest arrival."""
        return self._feeds.newest

    async def close(self) -> None:
        """Wait for what is under way, and let go of the files."""
        await self._pushes.close()
        await self._feeds.close()


def _seen(shadow: Shadow, page: Page, since: LogPosition, viewer: Viewer) -> Reply:
    encoded = page_for(
        shadow,
        page.entries,
        since,
        page.cursor,
        client=viewer.client,
        claims=viewer.claims,
        evicts=viewer.evicts,
        scope=viewer.scope,
    )
    return Reply(encoded, page.cursor, page.has_more)
