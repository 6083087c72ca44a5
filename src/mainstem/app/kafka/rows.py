"""The records of topics that only their Delta tables still have. Every method blocks: called in threads."""

import base64
import datetime as dt
import io
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.app.kafka.letters import Letters
from mainstem.app.query import CatalogLake
from mainstem.feeds.topics.retention import StoredFile
from mainstem.feeds.topics.segments import JSON_PREFIX
from mainstem.formats.delta.engine import PLACES, engine_of
from mainstem.formats.delta.log import AddFile, DeltaLog
from mainstem.formats.delta.transaction import Commit, Replacement, Transaction
from mainstem.model import NotFound, TableName
from mainstem.model.change import SOURCE_TIME_MS_MAX
from mainstem.query.delta import DeltaVersion
from mainstem.wire.kafka.opening import Record

_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
_STEP = 512
_headers = msgspec.json.Decoder(list[tuple[str, str | None]])


class TopicRows:
    """See `feeds.topics.reading.Rows`. Rows before a partition's first offset may be deleted, others never are."""

    def __init__(self, lake: CatalogLake) -> None:
        self._lake = lake
        self._letters = Letters()

    def records(self, table: TableName, partition: int, offset: int, before: int, bytes_max: int) -> list[Record]:
        """The first records of a partition from an offset on, in order, of about so many bytes."""
        version = self._version(table)
        found, before = self._of_table(version, partition, offset, before, bytes_max)
        if (letters := self._letters_of(table, version)) is not None:
            more, before = self._letters.records(letters, partition, offset, before, bytes_max)
            found = [record for record in (*found, *more) if record.offset < before]
        return sorted(found)

    def _letters_of(self, table: TableName, version: DeltaVersion | None) -> DeltaVersion | None:
        """Where a topic whose values are JSON has the records that are no rows. It may have no others."""
        return None if version is not None and not _prefix(version) else self._version(table.dead_letters)

    def _of_table(
        self, version: DeltaVersion | None, partition: int, offset: int, before: int, bytes_max: int
    ) -> tuple[list[Record], int]:
        """Records that have rows, and the offset before which none of those is missing."""
        found: list[Record] = []
        size = 0
        files = list(self._files(version, partition, offset))
        for number, (_, file, prefix) in enumerate(files):
            assert version is not None
            # Compaction may have put files together that were not neighbours: what begins before a record that we have
            # must be read before that record is given away.
            bound = files[number + 1][0] if number + 1 < len(files) else before
            rows = _rows(version, file, prefix, offset, before).sort_by(f"{prefix}offset")
            for start in range(0, rows.num_rows, _STEP):
                part = rows.slice(start, _STEP)
                found += _as_records(part, prefix)
                size += part.nbytes
                if size > bytes_max and max(found).offset < bound:
                    return found, max(found).offset + 1
        return found, before

    def first_at(self, table: TableName, partition: int, offset: int, timestamp: int) -> Record | None:
        """The first record from an offset on whose time is the given one or later."""
        import pyarrow.compute as pc

        version = self._version(table)
        # A client's number: what no calendar has is before or after everything.
        wanted = dt.datetime.fromtimestamp(max(0, min(timestamp, SOURCE_TIME_MS_MAX)) / 1000, dt.UTC)
        found: list[Record] = []
        for low, file, prefix in self._files(version, partition, offset):
            assert version is not None
            if found and min(found).offset < low:
                break
            rows = _rows(version, file, prefix, offset, 1 << 62)
            times = rows[f"{prefix}timestamp"]
            rows = rows.filter(pc.greater_equal(times, pa.scalar(wanted, times.type)))
            found += _as_records(rows, prefix)
        if (letters := self._letters_of(table, version)) is not None:
            first = self._letters.first_at(letters, partition, offset, timestamp)
            found += [] if first is None else [first]
        return min(found, default=None)

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
    stats: dict[str, Any] = msgspec.json.decode(file.stats) if file.stats else {}
    return stats.get("minValues", {}).get(column), stats.get("maxValues", {}).get(column)


def _rows(version: DeltaVersion, file: AddFile, prefix: str, offset: int, before: int) -> pa.Table:
    data = version.storage.read(f"{version.path}/{unquote(file.path)}")
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
