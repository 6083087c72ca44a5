"""What an upsert, an update and a delete change: which rows go, which come, and what the change feed says of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.documents import apply_update, matched_offset
from mainstem.documents.columns import Kind
from mainstem.documents.filters.predicate import YES, Predicate, Relates, Relation, Within, all_of
from mainstem.documents.updates.syntax import Update
from mainstem.formats.delta.files.engine import FILE, PLACES, ROW, Engine, Source, read_errors
from mainstem.formats.delta.files.zones import kept_files
from mainstem.formats.delta.log import AddFile, Metadata, State
from mainstem.formats.delta.schema import AT, TableSchema, schema_of
from mainstem.formats.delta.transaction import Replacement
from mainstem.formats.delta.values.evolution import Widening
from mainstem.formats.delta.values.exact import cast_exactly
from mainstem.formats.delta.values.rows import column_of, documents_of, inferred_column
from mainstem.formats.delta.values.widening import recast
from mainstem.model.errors import Invalid
from mainstem.sql import duckdb_name

CHANGE_TYPE = "_change_type"
# Up to here each key is looked for in the zone maps, beyond it only their range.
_LISTED_KEYS_MAX = 1000
_SKIPPING = frozenset([Kind.INTEGER, Kind.STRING, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_TZ, Kind.OBJECT_ID])


@dataclass(frozen=True)
class Changed:
    """What a write did, and the version that has it."""

    version: int
    matched: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def at(self, version: int) -> "Changed":
        """The same, with its version."""
        return replace(self, version=version)


def last_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Each key's last row. A key is never null."""
    for key in keys:
        if key not in rows.column_names:
            raise Invalid(f"the rows have no key. expected={key} got={rows.column_names}")
        if rows[key].null_count:
            raise Invalid(f"a key is null. column={key}")
    if len(keys) == 1 and len(rows[keys[0]].unique()) == rows.num_rows:
        return rows
    at = pa.array(np.arange(rows.num_rows))
    numbered = rows.select(list(keys)).append_column(AT, at)
    last = numbered.group_by(list(keys)).aggregate([(AT, "max")])[f"{AT}_max"]
    return rows if len(last) == rows.num_rows else rows.take(last.combine_chunks().sort())


def upsert(
    engine: Engine,
    table: str,
    state: State,
    described: Metadata,
    rows: pa.Table,
    gone: pa.Table,
    keys: Sequence[str],
    *,
    feed: bool,
) -> tuple[Replacement, Changed]:
    """Rows in the place of those with the same keys, and none in the place of those whose keys are in `gone`.

    `described` is what the table will be; the rows that are there are read as what it is.
    """
    schema, known = schema_of(described), schema_of(state.metadata)
    stored = replace(schema, fields={name: known.fields.get(name, field) for name, field in schema.fields.items()})
    for key in keys:
        if key not in schema.fields:
            raise Invalid(f"the table has no such column. got={key}")
        if key not in gone.column_names:
            raise Invalid(f"the rows to delete have no key. expected={key} got={gone.column_names}")
    key_schema = pa.schema([(key, schema.fields[key].type) for key in keys])
    gone = gone.select(keys).cast(key_schema)
    wanted = pa.concat_tables([rows.select(keys).cast(key_schema), gone])
    files = kept_files(state.files.values(), _key_predicate(wanted, keys[0], schema), schema)
    names = list(schema.fields) if feed else list(keys)
    with engine.cursor() as cursor, read_errors(engine.storage, table, files):
        cursor.register("wanted", wanted)
        source = Source(cursor, engine.storage, table, stored, files)
        selected = ", ".join([*map(duckdb_name, names), FILE, ROW])
        old = cursor.execute(
            f"SELECT {selected} FROM {source.relation(names, places=True)}"
            f" SEMI JOIN wanted USING ({', '.join(map(duckdb_name, keys))})"
        ).to_arrow_table()
    old = recast(old, stored, schema)
    old_keys = old.select(keys).cast(key_schema)
    replaced = _known(rows.select(keys).cast(key_schema), old_keys)
    deleted = _known(old_keys, gone) if gone.num_rows else 0
    counts = Changed(0, old.num_rows, rows.num_rows - replaced, replaced, deleted)
    changes = _upsert_feed(old, rows, gone, schema) if feed else None
    return Replacement(files, old.select([FILE, ROW]).cast(PLACES), rows, changes), counts


def _known(rows: pa.Table, among: pa.Table) -> int:
    """How many rows have keys that are among others."""
    keys = rows.column_names
    if len(keys) > 1:
        return int(rows.join(among, keys, join_type="left semi").num_rows)
    return int(pc.sum(pc.is_in(rows[keys[0]], among[keys[0]])).as_py() or 0)


