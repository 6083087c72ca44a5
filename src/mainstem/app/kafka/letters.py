"""Records of `value.mode=json` topics that have no row: their table's dead letters have them, whole. Blocks."""

import io
from collections import OrderedDict
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.feeds.topics.segments import json_record, letter_texts
from mainstem.formats.delta.log import AddFile, file_below
from mainstem.query.delta import DeltaVersion
from mainstem.wire.kafka.opening import Record

# Files whose offsets are remembered: a file never changes, and offsets are in no statistics of it.
FILES_MAX = 4_096
OFFSETS_MAX = 4_000_000
_COLUMNS = ["_key", "_columns", "_metadata"]

_Offsets = dict[int, npt.NDArray[np.int64]]


class Letters:
    """Called in threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], _Offsets] = OrderedDict()
        self._count = 0
        self._lock = Lock()

    def records(
        self, version: DeltaVersion, partition: int, offset: int, before: int, bytes_max: int
    ) -> tuple[list[Record], int]:
        """The first records of a partition from an offset on, of about so many bytes, in no order; and the offset
        before which none is missing."""
        found: list[Record] = []
        size = 0
        files = self._files(version, partition, offset, before)
        for number, (_, file) in enumerate(files):
            rows = _rows(version, file)
            mine = [json_record(text) for text in _of_partition(rows, partition)["text"].to_pylist()]
            found += [record for record in mine if offset <= record.offset < before]
            size += rows.nbytes
            bound = files[number + 1][0] if number + 1 < len(files) else before
            if size > bytes_max and found and max(found).offset < bound:
                return found, max(found).offset + 1
        return found, before

    def _files(self, version: DeltaVersion, partition: int, offset: int, before: int) -> list[tuple[int, AddFile]]:
        """The files that have such records, each with the first of them, in that order."""
        found = []
        for file in version.state.files.values():
            offsets = self._offsets(version, file).get(partition)
            if offsets is not None:
                at = int(np.searchsorted(offsets, offset))
                if at < len(offsets) and offsets[at] < before:
                    found.append((int(offsets[at]), file))
        return sorted(found, key=lambda each: each[0])

    def _offsets(self, version: DeltaVersion, file: AddFile) -> _Offsets:
        key = (version.path, file.path)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        known = _offsets_of(_rows(version, file))
        with self._lock:
            self._known[key] = known
            self._count += sum(map(len, known.values()))
            while len(self._known) > FILES_MAX or (self._count > OFFSETS_MAX and len(self._known) > 1):
                _, gone = self._known.popitem(last=False)
                self._count -= sum(map(len, gone.values()))
        return known


# Of this process: consumers that are behind are served by others than the gateway.
LETTERS = Letters()


def _rows(version: DeltaVersion, file: AddFile) -> pa.Table:
    """The key and the text of every letter that is one record."""
    data = version.storage.read(file_below(version.path, file.path))
    rows = pq.read_table(io.BytesIO(data), columns=_COLUMNS)
    texts, is_record = letter_texts(rows["_columns"], rows["_metadata"])
    return pa.table({"key": rows["_key"], "text": texts}).filter(is_record)


def _of_partition(rows: pa.Table, partition: int) -> pa.Table:
    import pyarrow.compute as pc

    return rows.filter(pc.starts_with(rows["key"], f"{partition}/"))


def _offsets_of(rows: pa.Table) -> _Offsets:
    found: dict[int, list[int]] = {}
    for key in rows["key"].to_pylist():
        partition, _, offset = key.partition("/")
        found.setdefault(int(partition), []).append(int(offset))
    return {partition: np.sort(np.array(offsets, np.int64)) for partition, offsets in found.items()}
