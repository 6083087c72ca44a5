"""Rows that are there, in the columns that their table has from now on: file by file, in bounded memory.

Owns the conversion of stored cells from one schema to another. A cell becomes one that stands for the same value, or
the conversion is refused with the column's name. Which columns change, and into what, `evolution` has decided before.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyroaring import BitMap64

from mainstem.formats.delta.files import vectors
from mainstem.formats.delta.files.datafiles import write_files
from mainstem.formats.delta.files.engine import ROW, Engine, Source, read_errors
from mainstem.formats.delta.log import AddFile, Metadata
from mainstem.formats.delta.schema import TableSchema, differing, schema_of
from mainstem.formats.delta.values.evolution import Evolution, Widening, evolution_of, has_map
from mainstem.formats.delta.values.exact import cast_exactly, fitted, refused
from mainstem.formats.delta.values.rows import column_of, documents_of
from mainstem.sql import duckdb_name

# So many rows are converted at a time, and so much of them is held until it becomes a file.
BATCH_ROWS = 16_384
PENDING_BYTES_MAX = 64 * 1024 * 1024


class StoredFiles:
    """What some files of a table hold, asked of DuckDB."""

    def __init__(self, engine: Engine, table: str, schema: TableSchema, files: Callable[[], Sequence[AddFile]]) -> None:
        """`files` is called when somebody asks: most writes never do."""
        self._engine = engine
        self._table = table
        self._schema = schema
        self._files = files

    def bounds(self, name: str) -> tuple[Any, Any] | None:
        """The least and the largest value of a column; None where it has none."""
        column = duckdb_name(name)
        found = self._asked(f"min({column}), max({column})", name)
        return None if found[0] is None else found

    def is_finite(self, name: str) -> bool:
        """Whether a column of doubles has neither NaN nor infinities."""
        return bool(self._asked(f"coalesce(bool_and(isfinite({duckdb_name(name)})), true)", name)[0])

    def _asked(self, selected: str, name: str) -> Any:
        files, storage = self._files(), self._engine.storage
        with self._engine.cursor() as cursor, read_errors(storage, self._table, files):
            source = Source(cursor, storage, self._table, self._schema, files)
            return cursor.execute(f"SELECT {selected} FROM {source.relation([name])}").fetchone()


def widening_of(
    engine: Engine,
    table: str,
    metadata: Metadata,
    files: Callable[[], Sequence[AddFile]],
    keys: Sequence[str] = (),
) -> Widening | None:
    """How columns of a table become others in one write; None where the table refuses that."""
    if evolution_of(metadata.configuration) is Evolution.REFUSE:
        return None
    return Widening(metadata, StoredFiles(engine, table, schema_of(metadata), files), keys)


def recast(rows: pa.Table, old: TableSchema, new: TableSchema) -> pa.Table:
    """Rows of the old columns, in the types of the new ones. Other columns stay as they are."""
    changed = [name for name in differing(old, new) if name in rows.column_names]
    any_value = [name for name in changed if new.fields[name].is_variant or new.fields[name].column.is_json]
    for name in any_value:
        if has_map(old.fields[name].type):
            raise refused(name, new.fields[name].type, "a map does not become JSON or a Variant")
    documents = documents_of(rows.select(any_value), old, whole=True) if any_value else []
    for name in changed:
        field = new.fields[name]
        if name in any_value:
            column = pa.chunked_array([column_of([document.get(name) for document in documents], field)[1]])
        else:
            column = cast_exactly(rows[name], field.type, name)
        rows = rows.set_column(rows.column_names.index(name), pa.field(name, field.type), column)
    return rows


def rewritten(
    engine: Engine,
    table: str,
    file: AddFile,
    old: TableSchema,
    new: TableSchema,
    now_ms: int,
    leaving: BitMap64 | None = None,
) -> list[dict[str, Any]]:
    """The rows of one file in new files, but for those that leave; returns what `add` says of each.

    Where a row cannot become one of the new columns, no file is left.
    """
    added: list[dict[str, Any]] = []
    pending: list[pa.Table] = []
    pending_bytes = 0

    def flush() -> None:
        nonlocal pending_bytes
        if pending:
            added.extend(write_files(engine.storage, table, new, pa.concat_tables(pending), now_ms))
        pending.clear()
        pending_bytes = 0

    try:
        for rows in _rows(engine, table, file, old, leaving):
            pending.append(fitted(recast(rows, old, new), new))
            pending_bytes += pending[-1].nbytes
            if pending_bytes >= PENDING_BYTES_MAX:
                flush()
        flush()
    except BaseException:
        discard(engine, table, added)
        raise
    return added


def discard(engine: Engine, table: str, added: Sequence[dict[str, Any]]) -> None:
    """Remove files that no version has."""
    for add in added:
        engine.storage.delete(f"{table}/{unquote(add['path'])}")


def _rows(
    engine: Engine, table: str, file: AddFile, schema: TableSchema, leaving: BitMap64 | None
) -> Iterator[pa.Table]:
    names = list(schema.fields)
    with engine.cursor() as cursor, read_errors(engine.storage, table, [file]):
        source = Source(cursor, engine.storage, table, schema, [file])
        text = f"SELECT {', '.join(map(duckdb_name, names))} FROM {source.relation(names, places=leaving is not None)}"
        if leaving is not None:
            cursor.register("leaving", pa.table({ROW: vectors.rows_of(leaving)}))
            text += f" ANTI JOIN leaving USING ({ROW})"
        for batch in cursor.execute(text).to_arrow_reader(BATCH_ROWS):
            yield fitted(pa.Table.from_batches([batch]), schema)
