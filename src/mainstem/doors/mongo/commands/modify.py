"""findAndModify: one document, changed or deleted, and what it was or became."""

from collections.abc import Mapping
from typing import Any

from mainstem.admission import Role
from mainstem.documents import matcher, parse_projection
from mainstem.doors.mongo.calls import Call, Reply, command
from mainstem.doors.mongo.commands.reads import check_collation, check_sort
from mainstem.doors.mongo.commands.writes import answered, changer, unit_of, upsert
from mainstem.doors.mongo.cursors import every
from mainstem.doors.mongo.errors import CommandFailed
from mainstem.feeds.documents.writing import Unit
from mainstem.wire.mongo.frames import decode_document, encode_document

_FIELDS = (
    "query",
    "sort",
    "remove",
    "update",
    "new",
    "fields",
    "upsert",
    "bypassDocumentValidation",
    "collation",
    "arrayFilters",
    "hint",
    "let",
    "stmtId",
)


@command("findAndModify", *_FIELDS, role=Role.WRITER, aliases=("findandmodify",), in_transaction=True, writes=True)
async def find_and_modify(call: Call) -> Reply:
    """Change or delete the first document that matches."""
    name = call.collection()
    call.may_write(name)
    check_collation(call.body.get("collation"))
    removes = call.flag("remove")
    if removes and ("update" in call.body or call.flag("new") or call.flag("upsert")):
        raise CommandFailed(9, "Cannot specify both an update and remove=true")
    if not removes and "update" not in call.body:
        raise CommandFailed(9, "Either an update or remove=true must be specified")
    unit = unit_of(call)
    await call.door.documents.open(call.database, name)
    number = call.number("stmtId", 0) or 0
    known = answered(call, unit)
    if number in known:
        return decode_document(known[number])
    reply = await _modify(call, unit, name, removes=removes)
    if not unit.is_transaction:
        if unit.retry is not None and unit.draft.operations:
            unit.draft.answers[number] = encode_document(reply)
        await unit.flush()
    return reply


async def _modify(call: Call, unit: Unit, name: str, *, removes: bool) -> dict[str, Any]:
    node = call.filter("query")
    passes = matcher(node)
    sort = check_sort(call.document("sort"))
    collection = unit.find_collection(call.database, name)
    compute = None
    if not removes:
        array_filters = call.body.get("arrayFilters") or ()
        compute = changer(call, node, call.body["update"], array_filters, multi=False)
    if collection is not None:
        found_all = unit.view.query(collection, node, sort=sort, hint=call.body.get("hint"))
        async for found in every(found_all, call.deadline_s):
            if compute is None:
                gone = await unit.attempt(lambda found=found: unit.remove(collection, found, passes))  # type: ignore[misc]
                if gone is not None:
                    return {"lastErrorObject": {"n": 1}, "value": _shown(call, gone)}
                continue
            changed = await unit.attempt(lambda found=found: unit.change(collection, found, passes, compute))  # type: ignore[misc]
            if changed is not None:
                before, change = changed
                value = before if change is None or not call.flag("new") else change.values
                return {"lastErrorObject": {"n": 1, "updatedExisting": True}, "value": _shown(call, value)}
    if removes:
        return {"lastErrorObject": {"n": 0}, "value": None}
    if not call.flag("upsert"):
        return {"lastErrorObject": {"n": 0, "updatedExisting": False}, "value": None}
    statement = {"u": call.body["update"], "arrayFilters": call.body.get("arrayFilters")}
    values = await upsert(call, unit, name, node, statement)
    last = {"n": 1, "updatedExisting": False, "upserted": values["_id"]}
    return {"lastErrorObject": last, "value": _shown(call, values) if call.flag("new") else None}


def _shown(call: Call, values: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = call.document("fields")
    scope = call.scope()
    return parse_projection(fields, frozenset(scope)).apply(values, scope) if fields else values
