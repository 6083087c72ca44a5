"""The feeds of every gateway: what arrived, in the order of the log, for clients that ask with a cursor.

A cursor is a log position. What arrived lately is in memory, the rest is read from where it rests; either way a page
continues exactly where the last one ended.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

from mainstem.feeds.cold import ColdFeed, History
from mainstem.feeds.columns import KnownColumns
from mainstem.feeds.declared import Declared, NothingDeclared
from mainstem.feeds.delta_batch import DeltaBatch
from mainstem.feeds.entries import (
    Entry,
    StoredChange,
    changes_of_rows,
    columns_of_changes,
    entries_of_parts,
    entries_of_stored,
)
from mainstem.feeds.fitting import Columns
from mainstem.feeds.hot import HotWindow
from mainstem.feeds.seen import SeenDeltas
from mainstem.log import Log
from mainstem.log.tap import Arrival, Tap
from mainstem.model.errors import Conflict, Invalid
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.wire.sync import ColumnDelta

logger = logging.getLogger(__name__)

_TRIES_MAX = 5
PULL_DEFAULT = 100
PULL_MAX = 10_000
# A message is 16 MiB at most, and a single delta may be nearly that.
PAGE_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """How much of the feeds is kept in memory, and how often the index of deltas is stored."""

    hot_bytes_max: int = 256 * 1024 * 1024
    gateways_max: int = 10_000
    store_interval_s: float = 1.0


class Page(NamedTuple):
    """Arrivals after a cursor, and the cursor after them."""

    entries: list[Entry]
    cursor: LogPosition
    has_more: bool


Listener = Callable[[], None]


class Feed:
    """One gateway's arrivals and who wants to hear of them."""

    __slots__ = ("hot", "known", "learning", "listeners", "missed")

    def __init__(self, start: LogPosition) -> None:
        self.hot = HotWindow(start)
        self.listeners: set[Listener] = set()
        # The columns of its tables; None until somebody pulls.
        self.known: KnownColumns | None = None
        self.learning = asyncio.Lock()
        # What arrives while they are looked up: the columns of each row, in the log's order.
        self.missed: list[tuple[str, LogPosition, tuple[str, ...]]] | None = None

    def tell(self) -> None:
        """Something arrived."""
        for listener in list(self.listeners):
            listener()


