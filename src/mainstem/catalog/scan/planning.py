"""Server-side scan planning: which files a scan has to read, worked out from the manifests.

A plan is complete when it is answered. A small one carries its file tasks; a large one carries plan tasks, each of them
a range of the snapshot's manifests. A plan task says itself what it means (snapshot, range, filter), so any gateway can
answer it, also after a restart, and nothing is held for clients that never come back.

pyiceberg reads the manifests and evaluates the filter. It does not know every type that a table may have; such a table
is refused as unsupported, and the client plans by itself.
"""

import base64
import binascii
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.catalog.errors import NoSuchPlan, NoSuchPlanTask, Unsupported
from mainstem.catalog.files import FileIoOf
from mainstem.catalog.metadata.boundaries import refuse_beyond
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.metadata.table import by_id
from mainstem.catalog.scan.filters import parse_filter
from mainstem.formats.iceberg.manifests import data_path, late_field, live_entries, partition_of
from mainstem.formats.iceberg.snapshots import ancestry, current_snapshot_id
from mainstem.model import Invalid
from mainstem.tables.deletes import Content, DeleteFile, DeleteIndex

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.metadata import TableMetadata

MANIFESTS_PER_TASK = 16
PLANS_MAX = 1000


class ScanRequest(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """What a client wants to scan."""

    snapshot_id: int | None = None
    select: list[str] | None = None
    filter: Any = None
    min_rows_requested: int | None = None
    case_sensitive: bool = True
    use_snapshot_schema: bool = False
    start_snapshot_id: int | None = None
    end_snapshot_id: int | None = None
    stats_fields: list[str] | None = None


class _Task(msgspec.Struct, frozen=True, array_like=True):
    snapshot_id: int
    first: int
    end: int
    request: ScanRequest


@dataclass(frozen=True, slots=True)
class Scan:
    """File tasks with the delete files they refer to, and plan tasks for what is not worked out yet."""

    file_tasks: list[Document]
    delete_files: list[Document]
    plan_tasks: list[str]


_NOTHING = Scan([], [], [])


class ScanPlanner:
    """Plans scans. Every method blocks and may be called from any thread."""

    def __init__(self, file_io: FileIoOf, new_id: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self._file_io = file_io
        self._new_id = new_id
        self._plans: OrderedDict[str, tuple[str, ScanRequest]] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, table: str, document: Document, request: ScanRequest) -> tuple[str, Scan]:
        """Plan a scan of the table that the document describes. `table` is its name."""
        scan = self._scan(document, request)
        plan_id = self._new_id()
        with self._lock:
            self._plans[plan_id] = (table, request)
            while len(self._plans) > PLANS_MAX:
                self._plans.popitem(last=False)
        return plan_id, scan

    def result(self, table: str, document: Document, plan_id: str) -> Scan:
        """The plan again."""
        return self._scan(document, self._known(table, plan_id))

    def cancel(self, table: str, plan_id: str) -> None:
        """Forget a plan."""
        self._known(table, plan_id)
        with self._lock:
            self._plans.pop(plan_id, None)

    def fetch(self, document: Document, plan_task: str) -> Scan:
        """The file tasks of one plan task."""
        try:
            task = msgspec.json.decode(base64.b64decode(plan_task, altchars=b"-_", validate=True), type=_Task)
        except (binascii.Error, ValueError, msgspec.DecodeError) as error:
            raise NoSuchPlanTask(plan_task) from error
        if by_id(document["snapshots"], "snapshot-id", task.snapshot_id) is None:
            raise NoSuchPlanTask(plan_task)
        reader = _reader(document, task.snapshot_id, task.request, self._file_io)
        return reader.read(reader.data_manifests[task.first : task.end])

    def _known(self, table: str, plan_id: str) -> ScanRequest:
        with self._lock:
            found = self._plans.get(plan_id)
        if found is None or found[0] != table:
            raise NoSuchPlan(plan_id)
        return found[1]

    def _scan(self, document: Document, request: ScanRequest) -> Scan:
        snapshot_id = _snapshot_of(document, request)
        if snapshot_id is None:
            return _NOTHING
        reader = _reader(document, snapshot_id, request, self._file_io)
        manifests = reader.data_manifests
        if len(manifests) <= MANIFESTS_PER_TASK:
            return reader.read(manifests)
        tasks = [
            _token(_Task(snapshot_id, first, min(first + MANIFESTS_PER_TASK, len(manifests)), request))
            for first in range(0, len(manifests), MANIFESTS_PER_TASK)
        ]
        return Scan([], [], tasks)


def _token(task: _Task) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(task)).decode()


