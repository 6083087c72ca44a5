"""find, count, distinct, getMore, killCursors, explain."""

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from bson.int64 import Int64

from mainstem.documents import compile_pipeline, matched_offset, matcher, parse_filter, parse_projection, parse_sort
from mainstem.documents.ast import EVERYTHING
from mainstem.documents.paths import parse_path, reach
from mainstem.documents.values import MISSING, is_array, order_key
from mainstem.doors.mongo.calls import Call, Reply, command
from mainstem.doors.mongo.cursors import FIRST_BATCH, Cursor, every, take
from mainstem.doors.mongo.errors import CommandFailed, wrong_type
from mainstem.feeds.documents import pushing
from mainstem.feeds.documents.access import choose
from mainstem.feeds.documents.reading import View
from mainstem.feeds.documents.spilling import Found
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
_NOT_YET = ("returnKey", "showRecordId", "max", "min", "tailable", "awaitData", "let")


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
    filter = call.document("filter")
    node = parse_filter(filter)
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
    access = None
    if call.transaction is None and not call.body.get("hint") and filter and (sort or not limit):
        access = await pushing.find(call.door.documents, collection, filter)
    access = access or choose(collection, node, sort, call.body.get("hint"))
    view, close = view_of(call), _nothing
    is_apart = sort and not access.is_sorted and call.transaction is None and _is_large(call, collection)
    if is_apart:
        # In a thread, on a snapshot of its own, so that others are answered while it sorts.
        db = call.door.documents.state.snapshot()
        view, close = View(call.door.documents.state, db), db.close
    found = view.query(
        collection,
        node,
        sort=sort,
        skip=skip,
        limit=abs(limit) or None,
        access=access,
        may_spill=call.flag("allowDiskUse", True),
    )
    source = projected(found, projection, filter)
    cursor = call.door.cursors.make(namespace, source)
    cursor.close = close
    try:
        if is_apart:
            cursor.source = await asyncio.to_thread(_begun, source)
        reply = await first_batch(call, cursor, single=single)
    except BaseException:
        close()
        raise
    if cursor.used_s == 0.0:
        close()
    return reply


def _nothing() -> None:
    pass


def _is_large(call: Call, collection: Collection) -> bool:
    """Whether what looks at every document belongs in a thread."""
    return bool(collection.number) and call.door.documents.state.last_place(collection) > APART_MIN


def _begun(source: Iterator[bytes | None]) -> Iterator[bytes | None]:
    """The same, after its first document was found: what is sorted is sorted then."""
    for each in source:
        if each is not None:
            return itertools.chain([each], source)
    return iter(())


def projected(
    found: Iterator[Found | None], projection: Mapping[str, Any], filter: Mapping[str, Any] | None = None
) -> Iterator[bytes | None]:
    """The documents as they are sent."""
    if not projection:
        return (None if each is None else each.document for each in found)
    parsed = parse_projection(projection)
    has_position = filter is not None and any(".$" in name for name in projection)

    def sent(each: Found) -> bytes:
        values = each.decoded()
        offset = matched_offset(filter, values) if has_position and filter is not None else None
        return encode_document(parsed.apply(values, offset=offset))

    return (None if each is None else sent(each) for each in found)


async def first_batch(call: Call, cursor: Cursor, *, single: bool = False, size: int | None = None) -> bytes:
    """The reply that begins a cursor; the cursor is kept where there is more."""
    size = call.number("batchSize") if size is None else size
    if size is not None and size < 0:
        raise CommandFailed(51024, f"BSON field 'batchSize' value must be >= 0, actual value '{size}'")
    documents, ended = await take(cursor, FIRST_BATCH if size is None else size, call.deadline_s)
    cursor_id = 0
    if not ended and not single:
        cursor.session = call.session
        cursor.principal = call.principal.sub
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
    if cursor.namespace != f"{call.database}.{name}" or cursor.principal != call.principal.sub:
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
    for each in call.documents("cursors"):
        if not isinstance(each, int) or isinstance(each, bool):
            raise wrong_type("killCursors", "cursors", each, "long")
        # Of others' cursors nobody learns, and nobody ends them.
        is_own = call.door.cursors.principal_of(int(each)) == call.principal.sub
        (killed if is_own and call.door.cursors.kill(int(each)) else missing).append(Int64(each))
    return {"cursorsKilled": killed, "cursorsNotFound": missing, "cursorsAlive": [], "cursorsUnknown": []}


@command("count", "query", "limit", "skip", "hint", "collation", "fields")
async def count(call: Call) -> Reply:
    """How many documents match."""
    name = call.collection()
    call.may_read(name)
    check_collation(call.body.get("collation"))
    node = parse_filter(call.document("query"))
    skip, limit = call.number("skip", 0) or 0, abs(call.number("limit", 0) or 0)
    collection = await collection_of(call, name)
    if collection is None:
        return {"n": 0}
    view = view_of(call)
    if node == EVERYTHING and call.transaction is None and not call.body.get("hint"):
        total = await count_all(call, collection)
    elif (counted := await _counted(call, collection)) is not None:
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


