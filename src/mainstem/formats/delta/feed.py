"""Delta's change feed: which rows each version brought, changed and took away.

A commit may have files of the feed itself; then those say it all. Otherwise its rows follow from the data files that
came and went, and from their deletion vectors: a file that goes takes only the rows that its vector had left, and one
that comes again with another vector brings or takes the rows in which the two differ.

All rows come in the columns of the last version. Where one of those does not hold what an earlier one did (an overwrite
or a restore brought another type), it comes as text.
"""

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from mainstem.documents.columns import Column, Kind
from mainstem.formats.delta.files import vectors
from mainstem.formats.delta.files.engine import ROW, Engine, Source, deleted_rows, read_errors
from mainstem.formats.delta.log import Action, AddFile, ChangeFile, DeltaLog, Removed, State
from mainstem.formats.delta.schema import CHANGE_FEED, Field, TableSchema, differing, schema_of
from mainstem.formats.delta.values import json_cells
from mainstem.formats.delta.values.rows import documents_of
from mainstem.formats.delta.values.widening import recast
from mainstem.model.errors import Invalid
from mainstem.sql import duckdb_name

CHANGE_TYPE = "_change_type"
_BATCH_ROWS = 65_536
_MORE = (
    pa.field(CHANGE_TYPE, pa.string()),
    pa.field("_commit_version", pa.uint64()),
    pa.field("_commit_timestamp", pa.timestamp("ms")),
)


@dataclass(frozen=True)
class _Part:
    """Rows of one file that changed in one way."""

    file: AddFile
    # None where the file says itself what happened to each row.
    change_type: str | None
    # Of the version that wrote it: a later one may have other columns.
    schema: TableSchema
    # Only these rows; None for all that the file's vector leaves.
    rows: BitMap64 | None = None


