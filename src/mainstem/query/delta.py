"""Delta tables as the rest of the package knows tables: a metadata document, and SQL that reads one version.

The document is in the shape of Iceberg's, with what a reader asks of it: columns, properties, one snapshot whose id is
Delta's version, and the log position that it covers. The files are read by name, so that a statement sees one version
to its end whatever is committed meanwhile. Only tables of our own storage are read: where any other is, anyone who may
list a table in the catalog could say.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from mainstem.formats.delta.files.engine import Source
from mainstem.formats.delta.files.zones import row_count, zone_map
from mainstem.formats.delta.log import AddFile, DeltaLog, State
from mainstem.formats.delta.schema import Field, schema_of
from mainstem.formats.delta.storage import S3Storage, Storage, create_storage
from mainstem.model import LogId, LogPosition, NotFound, TableName
from mainstem.query.ports import LoadedTable
from mainstem.query.sandbox.session import Session
from mainstem.sql import duckdb_name
from mainstem.tables.layout import delta_path
from mainstem.tables.marks import HLC_MARK, position_mark, positions_of

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

# Tables whose list of files is kept in memory.
LOGS_KEPT_MAX = 64
_TYPES = {
    "bool": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date32[day]": "date",
}


class DeltaVersion(msgspec.Struct, frozen=True):
    """A table at a version, where its files are. It can be sent to a sandbox process."""

    storage: Storage
    path: str
    state: State

    def __reduce__(self) -> tuple[Any, ...]:
        # A storage has clients and caches, which stay here: there it is opened anew, once for all its tables.
        if isinstance(self.storage, S3Storage):
            told = tuple(asdict(self.storage).items())
        else:
            told = (("folder", self.storage.root),)
        return _version_there, (told, self.path, self.state)


@lru_cache(maxsize=4)
def _storage_there(told: tuple[tuple[str, Any], ...]) -> Storage:
    parameters = dict(told)
    return create_storage(parameters["folder"]) if "folder" in parameters else S3Storage(**parameters)


def _version_there(told: tuple[tuple[str, Any], ...], path: str, state: State) -> DeltaVersion:
    return DeltaVersion(_storage_there(told), path, state)


class DeltaTables:
    """The Delta tables of one storage. Every method blocks and may be called from any thread."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._logs: OrderedDict[str, DeltaLog] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, name: TableName) -> LoadedTable:
        """The table at its newest version. Raises NotFound."""
        path = delta_path(name)
        state = self._newest(path)
        if state is None:
            raise NotFound(f"table does not exist. got={name}")
        location = self._storage.uri(path)
        document = _document(state, location)
        version = DeltaVersion(self._storage, path, state)
        return LoadedTable(name=name, metadata_location=location, metadata=document, delta=version)

    def marks(self, name: TableName) -> Mapping[LogId, LogPosition]:
        """How much of each log a table covers: nothing for one that does not exist."""
        state = self._newest(delta_path(name))
        return {} if state is None else positions_of(state.transactions)

    def is_at(self, name: TableName, location: str) -> bool:
        """Whether a table that the catalog lists is the one of this storage."""
        return location == self._storage.uri(delta_path(name))

    def _newest(self, path: str) -> State | None:
        with self._lock:
            log = self._logs.pop(path, None) or DeltaLog(self._storage, path)
            if not log.exists():
                return None
            self._logs[path] = log
            if len(self._logs) > LOGS_KEPT_MAX:
                self._logs.popitem(last=False)
            return log.newest()