async def count_all(call: Call, collection: Collection) -> int:
    """How many documents a collection has: of a large one in a thread, for all of it is walked through."""
    state = call.door.documents.state
    if not _is_large(call, collection):
        return state.count(collection)
    db = state.snapshot()
    try:
        return await asyncio.to_thread(state.count, collection, db)
    finally:
        db.close()


async def _counted(call: Call, collection: Collection) -> int | None:
    """How many documents match, by the collection's table, where that answers."""
    if call.transaction is not None or call.body.get("hint"):
        return None
    documents = call.door.documents
    chosen = await pushing.plan(documents, collection, _stages("count", call.body))
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
    node = parse_filter(call.document("query"))
    collection = await collection_of(call, name)
    values: dict[Any, Any] = {}
    if collection is not None:
        access = choose(collection, node, None, call.body.get("hint"))
        async for found in every(view_of(call).find(collection, node, access), call.deadline_s):
            for value, _ in reach(found.decoded(), path, spread=True):
                if value is not MISSING and not is_array(value):
                    values.setdefault(order_key(value), value)
    return {"values": [values[key] for key in sorted(values)]}


@command("explain", "verbosity")
async def explain(call: Call) -> Reply:
    """How a command would find its documents."""
    inner = call.document("explain")
    name = next(iter(inner), "")
    if name not in ("find", "count", "distinct", "aggregate", "update", "delete", "findAndModify"):
        raise CommandFailed(59, f"Explain failed due to unknown command: {name}")
    collection_name = inner[name]
    if not isinstance(collection_name, str):
        raise CommandFailed(73, "collection name has invalid type")
    call.may_read(collection_name)
    filter, sort = _explained(name, inner)
    node = parse_filter(filter)
    collection = await call.door.documents.open(call.database, collection_name)
    if collection is None:
        winning: dict[str, Any] = {"stage": "EOF"}
    else:
        access = choose(collection, node, sort or None, inner.get("hint"))
        winning = {"stage": access.stage}
        direction = "backward" if access.backwards else "forward"
        if access.stage == "COLLSCAN":
            winning |= {"filter": filter, "direction": direction}
        else:
            key = {"_id": 1} if access.index is None else access.index.document["key"]
            index_name = "_id_" if access.index is None else access.index.name
            scan = {"stage": "IXSCAN", "keyPattern": key, "indexName": index_name, "direction": direction}
            winning = {"stage": "FETCH", "filter": filter, "inputStage": scan} if access.stage == "IXSCAN" else winning
        if sort and not access.is_sorted:
            winning = {"stage": "SORT", "sortPattern": dict(sort), "inputStage": winning}
    plan: dict[str, Any] = {
        "namespace": f"{call.database}.{collection_name}",
        "parsedQuery": filter,
        "indexFilterSet": False,
        "winningPlan": winning,
        "rejectedPlans": [],
    }
    reply: dict[str, Any] = {"explainVersion": "1", "queryPlanner": plan, "command": dict(inner)}
    if name in ("aggregate", "count") and collection is not None:
        chosen = await pushing.plan(call.door.documents, collection, _stages(name, inner))
        reply["pushDown"] = {"answeredBy": "documents" if chosen.pushed is None else "columns", "reason": chosen.reason}
        if chosen.pushed is not None:
            reply["pushDown"] |= {"stages": chosen.pushed.stages, "sql": chosen.sql, "laysOverTheLog": chosen.latest}
    if call.body.get("verbosity", "allPlansExecution") != "queryPlanner" and collection is not None:
        examined = returned = 0
        passes = matcher(node)
        view = View(call.door.documents.state)
        async for found in every(view.find(collection, EVERYTHING, choose(collection, node))):
            examined += 1
            returned += passes(found.decoded())
        reply["executionStats"] = {
            "executionSuccess": True,
            "nReturned": returned,
            "totalKeysExamined": 0 if winning["stage"] == "COLLSCAN" else examined,
            "totalDocsExamined": examined,
        }
    return reply


def _stages(name: str, inner: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if name == "aggregate":
        return list(compile_pipeline(inner.get("pipeline")).stages)
    return [{"$match": dict(inner.get("query") or {})}, {"$count": "n"}]


def _explained(name: str, inner: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if name in ("find", "findAndModify"):
        return inner.get("filter") or inner.get("query") or {}, inner.get("sort") or {}
    if name == "aggregate":
        stages = inner.get("pipeline") or []
        first = stages[0] if stages and isinstance(stages[0], Mapping) else {}
        return first.get("$match") or {}, {}
    if name in ("update", "delete"):
        statements = inner.get("updates") or inner.get("deletes") or [{}]
        return statements[0].get("q") or {}, {}
    return inner.get("query") or {}, {}
