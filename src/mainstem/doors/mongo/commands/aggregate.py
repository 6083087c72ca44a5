"""aggregate: pipelines over collections, into collections, and change streams."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from mainstem.admission import Role
from mainstem.documents import compile_pipeline, matcher, parse_filter
from mainstem.documents.aggregation import Namespace, Pipeline, Run
from mainstem.documents.aggregation.running import Spill
from mainstem.documents.aggregation.sinks import Merge, Out
from mainstem.documents.updates.update import apply_update
from mainstem.doors.mongo.calls import Call, Reply, command
from mainstem.doors.mongo.commands.collections import empty
from mainstem.doors.mongo.commands.reads import (
    apart,
    change_reply,
    check_collation,
    collection_of,
    first_batch,
    view_of,
)
from mainstem.doors.mongo.cursors import ROWS_BYTES, SNAPSHOT_BYTES, STREAM_BYTES, every, fitting, nothing
from mainstem.doors.mongo.errors import CommandFailed, wrong_type
from mainstem.doors.mongo.server import hlc_of
from mainstem.feeds.documents.access import choose
from mainstem.feeds.documents.checks import encode_checked, with_id
from mainstem.feeds.documents.pushing import ANSWER_S_MAX, SPREAD_S_MAX, Answer, answer, plan, spread_answer
from mainstem.feeds.documents.reading import View
from mainstem.feeds.documents.service import Documents
from mainstem.feeds.documents.spilling import Found, SpilledDocuments, Spool
from mainstem.feeds.documents.state import Collection
from mainstem.feeds.documents.streams import ChangeStream, Place, StreamOptions, kept_since, parse_token
from mainstem.feeds.documents.writing import Change, Unit
from mainstem.wire.mongo.batches import Kind, table_of
from mainstem.wire.mongo.frames import cursor_reply, decode_document, encode_document
from mainstem.wire.mongo.ordered import ordered

# Collections up to this size are read on the loop: a thread and a snapshot cost more than that.
INLINE_DOCUMENTS_MAX = 1_000
_PULLED_AT_ONCE = 1_000
_FIELDS = ("pipeline", "cursor", "explain", "allowDiskUse", "bypassDocumentValidation", "collation", "hint", "let")


class _Sources:
    """Other collections, as the command sees them."""

    def __init__(self, view: View, database: str, known: Mapping[tuple[str, str], Collection]) -> None:
        self._view = view
        self._database = database
        self._known = known

    def read(self, namespace: Namespace, filter: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        collection = self._known.get((namespace.database or self._database, namespace.name))
        if collection is None:
            return iter(())
        found = self._view.find(collection, parse_filter(filter))
        return (each.decoded() for each in found if each is not None)

    def has_index(self, namespace: Namespace, path: str) -> bool:
        if path == "_id":
            return True
        collection = self._known.get((namespace.database or self._database, namespace.name))
        return collection is not None and any(
            entries.index.fields[0].name == path and entries.index.partial is None and not entries.index.sparse
            for entries in collection.indexes
        )


@command("aggregate", *_FIELDS, "$_requestReshardingResumeToken", in_transaction=True)
async def aggregate(call: Call) -> Reply:
    """Run a pipeline."""
    check_collation(call.body.get("collation"))
    if call.flag("explain"):
        raise CommandFailed(238, "the option 'explain' of aggregate is not supported: use the explain command")
    target = call.body["aggregate"]
    stages = call.body.get("pipeline")
    if not isinstance(stages, list):
        raise wrong_type("aggregate", "pipeline", stages, "array")
    name = target if isinstance(target, str) else None
    if name is None and target != 1:
        raise CommandFailed(73, "aggregate takes a collection's name, or 1")
    pipeline = compile_pipeline(stages, frozenset(call.scope()))
    if pipeline.source is not None and "$changeStream" in pipeline.source:
        return await _change_stream(call, name, pipeline)
    if name is not None:
        call.may_read(name)
    for other in pipeline.reads:
        if not call.principal.may_read(table_of(other.database or call.database, other.name)):
            raise CommandFailed(13, f"not authorized on {call.database} to execute command aggregate")
    if isinstance(pipeline.sink, Out | Merge) and call.transaction is not None:
        raise CommandFailed(263, "$out and $merge cannot run in a transaction")
    namespace = f"{call.database}.{name}" if name is not None else f"{call.database}.$cmd.aggregate"
    source, close = await _run(call, name, pipeline)
    if pipeline.sink is not None:
        try:
            await _sink(call, pipeline.sink, source)
        finally:
            close()
        return cursor_reply("firstBatch", [], 0, namespace, call.door.tail())
    encoded = (None if each is None else _encoded(each) for each in source)
    cursor = call.door.cursors.make(namespace, encoded)
    cursor.close = close
    cursor.held_bytes = lambda: ROWS_BYTES if close is nothing else SNAPSHOT_BYTES
    try:
        reply = await first_batch(call, cursor, size=call.document("cursor").get("batchSize"))
    except BaseException:
        close()
        raise
    if cursor.used_s == 0.0:
        close()
    return reply


def _encoded(document: Mapping[str, Any]) -> bytes:
    return bytes(document.raw) if isinstance(document, RawBSONDocument) else encode_document(document)


async def _run(call: Call, name: str | None, pipeline: Pipeline) -> tuple[Iterator[Mapping[str, Any] | None], Any]:
    """The documents of a pipeline, and what to call when no more of them are wanted."""
    documents, scope = call.door.documents, call.scope()
    known: dict[tuple[str, str], Collection] = {}
    for other in pipeline.reads:
        opened = await documents.open(other.database or call.database, other.name)
        if opened is not None:
            known[opened.database, opened.name] = opened
    collection = None if name is None else await collection_of(call, name)
    if pipeline.source is not None:
        given = await _stated(call, pipeline.source, collection, name)
        return pipeline.run(given, Run(scope)), nothing
    if counted := await _counted(call, pipeline, collection):
        return iter([counted]), nothing
    size = 0 if collection is None or not collection.number else documents.state.last_place(collection)
    answered = await _answered(call, pipeline, collection, Run(scope, spill=_spill(call)))
    if call.transaction is not None or (size <= INLINE_DOCUMENTS_MAX and not pipeline.reads):
        view = view_of(call)
        run = Run(scope, _Sources(view, call.database, known), spill=_spill(call))
        return _ticking(pipeline.run(_input(call, view, collection, pipeline), run)), nothing
    # Large: in a thread, on a snapshot of its own, so that others are answered meanwhile.
    db = documents.state.snapshot()
    view = View(documents.state, db)
    run = Run(scope, _Sources(view, call.database, known), spill=_spill(call))
    if answered is None:
        results = pipeline.run(_input(call, view, collection, pipeline), run)
    else:
        rest = compile_pipeline(list(pipeline.stages[answered.stages :]), frozenset(scope))
        results = rest.run(answered.documents, run)
    first = await asyncio.to_thread(_pulled, results)
    return _pages(first, results), db.close


def _spill(call: Call) -> Spill | None:
    """Where a sort puts what is too much for memory, unless the client forbids it."""
    folder = call.door.documents.state.folder
    return (lambda key_of: SpilledDocuments(folder, key_of)) if call.flag("allowDiskUse", True) else None


async def _answered(call: Call, pipeline: Pipeline, collection: Collection | None, run: Run) -> Answer | None:
    """What the collection's table answers of the pipeline's start, where it does."""
    if call.transaction is not None or collection is None or not pipeline.needs_collection or call.body.get("hint"):
        return None
    documents = call.door.documents
    chosen = await plan(documents, collection, pipeline.stages, call.parsed(pipeline.filter))
    left_s = SPREAD_S_MAX if call.deadline_s is None else max(0.001, call.deadline_s - time.monotonic())
    if chosen.pushed is not None:
        return await answer(documents, collection, chosen, min(left_s, ANSWER_S_MAX))
    if chosen.spread is None:
        return None
    found = await spread_answer(documents, collection, chosen.spread, run, min(left_s, SPREAD_S_MAX))
    if found is None and call.deadline_s is not None and time.monotonic() > call.deadline_s:
        raise CommandFailed(50, "operation exceeded time limit")
    return None if found is None else Answer(found, chosen.spread.stages)


def _input(call: Call, view: View, collection: Collection | None, pipeline: Pipeline) -> Iterator[Mapping[str, Any]]:
    if collection is None or not pipeline.needs_collection:
        return iter(())
    node = call.parsed(pipeline.filter)
    access = choose(collection, node, None, call.body.get("hint"))
    return (each.decoded() for each in view.find(collection, node, access) if each is not None)


def _ticking(documents: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any] | None]:
    yield from documents


def _pulled(documents: Iterator[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return list(islice(documents, _PULLED_AT_ONCE))


def _pages(first: list[Mapping[str, Any]], rest: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any] | None]:
    yield from first
    if len(first) == _PULLED_AT_ONCE:
        for each in rest:
            yield each
            yield None


async def _counted(call: Call, pipeline: Pipeline, collection: Collection | None) -> dict[str, Any] | None:
    """What `count_documents` of drivers asks for, of a whole collection."""
    stages = list(pipeline.stages)
    if call.transaction is not None or collection is None or not stages or len(stages) > 2 or call.body.get("hint"):
        return None
    if "$match" in stages[0]:
        if stages[0]["$match"]:
            return None
        stages = stages[1:]
    group = stages[0].get("$group") if len(stages) == 1 else None
    if group not in ({"_id": 1, "n": {"$sum": 1}}, {"_id": None, "n": {"$sum": 1}}):
        return None
    count = await apart(call, collection, call.door.documents.state.count)
    return {"_id": group["_id"], "n": count} if count else None


async def _stated(
    call: Call, source: Mapping[str, Any], collection: Collection | None, name: str | None
) -> Iterator[Mapping[str, Any]]:
    """The documents of stages that tell of the server: `$collStats`, `$indexStats`, `$currentOp`."""
    state = call.door.documents.state
    if "$currentOp" in source:
        if not (call.principal.is_unbounded and call.principal.has(Role.ADMIN)):
            raise CommandFailed(13, f"not authorized on {call.database} to execute command aggregate")
        there = call.door.connections
        return iter([{"type": "op", "connectionId": each.number, "client": each.peer} for each in there])
    if collection is None:
        raise CommandFailed(26, f"ns does not exist: {call.database}.{name}")
    if "$indexStats" in source:
        names = [("_id_", {"_id": 1}), *((each.index.name, each.index.document["key"]) for each in collection.indexes)]
        return iter([{"name": index, "key": dict(key), "host": call.connection.address} for index, key in names])
    stated: dict[str, Any] = {"ns": collection.namespace, "host": call.connection.address}
    asked = source["$collStats"]
    if "count" in asked:
        stated["count"] = await apart(call, collection, state.count)
    if "storageStats" in asked:
        size = await apart(call, collection, state.size_bytes)
        count = await apart(call, collection, state.count)
        indexes = len(collection.indexes) + 1
        stated["storageStats"] = {"size": size, "count": count, "storageSize": size, "nindexes": indexes}
    return iter([stated])


# What a pipeline ends in


async def _sink(call: Call, sink: Out | Merge, documents: Iterator[Mapping[str, Any] | None]) -> None:
    database, name = sink.into.database or call.database, sink.into.name
    if not call.principal.has(Role.WRITER) or not call.principal.may_write(table_of(database, name)):
        raise CommandFailed(13, f"not authorized on {database} to execute command aggregate")
    await call.door.documents.open(database, name)
    # All of them before the first is written: they may come from the collection that they go to.
    spool = Spool(call.door.documents.state.folder)
    try:
        async for document in every(documents, call.deadline_s):
            spool.add(encode_checked(document))
        await _write(call, sink, database, name, spool)
    finally:
        spool.close()


async def _write(call: Call, sink: Out | Merge, database: str, name: str, spool: Spool) -> None:
    unit = call.unit()
    if isinstance(sink, Out):
        existing = unit.find_collection(database, name)
        if existing is not None:
            await empty(call, unit, existing)
    async for raw in every(spool.documents()):
        document = decode_document(raw)
        if isinstance(sink, Out):
            await _insert(unit, database, name, document)
        else:
            await _merge(call, unit, sink, database, name, document)
        if unit.draft.is_full:
            await unit.flush()
    await unit.attempt(lambda: unit.ensure_collection(database, name))
    await unit.flush()


async def _insert(unit: Unit, database: str, name: str, document: Mapping[str, Any]) -> None:
    raw, values = with_id(encode_checked(document), dict(document), unit.writer.new_id)
    await unit.attempt(lambda: unit.insert(unit.ensure_collection(database, name), raw, values))


async def _merge(call: Call, unit: Unit, sink: Merge, database: str, name: str, document: Mapping[str, Any]) -> None:
    collection = unit.find_collection(database, name)
    filter = {field: {"$eq": document.get(field)} for field in sink.on}
    found: Found | None = None
    node = parse_filter(filter)
    if collection is not None:
        if sink.on == ("_id",):
            found = unit.view.get(collection, ordered(document.get("_id")))
        else:
            found = next((each for each in unit.view.find(collection, node) if each is not None), None)
    if found is None or collection is None:
        if sink.unmatched == "insert":
            await _insert(unit, database, name, document)
        elif sink.unmatched == "fail":
            raise CommandFailed(13113, "$merge could not find a matching document in the target collection")
        return
    if sink.matched == "keepExisting":
        return
    if sink.matched == "fail":
        raise CommandFailed(11000, f"E11000 duplicate key error collection: {database}.{name}")
    now_ms = call.door.clock.now_ms()

    def compute(values: dict[str, Any]) -> Change | None:
        if isinstance(sink.matched, list):
            after = apply_update(sink.matched, values, now_ms=now_ms, scope={"new": dict(document)}).document
        elif sink.matched == "replace":
            after = {"_id": values["_id"], **{key: value for key, value in document.items() if key != "_id"}}
        else:
            after = {**values, **{key: value for key, value in document.items() if key != "_id"}}
        raw = encode_checked(after)
        return Change(raw, dict(after), Kind.REPLACE, None)

    target, passes = found, matcher(node)
    await unit.attempt(lambda: unit.change(collection, target, passes, compute))


# Change streams

_STREAM_FIELDS = {
    "fullDocument",
    "fullDocumentBeforeChange",
    "resumeAfter",
    "startAfter",
    "startAtOperationTime",
    "allChangesForCluster",
    "showExpandedEvents",
}


# Each event by itself: what holds several together would hold them within one batch.
_STREAM_STAGES = frozenset(
    {"$addFields", "$match", "$project", "$redact", "$replaceRoot", "$replaceWith", "$set", "$unset"}
)


async def _beginning(documents: Documents, asked: Mapping[str, Any]) -> tuple[Place, int]:
    """Where a stream begins: after a place, and with changes of which time."""
    given = [each for each in ("resumeAfter", "startAfter", "startAtOperationTime") if asked.get(each) is not None]
    if not given:
        return Place(documents.durable, 0), 0
    if len(given) > 1:
        raise CommandFailed(40674, f"a stream begins at one place. expected=one of the options got={given}")
    if given == ["startAtOperationTime"]:
        at = asked["startAtOperationTime"]
        if not isinstance(at, Timestamp):
            raise wrong_type("$changeStream", "startAtOperationTime", at, "timestamp")
        return Place(await kept_since(documents, hlc_of(at)), 0), hlc_of(at)
    place = parse_token(documents, asked[given[0]])
    if place.number == 2 and given == ["resumeAfter"]:
        # An invalidate ends a stream; only a new one goes on after it.
        raise CommandFailed(260, "a stream cannot resume after an invalidate event: use startAfter")
    return place, 0


async def _change_stream(call: Call, name: str | None, pipeline: Pipeline) -> Reply:
    assert pipeline.source is not None
    asked = pipeline.source["$changeStream"]
    if unknown := sorted(set(asked) - _STREAM_FIELDS):
        raise CommandFailed(40415, f"BSON field '$changeStream.{unknown[0]}' is an unknown field.")
    if call.transaction is not None:
        raise CommandFailed(263, "$changeStream cannot run in a transaction")
    for stage in pipeline.stages[1:]:
        if (stage_name := next(iter(stage))) not in _STREAM_STAGES:
            raise CommandFailed(20, f"{stage_name} is not permitted in a $changeStream pipeline")
    everything = bool(asked.get("allChangesForCluster"))
    if everything and (name is not None or call.database != "admin"):
        raise CommandFailed(72, "A $changeStream with 'allChangesForCluster:true' may only be opened on 'admin'")
    if name is not None:
        call.may_read(name)
    documents = call.door.documents
    if name is not None:
        await documents.open(call.database, name)
    principal = call.principal
    options = StreamOptions(
        database=None if everything else call.database,
        collection=name,
        full_document=_one_of(asked, "fullDocument", ("default", "updateLookup", "whenAvailable", "required")),
        before_change=_one_of(asked, "fullDocumentBeforeChange", ("off", "whenAvailable", "required")),
        expanded=bool(asked.get("showExpandedEvents")),
        sees=lambda database, collection: principal.may_read(table_of(database, collection)),
    )
    place, from_hlc = await _beginning(documents, asked)
    stream = ChangeStream(documents, options, place, from_hlc)
    namespace = f"{call.database}.{name or '$cmd.aggregate'}"
    cursor = call.door.cursors.make(namespace, None)

    async def wait(wait_s: float, count: int) -> list[bytes]:
        ready = cursor.left_over
        if not ready and not stream.is_over:
            events = await stream.read(wait_s)
            ready = [_encoded(each) for each in pipeline.run(events, Run({}))]
        count = min(count, fitting(ready))
        cursor.left_over = ready[count:]
        if stream.is_over and not cursor.left_over:
            cursor.wait = None
        if not cursor.left_over:
            told["_id"] = stream.token()
        elif count:
            # The stream is further on than its reader: who resumes must be told what is left over here.
            told["_id"] = decode_document(ready[count - 1]).get("_id")
        return ready[:count]

    def resume() -> dict[str, Any]:
        return {"postBatchResumeToken": told["_id"]}

    told: dict[str, Any] = {"_id": stream.token()}

    cursor.wait, cursor.close, cursor.token = wait, stream.close, resume
    cursor.session, cursor.principal = call.session, principal
    cursor.held_bytes = lambda: STREAM_BYTES + sum(map(len, cursor.left_over))
    try:
        size = call.document("cursor").get("batchSize")
        ready = await wait(0.0, 101 if size is None else max(size, 0)) if size != 0 else []
        call.door.cursors.keep(cursor)
    except BaseException:
        stream.close()
        raise
    return change_reply(call, "firstBatch", ready, cursor, resume())


def _one_of(asked: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    value = asked.get(name, allowed[0])
    if value not in allowed:
        raise CommandFailed(9, f"Enumeration value '{value}' for field '$changeStream.{name}' is not a valid value.")
    return str(value)
