"""Where the live rows of keys are: an index per state table, kept as a cache up to a bound.

An index is built by a Spark job that reads the key column; from then on every commit of ours moves it along. A table
too large for the bound has no index: in each pass Spark joins the key column with the keys of that pass, and leaves out
the files whose keys all lie before the lowest or behind the highest of them.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from mainstem.model.names import TableName
from mainstem.pipeline.commit.keyindex import DataFile, KeyHashes, KeyIndex, Places, in_file
from mainstem.pipeline.passes.kernel import HASH_BYTES, hash_keys

log = logging.getLogger(__name__)

# Rows of all indexes together; 24 bytes each: half a gigabyte.
INDEX_ROWS_MAX = 20_000_000
_FOUND = "number int, row int, hash binary"


class KeyRange(NamedTuple):
    """The lowest and the highest key of a pass."""

    low: str
    high: str


@dataclass(frozen=True, slots=True)
class LiveRows:
    """The rows of a table at one snapshot, as an index is built from them."""

    snapshot_id: int | None
    files: Sequence[DataFile]
    rows: int
    # The rows' keys and places (`_key`, `path`, `row`): of all files, or of those that may hold keys of a range.
    frame: Callable[[KeyRange | None], DataFrame]


class PlaceFinder:
    """The indexes of all tables. Large ones are built beside the passes, so several threads come here."""

    def __init__(self, rows_max: int = INDEX_ROWS_MAX) -> None:
        self._rows_max = rows_max
        # By table, least recently used first: the snapshot that it is of, and the index.
        self._indexes: OrderedDict[TableName, tuple[int | None, KeyIndex]] = OrderedDict()
        self._lock = threading.Lock()

    def lacks(self, table: TableName, snapshot_id: int | None, rows: int) -> bool:
        """Whether a pass would have to build the index of a table with so many rows."""
        with self._lock:
            known = self._indexes.get(table)
        return rows <= self._rows_max and (known is None or known[0] != snapshot_id)

    def index_for(
        self, table: TableName, snapshot_id: int | None, live: Callable[[], LiveRows], keys: Callable[[], DataFrame]
    ) -> KeyIndex:
        """An index that knows at least the places of a pass's keys (`key`) at a snapshot. Given back with `keep`."""
        with self._lock:
            known = self._indexes.pop(table, None)
        if known is not None and known[0] == snapshot_id:
            return known[1]
        if snapshot_id is None:
            return KeyIndex()
        rows = live()
        if rows.rows > self._rows_max:
            log.info("the places of keys are looked up by Spark", extra={"table": str(table), "rows": rows.rows})
            return build_index(rows, keys())
        return build_index(rows)

    def keep(self, table: TableName, snapshot_id: int | None, index: KeyIndex, rows: int) -> None:
        """Keep a whole index for the next pass; let go of others where all of them are too many."""
        if rows > self._rows_max:
            return
        with self._lock:
            self._indexes[table] = (snapshot_id, index)
            while len(self._indexes) > 1 and sum(len(each) for _, each in self._indexes.values()) > self._rows_max:
                self._indexes.popitem(last=False)

    def forget(self, table: TableName) -> None:
        """A table was dropped, or is written by somebody else."""
        with self._lock:
            self._indexes.pop(table, None)


def move(index: KeyIndex, files: Iterable[tuple[DataFile, bytes]], gone: bytes) -> None:
    """The keys of new files have their rows there from now on; other keys have none any more."""
    if gone:
        index.drop(KeyHashes.of_bytes(gone))
    for file, hashes in files:
        index.put(KeyHashes.of_bytes(hashes), in_file(index.number_of(file), len(hashes) // HASH_BYTES))


def build_index(live: LiveRows, keys: DataFrame | None = None) -> KeyIndex:
    """Read the places of all rows, or of some keys' (`key`), by a Spark job over the key column."""
    index = KeyIndex()
    if not live.files:
        return index
    numbers = {file.path: index.number_of(file) for file in live.files}
    rows = live.frame(None) if keys is None else _only(keys, live)
    if rows is not None:
        found = rows.mapInArrow(partial(_places_task, numbers), _FOUND).toArrow()
        hashes = KeyHashes.of_bytes(b"".join(found["hash"].to_pylist()))
        index.put(hashes, Places(found["number"].to_numpy(), found["row"].to_numpy()))
    return index


def _only(keys: DataFrame, live: LiveRows) -> DataFrame | None:
    """The rows of some keys; None where there is no key."""
    bounds = keys.agg(sf.expr("min(key) AS low"), sf.expr("max(key) AS high")).first()
    if bounds is None or bounds["low"] is None:
        return None
    rows, wanted = live.frame(KeyRange(bounds["low"], bounds["high"])), sf.broadcast(keys.distinct())
    return rows.join(wanted, rows["_key"] == wanted["key"], "left_semi")


def _places_task(numbers: Mapping[str, int], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On the executors: from keys and paths to hashes and numbers."""
    for batch in batches:
        keys = [key.encode() for key in batch["_key"].to_pylist()]
        joined = hash_keys(keys)
        hashes = [joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)]
        paths = batch["path"].dictionary_encode()
        codes = np.array([numbers[path] for path in paths.dictionary.to_pylist()], np.int32)
        files = codes[paths.indices.to_numpy()] if len(codes) else codes
        yield pa.record_batch(
            [pa.array(files, pa.int32()), batch["row"].cast(pa.int32()), pa.array(hashes, pa.binary())],
            names=["number", "row", "hash"],
        )
