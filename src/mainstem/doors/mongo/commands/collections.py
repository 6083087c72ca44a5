"""Databases and collections: list, create, drop, rename, change, statistics."""

from collections.abc import Mapping
from typing import Any

from bson.int64 import Int64

from mainstem.admission import Role
from mainstem.documents import matcher
from mainstem.documents.filters.ast import EVERYTHING
from mainstem.doors.mongo.calls import Call, Reply, command
from mainstem.doors.mongo.commands.indexes import _ID_INDEX
from mainstem.doors.mongo.commands.reads import apart, check_collation, first_batch
from mainstem.doors.mongo.cursors import every
from mainstem.doors.mongo.errors import CommandFailed, wrong_type
from mainstem.feeds.documents.checks import check_name
from mainstem.feeds.documents.indexes import parse_index
from mainstem.feeds.documents.spilling import Found
from mainstem.feeds.documents.state import Collection
from mainstem.feeds.documents.writing import Unit
from mainstem.wire.mongo.batches import table_of
from mainstem.wire.mongo.frames import encode_document

_VALIDATION = ("validator", "validationLevel", "validationAction")
_REFUSED = {
    "capped": "capped collections are not supported",
    "timeseries": "time series collections are not supported",
    "viewOn": "views are not supported",
    "clusteredIndex": "clustered collections are not supported",
    "encryptedFields": "encrypted collections are not supported",
    "expireAfterSeconds": "'expireAfterSeconds' is of time series and clustered collections: use a TTL index",
    "pipeline": "'pipeline' is of views, which are not supported",
}


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what would make a collection behave otherwise than here."""
    for name, why in _REFUSED.items():
        if options.get(name):
            raise CommandFailed(238, why)
    check_collation(options.get("collation"))
    validator = options.get("validator")
    if validator is not None:
        if not isinstance(validator, Mapping):
            raise wrong_type("create", "validator", validator, "object")
        matcher(validator)
    if options.get("validationLevel", "strict") not in ("off", "strict"):
        raise CommandFailed(238, "validationLevel 'moderate' is not supported")
    if options.get("validationAction", "error") not in ("error", "warn"):
        raise CommandFailed(238, f"validationAction. expected='error' or 'warn' got={options['validationAction']!r}")


@command(
    "create",
    *_VALIDATION,
    *_REFUSED,
    "size",
    "max",
    "storageEngine",
    "indexOptionDefaults",
    "collation",
    "changeStreamPreAndPostImages",
    "autoIndexId",
    role=Role.WRITER,
    in_transaction=True,
    writes=True,
)
async def create(call: Call) -> Reply:
    """A new collection."""
    name = call.collection()
    call.may_write(name)
    check_options(call.body)
    check_name(call.database, name)
    kept = (*_VALIDATION, "changeStreamPreAndPostImages")
    options = {each: call.body[each] for each in kept if each in call.body}
    documents = call.door.documents
    if await documents.open(call.database, name) is not None:
        raise CommandFailed(48, f"Collection {call.database}.{name} already exists.")
    unit = call.unit()
    await unit.attempt(lambda: unit.ensure_collection(call.database, name, options))
    if call.transaction is None:
        await unit.flush()
    return {}


@command("collMod", *_VALIDATION, "changeStreamPreAndPostImages", "index", role=Role.WRITER, writes=True)
async def coll_mod(call: Call) -> Reply:
    """Change a collection's options."""
    name = call.collection()
    call.may_write(name)
    check_options(call.body)
    documents = call.door.documents
    unit = call.unit()
    await unit.hold_collection(call.database, name)
    collection = await documents.open(call.database, name)
    if collection is None:
        raise CommandFailed(26, f"ns does not exist: {call.database}.{name}")
    kept = (*_VALIDATION, "changeStreamPreAndPostImages")
    options = {**collection.options, **{each: call.body[each] for each in kept if each in call.body}}
    document = {**collection.document, "options": options}
    reply = _changed_index(document, call.document("index")) if "index" in call.body else {}
    await unit.attempt(lambda: unit.describe(call.database, name, document))
    await unit.flush()
    return reply


