"""Pipelines that a collection's table answers: its columns are read by DuckDB or Spark, not its documents one by one.

One rule decides, and `explain` shows it. The table answers the start of a pipeline up to its first `$group` or `$count`
where the collection is large, no index leads to the documents, the columns say exactly what the documents say
(`shapes`), and the log holds few changes that are not in the table yet. Those are laid over it, so that what was
acknowledged is counted. In every other case the documents answer. By the same rule the table finds the documents of a
filter; they are read from the store and matched again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mainstem.documents.aggregation.pushing import Pushed, TypedTable, push_down
from mainstem.documents.columns import Column, Kind
from mainstem.documents.errors import Refused
from mainstem.documents.filters.ast import EVERYTHING, Node
from mainstem.documents.filters.duckdb_dialect import DUCKDB
from mainstem.documents.filters.sql import duckdb_text
from mainstem.feeds.documents.access import Access, Range, choose
from mainstem.feeds.documents.service import Documents
from mainstem.feeds.documents.shapes import FieldTypes
from mainstem.feeds.documents.state import Collection
from mainstem.wire.mongo.batches import table_of
from mainstem.wire.mongo.keys import key_bytes

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
_KINDS = {"BIGINT": Kind.INTEGER, "DOUBLE": Kind.DOUBLE, "VARCHAR": Kind.STRING, "BOOLEAN": Kind.BOOLEAN}


class Plan(NamedTuple):
    """Who answers a pipeline, and why. Without `pushed` the documents do."""

    reason: str
    pushed: Pushed | None = None
    sql: str = ""
    # Whether changes are laid over the table. Where none are, Spark may answer.
    latest: bool = False


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
        return Plan("columns do not answer its start exactly, up to a $group or $count")
    # In full: DuckDB takes a database of the name `lake`, `system` or `temp` for one of its own.
    relation = ".".join(map(DUCKDB.identifier, (_WAREHOUSE, table.namespace, table.table)))
    try:
        text, parameters = pushed.sql(relation, "_key")
        return Plan("the columns answer", pushed, duckdb_text(text, parameters), waiting > 0)
    except Refused as error:
        return Plan(str(error))


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