def _snapshot_of(document: Document, request: ScanRequest) -> int | None:
    """The snapshot to read; None for a table without one."""
    is_incremental = request.start_snapshot_id is not None or request.end_snapshot_id is not None
    if is_incremental and request.snapshot_id is not None:
        raise Invalid("Invalid scan: snapshot-id and start-snapshot-id exclude each other")
    if request.start_snapshot_id is not None and request.end_snapshot_id is None:
        raise Invalid("Invalid scan: end-snapshot-id is required with start-snapshot-id")
    wanted = request.end_snapshot_id if is_incremental else request.snapshot_id
    if wanted is None:
        return current_snapshot_id(document)
    if by_id(document["snapshots"], "snapshot-id", wanted) is None:
        raise Invalid(f"Cannot find snapshot with ID {wanted}")
    return wanted


def _appended(document: Document, request: ScanRequest) -> set[int] | None:
    """The snapshots whose rows an incremental scan shows; None for any other scan."""
    if request.end_snapshot_id is None:
        return None
    found: set[int] = set()
    for snapshot in ancestry(document, request.end_snapshot_id):
        if snapshot["snapshot-id"] == request.start_snapshot_id:
            return found
        if (snapshot.get("summary") or {}).get("operation") == "append":
            found.add(snapshot["snapshot-id"])
    if request.start_snapshot_id is None:
        return found
    raise Invalid(
        f"Starting snapshot (exclusive) {request.start_snapshot_id} is not a parent ancestor "
        f"of end snapshot {request.end_snapshot_id}"
    )


def _reader(document: Document, snapshot_id: int, request: ScanRequest, file_io: FileIoOf) -> "_Reader":
    from pydantic import ValidationError
    from pyiceberg.exceptions import ValidationError as IcebergValidationError
    from pyiceberg.table.metadata import TableMetadataUtil

    snapshot = by_id(document["snapshots"], "snapshot-id", snapshot_id)
    assert snapshot is not None, "looked up before"
    schema_id = snapshot.get("schema-id")
    use_old = request.use_snapshot_schema and by_id(document["schemas"], "schema-id", schema_id) is not None
    # Only what planning needs: a long history takes long to parse.
    reduced = {
        **document,
        "snapshots": [snapshot],
        "snapshot-log": [],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
        "refs": {"main": {"snapshot-id": snapshot_id, "type": "branch"}},
        "current-snapshot-id": snapshot_id,
        "current-schema-id": schema_id if use_old else document["current-schema-id"],
    }
    try:
        metadata = TableMetadataUtil.parse_obj(reduced)
        return _Reader(metadata, request, _appended(document, request), file_io)
    except (ValidationError, IcebergValidationError, NotImplementedError) as error:
        raise Unsupported(f"Cannot plan scans of this table: {error}") from error


