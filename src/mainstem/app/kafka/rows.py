"""The records of topics that only their Delta tables still have. Every method blocks: called in threads."""

import base64
import datetime as dt
import io
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.app.kafka.letters import LETTERS
from mainstem.app.query import CatalogLake
from mainstem.feeds.topics.retention import StoredFile
from mainstem.feeds.topics.segments import JSON_PREFIX
from mainstem.formats.delta.files.engine import PLACES, engine_of
from mainstem.formats.delta.log import AddFile, DeltaLog, file_below
from mainstem.formats.delta.transaction import Commit, Replacement, Transaction
from mainstem.model import NotFound, TableName
from mainstem.query.delta import DeltaVersion
from mainstem.wire.kafka.opening import Record

_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
_STEP = 512
# Files that one read may look into, and what is kept of them in the process that reads.
_FILES_MAX = 16
_KEPT_BYTES_MAX = 128 * 1024 * 1024
_RECORD_BYTES = 16
_kept: OrderedDict[tuple[str, str], tuple[npt.NDArray[np.int64], pa.Table]] = OrderedDict()
_headers = msgspec.json.Decoder(list[tuple[str, str | None]])


class TopicFiles(NamedTuple):
    """The files of a table that may have a partition's records, each with its first offset, in that order. `version`
    has no others. See `feeds.topics.sealed.TableRows`: it is used in the process that reads."""

    partition: int
    # None where the table has none that matter.
    version: DeltaVersion | None
    files: tuple[tuple[int, AddFile], ...]
    prefix: str
    # Where the first file begins that is left out; None where none is.
    bound: int | None
    # The records that are no rows, where the topic's values are JSON.
    letters: DeltaVersion | None

    def records(self, offset: int, before: int, bytes_max: int) -> list[Record]:
        """The first records from an offset on, in order, of about so many bytes."""
        before = before if self.bound is None else min(before, self.bound)
        found, before = self._rows(offset, before, bytes_max)
        if self.letters is not None:
            more, before = LETTERS.records(self.letters, self.partition, offset, before, bytes_max)
            found = [record for record in (*found, *more) if record.offset < before]
        return sorted(found)

    def _rows(self, offset: int, before: int, bytes_max: int) -> tuple[list[Record], int]:
        """Records that have rows, and the offset before which none of those is missing."""
        found: list[Record] = []
        size = highest = 0
        for number, (_, file) in enumerate(self.files):
            # Compaction may have put files together that were not neighbours: what begins before a record that we have
            # must be read before that record is given away.
            bound = self.files[number + 1][0] if number + 1 < len(self.files) else before
            assert self.version is not None, "it has the files"
            offsets, rows = _sorted_rows(self.version, file, self.prefix)
            first, last = (int(at) for at in np.searchsorted(offsets, [offset, before]))
            for start in range(first, last, _STEP):
                part = rows.slice(start, min(_STEP, last - start))
                found += _as_records(part, self.prefix)
                size += sum([len(each.value or b"") + _RECORD_BYTES for each in found[-part.num_rows :]])
                highest = max(highest, found[-1].offset)
                if size > bytes_max and highest < bound:
                    return found, highest + 1
        return found, before


