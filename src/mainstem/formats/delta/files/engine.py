"""DuckDB over the data files of a Delta table: which files, which rows of them are gone, and what they are called.

Owns the SQL that turns a list of files into the table's rows: columns that a file lacks are null, partition values come
from the log, rows that a deletion vector names are left out. It decides nothing about which files are read.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import deltalake
import numpy as np
import pyarrow as pa

from mainstem.formats.delta.errors import DeltaFailure
from mainstem.formats.delta.files import vectors
from mainstem.formats.delta.files.shapes import VARIANT, Shapes
from mainstem.formats.delta.files.zones import Footers, partition_value
from mainstem.formats.delta.log import AddFile, State, file_below
from mainstem.formats.delta.schema import RESERVED, Field, TableSchema, duckdb_type
from mainstem.formats.delta.storage import Storage
from mainstem.model.errors import Corrupt, Invalid, NotFound
from mainstem.sql import duckdb_name, duckdb_text

if TYPE_CHECKING:
    import duckdb
    from pyroaring import BitMap64

# Where each row is, next to its columns: the file's place in the list, and the row's place in the file.
FILE, ROW = "file_index", "file_row_number"  # `schema.RESERVED`
# Tables that are kept open in delta-rs, each with the list of its files.
HANDLES_MAX = 16
# Of files with deletion vectors, which never change.
VECTOR_BYTES_MAX = 64 * 1024 * 1024
PLACES = pa.schema([(FILE, pa.int64()), (ROW, pa.int64())])


class Engine:
    """One DuckDB for the tables of a storage. Safe to use from several threads."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.footers = Footers(storage)
        self.shapes = Shapes()
        self.vector_files = VectorFiles(storage)
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._handles: dict[str, deltalake.DeltaTable] = {}

    @contextmanager
    def cursor(self) -> Iterator["duckdb.DuckDBPyConnection"]:
        """A session of its own in the same DuckDB."""
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            cursor = self._connection.cursor()
        try:
            yield cursor
        finally:
            cursor.close()

    @contextmanager
    def opened(self, table: str, state: State) -> Iterator[deltalake.DeltaTable]:
        """A table in delta-rs's hands at a version. Handles are kept: one that only looks for news opens at once."""
        version = state.version
        with self._lock:
            handle = self._handles.pop(table, None)
        if handle is None or handle.version() > version or str(handle.metadata().id) != state.metadata.id:
            handle = deltalake.DeltaTable(
                self.storage.uri(table), version, storage_options=self.storage.options or None
            )
        elif handle.version() < version:
            handle.load_as_version(version)
        yield handle
        with self._lock:
            if len(self._handles) < HANDLES_MAX:
                self._handles[table] = handle

    def _connect(self) -> "duckdb.DuckDBPyConnection":
        import duckdb

        connection = duckdb.connect()
        # Data files never change, so their footers need reading once.
        connection.execute("SET GLOBAL parquet_metadata_cache = true")
        self.storage.prepare(connection)
        return connection


class VectorFiles:
    """Files of deletion vectors, the latest kept in memory: each has the vectors of many data files."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def read(self, path: str) -> bytes:
        """A whole file. Raises NotFound."""
        with self._lock:
            if path in self._kept:
                self._kept.move_to_end(path)
                return self._kept[path]
        content = self._storage.read(path)
        with self._lock:
            if path not in self._kept:
                self._kept[path] = content
                self._bytes += len(content)
            while self._bytes > VECTOR_BYTES_MAX:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return content

    def forget(self, path: str) -> None:
        """Read it anew the next time."""
        with self._lock:
            self._bytes -= len(self._kept.pop(path, b""))


def engine_of(storage: Storage) -> Engine:
    """The engine of a storage; there is one for each, and it goes with it."""
    engine: Engine | None = storage.companions.get("engine")
    return engine or storage.companions.setdefault("engine", Engine(storage))


def data_path(table: str, file: AddFile) -> str:
    """A data file below the storage's root. Raises Corrupt where it lies outside the table."""
    return file_below(table, file.path)


def deleted_rows(storage: Storage, table: str, file: AddFile) -> "BitMap64 | None":
    """The rows of a file that are gone, None where all are there."""
    vector = file.deletionVector
    if vector is None:
        return None
    path = vector.file(table)
    if path is None:
        return vectors.read_inline(vector, file.path)
    files = engine_of(storage).vector_files
    try:
        return vectors.read_from_file(vector, files.read(path), storage.uri(path))
    except NotFound:
        raise Corrupt("a deletion vector's file is missing", place=storage.uri(path)) from None
    except Corrupt:
        files.forget(path)
        raise


