"""Pipelines that a collection's table answers: its columns are read by DuckDB or Spark, not its documents one by one.

One rule decides, and `explain` shows it. The table answers the start of a pipeline up to its first `$group` or `$count`
where the collection is large, no index leads to the documents, the columns say exactly what the documents say
(`shapes`), and the log holds few changes that are not in the table yet. Those are laid over it, so that what was
acknowledged is counted. Where columns do not say, and the table is large by the route of queries, Spark runs the start
of the pipeline over the documents in it. In every other case the documents answer. By the same rule the table finds the
documents of a filter; they are read from the store and matched again.
"""

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mainstem.documents.aggregation import Run, compile_pipeline
from mainstem.documents.aggregation.pushing import Pushed, TypedTable, push_down
from mainstem.documents.aggregation.spreading import Spread, spread
from mainstem.documents.columns import Column, Kind
from mainstem.documents.errors import Refused
from mainstem.documents.filters.ast import EVERYTHING, Node
from mainstem.documents.filters.duckdb_dialect import DUCKDB
from mainstem.documents.filters.sql import duckdb_text
from mainstem.feeds.documents.access import Access, Range, choose
from mainstem.feeds.documents.past import Gone, Past, reader
from mainstem.feeds.documents.reading import View
from mainstem.feeds.documents.service import Documents
from mainstem.feeds.documents.shapes import FieldTypes
from mainstem.feeds.documents.state import Collection
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.wire.mongo.batches import table_of
from mainstem.wire.mongo.frames import decode_document
from mainstem.wire.mongo.keys import key_bytes
from mainstem.wire.mongo.stages import StagesOrder, encode_stages

# Below that the documents answer before a query is planned.
DOCUMENTS_MIN = 20_000
# Changes that may wait in the log: laying them over the table takes longer than reading the documents, beyond.
PENDING_MAX = 20_000
GROUPS_MAX = 100_000
# What queries call the lake.
_WAREHOUSE = "lake"
KEYS_MAX = 10_000
# How long a table may take to answer for a collection.
ANSWER_S_MAX = 60.0
# How long Spark may take to run stages over its documents: as long as for any query.
SPREAD_S_MAX = 300.0
# What all tasks may answer with: it is put together in the gateway.
PARTS_MAX = 100_000
# As often the table may turn out to be newer than the snapshot of the store.
_TRIES = 3
_KINDS = {"BIGINT": Kind.INTEGER, "DOUBLE": Kind.DOUBLE, "VARCHAR": Kind.STRING, "BOOLEAN": Kind.BOOLEAN}


class Plan(NamedTuple):
    """Who answers a pipeline, and why. Without `pushed` the documents do."""

    reason: str
    pushed: Pushed | None = None
    sql: str = ""
    # Whether changes are laid over the table. Where none are, Spark may answer.
    latest: bool = False
    # Where columns do not say: what Spark may run over the documents in the table, if it is large.
    spread: Spread | None = None


class Answer(NamedTuple):
    """What the table answered for the first stages."""

    documents: list[dict[str, Any]]
    stages: int


async def plan(  # noqa: PLR0911 - each condition that does not hold returns
    documents: Documents,
    collection: Collection,
    stages: Sequence[Mapping[str, Any]],
    node: Node,
    *,
    keys: bool = False,
) -> Plan:
    """Decide who answers a pipeline, whose leading `$match` is `node`; `keys`: who finds the documents of that."""
    size = documents.state.last_place(collection) if collection.number else 0
    if size < DOCUMENTS_MIN:
        return Plan(f"a small collection. expected=at least {DOCUMENTS_MIN} documents got={size}")
    if node != EVERYTHING and choose(collection, node).ranges is not None:
        return Plan("an index leads to the documents")
    if not collection.fields.is_known:
        return Plan("another door wrote to the table, or its fields are too many to know")
    table = table_of(collection.database, collection.name)
    waiting = collection.changed - await documents.tables.covered(table)
    if waiting > PENDING_MAX:
        return Plan(f"the table is behind. expected=at most {PENDING_MAX} changes got={waiting}")
    columns = await documents.tables.columns(table)
    if columns is None:
        return Plan("there is no table, or one with declared columns")
    pushed = push_down(stages, typed(collection.fields, columns))
    if not pushed.stages if keys else pushed.group is None:
        reason = "columns do not answer its start exactly, up to a $group or $count"
        return Plan(reason, latest=waiting > 0, spread=None if keys else spread(stages))
    # In full: DuckDB takes a database of the name `lake`, `system` or `temp` for one of its own.
    relation = ".".join(map(DUCKDB.identifier, (_WAREHOUSE, table.namespace, table.table)))
    try:
        text, parameters = pushed.sql(relation, "_key")
        return Plan("the columns answer", pushed, duckdb_text(text, parameters), waiting > 0)
    except Refused as error:
        return Plan(str(error), latest=waiting > 0, spread=None if keys else spread(stages))


