"""The feeds of every gateway: what arrived, in the order of the log, for whoever asks with a cursor.

A cursor is a log position. What arrived lately is in memory, the rest is read from where it rests; either way a page
continues exactly where the last one ended.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mainstem.feeds.cold import ColdFeed, History
from mainstem.feeds.declared import Declared, NothingDeclared
from mainstem.feeds.entries import Entry, changes_of_rows, entries_of_parts, entries_of_stored
from mainstem.feeds.fitting import Columns
from mainstem.feeds.hot import HotWindow
from mainstem.feeds.seen import SeenDeltas
from mainstem.feeds.tap import Arrival, DeltaBatch, Tap
from mainstem.log import Log
from mainstem.log.expand import Expander
from mainstem.model.batch import BatchHeader
from mainstem.model.errors import Invalid
from mainstem.model.position import LogPosition

logger = logging.getLogger(__name__)

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

    __slots__ = ("hot", "listeners")

    def __init__(self, start: LogPosition) -> None:
        self.hot = HotWindow(start)
        self.listeners: set[Listener] = set()

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
        if self.declared.known(gateway) is None:
            # Now rather than with the next arrival, which would have to be read from the log.
            await self.declared.load(gateway)
        feed = self._feed(gateway)
        if after >= feed.hot.start:
            return self._hot_page(feed, after, limit)
        start = feed.hot.start
        entries = await self._cold.page(gateway, after=after, through=start, limit=limit)
        if len(entries) >= limit:
            return _bounded(Page(entries, entries[-1].position, True))
        if feed.hot.start > start or self._feeds.get(gateway) is not feed:
            # What was in memory went to the disk meanwhile; or the feed was evicted, and heard of nothing since.
            return _bounded(Page(entries, start, True))
        rest = self._hot_page(feed, start, limit - len(entries))
        return _bounded(Page(entries + rest.entries, rest.cursor, rest.has_more))

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
                self._take(batch.gateway, entries_of_parts(appended.first, batch.deltas, batch.parts))
            return
        for namespace in {table.namespace for table in batch.tables} & self._feeds.keys():
            declared = self.declared.known(namespace)
            if declared is None:
                self._leave_out(namespace, appended.last)
            else:
                self._take(namespace, _entries_of_batch(arrival, namespace, declared))

    def _take(self, gateway: str, entries: list[Entry]) -> None:
        feed = self._feeds[gateway]
        if not feed.hot.add(entries):
            return
        feed.hot.trim(self._settings.hot_bytes_max // max(1, len(self._feeds)))
        feed.tell()

    def _leave_out(self, gateway: str, last: LogPosition) -> None:
        """Nobody can say yet which of these rows fit their tables: they are read from the log, once that is known."""
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
        if missing >= target:
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


def _entries_of_batch(arrival: Arrival, namespace: str, declared: Mapping[str, Columns]) -> list[Entry]:
    """The changes of another door's batch, as deltas."""
    batch, appended = arrival.batch, arrival.appended
    header = BatchHeader(
        first=appended.first,
        count=batch.count,
        hlc_first=appended.hlc_first,
        arrival_ms=0,
        source=batch.source,
        sequence=batch.sequence,
        fingerprint=batch.fingerprint,
        encoding=batch.encoding,
    )
    changes = [
        change
        for rows in Expander().expand(header, batch.payload, "a batch that just arrived")
        if rows.table.namespace == namespace
        for change in changes_of_rows(rows, batch.source)
    ]
    return list(entries_of_stored(sorted(changes), declared))