def _document(state: State, location: str) -> dict[str, Any]:
    fields = [
        {"id": number, "name": field.name, "required": False, "type": _stated_type(field)}
        for number, field in enumerate(schema_of(state.metadata).fields.values(), start=1)
    ]
    files = state.files.values()
    summary = {
        "total-data-files": str(len(files)),
        "total-files-size": str(sum(file.size for file in files)),
        "total-records": str(sum(row_count(file) or 0 for file in files)),
        "total-delete-files": str(sum(file.deletionVector is not None for file in files)),
    }
    summary |= {position_mark(log): str(position) for log, position in positions_of(state.transactions).items()}
    summary |= {HLC_MARK: str(state.transactions[HLC_MARK])} if HLC_MARK in state.transactions else {}
    return {
        "format-version": 2,
        "location": location,
        "schemas": [{"schema-id": 0, "type": "struct", "fields": fields}],
        "current-schema-id": 0,
        "properties": {name: value for name, value in state.metadata.configuration.items() if value is not None},
        "snapshots": [{"snapshot-id": state.version, "timestamp-ms": 0, "summary": summary}],
        "current-snapshot-id": state.version,
    }


def _stated_type(field: Field) -> Any:
    return "variant" if field.is_variant else _iceberg_type(field.type)


def _iceberg_type(type_: pa.DataType) -> Any:
    types = pa.types
    if types.is_decimal(type_):
        return f"decimal({type_.precision}, {type_.scale})"
    if types.is_timestamp(type_):
        return "timestamptz" if type_.tz else "timestamp"
    if types.is_struct(type_):
        fields = [{"name": field.name, "type": _iceberg_type(field.type)} for field in type_]
        return {"type": "struct", "fields": fields}
    if types.is_map(type_):
        return {"type": "map", "key": _iceberg_type(type_.key_type), "value": _iceberg_type(type_.item_type)}
    if types.is_list(type_) or types.is_large_list(type_):
        return {"type": "list", "element": _iceberg_type(type_.value_type)}
    return _TYPES.get(str(type_), "binary")


def delta_sql(session: Session, name: TableName, version: DeltaVersion) -> str:
    """The SQL that reads a version. What deletion vectors name stays in the session until the query is over."""
    schema = schema_of(version.state.metadata)
    files = list(version.state.files.values())

    def keep(what: str, rows: pa.Table) -> str:
        return session.arrow(f"__mainstem_{what}_of_{name}", rows)

    source = Source(session.connection, version.storage, version.path, schema, files, keep)
    selected = ", ".join(_selected(field) for field in schema.fields.values())
    return f"SELECT {selected} FROM {source.relation(list(schema.fields))}"


def _selected(field: Field) -> str:
    name = duckdb_name(field.name)
    if not field.is_variant:
        return name
    # Files have it in two parts. A null in one of them is a null, not a Variant that holds one.
    whole = f"variant_bytes_to_variant({name}.metadata || {name}.value)"
    return f"CASE WHEN {name} IS NOT NULL THEN {whole} END AS {name}"


def planned_files(version: DeltaVersion, schema: "Schema") -> "list[DataFile]":
    """The files as Iceberg's evaluators know them: a partition's value bounds its column."""
    stated = schema_of(version.state.metadata)
    known = {field.name: (field.field_id, field.field_type) for field in schema.fields}
    fields = [field for name, field in stated.fields.items() if name in known]
    return [_data_file(file, fields, stated, known) for file in version.state.files.values()]


def _data_file(file: AddFile, fields: list[Field], stated: Any, known: dict[str, tuple[int, Any]]) -> "DataFile":
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile, FileFormat
    from pyiceberg.typedef import Record

    zones, rows = zone_map(file, fields, stated)
    counts: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for name, zone in zones.items():
        number, kind = known[name]
        counts[number] = rows or 0
        if zone.null_count is not None:
            nulls[number] = zone.null_count
        if zone.minimum is None or zone.maximum is None:
            continue
        try:
            lower[number], upper[number] = to_bytes(kind, zone.minimum), to_bytes(kind, zone.maximum)
        except (TypeError, ValueError, AttributeError, OverflowError):
            lower.pop(number, None)
    found = DataFile.from_args(
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows or 0,
        file_size_in_bytes=file.size,
        value_counts=counts,
        null_value_counts=nulls,
        nan_value_counts={},
        lower_bounds=lower,
        upper_bounds=upper,
    )
    # There is no spec of that number: partitions are bounds.
    found.spec_id = 0
    return found
