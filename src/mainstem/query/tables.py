"""What a reader takes from a table's metadata document: snapshot, covered position, columns and their SQL types.

Works on the document itself: a type or field that we do not know must not keep a table from being read.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from mainstem.formats.iceberg.snapshots import ancestry, current_snapshot_id
from mainstem.model import LogId, LogPosition, TableName
from mainstem.query.ports import LoadedTable
from mainstem.query.sandbox.session import Session
from mainstem.sql import duckdb_name, duckdb_text
from mainstem.tables.layout import KINDS_PROPERTY
from mainstem.tables.marks import HLC_MARK, marks_at, position_mark
from mainstem.tables.since import Since
from mainstem.tables.types import Kind

_SQL_TYPES = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ns": "TIMESTAMP_NS",
    "timestamptz_ns": "TIMESTAMP WITH TIME ZONE",
    "string": "VARCHAR",
    "uuid": "UUID",
    "binary": "BLOB",
    "variant": "VARIANT",
    "unknown": "INTEGER",
}


# Of a metadata document: what is read of it below, and in `overlay`.
_LEAN = ("format-version", "location", "current-schema-id", "properties", "current-snapshot-id")


class SnapshotUse(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Which snapshot of a table a query read, and up to which log position its rows are."""

    table: str
    snapshot_id: str | None
    position: int
    freshness: str


def current_snapshot(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The snapshot that `main` points to; None for a table without data."""
    return next(ancestry(metadata, current_snapshot_id(metadata)), None)


def marks(metadata: Mapping[str, Any]) -> Mapping[LogId, LogPosition]:
    """How much of each log the table covers, by the newest snapshot of `main`'s ancestry that says so."""
    return marks_at(metadata, current_snapshot_id(metadata))


def hlc_max(metadata: Mapping[str, Any]) -> int:
    """The highest clock in the table, by its newest snapshot that says so; 0 where none does."""
    summaries = (each.get("summary") or {} for each in ancestry(metadata, current_snapshot_id(metadata)))
    return int(next((summary[HLC_MARK] for summary in summaries if summary.get(HLC_MARK) is not None), 0))


def columns_since(metadata: Mapping[str, Any]) -> Since:
    """For columns added after the table was made: which rows lack them."""
    return Since.of_properties(metadata.get("properties") or {})


def column_kinds(metadata: Mapping[str, Any]) -> Mapping[str, Kind]:
    """What the values of each inferred column have been. A column that is not in it has a declared type."""
    text = (metadata.get("properties") or {}).get(KINDS_PROPERTY)
    return msgspec.json.decode(text, type=dict[str, Kind]) if text else {}


def columns(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The columns of the current schema, in order, with their SQL types."""
    schema = next(each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"])
    return {field["name"]: sql_type(field["type"]) for field in schema["fields"]}


def sql_type(kind: Any) -> str:
    """DuckDB's name of an Iceberg type. A type that it does not know is read as a blob of bytes."""
    if isinstance(kind, str):
        if kind.startswith("decimal"):
            return kind.upper()
        return _SQL_TYPES.get(kind, "BLOB")
    match kind["type"]:
        case "list":
            return f"{sql_type(kind['element'])}[]"
        case "map":
            return f"MAP({sql_type(kind['key'])}, {sql_type(kind['value'])})"
        case _:
            fields = ", ".join(f"{duckdb_name(each['name'])} {sql_type(each['type'])}" for each in kind["fields"])
            return f"STRUCT({fields})"


def lean(table: LoadedTable) -> LoadedTable:
    """The table with no more of its metadata than its current snapshot: old ones may be thousands."""
    metadata = table.metadata
    kept = {name: metadata[name] for name in _LEAN if name in metadata}
    kept["schemas"] = [each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"]]
    if (snapshot := current_snapshot(metadata)) is not None:
        newest = {position_mark(log): str(position) for log, position in marks(metadata).items()}
        if newest:
            newest[HLC_MARK] = str(hlc_max(metadata))
        kept["snapshots"] = [{**snapshot, "summary": {**(snapshot.get("summary") or {}), **newest}}]
    return msgspec.structs.replace(table, metadata=kept)


def scan_sql(session: Session, table: LoadedTable) -> str:
    """The SQL that reads the table as of this very metadata document, whatever is committed meanwhile."""
    if table.delta is not None:
        from mainstem.query.delta import delta_sql

        return delta_sql(session, table.name, table.delta)
    if current_snapshot(table.metadata) is None:
        return empty_sql(columns(table.metadata))
    return f"SELECT * FROM iceberg_scan({duckdb_text(_local(table.metadata_location))})"


def shared_vectors_sql(table: LoadedTable) -> str:
    """SQL that counts the delete files of the current snapshot that hold more than one deletion vector."""
    return (
        f"SELECT count(*) FROM (SELECT file_path FROM iceberg_metadata({duckdb_text(_local(table.metadata_location))}) "
        "WHERE manifest_content = 'DELETE' AND status <> 'DELETED' AND upper(file_format) = 'PUFFIN' "
        "GROUP BY file_path HAVING count(*) > 1)"
    )


def empty_sql(types: Mapping[str, str]) -> str:
    """A source of these columns without rows."""
    listed = ", ".join(f"CAST(NULL AS {kind}) AS {duckdb_name(name)}" for name, kind in types.items())
    return f"SELECT {listed} WHERE false"


def folder(table: LoadedTable) -> str:
    """The folder of the table's files, as DuckDB wants to hear of it."""
    return _local(str(table.metadata["location"])).rstrip("/") + "/"


def is_state(name: TableName, metadata: Mapping[str, Any]) -> bool:
    """Whether this is a table of merged rows, which pending changes can be laid over."""
    own = {"_key", "_hlc", "_source", "_position"}
    return own <= columns(metadata).keys() and not name.table.endswith(("_history", "_dead_letters"))


def _local(location: str) -> str:
    return location.removeprefix("file://") if location.startswith("file:///") else location.removeprefix("file:")
