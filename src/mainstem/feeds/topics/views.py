"""Topics that are views: `cdc.<namespace>.<table>` has every change of a table, whichever door it came through.

A view has one partition. The offset of a change is its position in the log: stable, growing, with gaps where other
tables' changes are. Batches say how far they reach, so that a reader is past a gap at once. A record's key is the row's
key, its value Debezium's envelope. Nothing is written for a view: it is read from the table's history and the log.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from uuid import UUID

from mainstem.feeds.declared import Declared, NothingDeclared
from mainstem.feeds.topics.changes import TableHistory, Told, change_of, first_kept, read_log, that_fit
from mainstem.feeds.topics.partition import LEADER_EPOCH
from mainstem.feeds.topics.state import PartitionState, TopicState
from mainstem.log import Log
from mainstem.log.tap import Arrival, Tap
from mainstem.model.errors import Conflict, Invalid
from mainstem.model.names import TableName, parse_table_name
from mainstem.model.position import LogPosition
from mainstem.wire.debezium import encode_change
from mainstem.wire.kafka.opening import Record, build_batch

PREFIX = "cdc."
VIEWS_MAX = 1_000
PAGE_CHANGES = 2_000
TABLES_HEARD_MAX = 10_000
_TRIES_MAX = 5
_SPACE = UUID("5a0f3c1e-6d1b-4f7e-9d53-0d6a7f1c2b11")

Exists = Callable[[TableName], Awaitable[bool]]


class View:
    """One view, as readers see a partition."""

    def __init__(
        self, name: str, table: TableName, log: Log, history: TableHistory, declared: Declared | None = None
    ) -> None:
        self.index = 0
        self.table = table
        state = PartitionState(end=log.durable + 1, start=1, producers={})
        self.topic = TopicState(name, uuid.uuid5(_SPACE, name).bytes, str(table), 0, {}, [state])
        self._log = log
        self._history = history
        self._declared = declared or NothingDeclared()
        self._waiters: set[Callable[[], None]] = set()
        self.stable: Callable[[], int] = lambda: self.end

    @property
    def state(self) -> PartitionState:
        return self.topic.partitions[0]

    @property
    def start(self) -> int:
        """The first offset."""
        return self.state.start

    @property
    def end(self) -> int:
        """The offset after the table's last change."""
        return self.state.end

    def bytes_from(self, offset: int, enough: int) -> int:
        """Whatever is there is enough: how much it is would have to be read."""
        return enough if offset < self.end else 0

    def listen(self, waiter: Callable[[], None]) -> Callable[[], None]:
        """Hear of every arrival; the answer ends that."""
        self._waiters.add(waiter)
        return lambda: self._waiters.discard(waiter)

    def arrived(self, last: LogPosition) -> None:
        """A batch with changes of the table is durable."""
        self.state.end = last + 1
        for waiter in list(self._waiters):
            waiter()

    async def read(self, offset: int, before: int) -> bytes:
        """The changes from an offset on, as batches that reach as far as was looked."""
        through = before - 1
        for _ in range(_TRIES_MAX):
            first = first_kept(self._log)
            after, found = LogPosition(offset - 1), []
            if offset < first:
                upto = LogPosition(min(through, first - 1))
                found = list(await self._history.of_table(self.table, after=after, through=upto, limit=PAGE_CHANGES))
                if first_kept(self._log) != first:
                    # Segments were dropped meanwhile: what they held is in the history by now.
                    continue
            if len(found) < PAGE_CHANGES:
                # Of one moment: a seal takes batches from the tail into a segment, and they would be in neither.
                segments = [each for each in self._log.segments() if self.table in each.tables and each.last >= offset]
                tail = self._log.tail(LogPosition(max(after, self._log.sealed)))
                room = PAGE_CHANGES - len(found)
                try:
                    found += await asyncio.to_thread(read_log, segments, tail, self.table, after, through, room)
                except FileNotFoundError:
                    continue
            reached = found[-1].position if len(found) >= PAGE_CHANGES else through
            if columns := (await self._declared.load(self.table.namespace)).get(self.table.table):
                found = await asyncio.to_thread(that_fit, found, columns)
            return _batch(found, self.table, offset, reached)
        raise Conflict("segments were dropped again and again while they were read: ask again")


def _batch(found: list[Told], table: TableName, offset: int, reached: int) -> bytes:
    records = []
    for told in found:
        time_ms = told.hlc >> 16
        # Stamped with the change's own time, so that reading it again gives the same bytes.
        message = encode_change(change_of(told, table), now_ms=time_ms, tombstones=False)[0]
        records.append(Record(told.position, time_ms, message.key, message.value))
    return build_batch(records, leader_epoch=LEADER_EPOCH, first=offset, last=reached)


class Views:
    """The views of one gateway. Belongs to the event loop."""

    def __init__(
        self, log: Log, tap: Tap, history: TableHistory, exists: Exists, declared: Declared | None = None
    ) -> None:
        self._log = log
        self._history = history
        self._exists = exists
        self._declared = declared
        self._views: dict[str, View] = {}
        self._by_id: dict[bytes, View] = {}
        self._by_table: dict[TableName, View] = {}
        # Tables of which something came that may not be sealed yet.
        self._heard: set[TableName] = set()
        tap.listeners.append(self._on_arrival)

    def is_view(self, name: str) -> bool:
        """Whether a name can only be a view's."""
        return name.startswith(PREFIX)

    def topics(self) -> list[TopicState]:
        """Every view that somebody asked for since the start."""
        return [view.topic for view in self._views.values()]

    def by_id(self, topic_id: UUID | None) -> TopicState | None:
        """A view by its topic id."""
        view = None if topic_id is None else self._by_id.get(topic_id.bytes)
        return None if view is None else view.topic

    async def get(self, name: str) -> TopicState | None:
        """A view by its name, where there is such a table."""
        view = self._views.get(name)
        if view is None and self.is_view(name):
            try:
                table = parse_table_name(name.removeprefix(PREFIX))
            except Invalid:
                return None
            if len(self._views) < VIEWS_MAX and (self._is_in_log(table) or await self._exists(table)):
                view = self._views.get(name) or View(name, table, self._log, self._history, self._declared)
                self._views[name] = self._by_id[view.topic.id] = self._by_table[table] = view
        return None if view is None else view.topic

    def partition(self, topic: TopicState, index: int) -> View | None:
        """A view's partition."""
        view = self._by_id.get(topic.id)
        return view if index == 0 else None

    def _is_in_log(self, table: TableName) -> bool:
        return table in self._heard or any(table in segment.tables for segment in self._log.segments())

    def _on_arrival(self, arrival: Arrival) -> None:
        if len(self._heard) >= TABLES_HEARD_MAX:
            # By now those are in a segment or in the lake.
            self._heard.clear()
        self._heard |= arrival.batch.tables
        for table in arrival.batch.tables & self._by_table.keys():
            self._by_table[table].arrived(arrival.appended.last)
