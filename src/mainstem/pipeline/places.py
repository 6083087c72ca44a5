"""Finds the places of a batch's old rows for the driver's own commits: by an index in memory, or in the key column.

Indexes are kept for the tables that were written last, up to a number of entries in all. A table that is too large for
one is looked up in its files, as `lookup` does.
"""

import logging
import secrets
from collections import OrderedDict
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mainstem.model.names import TableName
from mainstem.pipeline.driver_sql import DriverSql, local_path, text_list
from mainstem.pipeline.keyindex import KeyHashes, KeyIndex, Places, in_file, sorted_by_path
from mainstem.pipeline.lookup import PLACES_SCHEMA, LiveFiles, places_on_driver, rows_of_files
from mainstem.pipeline.quickcatalog import QuickTable
from mainstem.tables.layout import KEY

log = logging.getLogger(__name__)

# Entries of all indexes together, 24 bytes each: half a gigabyte.
INDEX_ROWS_MAX = 20_000_000
HASHES = ("_high", "_low")


@dataclass(frozen=True, slots=True)
class _Kept:
    """An index, the snapshot it is of, and the job that brings it there."""

    snapshot_id: int | None
    index: KeyIndex
    moving: Future[None]

    def is_of(self, table: QuickTable) -> bool:
        """Whether it can be used for the table as it is now. Waits for the job."""
        if (failure := self.moving.exception()) is not None:
            log.warning("an index is made anew: %s", failure, extra={"table": str(table.name)})
        return failure is None and self.snapshot_id == table.snapshot_id


class Finder:
    """The indexes of all tables. Every table is used by one thread at a time."""

    def __init__(self, sql: DriverSql, rows_max: int = INDEX_ROWS_MAX) -> None:
        self._sql = sql
        self._rows_max = rows_max
        self._salts = (secrets.token_hex(8), secrets.token_hex(8))
        # By table, least recently used first.
        self._indexes: OrderedDict[TableName, _Kept] = OrderedDict()

    def hashes_of(self, key: str) -> str:
        """Two columns for a query: the hashes of a key's expression."""
        names = zip(self._salts, HASHES, strict=True)
        return ", ".join(f"hash(concat('{salt}', {key})) AS {name}" for salt, name in names)

    def take(self, table: QuickTable, files: LiveFiles) -> KeyIndex | None:
        """The table's index, to be given back with `keep`; None where the table is too large for one."""
        kept = self._indexes.pop(table.name, None)
        if kept is not None and kept.is_of(table) and len(kept.index) <= self._rows_max:
            return kept.index
        if files.rows > self._rows_max:
            return None
        return self._build(table, files)

    def keep(
        self,
        name: TableName,
        snapshot_id: int | None,
        index: KeyIndex,
        keys: pa.Table,
        location: str | None,
        side_jobs: Executor,
    ) -> None:
        """Keep an index for the next pass, and let go of others where all of them are too many.

        The keys' rows have moved into one file, or are gone where there is none. The index learns of it on the side:
        the rows are committed, and nobody but the next pass waits for this.
        """
        self._indexes[name] = _Kept(snapshot_id, index, side_jobs.submit(self._moved, index, keys, location))
        while len(self._indexes) > 1 and sum(len(k.index) for k in list(self._indexes.values())) > self._rows_max:
            self._indexes.popitem(last=False)

    def find(self, table: QuickTable, files: LiveFiles, index: KeyIndex | None, keys: pa.Table) -> pa.Table:
        """The places of the keys' rows, sorted by file and position. `keys` have their hashes too."""
        if index is None:
            return places_on_driver(self._sql, table.key_id, files, keys)
        places, paths = sorted_by_path(index.find(_hashes(keys)), index.files)
        if not len(places.files):
            return PLACES_SCHEMA.empty_table()
        path = pa.DictionaryArray.from_arrays(pa.array(places.files), pa.array(paths, pa.string()))
        return pa.table({"file_path": path, "pos": pa.array(places.rows).cast(pa.int64())})

    def _moved(self, index: KeyIndex, keys: pa.Table, location: str | None) -> None:
        """The keys' rows are those of one file now; keys that it lacks, or all where there is none, have no row."""
        if location is None:
            index.drop(_hashes(keys))
            return
        query = (
            f"SELECT {self.hashes_of(KEY)} FROM read_parquet({text_list([local_path(location) or ''])},"
            " file_row_number = true, hive_partitioning = false) ORDER BY file_row_number"
        )
        with self._sql.cursor() as cursor:
            rows = cursor.execute(query).to_arrow_table()
        if rows.num_rows < keys.num_rows:
            index.drop(_hashes(keys))
        index.put(_hashes(rows), in_file(index.number_of(location), rows.num_rows))

    def _build(self, table: QuickTable, files: LiveFiles) -> KeyIndex:
        index = KeyIndex()
        if not files.data:
            return index
        numbers = {location: index.number_of(location) for location in files.data}
        query, tables = rows_of_files(table.key_id, files)
        named = pa.table({"location": list(numbers), "number": pa.array(list(numbers.values()), pa.int32())})
        with self._sql.cursor() as cursor:
            for name, arrow in tables.items():
                cursor.register(name, arrow)
            cursor.register("numbers", named)
            rows = cursor.execute(
                f"SELECT {self.hashes_of('r.' + KEY)}, n.number, CAST(r.pos AS INTEGER) AS row"
                f" FROM ({query}) r JOIN numbers n ON n.location = r.file_path"
            ).to_arrow_table()
        index.put(_hashes(rows), Places(rows["number"].to_numpy(), rows["row"].to_numpy()))
        return index


def _hashes(rows: pa.Table) -> KeyHashes:
    high, low = (rows[name].to_numpy().astype(np.uint64, copy=False) for name in HASHES)
    return KeyHashes(high, low)