class TopicRows:
    """See `feeds.topics.reading.Rows`. Rows before a partition's first offset may be deleted, others never are."""

    def __init__(self, lake: CatalogLake) -> None:
        self._lake = lake

    def of(self, table: TableName, partition: int, offset: int) -> TopicFiles | None:
        """Where the records of a partition from an offset on are: the first files that may have them."""
        version = self._version(table)
        letters = self._letters_of(table, version)
        found = [(low, file, prefix) for low, file, prefix in self._files(version, partition, offset)]
        if version is None or not found:
            return None if letters is None else TopicFiles(partition, None, (), JSON_PREFIX, None, letters)
        files = tuple((low, file) for low, file, _ in found[:_FILES_MAX])
        state = replace(version.state, files={file.key: file for _, file in files})
        few = DeltaVersion(version.storage, version.path, state)
        bound = found[_FILES_MAX][0] if len(found) > _FILES_MAX else None
        return TopicFiles(partition, few, files, found[0][2], bound, letters)

    def _letters_of(self, table: TableName, version: DeltaVersion | None) -> DeltaVersion | None:
        """Where a topic whose values are JSON has the records that are no rows. It may have no others."""
        return None if version is not None and not _prefix(version) else self._version(table.dead_letters)

    def files(self, table: TableName) -> list[StoredFile]:
        """Every file of a topic's table, by what the table's log says of it."""
        version = self._version(table)
        if version is None:
            return []
        prefix = _prefix(version)
        found = []
        for file in version.state.files.values():
            partition = file.partitionValues.get(f"{prefix}partition")
            first, last = _bounds(file, f"{prefix}offset")
            _, newest = _bounds(file, f"{prefix}timestamp")
            if partition is None or first is None or last is None or not isinstance(newest, str):
                # Not to be judged by what is said of it: it stays.
                continue
            newest_ms = round(dt.datetime.fromisoformat(newest).timestamp() * 1000)
            found.append(StoredFile(int(partition), first, last, newest_ms, file.size, file))
        return found

    def drop(self, table: TableName, files: Sequence[StoredFile], now_ms: int) -> None:
        """Take whole files out of a table, in one commit: no row is read or written. Time travel still shows them,
        until they are vacuumed. Raises Conflict where somebody else committed meanwhile."""
        version = self._version(table)
        if version is None:
            return
        dropped = [
            file.handle for file in files if isinstance(file.handle, AddFile) and file.handle.key in version.state.files
        ]
        if dropped:
            log = DeltaLog(version.storage, version.path)
            writer = Transaction(engine_of(version.storage), log, version.state)
            writer.commit(Replacement([], PLACES.empty_table(), dropped=dropped), Commit("DELETE"), now_ms)

    def _version(self, table: TableName) -> DeltaVersion | None:
        try:
            loaded = self._lake.delta(table)
        except NotFound:
            return None
        found = None if loaded is None else loaded.delta
        return found if isinstance(found, DeltaVersion) else None

    def _files(self, version: DeltaVersion | None, partition: int, offset: int) -> Iterator[tuple[int, AddFile, str]]:
        """The files that may have a partition's records from an offset on, in the order of their offsets."""
        if version is None:
            return
        prefix = _prefix(version)
        found = []
        for file in version.state.files.values():
            own = file.partitionValues.get(f"{prefix}partition")
            if own is not None and int(own) != partition:
                continue
            low, high = _bounds(file, f"{prefix}offset")
            if high is None or high >= offset:
                found.append((low or 0, file))
        for low, file in sorted(found, key=lambda each: each[0]):
            yield low, file, prefix


def _prefix(version: DeltaVersion) -> str:
    return JSON_PREFIX if f"{JSON_PREFIX}partition" in version.state.metadata.partitionColumns else ""


def _bounds(file: AddFile, column: str) -> tuple[Any, Any]:
    return _read_bounds(file.stats, column)


@lru_cache(16_384)
def _read_bounds(text: str | None, column: str) -> tuple[Any, Any]:
    """Asked of every file for every page of a consumer that is behind."""
    stats: dict[str, Any] = msgspec.json.decode(text) if text else {}
    return stats.get("minValues", {}).get(column), stats.get("maxValues", {}).get(column)


def _sorted_rows(version: DeltaVersion, file: AddFile, prefix: str) -> tuple[npt.NDArray[np.int64], pa.Table]:
    """A file's rows in the order of their offsets, kept for the next page: the latest files, up to a size."""
    key = (version.path, file.path)
    kept = _kept.pop(key, None)
    if kept is None:
        rows = _rows(version, file, prefix, 0, 1 << 62)
        offsets = rows[f"{prefix}offset"].to_numpy()
        if np.any(offsets[1:] < offsets[:-1]):
            order = np.argsort(offsets, kind="stable")
            offsets, rows = offsets[order], rows.take(pa.array(order))
        kept = offsets, rows
    _kept[key] = kept
    while len(_kept) > 1 and sum(rows.nbytes for _, rows in _kept.values()) > _KEPT_BYTES_MAX:
        _kept.popitem(last=False)
    return kept


def _rows(version: DeltaVersion, file: AddFile, prefix: str, offset: int, before: int) -> pa.Table:
    data = version.storage.read(file_below(version.path, file.path))
    column = f"{prefix}offset"
    return pq.read_table(
        io.BytesIO(data),
        columns=[prefix + name for name in _COLUMNS],
        filters=[(column, ">=", offset), (column, "<", before)],
    )


def _as_records(rows: pa.Table, prefix: str) -> list[Record]:
    times = rows[f"{prefix}timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    columns = [rows[prefix + name].to_pylist() for name in ("offset", "key", "value", "headers")]
    return [
        Record(offset, -1 if time is None else time, key, value, _headers_of(headers))
        for time, offset, key, value, headers in zip(times, *columns, strict=True)
    ]


def _headers_of(text: str | None) -> tuple[tuple[str, bytes | None], ...]:
    if text is None:
        return ()
    return tuple((name, None if value is None else base64.b64decode(value)) for name, value in _headers.decode(text))