def typed(fields: FieldTypes, columns: Mapping[str, str]) -> TypedTable:
    """What is known of a table. Columns whose names differ in case only are none: SQL takes them for one."""
    folded: dict[str, int] = {}
    for name in fields.types.keys() | columns.keys():
        folded[name.casefold()] = folded.get(name.casefold(), 0) + 1
    usable = {
        name: Column(_KINDS[kind])
        for name, kind in columns.items()
        if kind in _KINDS and folded[name.casefold()] == 1 and name in fields.types
    }
    # A field without a usable column must not be taken for one that no document has.
    types = {name: frozenset(kinds if name in usable else {*kinds, "array"}) for name, kinds in fields.types.items()}
    return TypedTable(types, usable)


async def answer(
    documents: Documents, collection: Collection, chosen: Plan, timeout_s: float = ANSWER_S_MAX
) -> Answer | None:
    """Ask the table; None where it cannot answer after all, or a write meanwhile made its columns inexact."""
    assert chosen.pushed is not None and chosen.pushed.group is not None
    rows = await _select(documents, collection, chosen, GROUPS_MAX, timeout_s)
    if rows is None:
        return None
    return Answer([chosen.pushed.group.document(row) for row in rows], chosen.pushed.stages)


async def find(documents: Documents, collection: Collection, filter: Mapping[str, Any], node: Node) -> Access | None:
    """The way to the documents of a filter that no index leads to, by the table's columns; None where they do not say,
    or match so many documents that walking through all of them is no slower. `node` is the filter, read."""
    chosen = await plan(documents, collection, [{"$match": filter}], node, keys=True)
    rows = None if chosen.pushed is None else await _select(documents, collection, chosen, KEYS_MAX, ANSWER_S_MAX)
    if rows is None:
        return None
    keys = documents.state.in_place(collection, [key_bytes(key) for (key,) in rows])
    return Access(ranges=tuple(Range(key, key + b"\x00") for key in keys))


async def _select(
    documents: Documents, collection: Collection, chosen: Plan, rows_max: int, timeout_s: float
) -> list[tuple[Any, ...]] | None:
    known = collection.fields.version
    rows = await documents.tables.select(chosen.sql, latest=chosen.latest, rows_max=rows_max, timeout_s=timeout_s)
    is_same = documents.state.find(collection.database, collection.name) is collection
    return rows if is_same and collection.fields.version == known else None


async def spread_answer(
    documents: Documents, collection: Collection, spread: Spread, run: Run, timeout_s: float
) -> list[dict[str, Any]] | None:
    """What the first stages of a pipeline give for a collection; None where Spark does not say: the collection is not
    large by the route of queries, its table cannot be read now, or the parts' answers are too many.

    Each task runs the stages over its own rows of the table. Documents that changed after the table's position are left
    out there and read from the store: every document is as it was at one moment, and in the answer once.
    """
    for _ in range(_TRIES):
        covered = await documents.tables.covered(table_of(collection.database, collection.name))
        db = documents.state.snapshot()
        try:
            position = documents.durable
            if documents.state.find(collection.database, collection.name) is not collection:
                return None
            if not collection.fields.is_known:
                return None
            keys = await _changed(documents, collection, covered)
            order = StagesOrder(spread.part, run.scope, keys)
            table = table_of(collection.database, collection.name)
            told = await documents.tables.run(table, encode_stages(order), rows_max=PARTS_MAX, timeout_s=timeout_s)
            if told is None:
                return None
            # A newer table has changes that the snapshot has not.
            if told.position <= position:
                view = View(documents.state, db)
                beside = _present(view, collection, keys)
                return await asyncio.to_thread(_joined, spread, run, told.documents, beside)
        except Gone:
            return None
        finally:
            db.close()
    return None


async def _changed(documents: Documents, collection: Collection, after: LogPosition) -> set[str]:
    """The keys of documents that changed after a position, as rows have them."""
    if collection.changed <= after:
        return set()
    table = table_of(collection.database, collection.name)
    return await asyncio.to_thread(_keys, reader(documents.log, after), table)


def _keys(past: Iterable[Past], table: TableName) -> set[str]:
    return {
        operation.key
        for each in past
        if each.batch is not None
        for operation in each.batch.operations
        if table_of(operation.database, operation.collection) == table
    }


def _present(view: View, collection: Collection, keys: set[str]) -> Iterator[Mapping[str, Any]]:
    for key in keys:
        found = view.get(collection, key_bytes(key))
        if found is not None:
            yield found.decoded()


def _joined(spread: Spread, run: Run, parts: list[bytes], beside: Iterator[Mapping[str, Any]]) -> list[dict[str, Any]]:
    own = compile_pipeline(list(spread.part), frozenset(run.scope)).run(beside, run)
    return spread.merged(itertools.chain(map(decode_document, parts), own), run)
