"""Pipelines that a collection's table answers: its columns are read by DuckDB or Spark, not its documents one by one.

One rule decides, and `explain` shows it. The table answers the start of a pipeline up to its first `$group` or `$count`
where the collection is large, no index leads to the documents, the columns say exactly what the documents say
(`shapes`), and the log holds few changes that are not in the table yet. Those are laid over it, so that what was
acknowledged is counted. In every other case the documents answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mainstem.documents.aggregation.pushing import Pushed, TypedTable, push_down
from mainstem.documents.columns import Column, Kind
from mainstem.documents.dialects import DUCKDB
from mainstem.documents.errors import Refused
from mainstem.documents.parse import parse_filter
from mainstem.documents.sql import duckdb_text
from mainstem.feeds.documents.access import choose
from mainstem.feeds.documents.service import Documents
from mainstem.feeds.documents.shapes import FieldTypes
from mainstem.feeds.documents.state import Collection
from mainstem.wire.mongo.batches import table_of

# Below that the documents answer before a query is planned.
DOCUMENTS_MIN = 20_000
# Changes that may wait in the log: laying them over the table takes longer than reading the documents, beyond.
PENDING_MAX = 20_000
GROUPS_MAX = 100_000
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
    documents_min: int = DOCUMENTS_MIN,
) -> Plan:
    """Decide who answers a pipeline."""
    size = documents.state.last_place(collection) if collection.number else 0
    if size < documents_min:
        return Plan(f"a small collection. expected=at least {documents_min} documents got={size}")
    filter = stages[0].get("$match") if stages else None
    if filter and choose(collection, parse_filter(filter)).ranges is not None:
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
    if pushed.group is None:
        return Plan("no $group or $count at the start that columns answer exactly")
    try:
        text, parameters = pushed.sql(f"{DUCKDB.identifier(table.namespace)}.{DUCKDB.identifier(table.table)}")
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


async def answer(documents: Documents, collection: Collection, chosen: Plan, timeout_s: float) -> Answer | None:
    """Ask the table; None where it cannot answer after all, or a write meanwhile made its columns inexact."""
    assert chosen.pushed is not None and chosen.pushed.group is not None
    known = collection.fields.version
    rows = await documents.tables.select(chosen.sql, latest=chosen.latest, rows_max=GROUPS_MAX, timeout_s=timeout_s)
    is_same = documents.state.find(collection.database, collection.name) is collection
    if rows is None or not is_same or collection.fields.version != known:
        return None
    return Answer([chosen.pushed.group.document(row) for row in rows], chosen.pushed.stages)
