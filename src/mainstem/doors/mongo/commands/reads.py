"""find, count, distinct, getMore, killCursors."""

import asyncio
import heapq
import itertools
import operator
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bson.int64 import Int64

from mainstem.documents import Node, matched_offset, parse_projection, parse_sort
from mainstem.documents.filters.ast import EVERYTHING
from mainstem.documents.paths import parse_path, reach
from mainstem.documents.values import MISSING, is_array, order_key
from mainstem.doors.mongo.calls import Call, Reply, command
from mainstem.doors.mongo.cursors import (
    BATCH_BYTES_MAX,
    FIRST_BATCH,
    PARSED_FACTOR,
    RANGE_BYTES,
    ROWS_BYTES,
    SNAPSHOT_BYTES,
    WALK_BYTES,
    Cursor,
    every,
    take,
)
from mainstem.doors.mongo.errors import CommandFailed, wrong_type
from mainstem.doors.mongo.walks import Walk
from mainstem.feeds.documents import pushing
from mainstem.feeds.documents.access import choose
from mainstem.feeds.documents.reading import Footprint, View
from mainstem.feeds.documents.spilling import RUN_ROWS, Found
from mainstem.feeds.documents.state import Collection
from mainstem.wire.mongo.frames import cursor_reply, encode_document

_FIND = (
    "filter",
    "sort",
    "projection",
    "hint",
    "skip",
    "limit",
    "batchSize",
    "singleBatch",
    "returnKey",
    "showRecordId",
    "max",
    "min",
    "tailable",
    "oplogReplay",
    "noCursorTimeout",
    "awaitData",
    "allowPartialResults",
    "collation",
    "allowDiskUse",
    "let",
)
# Documents that are sorted or counted on the loop: a thread and a snapshot cost more than that.
APART_MIN = 2_000
_NOT_YET = ("returnKey", "showRecordId", "max", "min", "tailable", "awaitData")


def view_of(call: Call) -> View:
    """What the command sees: the newest state, or its transaction's."""
    return View(call.door.documents.state) if call.transaction is None else call.transaction.unit.view


async def collection_of(call: Call, name: str) -> Collection | None:
    """A collection, as the command sees it."""
    if call.transaction is not None:
        await call.door.documents.open(call.database, name)
        return call.transaction.unit.find_collection(call.database, name)
    return await call.door.documents.open(call.database, name)


def check_collation(collation: Any) -> None:
    """Only the simple collation compares as bytes do."""
    if collation and not (isinstance(collation, Mapping) and collation.get("locale") == "simple"):
        raise CommandFailed(238, "collations other than {locale: 'simple'} are not supported")