class Feeds:
    """All feeds of one log. `await feeds.start()` before the first use."""

    def __init__(
        self,
        log: Log,
        tap: Tap,
        seen: SeenDeltas,
        history: History,
        settings: FeedSettings | None = None,
        declared: Declared | None = None,
    ) -> None:
        self._log = log
        self._settings = settings or FeedSettings()
        self.declared = declared or NothingDeclared()
        self._cold = ColdFeed(log, history, self.declared)
        self.seen = seen
        self._feeds: dict[str, Feed] = {}
        # The last position that every feed has heard of.
        self._recorded = log.durable
        # Set where a batch became durable without anybody being told: the index must not claim to be complete.
        self._gap = False
        self._storing: asyncio.Task[None] | None = None
        tap.on_arrival = self._on_arrival
        tap.on_lost = self._on_lost

    async def start(self) -> None:
        """Catch the index of deltas up with the log, then keep it stored."""
        await self._catch_up()
        # Not in a task group: it must outlive the caller's scope, until `close`, which awaits it.
        self._storing = asyncio.create_task(self._store_loop(), name="mainstem-seen")

    async def close(self) -> None:
        """Store what is not stored, and let go of the files."""
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)
            self._storing = None
            if not self.seen.is_stored:
                await self.seen.store()
        self.seen.close()

    @property
    def newest(self) -> LogPosition:
        """The newest position that a pull covers."""
        return self._recorded

    def is_done_with(self, position: LogPosition) -> bool:
        """Whether the log may forget everything up to a position."""
        return self.seen.stored >= position

    def listen(self, gateway: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` whenever something arrived; the answer takes it off again."""
        feed = self._feed(gateway)
        feed.listeners.add(listener)
        return lambda: feed.listeners.discard(listener)

    async def pull(self, gateway: str, since: int, limit: int) -> Page:
        """What arrived after a cursor. Raises Invalid (`cursor_expired`) for one that is not from here."""
        after = self._check(since)
        if NOWHERE < after < self._log.lineage.spans[-1].first and await self._cold.lost_since(gateway, after):
            raise Invalid(
                f"the log lost what came after the cursor, and the tables have it. got={since}", reason="cursor_expired"
            )
        feed, known = await self._ready(gateway)
        if after >= feed.hot.start:
            return self._hot_page(feed, after, limit)
        start = feed.hot.start
        entries = await self._cold.page(gateway, after=after, through=start, limit=limit, known=known)
        if len(entries) >= limit:
            return _bounded(Page(entries, entries[-1].position, True))
        if feed.hot.start > start or self._feeds.get(gateway) is not feed:
            # What was in memory went to the disk meanwhile; or the feed was evicted, and heard of nothing since.
            return _bounded(Page(entries, start, True))
        rest = self._hot_page(feed, start, limit - len(entries))
        return _bounded(Page(entries + rest.entries, rest.cursor, rest.has_more))

    async def has_others(self, gateway: str) -> bool:
        """Whether the tables have changes that no pull has: of another log, or of a part of ours that was lost."""
        return await self._cold.has_others(gateway)

    def others(self, gateway: str) -> AsyncIterator[list[Entry]]:
        """Those changes, at no position."""
        return self._cold.others(gateway)

    def pull_hot(self, gateway: str, since: LogPosition, limit: int) -> Page | None:
        """The same from memory alone; None where that does not reach back far enough."""
        feed = self._feed(gateway)
        return self._hot_page(feed, since, limit) if since >= feed.hot.start else None

    def _hot_page(self, feed: Feed, after: LogPosition, limit: int) -> Page:
        entries, has_more = feed.hot.after(after, limit)
        cursor = entries[-1].position if has_more else LogPosition(max(after, self._recorded))
        return _bounded(Page(entries, cursor, has_more))

    def _check(self, since: int) -> LogPosition:
        if since > self._log.durable:
            raise Invalid(
                f"the cursor is not from here. expected=at most {self._log.durable} got={since}",
                reason="cursor_expired",
            )
        return LogPosition(since)

    def _feed(self, gateway: str) -> Feed:
        feed = self._feeds.get(gateway)
        if feed is None:
            self._make_room()
            # What is before is read from where it rests; what is under way will be heard of.
            feed = self._feeds[gateway] = Feed(self._log.durable)
        return feed

    def _make_room(self) -> None:
        if len(self._feeds) >= self._settings.gateways_max:
            idle = next((name for name, feed in self._feeds.items() if not feed.listeners), None)
            if idle is not None:
                del self._feeds[idle]

    def _on_arrival(self, arrival: Arrival) -> None:
        batch, appended = arrival.batch, arrival.appended
        self._recorded = max(self._recorded, appended.last)
        if isinstance(batch, DeltaBatch):
            self.seen.record(batch.gateway, batch.source, batch.deltas)
        if not self._gap:
            self.seen.advance(appended.last)
        if isinstance(batch, DeltaBatch):
            if batch.gateway in self._feeds:
                self._take_deltas(batch, appended.first, appended.last)
            return
        for namespace in {table.namespace for table in batch.tables} & self._feeds.keys():
            self._take_changes(namespace, arrival)

    async def _ready(self, gateway: str) -> tuple[Feed, KnownColumns]:
        """A gateway's feed, and what is known of its tables' columns."""
        for _ in range(_TRIES_MAX):
            feed = self._feed(gateway)
            known = await self._known(gateway, feed)
            if self._feeds.get(gateway) is feed:
                return feed, known
            # It was evicted meanwhile, and heard of nothing since.
        raise Conflict("too many gateways are pulled from at once: ask again")

    async def _known(self, gateway: str, feed: Feed) -> KnownColumns:
        """What is known of the tables' columns. Looked up now rather than with the next arrival, which would have to be
        read from the log."""
        async with feed.learning:
            if feed.known is None or feed.known.declared is not self.declared.known(gateway):
                feed.missed = []
                try:
                    known = await self._cold.known_columns(gateway)
                    for table, position, names in feed.missed:
                        known.learn(table, position, names)
                    feed.known = known
                finally:
                    feed.missed = None
            return feed.known

    async def first_misfit(
        self, table: TableName, columns: Columns, after: LogPosition
    ) -> tuple[ColumnDelta | None, LogPosition]:
        """The first value that is not of its column's type, of what the log has of a table past a position; and how far
        was looked."""
        return await self._cold.first_misfit(table, columns, after)

    def columns_of(self, gateway: str) -> KnownColumns | None:
        """What is known of the tables' columns, None where no client pulled, or it has to be looked up again."""
        feed = self._feeds.get(gateway)
        known = None if feed is None else feed.known
        return None if known is None or known.declared is not self.declared.known(gateway) else known

    def _take_deltas(self, batch: DeltaBatch, first: LogPosition, last: LogPosition) -> None:
        feed, known = self._feeds[batch.gateway], self.columns_of(batch.gateway)
        columns = [
            (delta.table, LogPosition(first + index), tuple([each.column for each in delta.columns]))
            for index, delta in enumerate(batch.deltas)
        ]
        if feed.missed is not None:
            feed.missed += columns
        if known is None:
            self._leave_out(batch.gateway, last)
            return
        for table, position, names in columns:
            known.learn(table, position, names)
        entries = entries_of_parts(first, batch.deltas, batch.parts)
        taken = [known.refusal(delta.table, delta.columns) is None for delta in batch.deltas]
        self._take(batch.gateway, list(compress(entries, taken)))

    def _take_changes(self, namespace: str, arrival: Arrival) -> None:
        """The changes of another door's batch, as deltas."""
        feed, known = self._feeds[namespace], self.columns_of(namespace)
        if known is None and feed.missed is None:
            self._leave_out(namespace, arrival.appended.last)
            return
        changes = _changes_of_batch(arrival, namespace)
        if feed.missed is not None:
            feed.missed += columns_of_changes(changes)
        if known is None:
            self._leave_out(namespace, arrival.appended.last)
            return
        for each in columns_of_changes(changes):
            known.learn(*each)
        self._take(namespace, list(entries_of_stored(changes, known.declared, known)))

    def _take(self, gateway: str, entries: list[Entry]) -> None:
        feed = self._feeds[gateway]
        if not feed.hot.add(entries):
            return
        feed.hot.trim(self._settings.hot_bytes_max // max(1, len(self._feeds)))
        feed.tell()

    def _leave_out(self, gateway: str, last: LogPosition) -> None:
        """It is not known yet which of these rows fit their tables: they are read from the log once it is."""
        feed = self._feeds[gateway]
        feed.hot.restart(last)
        feed.tell()

    def _on_lost(self) -> None:
        self._gap = True
        for feed in self._feeds.values():
            feed.hot.restart(self._log.durable)

    async def _catch_up(self) -> None:
        """Record what became durable after the index was last stored."""
        missing = self.seen.stored
        target = self._log.durable
        if missing >= target and not self.seen.is_new:
            return
        async for found in self._cold.identified(missing):
            self.seen.record_again(found)
            # In parts: an index that is made anew may be large.
            await self.seen.store()
        self.seen.advance(target)
        await self.seen.store()

    async def _store_loop(self) -> None:
        while True:
            await asyncio.sleep(self._settings.store_interval_s)
            if self.seen.is_stored:
                continue
            try:
                await self.seen.store()
            # The task's edge: it is tried again, and what waits is bounded.
            except Exception as error:
                logger.error("the index of deltas could not be stored: %s", error)


def _bounded(page: Page) -> Page:
    """As much of a page as fits a message; at least one entry, however large that is."""
    size = 0
    for index, entry in enumerate(page.entries):
        size += len(entry.encoded)
        if size > PAGE_BYTES_MAX and index:
            return Page(page.entries[:index], page.entries[index - 1].position, True)
    return page


def _changes_of_batch(arrival: Arrival, namespace: str) -> list[StoredChange]:
    return sorted(
        change
        for rows in arrival.rows()
        if rows.table.namespace == namespace
        for change in changes_of_rows(rows, arrival.batch.source)
    )
