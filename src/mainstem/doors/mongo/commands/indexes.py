"""createIndexes, listIndexes, dropIndexes."""

from collections.abc import Mapping
from typing import Any

from mainstem.admission import Role
from mainstem.doors.mongo.calls import Call, Reply, command
from mainstem.doors.mongo.commands.reads import first_batch
from mainstem.doors.mongo.cursors import every
from mainstem.doors.mongo.errors import CommandFailed, failure
from mainstem.feeds.documents.errors import DuplicateKey
from mainstem.feeds.documents.indexes import Entries, Index, parse_index
from mainstem.feeds.documents.state import Collection
from mainstem.feeds.documents.writing import Unit, shown_values
from mainstem.model.errors import Invalid
from mainstem.wire.mongo.frames import decode_document, encode_document

INDEXES_MAX = 64
_ID_INDEX = {"v": 2, "key": {"_id": 1}, "name": "_id_"}


@command("createIndexes", "indexes", "commitQuorum", role=Role.WRITER, writes=True)
async def create_indexes(call: Call) -> Reply:
    """Make indexes, and the collection where there is none."""
    name = call.collection()
    call.may_write(name)
    wanted = call.documents("indexes")
    if not wanted:
        raise CommandFailed(2, "Must specify at least one index to create")
    documents = call.door.documents
    existed = await documents.open(call.database, name) is not None
    unit = call.unit()
    await unit.hold_collection(call.database, name)
    collection = await unit.attempt(lambda: unit.ensure_collection(call.database, name))
    known = {entries.index.name: entries.index for entries in collection.indexes}
    before = len(known) + 1
    number = max((index.number for index in known.values()), default=0)
    added: list[Index] = []
    for source in wanted:
        if not isinstance(source, Mapping):
            raise CommandFailed(14, "BSON field 'createIndexes.indexes' has an element that is no object")
        if list(source.get("key", {}).items()) == [("_id", 1)]:
            continue
        number += 1
        index = _parsed(source, number)
        same = known.get(index.name)
        if same is not None:
            if _spec(same) != _spec(index):
                raise CommandFailed(
                    86, f"An existing index has the same name as the requested index: {index.name}, with other options"
                )
            continue
        twin = next((each for each in known.values() if _keys(each) == _keys(index)), None)
        if twin is not None and twin.partial == index.partial:
            raise CommandFailed(85, f"Index already exists with a different name: {twin.name}")
        known[index.name] = index
        added.append(index)
    if len(known) + 1 > INDEXES_MAX:
        raise CommandFailed(67, f"add index fails, too many indexes for {call.database}.{name}")
    if added or not existed:
        await _add(call, unit, collection, known, added)
    reply: dict[str, Any] = {"numIndexesBefore": before, "numIndexesAfter": len(known) + 1}
    reply["createdCollectionAutomatically"] = not existed
    if not added:
        reply["note"] = "all indexes already exist"
    return reply


async def _add(call: Call, unit: Unit, collection: Collection, known: Mapping[str, Index], added: list[Index]) -> None:
    """Make indexes, then say in the log that the collection has them."""
    state = call.door.documents.state
    built: list[Entries] = []
    try:
        for index in added:
            built.append(Entries(index))
            await _build(call, collection, built[-1])
        document = dict(collection.document)
        document["indexes"] = [{**index.document, "number": index.number} for index in known.values()]
        await unit.attempt(lambda: unit.describe(collection.database, collection.name, document))
        await unit.flush()
    finally:
        # What the description took over is not among them any more.
        for entries in built:
            state.abandon_index(collection, entries)


def _parsed(source: Mapping[str, Any], number: int) -> Index:
    try:
        return parse_index(source, number)
    except Invalid as error:
        raise failure(error) from error


def _keys(index: Index) -> list[tuple[str, Any]]:
    return list(index.document["key"].items())


def _spec(index: Index) -> Any:
    document = {name: value for name, value in index.document.items() if name not in ("v", "name", "key")}
    return _keys(index), document


async def _build(call: Call, collection: Collection, entries: Entries) -> None:
    """Make an index while others write. Refuses one that the documents do not fit: values that are there twice, or
    arrays side by side."""
    if not collection.number:
        return
    state, index = call.door.documents.state, entries.index
    async for stored in every(state.build_index(collection, entries)):
        values = decode_document(stored.document)
        found = entries.of(values)
        if index.unique and any(
            holder != stored.key for entry in found for holder in state.holders(collection, index, entry)
        ):
            raise DuplicateKey(
                collection.namespace, index.name, dict(index.document["key"]), shown_values(entries, values)
            )


@command("listIndexes", "cursor")
async def list_indexes(call: Call) -> Reply:
    """The indexes of a collection."""
    name = call.collection()
    call.may_read(name)
    collection = await call.door.documents.open(call.database, name)
    if collection is None:
        raise CommandFailed(26, f"ns does not exist: {call.database}.{name}")
    listed = [_ID_INDEX, *[dict(entries.index.document) for entries in collection.indexes]]
    cursor = call.door.cursors.make(f"{call.database}.{name}", iter([encode_document(each) for each in listed]))
    return await first_batch(call, cursor, size=(call.document("cursor")).get("batchSize", 101))


@command("dropIndexes", "index", role=Role.WRITER, aliases=("deleteIndexes",), writes=True)
async def drop_indexes(call: Call) -> Reply:
    """Take indexes away."""
    name = call.collection()
    call.may_write(name)
    documents = call.door.documents
    unit = call.unit()
    await unit.hold_collection(call.database, name)
    collection = await documents.open(call.database, name)
    if collection is None:
        raise CommandFailed(26, f"ns not found {call.database}.{name}")
    which = call.body.get("index")
    kept = [entries.index for entries in collection.indexes]
    before = len(kept) + 1
    if which == "*":
        kept = []
    else:
        for each in which if isinstance(which, list) else [which]:
            if each in ("_id_", {"_id": 1}):
                raise CommandFailed(72, "cannot drop _id index")
            found = next((index for index in kept if each in (index.name, index.document["key"])), None)
            if found is None:
                raise CommandFailed(27, f"index not found with name [{each}]")
            kept.remove(found)
    document = dict(collection.document)
    document["indexes"] = [{**index.document, "number": index.number} for index in kept]
    await unit.attempt(lambda: unit.describe(call.database, name, document))
    await unit.flush()
    return {"nIndexesWas": before}
