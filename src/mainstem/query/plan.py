"""What a query would read: files, partitions and row groups before and after pruning, and the bytes.

Reads metadata only: manifests, and the footers of a bounded number of files. The same expressions prune partitions,
files and row groups, by pyiceberg's own evaluators. Runs nothing.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq

from mainstem.formats.iceberg.manifests import live_entries, manifests_of
from mainstem.model import DEFAULT_NAMESPACE, Conflict, Denied, Invalid, NotFound, TableName
from mainstem.query.binding import Binder, BoundTable, Freshness
from mainstem.query.partitions import NAMED_MAX, Namer
from mainstem.query.ports import LoadedTable, Readable, everything
from mainstem.query.statements.predicates import Scan, expression_of
from mainstem.query.statements.questions import Statements
from mainstem.query.statements.statement import Statement
from mainstem.query.tables import columns, current_snapshot
from mainstem.sql import duckdb_name
from mainstem.tables.places import first_beyond

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema

MANIFESTS_CACHED_MAX = 512
FOOTERS_READ_MAX = 64
_TIMES = ("date", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns")
_PRIMITIVES = frozenset({"boolean", "int", "long", "float", "double", "string", "uuid", "binary", *_TIMES})


class TableRef(msgspec.Struct, frozen=True):
    """A table as the form without SQL names it; the namespace level by level."""

    name: str
    namespace: tuple[str, ...] = (DEFAULT_NAMESPACE,)


class PlanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either a statement, or a table with columns and a condition."""

    sql: str | None = None
    table: TableRef | None = None
    columns: tuple[str, ...] = ("*",)
    where: str | None = None

    def statement(self) -> str:
        """The SQL that is meant."""
        if (self.sql is None) == (self.table is None):
            raise Invalid("expected=either sql or table got=both or none")
        if self.sql is not None:
            return self.sql
        assert self.table is not None
        listed = ", ".join("*" if column == "*" else duckdb_name(column) for column in self.columns) or "*"
        name = f"{duckdb_name('.'.join(self.table.namespace))}.{duckdb_name(self.table.name)}"
        return f"SELECT {listed} FROM {name}" + (f" WHERE (\n{self.where}\n)" if self.where else "")


class Pruned(msgspec.Struct, frozen=True):
    """How many there are, and how many are left to read."""

    total: int
    selected: int


class RowGroups(msgspec.Struct, frozen=True):
    """As `Pruned`; not exact where more files are left than footers are read for a plan."""

    total: int
    selected: int
    exact: bool