class Source:
    """Some files of a table as a relation of one DuckDB session."""

    def __init__(
        self,
        cursor: "duckdb.DuckDBPyConnection",
        storage: Storage,
        table: str,
        schema: TableSchema,
        files: Sequence[AddFile],
        keep: Callable[[str, pa.Table], str] | None = None,
    ) -> None:
        """`keep` lets the session see an Arrow table, and says under which name."""
        self.cursor = cursor
        self._keep = keep or self._register
        self.schema = schema
        self._storage = storage
        self._table = table
        self._files = files

    def relation(self, names: Sequence[str], *, places: bool = False) -> str:
        """A FROM item with these columns, and with `places` each row's file and place too."""
        self._check_names(places)
        if not self._files:
            empty = [f"CAST(NULL AS {_read_type(self.schema.fields[name])}) AS {duckdb_name(name)}" for name in names]
            where = [f"CAST(NULL AS BIGINT) AS {name}" for name in (FILE, ROW)] if places else []
            return f"(SELECT {', '.join([*empty, *where] or ['1'])} WHERE false)"
        stored = [self.schema.fields[name] for name in names if name not in self.schema.partition_by]
        partitioned = [self.schema.fields[name] for name in names if name in self.schema.partition_by]
        uris = [self._storage.uri(data_path(self._table, file)) for file in self._files]
        as_stated = bool(stored) and engine_of(self._storage).shapes.are_as_stated(self.cursor, uris, stored)
        if as_stated and not partitioned and all(field.physical == field.name for field in stored):
            # No SELECT in between: a filter then reaches the reader, which tests each value of a dictionary once.
            return f"{_read(uris)} f{self._left_out()}"
        selected = [f"f.{duckdb_name(field.name)}" for field in stored]
        selected += [f"p.{duckdb_name(field.name)}" for field in partitioned]
        if places:
            selected += [f"f.{FILE}", f"f.{ROW}"]
        text = f"SELECT {', '.join(selected) or '1'} FROM {self._fitted(uris, stored)} f"
        if partitioned:
            partitions = self._keep("partitions", self._partitions(partitioned))
            text += f" JOIN {partitions} p ON p.__file = f.{FILE}"
        return f"({text}{self._left_out()})"

    def _check_names(self, places: bool) -> None:
        """Refuse to look for a row's place by a name that a column of the table has."""
        taken = sorted(field.name for field in self.schema.fields.values() if field.physical.lower() in RESERVED)
        needed = places or self.schema.partition_by or any(file.deletionVector is not None for file in self._files)
        if taken and needed:
            raise Invalid(f"a column has a name that is the reader's own. table={self._table} got={taken}")

    def _fitted(self, uris: Sequence[str], stored: Sequence[Field]) -> str:
        """The files, fitted to the schema. Those that say themselves what a Variant is are read apart."""
        variants = [field for field in stored if field.is_variant]
        shapes = engine_of(self._storage).shapes
        says = [bool(variants) and shapes.says_variant(self.cursor, uri, variants) for uri in uris]
        if not any(says):
            return _read(uris, _schema_option(stored))
        parts = []
        for told in {*says}:
            chosen = [at for at, said in enumerate(says) if said == told]
            columns = [
                f"variant_to_parquet_variant({duckdb_name(field.name)}) AS {duckdb_name(field.name)}"
                if told and field.is_variant
                else duckdb_name(field.name)
                for field in stored
            ]
            at = f"list_extract({chosen}, CAST({FILE} AS BIGINT) + 1) AS {FILE}"
            read = _read([uris[index] for index in chosen], _schema_option(stored, told=told))
            parts.append(f"SELECT {', '.join([*columns, at, ROW])} FROM {read}")
        return f"({' UNION ALL '.join(parts)})"

    def _left_out(self) -> str:
        """The join that leaves out what deletion vectors name."""
        gone = self._gone()
        if gone is None:
            return ""
        return f" ANTI JOIN {self._keep('gone', gone)} g ON g.__file = f.{FILE} AND g.__row = f.{ROW}"

    def _register(self, name: str, rows: pa.Table) -> str:
        self.cursor.register(name, rows)
        return name

    def _partitions(self, fields: Sequence[Field]) -> pa.Table:
        columns = {"__file": pa.array(range(len(self._files)), pa.int64())}
        for field in fields:
            values = [partition_value(file.partitionValues.get(field.physical), field) for file in self._files]
            columns[field.name] = pa.array(values, field.type)
        return pa.table(columns)

    def _gone(self) -> pa.Table | None:
        files, rows = [], []
        for index, file in enumerate(self._files):
            deleted = deleted_rows(self._storage, self._table, file)
            if deleted:
                rows.append(vectors.rows_of(deleted))
                files.append(np.full(len(deleted), index, np.int64))
        if not rows:
            return None
        return pa.table({"__file": np.concatenate(files), "__row": np.concatenate(rows)})


def _read(uris: Sequence[str], options: str = "") -> str:
    return f"read_parquet([{', '.join(map(duckdb_text, uris))}]{options}, hive_partitioning = false)"


def _schema_option(stored: Sequence[Field], *, told: bool = False) -> str:
    """The schema that every file is fitted to; `told`: the files say themselves which columns are Variants."""
    # Without any column asked for, one that no file has still makes the rows count.
    entries = [
        f"{duckdb_text(field.physical)}: {{name: {duckdb_text(field.name)}, "
        f"type: {duckdb_text(VARIANT if told and field.is_variant else _read_type(field))}, default_value: NULL}}"
        for field in stored
    ] or ["'__none': {name: '__none', type: 'BOOLEAN', default_value: NULL}"]
    return f", schema = MAP {{{', '.join(entries)}}}"


def _read_type(field: Field) -> str:
    return duckdb_type(field.type)


@contextmanager
def read_errors(storage: Storage, table: str, files: Sequence[AddFile]) -> Iterator[None]:
    """A data file that is gone or broken is a Corrupt error that names it; whatever else fails has our name too."""
    import duckdb

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        for file in files:
            path = data_path(table, file)
            if not storage.exists(path):
                raise Corrupt("a data file is missing", place=storage.uri(path)) from error
            if storage.uri(path) in str(error):
                raise Corrupt(f"a data file cannot be read. {str(error)[:300]}", place=storage.uri(path)) from error
        if isinstance(error, pa.ArrowException) and len(files) == 1:
            # Arrow does not say which file it was.
            place = storage.uri(data_path(table, files[0]))
            raise Corrupt(f"a data file cannot be read. {str(error)[:300]}", place=place) from error
        raise DeltaFailure(f"the files could not be read. table={table} {str(error)[:300]}") from error
