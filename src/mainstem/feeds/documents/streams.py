"""Change streams: what happened to documents, in the log's order, whichever door it came through.

A place in a stream is a position of the log, with the log's identity: it survives restarts, and one of another log or
from before what the log keeps is refused by name. What happened lately is in memory, the rest is read from the log.
"""

import asyncio
import datetime as dt
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from mainstem.feeds.documents.applying import RowChange, told_by
from mainstem.feeds.documents.past import Gone, Past, reader
from mainstem.feeds.documents.service import Documents
from mainstem.feeds.documents.state import COLLECTIONS
from mainstem.model.errors import Invalid
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.wire.mongo.batches import DocumentOperation, Kind
from mainstem.wire.mongo.frames import decode_document, unread_document
from mainstem.wire.mongo.ordered import ordered

READ_AT_ONCE = 500
# The number in tokens of before the rows at a position were told apart: it stands for all of them.
_ALL_ROWS = 1
_TYPES = {Kind.INSERT: "insert", Kind.UPDATE: "update", Kind.REPLACE: "replace", Kind.DELETE: "delete"}
_NOTHING_CHANGED: dict[str, Any] = {"updatedFields": {}, "removedFields": [], "truncatedArrays": []}


class HistoryLost(Invalid):
    """The place is not in the log any more, or was never in this one."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"Resume of change stream was not possible, as the resume point may no longer be in the log. {why}",
            reason="history_lost",
        )


class Place(NamedTuple):
    """After which event a stream goes on: a position, and the number of the event at it; none is zero.

    An operation of the Mongo door is one event, and another one where it ends the stream. Rows of other doors have the
    numbers that `past` gives them.
    """

    position: LogPosition
    number: int


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream is of, and what its events carry. Without a collection, of a database; without that, of all."""

    database: str | None
    collection: str | None
    full_document: str = "default"
    before_change: str = "off"
    expanded: bool = False
    sees: Callable[[str, str], bool] = lambda database, collection: True