def _key_predicate(rows: pa.Table, key: str, schema: TableSchema) -> Predicate:
    if schema.fields[key].column.kind not in _SKIPPING:
        return YES
    if rows.num_rows <= _LISTED_KEYS_MAX:
        return Within(key, tuple(rows[key].to_pylist()))
    bounds = pc.min_max(rows[key]).as_py()
    return all_of([Relates(key, Relation.GTE, bounds["min"]), Relates(key, Relation.LTE, bounds["max"])])


def _upsert_feed(old: pa.Table, rows: pa.Table, gone: pa.Table, schema: TableSchema) -> pa.Table:
    full, keys = _whole(rows, schema), gone.column_names
    known = old.select(list(keys)).group_by(list(keys)).aggregate([])
    marked = full.select(list(keys)).append_column(AT, pa.array(range(full.num_rows), pa.int64()))
    updated = marked.join(known.cast(marked.select(list(keys)).schema), list(keys), join_type="left semi")[AT]
    is_update = pc.is_in(marked[AT], updated.combine_chunks())
    kinds = pc.if_else(is_update, "update_postimage", "insert")
    before = _typed(old, schema, "update_preimage").drop_columns([CHANGE_TYPE])
    numbered = before.append_column(AT, pa.array(range(before.num_rows), pa.int64()))
    deleted = numbered.select([*keys, AT]).join(gone, keys, join_type="left semi")[AT]
    is_delete = pc.is_in(numbered[AT], deleted.combine_chunks())
    before = before.append_column(CHANGE_TYPE, pc.if_else(is_delete, "delete", "update_preimage"))
    return pa.concat_tables([before, full.append_column(CHANGE_TYPE, kinds)])


def updated(
    matched: pa.Table,
    schema: TableSchema,
    update: Update,
    filter: Any,
    now_ms: int,
    widening: Widening | None = None,
) -> tuple[pa.Table, list[int]]:
    """The rows that an update changes, as they become, and which of the matched rows they were."""
    documents: list[dict[str, Any]] = []
    kept: list[int] = []
    # By column, which of the changed rows have another value there now.
    touched: dict[str, list[int]] = {}
    for at, document in enumerate(documents_of(matched.select(list(schema.fields)), schema, whole=True)):
        result = apply_update(update, document, now_ms=now_ms, offset=matched_offset(filter, document))
        if result.modified:
            for name in {path.partition(".")[0] for path in (*result.set, *result.removed)}:
                touched.setdefault(name, []).append(len(documents))
            documents.append(result.document)
            kept.append(at)
    rows = matched.take(pa.array(kept, pa.int64())).select(list(schema.fields))
    laid = {
        name: column_of([documents[place].get(name) for place in places], schema.fields[name], widening)[1]
        for name, places in touched.items()
        if name in schema.fields
    }
    if widening is not None:
        rows = recast(rows, schema, schema_of(widening.metadata))
    for name, places in touched.items():
        changed = laid.get(name)
        if changed is None:
            column = inferred_column(name, [document.get(name) for document in documents])
            rows = rows if column is None else rows.append_column(*column)
        else:
            rows = rows.set_column(rows.column_names.index(name), name, _laid_over(rows[name], places, changed))
    return rows, kept


def _laid_over(column: pa.ChunkedArray, places: Sequence[int], changed: pa.Array) -> pa.ChunkedArray:
    """A column with other cells in some places; every other cell stays what it is, to the byte."""
    chosen = np.arange(len(column))
    chosen[list(places)] = len(column) + np.arange(len(changed))
    return pa.chunked_array([*column.chunks, changed.cast(column.type)]).combine_chunks().take(pa.array(chosen))


def replacement(
    files: Sequence[AddFile], matched: pa.Table, rows: pa.Table, schema: TableSchema, feed: bool
) -> Replacement:
    """Rows in the place of some that were found, one for one."""
    changes = None
    if feed:
        after = _whole(rows, schema).append_column(CHANGE_TYPE, pa.array(["update_postimage"] * rows.num_rows))
        changes = pa.concat_tables([_typed(matched, schema, "update_preimage"), after])
    return Replacement(files, matched.select([FILE, ROW]), rows, changes)


def removal(files: Sequence[AddFile], matched: pa.Table, schema: TableSchema, feed: bool) -> Replacement:
    """Rows that were found are gone."""
    return Replacement(files, matched.select([FILE, ROW]), None, _typed(matched, schema, "delete") if feed else None)


def _typed(found: pa.Table, schema: TableSchema, change_type: str) -> pa.Table:
    rows = _whole(found.drop_columns([FILE, ROW]), schema)
    return rows.append_column(CHANGE_TYPE, pa.array([change_type] * rows.num_rows, pa.string()))


def _whole(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Every column of the table, in its order and types."""
    columns = [
        cast_exactly(rows[name], field.type, name) if name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for name, field in schema.fields.items()
    ]
    return pa.table(columns, schema=pa.schema([(name, field.type) for name, field in schema.fields.items()]))
