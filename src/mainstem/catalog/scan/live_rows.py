"""How many rows each snapshot of a table holds. Exact: from summaries where they tell, from manifests otherwise.

A table's first look may read its manifests, and those delete files that serve several data files; what was counted is
kept, and each later commit is added to it. Every method blocks and may be called from any thread.
"""

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mainstem.catalog.metadata.boundaries import refuse_beyond
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.scan.inventory import Inventories, ManifestEntry
from mainstem.tables.deletes import Content
from mainstem.tables.live_rows import rows_changed, rows_without_deletes

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

logger = logging.getLogger(__name__)

COUNTS_KEPT_MAX = 50_000
DELETE_FILES_KEPT_MAX = 20_000
# A table with more of them has not been compacted for long; its rows are not worth reading so many.
DELETE_FILES_READ_MAX = 2_000

_Key = tuple[str, int]


class LiveRows:
    """Counts rows, and remembers the counts."""

    def __init__(self, inventories: Inventories) -> None:
        self._inventories = inventories
        self._lock = threading.Lock()
        self._counts: OrderedDict[_Key, int | None] = OrderedDict()
        # Rows that a position delete file takes from each data file.
        self._deleted: OrderedDict[str, Counter[str] | None] = OrderedDict()

    def of(self, document: Document, snapshots: Sequence[Any]) -> dict[int, int | None]:
        """The rows of some snapshots of a table, by id. None: it has equality deletes, and only a scan would tell."""
        table = str(document.get("table-uuid", document["location"]))
        found = {}
        # A parent first: what a commit did is added to what was there.
        for snapshot in sorted(snapshots, key=_order):
            found[snapshot["snapshot-id"]] = self._rows(table, document, snapshot)
        return found

    def _rows(self, table: str, document: Document, snapshot: Any) -> int | None:
        key = (table, snapshot["snapshot-id"])
        with self._lock:
            if key in self._counts:
                self._counts.move_to_end(key)
                return self._counts[key]
            before = self._counts.get((table, snapshot.get("parent-snapshot-id", -1)))
        rows = self._reckoned(snapshot.get("summary") or {}, before)
        if rows is None:
            try:
                entries, io = self._inventories.entries_of(document, snapshot)
                rows = self._live(document, entries, io)
            # The edge of one table's files, which may be anything, or gone since: a count is not worth the page.
            except Exception as error:
                logger.warning("rows could not be counted: %s", error, extra={"table": document["location"]})
                return None
        with self._lock:
            self._counts[key] = rows
            while len(self._counts) > COUNTS_KEPT_MAX:
                self._counts.popitem(last=False)
        return rows

    @staticmethod
    def _reckoned(summary: dict[str, str], before: int | None) -> int | None:
        rows = rows_without_deletes(summary)
        if rows is not None:
            return rows
        changed = rows_changed(summary)
        return None if before is None or changed is None else before + changed

    def _live(self, document: Document, entries: Sequence[ManifestEntry], io: "FileIO") -> int | None:
        deletes = [entry for entry in entries if entry.content is not Content.DATA]
        several = [entry for entry in deletes if entry.data_path is None]
        if len(several) > DELETE_FILES_READ_MAX or any(e.content is Content.EQUALITY_DELETES for e in deletes):
            return None
        gone: Counter[str] = Counter()
        for entry in deletes:
            if entry.data_path is not None:
                gone[entry.data_path] += entry.rows
        for entry in several:
            refuse_beyond(document["location"], [entry.path])
            taken = self._taken(entry.path, io)
            if taken is None:
                return None
            gone += taken
        return sum(max(0, file.rows - gone[file.path]) for file in entries if file.content is Content.DATA)

    def _taken(self, path: str, io: "FileIO") -> Counter[str] | None:
        """What a position delete file takes, by data file; None for one that is not Parquet."""
        with self._lock:
            if path in self._deleted:
                return self._deleted[path]
        taken = _read_taken(path, io) if path.endswith(".parquet") else None
        with self._lock:
            self._deleted[path] = taken
            while len(self._deleted) > DELETE_FILES_KEPT_MAX:
                self._deleted.popitem(last=False)
        return taken


def _order(snapshot: Any) -> tuple[int, int]:
    return int(snapshot.get("sequence-number", 0)), int(snapshot.get("timestamp-ms", 0))


def _read_taken(path: str, io: "FileIO") -> Counter[str]:
    import pyarrow.parquet as pq

    with io.new_input(path).open() as source:
        paths = pq.read_table(source, columns=["file_path"])["file_path"]
    counts = paths.value_counts()
    return Counter({str(each["values"]): int(each["counts"]) for each in counts.to_pylist()})