class _Reader:
    """The manifests of one snapshot, read for one request."""

    def __init__(
        self, metadata: "TableMetadata", request: ScanRequest, appended: set[int] | None, file_io: FileIoOf
    ) -> None:
        from pyiceberg.manifest import ManifestContent
        from pyiceberg.table import ManifestGroupPlanner

        self._metadata = metadata
        self._schema = metadata.schema()
        self._specs = metadata.specs()
        self._appended = appended
        self._filter = request.filter
        self._stats = self._stats_ids(request)
        snapshot = metadata.current_snapshot()
        assert snapshot is not None, "the reduced metadata has one"
        refuse_beyond(metadata.location, [snapshot.manifest_list])
        self._io = file_io(snapshot.manifest_list)
        planner = ManifestGroupPlanner(metadata, self._io, self._checked_filter(request), request.case_sensitive)
        self._manifest_fits = _by_spec(planner._build_manifest_evaluator)
        self._partition_fits = _by_spec(planner._build_partition_evaluator)
        self._metrics_fit = planner._build_metrics_evaluator()
        manifests = snapshot.manifests(self._io)
        refuse_beyond(metadata.location, (manifest.manifest_path for manifest in manifests))
        self.data_manifests = [m for m in manifests if m.content == ManifestContent.DATA]
        self._delete_manifests = [m for m in manifests if m.content == ManifestContent.DELETES]

    def _checked_filter(self, request: ScanRequest) -> Any:
        from pyiceberg.expressions.visitors import bind

        expression = parse_filter(request.filter)
        try:
            bind(self._schema, expression, request.case_sensitive)
        except (ValueError, TypeError) as error:
            raise Invalid(f"Cannot use this filter: {error}") from error
        return expression

    def _stats_ids(self, request: ScanRequest) -> set[int]:
        ids = set()
        for name in request.stats_fields or []:
            try:
                ids.add(self._schema.find_field(name, request.case_sensitive).field_id)
            except ValueError as error:
                raise Invalid(f"Cannot send statistics: {error}") from error
        return ids

    def read(self, manifests: Sequence["ManifestFile"]) -> Scan:
        """The file tasks of some of the data manifests."""
        wanted = [m for m in manifests if self._manifest_fits(m.partition_spec_id)(m)]
        entries = [entry for manifest in wanted for entry in self._entries(manifest)]
        if not entries:
            return _NOTHING
        deletes, index = self._deletes()
        tasks: list[Document] = []
        used: dict[int, int] = {}
        for entry in entries:
            file = entry.data_file
            key = partition_of(file)
            numbers = index.of(file.file_path, entry.sequence_number or 0, key)
            task: Document = {"data-file": self._file(file)}
            if numbers:
                task["delete-file-references"] = [used.setdefault(number, len(used)) for number in numbers]
            task["residual-filter"] = True if self._filter is None else self._filter
            tasks.append(task)
        return Scan(tasks, [self._file(deletes[number]) for number in used], [])

    def _entries(self, manifest: "ManifestFile") -> list[Any]:
        from pyiceberg.manifest import ManifestEntryStatus

        fits = self._partition_fits(manifest.partition_spec_id)
        read = live_entries(manifest, self._io)
        entries = [entry for entry in read if fits(entry.data_file) and self._metrics_fit(entry.data_file)]
        if self._appended is None:
            return entries
        return [e for e in entries if e.status == ManifestEntryStatus.ADDED and e.snapshot_id in self._appended]

    def _deletes(self) -> tuple[list[Any], DeleteIndex]:
        files: list[Any] = []
        index = DeleteIndex()
        if self._appended is not None:
            return files, index
        for manifest in self._delete_manifests:
            for entry in live_entries(manifest, self._io):
                file = entry.data_file
                index.add(
                    DeleteFile(
                        number=len(files),
                        content=Content(int(file.content)),
                        sequence=entry.sequence_number or 0,
                        partition=partition_of(file),
                        data_path=data_path(file),
                        is_vector=file.file_format.value == "PUFFIN",
                    )
                )
                files.append(file)
        return files, index

    def _file(self, file: Any) -> Document:
        """A file in the protocol's form."""
        from pyiceberg.conversions import to_json

        types: list[Any] = [field.field_type for field in self._specs[file.spec_id].partition_type(self._schema).fields]
        values = zip(types, file.partition._data, strict=True)
        found: Document = {
            "spec-id": file.spec_id,
            "content": _CONTENTS[int(file.content)],
            "file-path": file.file_path,
            "file-format": file.file_format.value.lower(),
            "partition": [None if value is None else to_json(kind, value) for kind, value in values],
            "file-size-in-bytes": file.file_size_in_bytes,
            "record-count": file.record_count,
            "key-metadata": file.key_metadata.hex().upper() if file.key_metadata else None,
            "split-offsets": file.split_offsets,
            "sort-order-id": file.sort_order_id,
            "first-row-id": late_field(file, "first_row_id"),
        }
        if int(file.content) == Content.DATA.value:
            found |= self._statistics(file)
        else:
            found["equality-ids"] = file.equality_ids
            found["referenced-data-file"] = late_field(file, "referenced_data_file")
            found["content-offset"] = late_field(file, "content_offset")
            found["content-size-in-bytes"] = late_field(file, "content_size_in_bytes")
        return {key: value for key, value in found.items() if value is not None}

    def _statistics(self, file: Any) -> Document:
        """Statistics of the columns that were asked for. Bounds go as their bytes, which is what Java reads."""
        found: Document = {}
        if not self._stats:
            return found
        for name in ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts"):
            found[name.replace("_", "-")] = _pairs(getattr(file, name), self._stats, lambda count: count)
        for name in ("lower_bounds", "upper_bounds"):
            found[name.replace("_", "-")] = _pairs(getattr(file, name), self._stats, lambda bound: bound.hex().upper())
        return found


_CONTENTS = {0: "data", 1: "position-deletes", 2: "equality-deletes"}


def _by_spec(make: Callable[[int], Any]) -> Callable[[int], Any]:
    made: dict[int, Any] = {}

    def get(spec_id: int) -> Any:
        if spec_id not in made:
            made[spec_id] = make(spec_id)
        return made[spec_id]

    return get


def _pairs(values: dict[int, Any] | None, ids: set[int], convert: Callable[[Any], Any]) -> Document | None:
    if not values:
        return None
    kept = sorted((key, value) for key, value in values.items() if key in ids)
    return {"keys": [key for key, _ in kept], "values": [convert(value) for _, value in kept]}