class Feed:
    """The changes between two versions of a table, read while they are asked for."""

    def __init__(self, engine: Engine, log: DeltaLog, newest: State) -> None:
        """`newest` is the last version: rows of every version come in its columns."""
        self._engine = engine
        self._log = log
        self._newest = newest.version
        self._schema = schema_of(newest.metadata)
        # Columns that come as text.
        self._texts: frozenset[str] = frozenset()

    def reader(self, first: int, last: int) -> pa.RecordBatchReader:
        """The changes of versions, the two included."""
        self._texts = self._unfit(first, last)
        own = [
            pa.field(name, pa.string() if name in self._texts else field.type)
            for name, field in self._schema.fields.items()
        ]
        schema = pa.schema([*own, *_MORE])
        return pa.RecordBatchReader.from_batches(schema, self._batches(first, last, schema))

    def _batches(self, first: int, last: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for version, actions, before, after in self._versions(first, last):
            at = self._time(version, actions)
            for part in self._parts(version, actions, before, after):
                for batch in self._rows(part):
                    count = batch.num_rows
                    told = batch.column(CHANGE_TYPE) if part.change_type is None else _all(count, part.change_type)
                    columns = [*self._columns(batch, part.schema), told, _all(count, version), _all(count, at)]
                    yield from pa.table(
                        [column.cast(of.type) for column, of in zip(columns, schema, strict=True)], schema=schema
                    ).to_batches()

    def _versions(self, first: int, last: int) -> Iterator[tuple[int, Sequence[Action], TableSchema, TableSchema]]:
        """What each version did, and the table's columns before and after it."""
        after = self._schema_before(first)
        for version in range(first, last + 1):
            actions = self._log.actions(version)
            before = after
            for action in actions:
                after = after if action.metaData is None else schema_of(action.metaData)
                if action.metaData is not None and not after.has(CHANGE_FEED):
                    raise Invalid(f"the table kept no change feed then. table={self._log.table} version={version}")
            yield version, actions, before, after

    def _unfit(self, first: int, last: int) -> frozenset[str]:
        """The columns of which some cells are none of the last version's. Reads those whose type has changed."""
        found: set[str] = set()
        for version, actions, before, after in self._versions(first, last):
            changed = {name for schema in (before, after) for name in differing(schema, self._schema)}
            if changed <= found:
                continue
            for part in self._parts(version, actions, before, after):
                found |= self._unfit_in(part, sorted(changed - found))
        return frozenset(found)

    def _unfit_in(self, part: _Part, names: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for name in names:
            if name in part.schema.fields:
                try:
                    for batch in self._rows(part, [name]):
                        recast(pa.Table.from_batches([batch]).select([name]), part.schema, self._schema)
                except Invalid:
                    found.add(name)
        return found

    def _columns(self, batch: pa.RecordBatch, written: TableSchema) -> Iterator[pa.ChunkedArray]:
        """The cells in the columns that the table has now. Raises Invalid where one does not hold what another did."""
        whole = pa.Table.from_batches([batch])
        texts = {name: _texts_of(whole.select([name]), written) for name in self._texts if name in whole.column_names}
        rows = recast(whole.drop_columns(list(texts)), written, self._schema)
        for name, field in self._schema.fields.items():
            column = texts.get(name)
            if column is None and name in rows.column_names:
                column = rows[name]
            yield pa.nulls(rows.num_rows, field.type) if column is None else column

    def _time(self, version: int, actions: Sequence[Action]) -> dt.datetime:
        """When a version was made: by its own word, or by its file."""
        for action in actions:
            said = action.commitInfo or {}
            ms = said.get("inCommitTimestamp", said.get("timestamp"))
            if isinstance(ms, int):
                return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).replace(tzinfo=None)
        info = self._log.storage.files.get_file_info(self._log.commit_path(version))
        return dt.datetime.fromtimestamp((info.mtime_ns or 0) / 1e9, dt.UTC).replace(tzinfo=None)

    def _schema_before(self, first: int) -> TableSchema:
        """What the table was before a version. Where no later one says otherwise, that is what it is."""
        later = range(first, self._newest + 1)
        changed = first and any(action.metaData is not None for at in later for action in self._log.actions(at))
        return schema_of(self._log.at(first - 1).metadata) if changed else self._schema

    def _parts(
        self, version: int, actions: Sequence[Action], before: TableSchema, after: TableSchema
    ) -> Iterator[_Part]:
        told = [action.cdc for action in actions if action.cdc is not None]
        if told:
            yield from (_Part(_as_added(file), None, after) for file in told)
            return
        removed = {
            action.remove.path: action.remove for action in actions if action.remove and action.remove.dataChange
        }
        for action in actions:
            added = action.add
            if added is None or not added.dataChange:
                continue
            old = removed.pop(added.path, None)
            if old is None:
                yield _Part(added, "insert", after)
            else:
                yield from self._difference(old, added, after)
        for gone in removed.values():
            yield _Part(self._whole(version, gone), "delete", before)

    def _difference(self, old: Removed, new: AddFile, schema: TableSchema) -> Iterator[_Part]:
        """A file under another vector: the rows that it takes now, and those that it gives back."""
        before = self._gone(msgspec.structs.replace(new, deletionVector=old.deletionVector))
        after = self._gone(new)
        every = msgspec.structs.replace(new, deletionVector=None)
        if taken := after - before:
            yield _Part(every, "delete", schema, taken)
        if given := before - after:
            yield _Part(every, "insert", schema, given)

    def _gone(self, file: AddFile) -> BitMap64:
        return deleted_rows(self._engine.storage, self._log.table, file) or BitMap64()

    def _whole(self, version: int, gone: Removed) -> AddFile:
        """A file that was removed, as it was: some writers leave out its partition."""
        if gone.partitionValues is None and self._schema.partition_by:
            return self._log.at(version - 1).files[gone.key]
        return AddFile(gone.path, gone.partitionValues or {}, gone.size or 0, deletionVector=gone.deletionVector)

    def _rows(self, part: _Part, only: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a part: all columns that the last version has, or some."""
        storage, table = self._engine.storage, self._log.table
        schema = part.schema if part.change_type is not None else _with_type(part.schema)
        names = list(only or (name for name in schema.fields if name in self._schema.fields or name == CHANGE_TYPE))
        with self._engine.cursor() as cursor, read_errors(storage, table, [part.file]):
            source = Source(cursor, storage, table, schema, [part.file])
            relation = source.relation(names, places=part.rows is not None)
            text = f"SELECT {', '.join(map(duckdb_name, names))} FROM {relation}"
            if part.rows is not None:
                cursor.register("changed", pa.table({ROW: vectors.rows_of(part.rows)}))
                text += f" SEMI JOIN changed USING ({ROW})"
            yield from cursor.execute(text).to_arrow_reader(_BATCH_ROWS)


def _with_type(schema: TableSchema) -> TableSchema:
    of_type = Field(CHANGE_TYPE, CHANGE_TYPE, pa.string(), Column(Kind.STRING))
    return replace(schema, fields={**schema.fields, CHANGE_TYPE: of_type})


def _texts_of(rows: pa.Table, written: TableSchema) -> pa.ChunkedArray:
    """A column's cells as text: texts as they are, everything else as (extended) JSON."""
    (name,) = rows.column_names
    field = written.fields[name]
    if pa.types.is_string(field.type):
        return rows[name]
    cells = [document.get(name) for document in documents_of(rows, written, whole=True)]
    return pa.chunked_array([pa.array([None if cell is None else json_cells.extended(cell) for cell in cells])])


def _as_added(file: ChangeFile) -> AddFile:
    return AddFile(file.path, file.partitionValues, file.size)


def _all(count: int, value: Any) -> pa.Array:
    return pa.repeat(pa.scalar(value), count)
