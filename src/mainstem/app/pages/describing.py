"""Tables of either format in the words of the admin doors: what is shown of them, by console and API alike."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from mainstem.catalog.metadata.schemas import Document
from mainstem.doors.admin import insight as door
from mainstem.formats.iceberg.snapshots import current_snapshot_id
from mainstem.model import Lineage, TableName
from mainstem.tables.maintenance import count_of
from mainstem.tables.marks import positions_of

SNAPSHOTS_SHOWN_MAX = 10
# Of snapshots, by id; None where only a scan would tell.
Rows = Mapping[int, int | None]


class ShownTable(NamedTuple):
    """A table of either format, described as Iceberg's are."""

    name: TableName
    format: str
    document: Document
    # Versions that Delta has had; Iceberg's snapshots are counted in the document.
    versions: int | None = None

    def latest(self, count: int) -> list[Any]:
        """The newest snapshots, the newest last."""
        return (self.document.get("snapshots") or [])[-count:]

    def shown(self) -> list[Any]:
        """The snapshots whose rows a view tells: the newest, and the one that is current."""
        newest, current = self.latest(SNAPSHOTS_SHOWN_MAX), current_of(self.document)
        return newest if current is None or current in newest else [current, *newest]

    @property
    def snapshot_count(self) -> int:
        return len(self.document.get("snapshots") or ()) if self.versions is None else self.versions


def view_of(table: ShownTable, lineage: Lineage, rows: Rows, lag: int | None, error: str | None) -> door.TableView:
    document = table.document
    schema = by_id(document.get("schemas"), "schema-id", document.get("current-schema-id"))
    fields = schema.get("fields", [])
    columns = {each["id"]: each["name"] for each in fields}
    spec = by_id(document.get("partition-specs"), "spec-id", document.get("default-spec-id"))
    return door.TableView(
        table=str(table.name),
        format=table.format,
        format_version=int(document.get("format-version", 1)),
        location=str(document.get("location", "")),
        columns=[
            door.Column(name=each["name"], type=type_words(each["type"]), required=bool(each.get("required")))
            for each in fields
        ],
        partitioning=[
            f"{each.get('transform')}({columns.get(each.get('source-id'), '?')})" for each in spec.get("fields", [])
        ],
        schemas=len(document.get("schemas") or ()),
        current=None if (current := current_of(document)) is None else snapshot_view(current, lineage, rows),
        snapshots=[snapshot_view(each, lineage, rows) for each in reversed(table.latest(SNAPSHOTS_SHOWN_MAX))],
        snapshot_count=table.snapshot_count,
        lag_changes=lag,
        error=error,
    )


def snapshot_view(snapshot: Any, lineage: Lineage, rows: Rows) -> door.SnapshotView:
    summary = summary_of(snapshot)
    marks = positions_of(summary)
    return door.SnapshotView(
        snapshot_id=str(snapshot.get("snapshot-id")),
        at_ms=int(snapshot.get("timestamp-ms", 0)),
        operation=str(summary.get("operation", "")),
        rows=rows.get(snapshot.get("snapshot-id")),
        data_files=count_of(summary, "total-data-files"),
        delete_files=count_of(summary, "total-delete-files"),
        bytes=count_of(summary, "total-files-size"),
        position=lineage.covered(marks) if marks else None,
    )


def type_words(kind: Any) -> str:
    """An Iceberg type in a few words."""
    if isinstance(kind, str):
        return kind
    match kind.get("type"):
        case "list":
            return f"list<{type_words(kind.get('element'))}>"
        case "map":
            return f"map<{type_words(kind.get('key'))}, {type_words(kind.get('value'))}>"
        case "struct":
            return f"struct<{len(kind.get('fields', ()))} fields>"
        case other:
            return str(other)


def current_of(document: Document) -> Any:
    wanted = current_snapshot_id(document)
    return next((each for each in document.get("snapshots") or () if each.get("snapshot-id") == wanted), None)


def by_id(entries: Any, key: str, wanted: Any) -> Any:
    return next((each for each in entries or () if each.get(key) == wanted), {})


def summary_of(snapshot: Any) -> dict[str, str]:
    return (snapshot or {}).get("summary") or {}
