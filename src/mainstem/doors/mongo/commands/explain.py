"""explain: how a command would find its documents, and whether a table answers for them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from mainstem.documents import compile_pipeline, matcher
from mainstem.documents.filters.ast import EVERYTHING
from mainstem.doors.mongo.calls import Call, Reply, command
from mainstem.doors.mongo.commands.reads import counting
from mainstem.doors.mongo.cursors import every
from mainstem.doors.mongo.errors import CommandFailed
from mainstem.feeds.documents import pushing
from mainstem.feeds.documents.access import choose
from mainstem.feeds.documents.reading import View
from mainstem.wire.mongo.batches import table_of


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
    asked = dataclasses.replace(call, body=inner, _scope=None)
    node = asked.parsed(filter)
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
        chosen = await pushing.plan(call.door.documents, collection, _stages(name, asked), node)
        reply["pushDown"] = {"answeredBy": "documents" if chosen.pushed is None else "columns", "reason": chosen.reason}
        table = table_of(call.database, collection_name)
        if chosen.spread is not None and name == "aggregate" and await call.door.documents.tables.is_large(table):
            spread = {"answeredBy": "spark", "stages": chosen.spread.stages, "laysOverTheLog": chosen.latest}
            reply["pushDown"] |= spread
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


def _stages(name: str, asked: Call) -> list[Mapping[str, Any]]:
    if name == "aggregate":
        return list(compile_pipeline(asked.body.get("pipeline"), frozenset(asked.scope())).stages)
    return counting(asked)


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