def check_sort(sort: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A sort that was read once, or none."""
    if not sort:
        return None
    if "$natural" not in sort:
        parse_sort(sort)
    return sort


@command("find", *_FIND, in_transaction=True)
async def find(call: Call) -> Reply:
    """Documents that match."""
    name = call.collection()
    call.may_read(name)
    for each in _NOT_YET:
        if call.body.get(each):
            raise CommandFailed(238, f"the option '{each}' of find is not supported")
    check_collation(call.body.get("collation"))
    node = call.filter("filter")
    sort = check_sort(call.document("sort"))
    projection = call.document("projection")
    skip, limit = call.number("skip", 0) or 0, call.number("limit", 0) or 0
    if skip < 0:
        raise CommandFailed(51024, f"BSON field 'skip' value must be >= 0, actual value '{skip}'")
    single = call.flag("singleBatch") or limit < 0
    collection = await collection_of(call, name)
    namespace = f"{call.database}.{name}"
    if collection is None:
        return cursor_reply("firstBatch", [], 0, namespace, call.door.tail())
    hint, most = call.body.get("hint"), abs(limit) or None
    access = None
    if call.transaction is None and not hint and node != EVERYTHING and (sort or not most):
        access = await pushing.find(call.door.documents, collection, call.document("filter"), node)
    chosen = access or choose(collection, node, sort, hint)
    sent = sending(call, projection, node)
    state, cursor = call.door.documents.state, call.door.cursors.make(namespace, None)
    if call.transaction is None and access is None and (not sort or chosen.is_sorted):
        cursor.walk = walk = Walk(state, collection, node, chosen, sent, skip=skip, limit=most)
        asked = {"filter": call.document("filter"), "projection": projection}
        # Counted only if it is kept, which few are.
        cursor.held_bytes = lambda: WALK_BYTES + len(encode_document(asked)) * PARSED_FACTOR + walk.ranges * RANGE_BYTES
        return await first_batch(call, cursor, single=single)
    footprint, may_spill = Footprint(), call.flag("allowDiskUse", True)

    def begin(view: View) -> Iterator[bytes | None]:
        found = view.query(
            collection,
            node,
            sort=sort,
            skip=skip,
            limit=most,
            access=chosen,
            may_spill=may_spill,
            footprint=footprint,
        )
        return (None if each is None else sent(each) for each in found)

    is_apart = bool(sort) and not chosen.is_sorted and call.transaction is None and _is_large(call, collection)
    cursor.held_bytes = lambda: footprint.bytes + (SNAPSHOT_BYTES if is_apart else ROWS_BYTES)
    return await _held(call, cursor, begin, is_apart=is_apart, single=single)


async def _held(
    call: Call, cursor: Cursor, begin: Callable[[View], Iterator[bytes | None]], *, is_apart: bool, single: bool
) -> bytes:
    """The reply that begins a cursor which holds what it reads. `is_apart`: in a thread, on a snapshot of its own, so
    that others are answered while it sorts."""
    view = view_of(call)
    if is_apart:
        db = call.door.documents.state.snapshot()
        view, cursor.close = View(call.door.documents.state, db), db.close
    try:
        source = begin(view)
        cursor.source = await asyncio.to_thread(_begun, source) if is_apart else source
        reply = await first_batch(call, cursor, single=single)
    except BaseException:
        cursor.close()
        raise
    if cursor.used_s == 0.0:
        cursor.close()
    return reply


def _is_large(call: Call, collection: Collection) -> bool:
    """Whether what looks at every document belongs in a thread."""
    return bool(collection.number) and call.door.documents.state.last_place(collection) > APART_MIN


def _begun(source: Iterator[bytes | None]) -> Iterator[bytes | None]:
    """The same, after its first document was found: what is sorted is sorted then."""
    for each in source:
        if each is not None:
            return itertools.chain([each], source)
    return iter(())


def sending(call: Call, projection: Mapping[str, Any], node: Node) -> Callable[[Found], bytes]:
    """What makes of a document what is sent of it."""
    if not projection:
        return operator.attrgetter("document")
    scope = call.scope()
    parsed = parse_projection(projection, frozenset(scope))
    has_position = any(".$" in name for name in projection)

    def sent(each: Found) -> bytes:
        values = each.decoded()
        offset = matched_offset(node, values) if has_position else None
        return encode_document(parsed.apply(values, scope, offset))

    return sent


async def first_batch(call: Call, cursor: Cursor, *, single: bool = False, size: int | None = None) -> bytes:
    """The reply that begins a cursor; the cursor is kept where there is more."""
    size = call.number("batchSize") if size is None else size
    if size is not None and size < 0:
        raise CommandFailed(51024, f"BSON field 'batchSize' value must be >= 0, actual value '{size}'")
    documents, ended = await take(cursor, FIRST_BATCH if size is None else size, call.deadline_s)
    cursor_id = 0
    if not ended and not single:
        cursor.session = call.session
        cursor.principal = call.principal
        call.door.cursors.keep(cursor)
        cursor_id = cursor.id
    return cursor_reply("firstBatch", documents, cursor_id, cursor.namespace, call.door.tail())


@command("getMore", "collection", "batchSize", "term", "lastKnownCommittedOpTime", in_transaction=True)
async def get_more(call: Call) -> Reply:
    """The next documents of a cursor."""
    cursor_id = call.body["getMore"]
    if not isinstance(cursor_id, int) or isinstance(cursor_id, bool):
        raise wrong_type("getMore", "getMore", cursor_id, "long")
    name = call.text("collection")
    cursor = call.door.cursors.get(int(cursor_id))
    if cursor.namespace != f"{call.database}.{name}" or cursor.principal != call.principal:
        raise CommandFailed(13, f"Requested getMore on namespace '{call.database}.{name}', which the cursor is not of")
    if cursor.is_busy:
        raise CommandFailed(12051, f"cursor id {cursor_id} is already in use")
    size = call.number("batchSize")
    cursor.is_busy = True
    try:
        if cursor.wait is not None:
            wait_s = float(call.body.get("maxTimeMS") or 1000) / 1000
            documents = await cursor.wait(min(wait_s, 60.0), size or FIRST_BATCH * 10)
            ended = False
        else:
            documents, ended = await take(cursor, size or None, call.deadline_s)
    except BaseException:
        call.door.cursors.kill(cursor.id)
        raise
    finally:
        cursor.is_busy = False
    if ended:
        call.door.cursors.kill(cursor.id)
    else:
        call.door.cursors.keep(cursor)
    more = {} if cursor.token is None else cursor.token()
    if more:
        return change_reply(call, "nextBatch", documents, cursor, more)
    return cursor_reply("nextBatch", documents, 0 if ended else cursor.id, cursor.namespace, call.door.tail())


def change_reply(call: Call, batch: str, documents: list[bytes], cursor: Cursor, more: dict[str, Any]) -> Reply:
    """The reply of a change stream, whose cursor carries where it can be resumed."""
    from bson.raw_bson import RawBSONDocument

    inside = {batch: [RawBSONDocument(each) for each in documents], "id": Int64(cursor.id), "ns": cursor.namespace}
    if cursor.source is None and cursor.wait is None:
        inside["id"] = Int64(0)
    return {"cursor": {**inside, **more}}


@command("killCursors", "cursors", in_transaction=True)
async def kill_cursors(call: Call) -> Reply:
    """End cursors."""
    killed: list[Int64] = []
    missing: list[Int64] = []
    cursors = call.door.cursors
    for each in call.documents("cursors"):
        if not isinstance(each, int) or isinstance(each, bool):
            raise wrong_type("killCursors", "cursors", each, "long")
        # A client neither learns of others' cursors nor ends them.
        is_own = cursors.owner(int(each)) == call.principal
        (killed if is_own and cursors.kill(int(each)) else missing).append(Int64(each))
    return {"cursorsKilled": killed, "cursorsNotFound": missing, "cursorsAlive": [], "cursorsUnknown": []}


@command("count", "query", "limit", "skip", "hint", "collation", "fields")
async def count(call: Call) -> Reply:
    """How many documents match."""
    name = call.collection()
    call.may_read(name)
    check_collation(call.body.get("collation"))
    node = call.filter("query")
    skip, limit = call.number("skip", 0) or 0, abs(call.number("limit", 0) or 0)
    collection = await collection_of(call, name)
    if collection is None:
        return {"n": 0}
    view = view_of(call)
    if node == EVERYTHING and call.transaction is None and not call.body.get("hint"):
        total = await apart(call, collection, call.door.documents.state.count)
    elif (counted := await _counted(call, collection, node)) is not None:
        total = counted
    else:
        total = 0
        wanted = skip + limit if limit else None
        hint = call.body.get("hint")
        async for _ in every(view.find(collection, node, choose(collection, node, None, hint)), call.deadline_s):
            total += 1
            if total == wanted:
                break
    total = max(0, total - skip)
    return {"n": min(total, limit) if limit else total}


async def apart(
    call: Call, collection: Collection, measure: Callable[[Collection, sqlite3.Connection | None], int]
) -> int:
    """What looks at all of a collection: at a large one in a thread, on a snapshot, so that others are answered."""
    if not _is_large(call, collection):
        await asyncio.sleep(0)
        return measure(collection, None)
    db = call.door.documents.state.snapshot()
    try:
        return await asyncio.to_thread(measure, collection, db)
    finally:
        db.close()


def counting(call: Call) -> list[Mapping[str, Any]]:
    """A count as a pipeline."""
    return [{"$match": dict(call.document("query"))}, {"$count": "n"}]


async def _counted(call: Call, collection: Collection, node: Node) -> int | None:
    """How many documents match, by the collection's table, where that answers."""
    if call.transaction is not None or call.body.get("hint"):
        return None
    documents = call.door.documents
    chosen = await pushing.plan(documents, collection, counting(call), node)
    answered = None if chosen.pushed is None else await pushing.answer(documents, collection, chosen, 30.0)
    if answered is None:
        return None
    return int(answered.documents[0]["n"]) if answered.documents else 0


@command("distinct", "key", "query", "collation", "hint", in_transaction=True)
async def distinct(call: Call) -> Reply:
    """The values of a field."""
    name = call.collection()
    call.may_read(name)
    check_collation(call.body.get("collation"))
    path = parse_path(call.text("key"))
    node = call.filter("query")
    collection = await collection_of(call, name)
    found = _Distinct()
    if collection is not None:
        access = choose(collection, node, None, call.body.get("hint"))
        async for each in every(view_of(call).find(collection, node, access), call.deadline_s):
            for value, _ in reach(each.decoded(), path, spread=False):
                # Of an array each element is a value, be it an array itself.
                for one in value if is_array(value) else (value,):
                    if one is not MISSING:
                        found.add(one)
    return await found.reply(call)


class _Distinct:
    """The values of a field, each once: as many as fit a reply."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()
        self._size = 0
        # Sorted part by part, for sorting all of them at once would hold everybody up.
        self._parts: list[list[tuple[Any, bytes]]] = []
        self._part: list[tuple[Any, bytes]] = []

    def add(self, value: Any) -> None:
        key = order_key(value)
        if key in self._seen:
            return
        self._seen.add(key)
        # As an element of an array, whose name is put before it in the end.
        element = encode_document({"": value})[4:-1]
        self._part.append((key, element))
        self._size += len(element) + len(str(len(self._seen)))
        if self._size > BATCH_BYTES_MAX:
            raise CommandFailed(17217, f"distinct too big. expected=at most {BATCH_BYTES_MAX} bytes")
        if len(self._part) >= RUN_ROWS:
            self._end_part()

    def _end_part(self) -> None:
        self._part.sort(key=operator.itemgetter(0))
        self._parts.append(self._part)
        self._part = []

    async def reply(self, call: Call) -> bytes:
        self._end_part()
        merged = heapq.merge(*self._parts, key=operator.itemgetter(0))
        array, at = bytearray(), 0
        async for _, element in every(merged, call.deadline_s):
            array += element[:1] + b"%d" % at + element[1:]
            at += 1
        body = b"\x04values\x00" + (len(array) + 5).to_bytes(4, "little") + bytes(array) + b"\x00" + call.door.tail()
        return (len(body) + 5).to_bytes(4, "little") + body + b"\x00"