def _changed_index(document: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Let documents of a TTL index live for another time."""
    if unknown := asked.keys() - {"name", "keyPattern", "expireAfterSeconds"}:
        raise CommandFailed(238, f"collMod changes 'expireAfterSeconds' of an index. got={sorted(unknown)}")
    if "expireAfterSeconds" not in asked or ("name" in asked) == ("keyPattern" in asked):
        raise CommandFailed(72, "collMod of an index takes expireAfterSeconds, and name or keyPattern")
    place = "name" if "name" in asked else "key"
    wanted = asked.get("name", asked.get("keyPattern"))
    indexes = [dict(each) for each in document["indexes"]]
    found = next((each for each in indexes if each[place] == wanted), None)
    if found is None:
        raise CommandFailed(27, f"cannot find index {wanted} for ns {document['_id']}")
    before = found.get("expireAfterSeconds")
    found["expireAfterSeconds"] = asked["expireAfterSeconds"]
    number = found.pop("number")
    # Refuses a time that is none, and an index of several fields.
    parse_index(found, number)
    found["number"] = number
    document["indexes"] = indexes
    old = {} if before is None else {"expireAfterSeconds_old": Int64(before)}
    return {**old, "expireAfterSeconds_new": Int64(asked["expireAfterSeconds"])}


async def empty(call: Call, unit: Unit, collection: Collection) -> None:
    """Take every document out of a collection, without telling change streams of each."""
    async for found in every(unit.view.find(collection, EVERYTHING)):
        await unit.attempt(lambda found=found: unit.remove(collection, found, lambda _: True, silent=True))  # type: ignore[misc]
        if unit.draft.is_full:
            await unit.flush()


@command("drop", role=Role.WRITER, writes=True)
async def drop(call: Call) -> Reply:
    """A collection goes, with all that is in it."""
    name = call.collection()
    call.may_write(name)
    documents = call.door.documents
    collection = await documents.open(call.database, name)
    if collection is None:
        return {}
    count = len(collection.indexes) + 1
    await _drop(call, collection)
    return {"nIndexesWas": count, "ns": f"{call.database}.{name}"}


async def _drop(call: Call, collection: Collection) -> None:
    unit = call.unit()
    await empty(call, unit, collection)
    await unit.attempt(lambda: unit.forget(collection.database, collection.name, {"drop": 1}))
    await unit.flush()


@command("dropDatabase", role=Role.WRITER, writes=True)
async def drop_database(call: Call) -> Reply:
    """Every collection of a database goes."""
    names = [name for _, name in call.door.documents.listed(call.database)]
    for name in names:
        call.may_write(name)
    for name in names:
        collection = await call.door.documents.open(call.database, name)
        if collection is not None:
            await _drop(call, collection)
    return {"dropped": call.database} if names else {}


@command("renameCollection", "to", "dropTarget", role=Role.WRITER, admin_only=True, writes=True)
async def rename_collection(call: Call) -> Reply:
    """A collection gets another name: its documents become those of another table."""
    source, target = call.text("renameCollection"), call.text("to")
    from_database, _, from_name = source.partition(".")
    to_database, _, to_name = target.partition(".")
    for database, name in ((from_database, from_name), (to_database, to_name)):
        check_name(database, name)
        if not call.principal.may_write(table_of(database, name)):
            raise CommandFailed(13, f"not authorized on {database} to execute command renameCollection")
    documents = call.door.documents
    collection = await documents.open(from_database, from_name)
    if collection is None:
        raise CommandFailed(26, f"Source collection {source} does not exist")
    existing = await documents.open(to_database, to_name)
    if existing is not None:
        if not call.flag("dropTarget"):
            raise CommandFailed(48, "target namespace exists")
        await _drop(call, existing)
    unit = call.unit()
    document = {**collection.document, "_id": to_name}
    await unit.attempt(lambda: unit.describe(to_database, to_name, document))
    await unit.flush()
    made = documents.state.find(to_database, to_name)
    assert made is not None
    async for found in every(unit.view.find(collection, EVERYTHING)):

        def move(found: Found = found) -> None:
            # Both or neither: what is decided goes to the log where one of them is another writer's for now.
            unit.hold_documents(found.key, made, collection)
            unit.insert(made, found.document, found.decoded())
            unit.remove(collection, found, lambda _: True, silent=True)

        await unit.attempt(move)
        if unit.draft.is_full:
            await unit.flush()
    event = {"rename": {"to": {"db": to_database, "coll": to_name}}}
    await unit.attempt(lambda: unit.forget(from_database, from_name, event))
    await unit.flush()
    return {}


@command("listCollections", "filter", "nameOnly", "authorizedCollections", "cursor")
async def list_collections(call: Call) -> Reply:
    """The collections of a database."""
    passes = matcher(call.filter("filter"))
    listed = []
    for database, name in call.door.documents.listed(call.database):
        if not call.sees(table_of(database, name)):
            continue
        document: dict[str, Any] = {"name": name, "type": "collection"}
        known = call.door.documents.state.find(database, name)
        options = {} if known is None else known.options
        document |= {"options": options, "info": {"readOnly": False}, "idIndex": _ID_INDEX}
        if known is not None and known.uuid is not None:
            document["info"]["uuid"] = known.uuid
        if passes(document):
            listed.append({"name": name, "type": "collection"} if call.flag("nameOnly") else document)
    cursor = call.door.cursors.make(
        f"{call.database}.$cmd.listCollections", iter([encode_document(each) for each in listed])
    )
    return await first_batch(call, cursor, size=call.document("cursor").get("batchSize", 10_000))


@command("listDatabases", "filter", "nameOnly", "authorizedDatabases", admin_only=True)
async def list_databases(call: Call) -> Reply:
    """The databases."""
    passes = matcher(call.filter("filter"))
    state = call.door.documents.state
    sizes: dict[str, int] = {}
    for database, name in call.door.documents.listed():
        if call.sees(table_of(database, name)):
            known = None if call.flag("nameOnly") else state.find(database, name)
            size = 0 if known is None else await apart(call, known, state.size_bytes)
            sizes[database] = sizes.get(database, 0) + size
    if call.flag("nameOnly"):
        return {"databases": [{"name": name} for name in sorted(sizes) if passes({"name": name})]}
    documents = [{"name": name, "sizeOnDisk": Int64(size), "empty": False} for name, size in sorted(sizes.items())]
    documents = [each for each in documents if passes(each)]
    total = sum(int(each["sizeOnDisk"]) for each in documents)  # type: ignore[call-overload]
    return {"databases": documents, "totalSize": Int64(total), "totalSizeMb": Int64(total >> 20)}


@command("collStats", "scale", aliases=("collstats",))
async def coll_stats(call: Call) -> Reply:
    """How large a collection is."""
    name = call.collection()
    call.may_read(name)
    scale = call.number("scale", 1) or 1
    collection = await call.door.documents.open(call.database, name)
    state = call.door.documents.state
    count = 0 if collection is None else await apart(call, collection, state.count)
    size = 0 if collection is None else await apart(call, collection, state.size_bytes)
    indexes = ["_id_", *([] if collection is None else [each.index.name for each in collection.indexes])]
    return {
        "ns": f"{call.database}.{name}",
        "size": size // scale,
        "count": count,
        "avgObjSize": size // count if count else 0,
        "storageSize": size // scale,
        "nindexes": len(indexes),
        "indexSizes": dict.fromkeys(indexes, 0),
        "totalIndexSize": 0,
        "totalSize": size // scale,
        "capped": False,
        "scaleFactor": scale,
    }


@command("dbStats", "scale", "freeStorage", aliases=("dbstats",))
async def db_stats(call: Call) -> Reply:
    """How large a database is."""
    scale = call.number("scale", 1) or 1
    state = call.door.documents.state
    known = [state.find(*place) for place in call.door.documents.listed(call.database) if call.sees(table_of(*place))]
    present = [each for each in known if each is not None]
    objects = sum([await apart(call, each, state.count) for each in present])
    size = sum([await apart(call, each, state.size_bytes) for each in present])
    return {
        "db": call.database,
        "collections": len(known),
        "views": 0,
        "objects": objects,
        "avgObjSize": size / objects if objects else 0.0,
        "dataSize": size / scale,
        "storageSize": size / scale,
        "indexes": sum(len(each.indexes) + 1 for each in present),
        "indexSize": 0.0,
        "totalSize": size / scale,
        "scaleFactor": scale,
    }