class ChangeStream:
    """One reader of the log. `close` it in the end."""

    def __init__(self, documents: Documents, options: StreamOptions, place: Place, from_hlc: int = 0) -> None:
        self._documents = documents
        self._options = options
        self.place = place
        self._from_hlc = from_hlc
        # What is being read from the log, and up to where.
        self._past: Iterator[Past] | None = None
        self._through = NOWHERE
        self._woken = asyncio.Event()
        self._unlisten = documents.listen(self._woken.set)
        self.is_over = False

    def close(self) -> None:
        """Its reader is gone."""
        self._unlisten()

    async def read(self, wait_s: float) -> list[dict[str, Any]]:
        """The next events; nothing where none came in time. Raises HistoryLost."""
        ends_s = asyncio.get_running_loop().time() + wait_s
        while not self.is_over:
            self._woken.clear()
            events = await self._next()
            left_s = ends_s - asyncio.get_running_loop().time()
            if events or left_s <= 0:
                return events
            if self._is_behind:
                continue
            try:
                async with asyncio.timeout(left_s):
                    await self._woken.wait()
            except TimeoutError:
                return []
        return []

    async def _next(self) -> list[dict[str, Any]]:
        documents = self._documents
        if self._is_behind:
            return await self._from_log()
        events: list[dict[str, Any]] = []
        after = self.place.position
        for happened in documents.recent:
            if happened.past.last < after or (happened.past.last == after and not self.place.number):
                continue
            events += self._events(happened.past, happened.changes)
            if len(events) >= READ_AT_ONCE or self.is_over:
                return events
        if not self.is_over:
            self._reached(documents.durable)
        return events

    @property
    def _is_behind(self) -> bool:
        """Whether what comes next is to be read from the log: of a position that was told in part, the rest too."""
        position, number = self.place
        return self._past is not None or position - bool(number) < self._documents.recent_after

    async def _from_log(self) -> list[dict[str, Any]]:
        if self._past is None:
            self._through = self._documents.log.durable
            try:
                self._past = reader(self._documents.log, LogPosition(self.place.position - bool(self.place.number)))
            except Gone:
                raise HistoryLost(f"expected=a position that the log keeps got={self.place.position}") from None
        try:
            part = await asyncio.to_thread(_some, self._past)
        except Gone:
            raise HistoryLost("the log was trimmed meanwhile") from None
        events: list[dict[str, Any]] = []
        for past in part:
            if not self.is_over:
                events += self._events(past, None)
                # Rows of another table may follow at the same position.
                self._reached(LogPosition(past.last - (past.rows is not None)))
        if not part:
            self._past = None
            if self.place.position <= self._through:
                self.place = Place(self._through, 0)
        return events

    def _reached(self, position: LogPosition) -> None:
        if position > self.place.position:
            self.place = Place(position, 0)

    # Events

    def _events(self, past: Past, changes: list[RowChange] | None) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        if past.batch is not None:
            for index, operation in enumerate(past.batch.operations):
                position = LogPosition(past.first + index)
                hlc = past.hlc_first + index
                for event in self._of_operation(operation, hlc, past):
                    number = 2 if event["operationType"] == "invalidate" else 1
                    if not self._add(events, event, Place(position, number), hlc):
                        return events
        else:
            for change in told_by(past) if changes is None else changes:
                place = Place(LogPosition(change.position), change.number)
                if self._is_ours(change.database, change.collection) and self.place != (place.position, _ALL_ROWS):
                    self._add(events, self._of_change(change), place, change.hlc)
        return events

    def _add(self, events: list[dict[str, Any]], event: dict[str, Any], place: Place, hlc: int) -> bool:
        """Take an event in, unless it was told before; False where it ends the stream."""
        if place <= self.place or hlc < self._from_hlc:
            return True
        self.place = place
        wall_ms = hlc >> 16
        head = {
            "_id": self.token(),
            "operationType": event.pop("operationType"),
            "clusterTime": Timestamp(wall_ms // 1000, ((wall_ms % 1000) << 16) | (hlc & 0xFFFF)),
            "wallTime": dt.datetime.fromtimestamp(wall_ms / 1000, dt.UTC),
        }
        events.append({**head, **event})
        self.is_over = head["operationType"] == "invalidate"
        return not self.is_over

    def token(self) -> dict[str, Any]:
        """Where the stream can be resumed: after the last event, or after all that was looked at."""
        log = self._documents.log.lineage.log_at(self.place.position)
        return {"_data": f"{self.place.position:016X}{self.place.number:02X}{log.encode().hex().upper()}"}

    def _is_ours(self, database: str, collection: str) -> bool:
        options = self._options
        return (
            options.database in (None, database)
            and options.collection in (None, collection)
            and options.sees(database, collection)
        )

    def _of_operation(self, operation: DocumentOperation, hlc: int, past: Past) -> Iterator[dict[str, Any]]:
        if operation.collection == COLLECTIONS:
            yield from self._of_collection(operation)
            return
        if operation.silent or not self._is_ours(operation.database, operation.collection):
            return
        event: dict[str, Any] = {"operationType": _TYPES[operation.kind]}
        batch = past.batch
        if batch is not None and batch.transaction and batch.session is not None:
            event |= {"txnNumber": Int64(batch.number or 0), "lsid": {"id": Binary(batch.session, 4)}}
        if operation.kind in (Kind.INSERT, Kind.REPLACE):
            assert operation.document is not None
            event["fullDocument"] = unread_document(operation.document)
        elif operation.kind is Kind.UPDATE:
            event |= self._full_document(operation.database, operation.collection, operation.id, operation.document)
        event["ns"] = {"db": operation.database, "coll": operation.collection}
        event["documentKey"] = unread_document(operation.id)
        if operation.kind is Kind.UPDATE:
            described = operation.description
            event["updateDescription"] = dict(_NOTHING_CHANGED) if described is None else unread_document(described)
        if operation.kind is not Kind.INSERT:
            event |= self._before(operation.before)
        yield event

    def _full_document(self, database: str, collection: str, identity: bytes, after: bytes | None) -> dict[str, Any]:
        wanted = self._options.full_document
        if wanted == "default":
            return {}
        if wanted == "updateLookup":
            known = self._documents.state.find(database, collection)
            key = ordered(decode_document(identity)["_id"])
            stored = None if known is None else self._documents.state.get(known, key)
            after = None if stored is None else stored.document
        elif after is None and wanted == "required":
            raise HistoryLost("the document after the change is not known")
        return {"fullDocument": None if after is None else unread_document(after)}

    def _before(self, before: bytes | None) -> dict[str, Any]:
        wanted = self._options.before_change
        if wanted == "off":
            return {}
        if before is None and wanted == "required":
            raise HistoryLost("the document before the change was not kept: see changeStreamPreAndPostImages")
        return {"fullDocumentBeforeChange": None if before is None else unread_document(before)}

    def _of_collection(self, operation: DocumentOperation) -> Iterator[dict[str, Any]]:
        if operation.event is None:
            return
        name = decode_document(operation.id)["_id"]
        if not self._is_ours(operation.database, name):
            return
        event = decode_document(operation.event)
        place = {"db": operation.database, "coll": name}
        if "create" in event:
            if self._options.expanded:
                yield {"operationType": "create", "ns": place, "operationDescription": {"idIndex": {"v": 2}}}
            return
        if "rename" in event:
            yield {"operationType": "rename", "ns": place, "to": event["rename"]["to"]}
        else:
            yield {"operationType": "drop", "ns": place}
        if self._options.collection is not None:
            yield {"operationType": "invalidate"}

    def _of_change(self, change: RowChange) -> dict[str, Any]:
        event: dict[str, Any] = {"operationType": change.operation}
        if change.operation == "insert" and change.after is not None:
            event["fullDocument"] = unread_document(change.after)
        elif change.operation == "update" and self._options.full_document != "default":
            event["fullDocument"] = None if change.after is None else unread_document(change.after)
        event["ns"] = {"db": change.database, "coll": change.collection}
        event["documentKey"] = {"_id": change.id}
        if change.operation == "update":
            event["updateDescription"] = {**_NOTHING_CHANGED, "updatedFields": change.columns}
        if change.operation != "insert":
            event |= self._before(change.before)
        return event


def parse_token(documents: Documents, token: Any) -> Place:
    """The place that a token stands for. Raises HistoryLost for one of another log, Invalid for what is none."""
    data = token.get("_data") if isinstance(token, dict) else None
    try:
        if not isinstance(data, str):
            raise ValueError
        place = Place(LogPosition(int(data[:16], 16)), int(data[16:18], 16))
        log = bytes.fromhex(data[18:]).decode()
    except ValueError as error:
        raise Invalid("Bad resume token: expected=a token of a change stream", reason="bad_value") from error
    here = documents.log.lineage
    if place.position > documents.durable or here.log_at(place.position) != log:
        raise HistoryLost("the token is of another log")
    return place


async def kept_since(documents: Documents, hlc: int) -> LogPosition:
    """Before the first position that the log keeps. Raises HistoryLost where changes of that time may be gone."""
    kept = documents.log.segments()
    before = LogPosition((kept[0].first if kept else documents.log.sealed + 1) - 1)
    if before > NOWHERE:
        try:
            first = await asyncio.to_thread(_some, reader(documents.log, before), 1)
        except Gone:
            raise HistoryLost("the log was trimmed meanwhile") from None
        if hlc < first[0].hlc_first if first else hlc <= documents.hlc:
            raise HistoryLost("the log does not reach back to that time")
    return before


def _some(items: Iterator[Past], count: int = READ_AT_ONCE) -> list[Past]:
    return list(islice(items, count))
