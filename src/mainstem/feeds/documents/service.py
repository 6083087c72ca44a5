"""Documents, as the Mongo door asks for them: the store kept up with the log, the writer, and who listens.

The store is a cache. It is brought up to date from the log's tail when it is opened, and made anew from the tables and
the log where it is missing, is of another log, or is so old that the log does not reach back to it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any, NamedTuple

from mainstem.admission import Intake
from mainstem.feeds.documents import buried, trash
from mainstem.feeds.documents.applying import (
    UNLOADED,
    RowChange,
    apply_batch,
    apply_rows,
    bare_description,
    keys_of,
    told_by,
)
from mainstem.feeds.documents.carrying import DocumentsBatch, Writer
from mainstem.feeds.documents.checks import is_reserved
from mainstem.feeds.documents.past import Gone, Past, numbered, reader
from mainstem.feeds.documents.shapes import Shape, shape_of
from mainstem.feeds.documents.state import COLLECTIONS, Collection, State
from mainstem.feeds.documents.tables import TableRow, Tables, keep_untracked, kept_untracked
from mainstem.log import Log
from mainstem.log.tap import Arrival
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.runtime.clock import Clock
from mainstem.wire.mongo.batches import collection_of, table_of
from mainstem.wire.mongo.frames import decode_document, encode_document
from mainstem.wire.mongo.keys import id_of_key, key_bytes

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_S = 5.0
ANSWERS_KEPT_MS = 35 * 60 * 1000
# What happened lately, for change streams at the tail.
RECENT_BYTES_MAX = 64 * 1024 * 1024


class Happened(NamedTuple):
    """What a batch did, for change streams: its operations, or the changes of another door."""

    past: Past
    changes: list[RowChange]
    bytes: int


class Documents:
    """All collections of one log. `await documents.start()` before the first use."""

    def __init__(self, log: Log, intake: Intake, state: State, tables: Tables, clock: Clock) -> None:
        self._log = log
        self.tables = tables
        self.clock = clock
        self.state = state
        self.writer = Writer(intake, state)
        self.recent: deque[Happened] = deque()
        self._recent_bytes = 0
        # Everything after this position is in `recent`.
        self.recent_after = log.durable
        self._listeners: set[Callable[[], None]] = set()
        # Tables of other doors, and collections of a store that was lost: taken over when somebody asks for one.
        self._untracked: set[TableName] = set()
        self._loading: dict[TableName, asyncio.Task[None]] = {}
        self._waiting: dict[TableName, list[Arrival]] = {}
        self._hlc = 0
        self._is_committing = False
        self._stale = False
        self._catching_up = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    # Life

    async def start(self) -> None:
        """Bring the store up to date."""
        if self.state.position > self._log.durable or (
            self.state.position > NOWHERE and self._log.lineage.log_at(self.state.position) != self.state.log
        ):
            self.state.clear()
        try:
            await self._replay()
        except Gone:
            self.state.clear()
        if self.state.position == NOWHERE and self._log.durable > NOWHERE:
            await self._begin_anew()
        self._untracked |= {name for name in await self.tables.names() if not self._is_tracked(name)}
        # Described, and not read yet when the server stopped: some may be in the log alone.
        described = {table_of(database, name) for database, name in self.state.collections}
        buried.forget(self.state, self.clock.now_ms())
        known = described | kept_untracked(self.state.db)
        self._untracked |= {table for table in known if not self._is_tracked(table)}
        self.recent_after = self._log.durable
        # Not in a task group: it must outlive the caller's scope, until `close`, which awaits it.
        self._keeping = asyncio.create_task(self._keep(), name="mainstem-documents")

    async def close(self) -> None:
        """Finish what is under way, and let go of the file."""
        await self.writer.close()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        for task in list(self._loading.values()):
            task.cancel()
        self.state.close()

    async def _replay(self) -> None:
        """Apply what the log has beyond the store."""
        while self.state.position < self._log.durable:
            target = self._log.durable
            items = reader(self._log, self.state.position)
            while part := await asyncio.to_thread(_some, items):
                for past in part:
                    self._apply_past(past)
            self._cover(target)
            self.state.commit()

    def _apply_past(self, past: Past) -> None:
        if past.batch is not None:
            apply_batch(self.state, past.batch, keys_of(past.batch), past.first, past.hlc_first, past.at_ms)
            self._note_unloaded({table_of(each.database, each.collection) for each in past.batch.operations})
            self._hlc = max(self._hlc, past.hlc_first + len(past.batch.operations) - 1)
        elif past.rows is not None:
            if self._is_tracked(past.rows.table):
                apply_rows(self.state, past)
            else:
                self._untrack({past.rows.table})

    async def _begin_anew(self) -> None:
        """The store is empty and the log is not: what collections there are is in the tables, and in the log."""
        names = await self.tables.names()
        self._untracked |= set(names)
        for name in names:
            database, collection = collection_of(name)
            if collection == COLLECTIONS:
                self._untracked.discard(name)
                async for rows in self.tables.rows(name):
                    for row in rows:
                        if row.document is not None:
                            self._describe_unloaded(database, decode_document(row.document))
        for past in reader(self._log, self._before_kept()):
            self._note(past)
        self._untracked |= {table_of(database, name) for database, name in self.state.collections}
        self._cover(self._log.durable)
        self.state.commit()

    def _before_kept(self) -> LogPosition:
        """The last position that is in no segment any more: tables cover everything up to it."""
        kept = self._log.segments()
        return LogPosition((kept[0].first if kept else self._log.sealed + 1) - 1)

    def _note(self, past: Past) -> None:
        """Take note of which collections a part of the log is about; their documents are read when they are needed."""
        batch = past.batch
        if batch is None:
            if past.rows is not None:
                self._untrack({past.rows.table})
            return
        for operation in batch.operations:
            if operation.collection != COLLECTIONS:
                self._untracked.add(table_of(operation.database, operation.collection))
            elif operation.document is None:
                self.state.drop(operation.database, decode_document(operation.id)["_id"])
            else:
                self._describe_unloaded(operation.database, decode_document(operation.document))
        if batch.session is not None and batch.number is not None and batch.answers:
            self.state.answer(batch.session, batch.number, past.first, batch.answers, past.at_ms)
        self._hlc = max(self._hlc, past.hlc_first + len(batch.operations) - 1)

    def _describe_unloaded(self, database: str, document: dict[str, Any]) -> None:
        self.state.describe(database, document["_id"], {**document, UNLOADED: True})

    def _note_unloaded(self, tables: Iterable[TableName]) -> None:
        for table in tables:
            found = self.state.collections.get(collection_of(table))
            if found is not None and found.document.get(UNLOADED):
                self._untracked.add(table)

    def _is_tracked(self, table: TableName) -> bool:
        found = self.state.collections.get(collection_of(table))
        return found is not None and not found.document.get(UNLOADED) and table not in self._waiting

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_INTERVAL_S)
            try:
                self.state.forget_answers(self.clock.now_ms() - ANSWERS_KEPT_MS)
                self.state.commit()
                for _ in trash.emptying(self.state.db):
                    self.state.commit()
                    await asyncio.sleep(0)
                await asyncio.to_thread(self.state.checkpoint)
            # The task's edge: it is tried again, and the log has everything.
            except Exception as error:
                logger.error("the store of documents could not be kept: %s", error)

    def is_done_with(self, position: LogPosition) -> bool:
        """Whether the log may forget everything up to a position."""
        return self.state.position >= position and not self._loading

    # What arrives

    def on_lost(self) -> None:
        """A batch is in the log, and its writer could not be told the place."""
        self._stale = True

    def on_arrival(self, arrival: Arrival) -> None:
        """A batch is durable: called before the command that waits for it hears of it."""
        if self._stale or arrival.appended.last <= self.state.position:
            # `fresh` brings the store up to date, from the log, or has done so already.
            for table in self._waiting_tables(arrival.batch.tables):
                self._waiting[table].append(arrival)
            return
        try:
            self._take_in(arrival)
        # The callback's edge: the other listeners must hear of the batch, and the log has it.
        except Exception:
            logger.exception("a batch could not be applied to the store of documents")
            self.state.roll_back()
            self._stale = True

    def _take_in(self, arrival: Arrival) -> None:
        batch, appended = arrival.batch, arrival.appended
        if isinstance(batch, DocumentsBatch):
            at_ms = self.clock.now_ms()
            past = Past(appended.first, appended.last, appended.hlc_first, at_ms, batch.documents)
            unloaded = self._waiting_tables(batch.tables)
            if unloaded:
                for table in unloaded:
                    self._waiting[table].append(arrival)
            apply_batch(
                self.state, batch.documents, batch.keys, appended.first, appended.hlc_first, at_ms, batch.shapes
            )
            self._note_unloaded(batch.tables)
            self._happened(past, [], len(batch.payload))
        elif self._concerns(batch.tables):
            self._take_rows(arrival)
        else:
            self._untrack(batch.tables)
            # No stream is open: one that resumes before this batch reads it in the log.
            self._forget_recent(appended.last)
        self._hlc = max(self._hlc, appended.hlc_first + batch.count - 1)
        self._cover(appended.last)
        if not self._is_committing:
            self._is_committing = True
            self._loop.call_soon(self._commit)

    def _take_rows(self, arrival: Arrival) -> None:
        """Rows of another door, table by table; change streams are told of them in the order of the log."""
        changes: list[RowChange] = []
        for past in _expanded(arrival):
            assert past.rows is not None
            if self._is_tracked(past.rows.table):
                changes += apply_rows(self.state, past)
                continue
            if past.rows.table in self._waiting:
                self._waiting[past.rows.table].append(arrival)
            else:
                self._untrack({past.rows.table})
            changes += told_by(past)
        changes.sort(key=lambda change: (change.position, change.number))
        appended = arrival.appended
        whole = Past(appended.first, appended.last, appended.hlc_first, 0)
        self._happened(whole, changes, len(arrival.batch.payload))

    def _untrack(self, tables: Set[TableName]) -> None:
        """Other doors wrote to tables that the store has not taken over."""
        if fresh := tables - self._untracked:
            self._untracked |= fresh
            self.state.begin()
            keep_untracked(self.state.db, fresh)

    def _forget_recent(self, through: LogPosition) -> None:
        self.recent.clear()
        self._recent_bytes = 0
        self.recent_after = through

    def _concerns(self, tables: frozenset[TableName]) -> bool:
        return bool(self._listeners) or any(self._is_tracked(each) or each in self._waiting for each in tables)

    def _waiting_tables(self, tables: frozenset[TableName]) -> list[TableName]:
        return [table for table in tables if table in self._waiting] if self._waiting else []

    def _commit(self) -> None:
        self._is_committing = False
        self.state.commit()

    def _cover(self, position: LogPosition) -> None:
        self.state.cover(position, self._log.lineage.log_at(position))

    def _happened(self, past: Past, changes: list[RowChange], size: int) -> None:
        self.recent.append(Happened(past, changes, size))
        self._recent_bytes += size
        while self._recent_bytes > RECENT_BYTES_MAX:
            oldest = self.recent.popleft()
            self._recent_bytes -= oldest.bytes
            self.recent_after = oldest.past.last
        for listener in list(self._listeners):
            listener()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever something happened; the answer takes it off again."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    # What the door asks

    @property
    def hlc(self) -> int:
        """The clock of the newest change, or of now where there is none yet."""
        return self._hlc or self.clock.now_ms() << 16

    @property
    def durable(self) -> LogPosition:
        """The newest position."""
        return self.state.position

    @property
    def log(self) -> Log:
        """The log behind it."""
        return self._log

    async def fresh(self) -> None:
        """Make sure that the store has everything that is durable. Mostly it has."""
        if not self._stale:
            return
        async with self._catching_up:
            if self._stale:
                # What arrives meanwhile is replayed too: applied on the side it would be overwritten by what is older.
                await self._replay()
                self._stale = False
                self._forget_recent(self.state.position)

    async def open(self, database: str, name: str) -> Collection | None:
        """A collection, taken over from its table where that has not been done; None where there is none."""
        if is_reserved(name):
            return None
        if self._untracked:
            table = table_of(database, name)
            if table in self._untracked:
                await self._load(table)
        return self.state.find(database, name)

    def listed(self, database: str | None = None) -> list[tuple[str, str]]:
        """Every collection there is, by database and name."""
        known = set(self.state.collections)
        for table in self._untracked:
            place = collection_of(table)
            if place[1] and not table.table.endswith(("_history", "_dead_letters")):
                known.add(place)
        return sorted(place for place in known if not is_reserved(place[1]) and database in (None, place[0]))

    async def _load(self, table: TableName) -> None:
        task = self._loading.get(table)
        if task is None:
            task = self._loading[table] = asyncio.create_task(self._take_over(table))
            task.add_done_callback(lambda _: self._loading.pop(table, None))
        await asyncio.shield(task)

    async def _take_over(self, table: TableName) -> None:
        """Make a collection of a table: its rows, then what the log has beyond them, then what came meanwhile."""
        database, name = collection_of(table)
        waiting = self._waiting[table] = []
        try:
            known = self.state.find(database, name)
            description = bare_description(name) if known is None else dict(known.document)
            covered = await self.tables.covered(table)
            # Into an empty collection, which no other client sees before it is whole.
            self.state.drop(database, name)
            description.pop(UNLOADED, None)
            collection = self.state.describe(database, name, {**description, UNLOADED: True})
            async for rows in self.tables.rows(table):
                shapes: set[Shape] | None = set()
                for row in rows:
                    key, document, hlc = _document_of(row)
                    self.state.put(collection, key, document, hlc)
                    if row.document is None or row.newer:
                        shapes = None
                    elif shapes is not None:
                        shapes.add(shape_of(decode_document(document)))
                self.state.shaped(collection, shapes)
            through = self._log.durable
            for past in reader(self._log, max(covered, self._before_kept())):
                if past.last <= through:
                    self._apply_to(table, past)
            for arrival in waiting:
                if arrival.appended.first > through:
                    for past in _expanded(arrival):
                        self._apply_to(table, past)
            self.state.describe(database, name, description)
            self._untracked.discard(table)
        finally:
            del self._waiting[table]

    def _apply_to(self, table: TableName, past: Past) -> None:
        if past.rows is not None and past.rows.table == table:
            apply_rows(self.state, past)
        elif past.batch is not None:
            for index, (operation, key) in enumerate(zip(past.batch.operations, keys_of(past.batch), strict=True)):
                if table_of(operation.database, operation.collection) != table:
                    continue
                collection = self.state.find(operation.database, operation.collection)
                if collection is None:
                    continue
                self.state.touched(collection, past.last)
                if operation.document is None:
                    self.state.delete(collection, key)
                    buried.bury(self.state, collection, key, past.hlc_first + index)
                else:
                    self.state.put(collection, key, operation.document, past.hlc_first + index)
                    self.state.shaped(collection, [shape_of(decode_document(operation.document))])


def _some(items: Iterator[Past], count: int = 1_000) -> list[Past]:
    found = []
    for item in items:
        found.append(item)
        if len(found) >= count:
            break
    return found


def _document_of(row: TableRow) -> tuple[bytes, bytes, int]:

    if row.document is None:
        document = encode_document({"_id": id_of_key(row.key), **row.columns})
    elif row.newer:
        newer = {name: value for name, value in row.columns.items() if name in row.newer}
        document = encode_document({**decode_document(row.document), **newer})
    else:
        document = row.document
    return key_bytes(row.key), document, row.hlc


def _expanded(arrival: Arrival) -> Iterator[Past]:
    batch, appended = arrival.batch, arrival.appended
    if isinstance(batch, DocumentsBatch):
        yield Past(appended.first, appended.last, appended.hlc_first, 0, batch.documents)
        return
    yield from numbered(arrival.rows(), 0, batch.source)