class ScanPlan(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One scan of one table. `bytes_to_read` counts the columns it reads, of the row groups that are left."""

    table: str
    snapshot_id: str | None
    columns: tuple[str, ...]
    filters: tuple[str, ...]
    partitions: Pruned
    # Those that are left to read, as `dt=2024-01-15`: at most NAMED_MAX of them.
    partition_names: tuple[str, ...]
    files: Pruned
    row_groups: RowGroups
    rows: Pruned
    bytes: Pruned
    delete_files: int
    bytes_to_read: int
    # What keeps DuckDB from reading it right.
    shared_deletion_vectors: bool = False


class Plan(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a query would read, scan by scan and in all."""

    sql: str
    scans: tuple[ScanPlan, ...]
    files_to_read: int
    rows_to_read: int
    bytes_to_read: int


class Planner:
    """Plans statements over the lake. Manifests never change, so the newest ones read are kept."""

    def __init__(
        self, binder: Binder, statements: Statements, *, io_properties: Mapping[str, str] | None = None
    ) -> None:
        self._binder = binder
        self._statements = statements
        self._io_properties = dict(io_properties or {})
        self._manifests: OrderedDict[str, tuple[DataFile, ...]] = OrderedDict()
        self._lock = threading.Lock()

    async def plan(self, request: PlanRequest, readable: Readable = everything) -> Plan:
        """Plan what is asked. Raises as the query itself would."""
        statement = await self._statements.check(request.statement())
        return await self.plan_bound(statement, await self._binder.bind(statement, Freshness.SNAPSHOT, readable))

    async def plan_bound(self, statement: Statement, tables: Iterable[BoundTable]) -> Plan:
        """Plan a statement over the snapshots that it is bound to."""
        loaded = {table.name: table.loaded for table in tables if table.loaded is not None}
        schemas = {name: columns(table.metadata) for name, table in loaded.items()}
        found = await self._statements.scans(statement.sql, schemas)
        return await asyncio.to_thread(self._plan, statement, loaded, found)

    def _plan(self, statement: Statement, loaded: Mapping[TableName, LoadedTable], found: Sequence[Scan]) -> Plan:
        plans = []
        for scan in found:
            table = loaded.get(scan.table)
            if table is None:
                raise NotFound(f"table does not exist. got={scan.table}")
            try:
                plans.append(self._scan(scan, table))
            except FileNotFoundError as error:
                raise Conflict("a file of the table could not be read: the snapshot may have expired") from error
        return Plan(
            sql=statement.sql,
            scans=tuple(plans),
            files_to_read=sum(each.files.selected for each in plans),
            rows_to_read=sum(each.rows.selected for each in plans),
            bytes_to_read=sum(each.bytes_to_read for each in plans),
        )

    def _scan(self, scan: Scan, table: LoadedTable) -> ScanPlan:
        pruning = Pruning(table.metadata, scan)
        deletes: list[DataFile] = []
        if table.delta is not None:
            from mainstem.query.delta import planned_files

            data = planned_files(table.delta, pruning.schema)
        else:
            data, deletes = self._files(table)
        left = [file for file in data if pruning.may_match(file)]
        # The footers of Delta's files have no ids to find columns by: there, files are all that is left out.
        groups = self._row_groups(left, pruning, footers_max=0 if table.delta is not None else FOOTERS_READ_MAX)
        snapshot = current_snapshot(table.metadata)
        namer = Namer(table.metadata, table.delta)
        puffins = [file.file_path for file in deletes if file.file_format == "PUFFIN"]
        return ScanPlan(
            table=str(table.name),
            snapshot_id=str(snapshot["snapshot-id"]) if snapshot else None,
            columns=scan.columns,
            filters=scan.filters,
            partitions=Pruned(_partitions(data, namer), _partitions(left, namer)),
            partition_names=namer.names(left)[:NAMED_MAX],
            files=Pruned(len(data), len(left)),
            row_groups=RowGroups(sum(map(_groups_of, data)), groups.selected, groups.exact),
            rows=Pruned(sum(file.record_count for file in data), groups.rows),
            bytes=Pruned(_bytes(data), _bytes(left)),
            delete_files=len(deletes),
            bytes_to_read=groups.bytes + (_bytes(deletes) if left else 0),
            shared_deletion_vectors=len(set(puffins)) < len(puffins),
        )

    def _files(self, table: LoadedTable) -> "tuple[list[DataFile], list[DataFile]]":
        snapshot = current_snapshot(table.metadata)
        if snapshot is None:
            return [], []
        from pyiceberg.manifest import DataFileContent

        io = self._io(table)
        data: list[DataFile] = []
        deletes: list[DataFile] = []
        manifests = snapshot.get("manifest-list")
        _check_own(table, [manifests])
        for manifest in manifests_of(str(manifests), io):
            _check_own(table, [manifest.manifest_path])
            files = self._entries(io, manifest)
            _check_own(table, [file.file_path for file in files])
            for file in files:
                (data if file.content == DataFileContent.DATA else deletes).append(file)
        return data, deletes

    def check_own(self, tables: Iterable[LoadedTable]) -> None:
        """Refuse tables whose snapshots name files beyond their locations. Blocks.

        DuckDB cannot open such files; an engine elsewhere has keys to all of the lake, and reads what it is told to.
        """
        for table in tables:
            if table.delta is None:
                try:
                    self._files(table)
                except FileNotFoundError as error:
                    raise Conflict("a file of the table could not be read: the snapshot may have expired") from error

    def _entries(self, io: "FileIO", manifest: Any) -> "tuple[DataFile, ...]":
        path = str(manifest.manifest_path)
        with self._lock:
            if path in self._manifests:
                self._manifests.move_to_end(path)
                return self._manifests[path]
        files = tuple(entry.data_file for entry in live_entries(manifest, io))
        with self._lock:
            self._manifests[path] = files
            while len(self._manifests) > MANIFESTS_CACHED_MAX:
                self._manifests.popitem(last=False)
        return files

    def _io(self, table: LoadedTable) -> "FileIO":
        from pyiceberg.io import load_file_io

        return load_file_io(self._io_properties, table.metadata_location)

    def _row_groups(self, files: "Sequence[DataFile]", pruning: "Pruning", *, footers_max: int) -> "_Groups":
        exact = len(files) <= footers_max
        selected = rows = size = 0
        for file in files:
            kept = self._kept_groups(file, pruning) if exact and pruning.filtered else None
            if kept is None:
                selected += _groups_of(file)
                rows += file.record_count
                size += pruning.bytes_of(file)
            else:
                selected += kept.selected
                rows += kept.rows
                size += kept.bytes
        return _Groups(selected=selected, rows=rows, bytes=size, exact=exact or not pruning.filtered)

    def _kept_groups(self, file: "DataFile", pruning: "Pruning") -> "_Groups | None":
        from pyiceberg.io import load_file_io

        if str(file.file_format) not in {"PARQUET", "FileFormat.PARQUET"}:
            return None
        io = load_file_io(self._io_properties, file.file_path)
        with io.new_input(file.file_path).open() as source:
            footer = pq.read_metadata(source)
        return pruning.kept_groups(footer)


def _check_own(table: LoadedTable, paths: Iterable[object]) -> None:
    beyond = first_beyond(paths, str(table.metadata["location"]))
    if beyond is not None:
        raise Denied(f"the table names files beyond its location. table={table.name} got={beyond!r:.300}")


class _Groups(msgspec.Struct, frozen=True):
    selected: int
    rows: int
    bytes: int
    exact: bool = True


class Pruning:
    """The filters of one scan, bound to one table."""

    def __init__(self, metadata: Mapping[str, Any], scan: Scan) -> None:
        self.schema, self._ids = _schema(metadata)
        self._specs = _specs(metadata)
        self._wanted = {self._ids[name] for name in scan.columns if name in self._ids}
        self._whole = len(self._wanted) < len(set(scan.columns))
        self._expression = self._bound(scan)
        self._metrics = self._evaluator()
        self._by_spec: dict[int, Any] = {}

    @property
    def filtered(self) -> bool:
        """Whether there is anything to prune by."""
        return self._expression is not None

    def may_match(self, file: "DataFile") -> bool:
        """Whether a row of the file may pass, by its partition and its bounds."""
        if self._expression is None:
            return True
        return bool(self._partition_may_match(file) and self._metrics.eval(file))

    def bytes_of(self, file: "DataFile") -> int:
        """What reading the scan's columns of the file costs."""
        sizes = file.column_sizes or {}
        if self._whole or not sizes:
            return int(file.file_size_in_bytes)
        return sum(size for field, size in sizes.items() if field in self._wanted)

    def kept_groups(self, footer: Any) -> _Groups:
        """The row groups of a file that may hold a row that passes."""
        ids = _field_ids(footer)
        selected = rows = size = 0
        for index in range(footer.num_row_groups):
            group = footer.row_group(index)
            if self._expression is not None and not self._metrics.eval(_as_file(group, ids, self.schema)):
                continue
            selected += 1
            rows += group.num_rows
            chunks = [group.column(number) for number in range(group.num_columns)]
            size += sum(
                chunk.total_compressed_size
                for chunk in chunks
                if self._whole or ids.get(chunk.path_in_schema.split(".")[0]) in self._wanted
            )
        return _Groups(selected=selected, rows=rows, bytes=size)

    def _bound(self, scan: Scan) -> "BooleanExpression | None":
        from pyiceberg.expressions import And
        from pyiceberg.expressions.visitors import bind, rewrite_not

        result = None
        for tree in scan.trees:
            for part in _conjuncts(tree):
                expression = expression_of(part)
                if expression is None:
                    continue
                try:
                    bind(self.schema, rewrite_not(expression), case_sensitive=False)
                except (ValueError, TypeError):
                    # A constant that the column's type cannot hold, or a column whose type is not known here.
                    continue
                result = expression if result is None else And(result, expression)
        return result

    def _evaluator(self) -> Any:
        if self._expression is None:
            return None
        from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator

        return _InclusiveMetricsEvaluator(self.schema, self._expression, case_sensitive=False)

    def _partition_may_match(self, file: "DataFile") -> bool:
        from pyiceberg.expressions.visitors import expression_evaluator, inclusive_projection
        from pyiceberg.schema import Schema

        spec = self._specs.get(file.spec_id)
        if spec is None or spec.is_unpartitioned():
            return True
        if file.spec_id not in self._by_spec:
            assert self._expression is not None
            projected = inclusive_projection(self.schema, spec, case_sensitive=False)(self._expression)
            kinds = Schema(*spec.partition_type(self.schema).fields)
            self._by_spec[file.spec_id] = expression_evaluator(kinds, projected, case_sensitive=False)
        return bool(self._by_spec[file.spec_id](file.partition))


def _conjuncts(tree: dict[str, Any]) -> list[dict[str, Any]]:
    if tree.get("type") == "CONJUNCTION_AND":
        return [part for child in tree["children"] for part in _conjuncts(child)]
    return [tree]


def _schema(metadata: Mapping[str, Any]) -> "tuple[Schema, dict[str, int]]":
    from pyiceberg.schema import Schema

    current = next(each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"])
    known = [field for field in current["fields"] if _is_known(field["type"])]
    # Bounds only exist for plain columns, and a type that pyiceberg does not know must not stop the plan.
    fields = [{**field, "required": False} for field in known]
    schema = Schema.model_validate({"type": "struct", "schema-id": 0, "fields": fields})
    return schema, {field["name"]: field["id"] for field in current["fields"]}


def _is_known(kind: Any) -> bool:
    return isinstance(kind, str) and (kind in _PRIMITIVES or kind.startswith(("decimal", "fixed")))


def _specs(metadata: Mapping[str, Any]) -> "dict[int, PartitionSpec]":
    from pyiceberg.partitioning import PartitionSpec

    return {spec["spec-id"]: PartitionSpec.model_validate(spec) for spec in metadata.get("partition-specs") or ()}


def _field_ids(footer: Any) -> dict[str, int]:
    ids = {}
    for field in footer.schema.to_arrow_schema():
        text = (field.metadata or {}).get(b"PARQUET:field_id")
        if text is not None:
            ids[field.name] = int(text)
    return ids


def _as_file(group: Any, ids: Mapping[str, int], schema: "Schema") -> "DataFile":
    """A row group's statistics in the form that the evaluator of files takes."""
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile

    kinds: dict[int | None, Any] = {field.field_id: field.field_type for field in schema.fields}
    counts: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for number in range(group.num_columns):
        chunk = group.column(number)
        field = ids.get(chunk.path_in_schema)
        statistics = chunk.statistics
        if field is None or field not in kinds or statistics is None:
            continue
        counts[field] = chunk.num_values
        if statistics.has_null_count:
            nulls[field] = statistics.null_count
        if statistics.has_min_max:
            try:
                bounds = to_bytes(kinds[field], statistics.min), to_bytes(kinds[field], statistics.max)
            except (TypeError, ValueError, AttributeError, OverflowError):
                continue
            lower[field], upper[field] = bounds
    return DataFile.from_args(
        record_count=group.num_rows,
        value_counts=counts,
        null_value_counts=nulls,
        nan_value_counts={},
        lower_bounds=lower,
        upper_bounds=upper,
    )


def _groups_of(file: "DataFile") -> int:
    return max(1, len(file.split_offsets or ()))


def _partitions(files: "Sequence[DataFile]", namer: Namer) -> int:
    # By spec too: a partition of an earlier spec is another one, though it may be called the same.
    return len({(file.spec_id, namer.name(file)) for file in files})


def _bytes(files: "Sequence[DataFile]") -> int:
    return sum(int(file.file_size_in_bytes) for file in files)
