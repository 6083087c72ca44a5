"""Tables of the Iceberg REST catalog without a JVM: load the metadata document, commit a snapshot.

A commit through Iceberg's Java library takes a tenth of a second however little there is to write; this takes a few
milliseconds. A table is kept in mind between passes: the answer to a commit is the next metadata, and every commit says
which snapshot it builds on, so that whoever committed meanwhile is noticed by the catalog and never by luck.
"""

import threading
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import quote

import httpx
import msgspec

from mainstem.model.errors import Conflict, MainstemError, NotFound, OutcomeUnknown
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.pipeline.lake import MAIN, Marks
from mainstem.tables.evolution import Column, columns_of
from mainstem.tables.layout import HLC_MARK, KEY, KINDS_PROPERTY, POSITION_MARK, STATE_COLUMNS
from mainstem.tables.types import ColumnType

TIMEOUT_S = 60.0
# Properties of the session's catalog that say how to reach it; with any other kind of login, Java does everything.
_TOKEN = "token"
_HEADER = "header."
_LOGINS = frozenset(["credential", "rest.auth.type", "rest.sigv4-enabled", "oauth2-server-uri"])
_OWN_STATE_COLUMNS = frozenset(name for name, _ in STATE_COLUMNS)


class QuickTable:
    """One table as of one metadata document. Frozen: a commit makes another."""

    def __init__(self, name: TableName, metadata: Mapping[str, Any]) -> None:
        self.name = name
        self.metadata = metadata
        self._snapshots = {int(snapshot["snapshot-id"]): snapshot for snapshot in metadata.get("snapshots") or ()}

    @property
    def snapshot(self) -> Mapping[str, Any] | None:
        """The head of main."""
        snapshot_id = self.metadata.get("current-snapshot-id")
        return None if snapshot_id in (None, -1) else self._snapshots[int(snapshot_id)]

    @property
    def snapshot_id(self) -> int | None:
        """The id of main's head."""
        return None if self.snapshot is None else int(self.snapshot["snapshot-id"])

    @property
    def properties(self) -> Mapping[str, str]:
        """What was set on the table."""
        return self.metadata.get("properties") or {}

    @property
    def schema(self) -> Mapping[str, Any]:
        """The current schema, as the document has it."""
        schema_id = self.metadata["current-schema-id"]
        found: Mapping[str, Any] = next(one for one in self.metadata["schemas"] if one["schema-id"] == schema_id)
        return found

    @property
    def is_plain(self) -> bool:
        """Version 2, and never partitioned: what files without a partition can be added to."""
        specs = self.metadata.get("partition-specs") or []
        return self.metadata["format-version"] == 2 and all(not spec["fields"] for spec in specs)

    def field_ids(self) -> dict[str, int]:
        """Iceberg's id of each column, in the schema's order."""
        return {field["name"]: int(field["id"]) for field in self.schema["fields"]}

    @property
    def key_id(self) -> int:
        """Iceberg's id of the key column."""
        return self.field_ids()[KEY]

    def columns(self) -> tuple[Column, ...]:
        """The rows' own columns of a state table."""
        fields = [
            (field["name"], ColumnType(str(field["type"]).replace(" ", "")))
            for field in self.schema["fields"]
            if field["name"] not in _OWN_STATE_COLUMNS
        ]
        return columns_of(fields, msgspec.json.decode(self.properties.get(KINDS_PROPERTY) or "{}"))

    def marks(self) -> Marks:
        """The marks of the newest snapshot in main's ancestry that has them."""
        snapshot = self.snapshot
        while snapshot is not None:
            summary = snapshot.get("summary") or {}
            if POSITION_MARK in summary:
                return Marks(LogPosition(int(summary[POSITION_MARK])), int(summary.get(HLC_MARK) or 0))
            parent = snapshot.get("parent-snapshot-id")
            snapshot = None if parent is None else self._snapshots.get(int(parent))
        return Marks()


class QuickCatalog:
    """The catalog over HTTP. Safe to use from several threads, each with a table of its own."""

    def __init__(self, url: str, warehouse: str, headers: Mapping[str, str]) -> None:
        self._http = httpx.Client(base_url=url.rstrip("/"), timeout=TIMEOUT_S, headers=dict(headers))
        self._warehouse = warehouse
        self._prefix: str | None = None
        self._lock = threading.Lock()
        self._known: dict[TableName, QuickTable] = {}

    @classmethod
    def of(cls, url: str, warehouse: str, properties: Mapping[str, str]) -> Self | None:
        """The catalog that the session's properties describe; None where only Java knows how to log in."""
        if _LOGINS & properties.keys():
            return None
        own = {name: text for name, text in properties.items() if name.startswith(_HEADER)}
        headers = {name.removeprefix(_HEADER): text for name, text in own.items()}
        if token := properties.get(_TOKEN):
            headers["Authorization"] = f"Bearer {token}"
        return cls(url, warehouse, headers)

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def table(self, name: TableName) -> QuickTable | None:
        """The table as last seen, or as the catalog has it; None where there is none."""
        with self._lock:
            known = self._known.get(name)
        if known is not None:
            return known
        answer = self._http.get(self._path(name))
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        return self._learn(name, _checked(answer))

    def forget(self, *names: TableName) -> None:
        """Somebody else may have changed these: look again before the next use."""
        with self._lock:
            for name in names:
                self._known.pop(name, None)

    def commit(self, table: QuickTable, snapshot: Mapping[str, Any]) -> QuickTable:
        """Make a snapshot the head of main, if main is where `table` has it. Raises Conflict where it is not."""
        body = {
            "requirements": [
                {"type": "assert-table-uuid", "uuid": table.metadata["table-uuid"]},
                {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": table.snapshot_id},
                {"type": "assert-current-schema-id", "current-schema-id": table.metadata["current-schema-id"]},
            ],
            "updates": [
                {"action": "add-snapshot", "snapshot": snapshot},
                {
                    "action": "set-snapshot-ref",
                    "ref-name": MAIN,
                    "type": "branch",
                    "snapshot-id": snapshot["snapshot-id"],
                },
            ],
        }
        # Whatever comes of it, what is known is old.
        self.forget(table.name)
        try:
            answer = self._http.post(self._path(table.name), json=body)
        except httpx.HTTPError as error:
            raise OutcomeUnknown(f"commit without an answer. table={table.name} got={error!r}") from error
        return self._learn(table.name, _checked(answer))

    def _learn(self, name: TableName, metadata: Mapping[str, Any]) -> QuickTable:
        table = QuickTable(name, metadata)
        with self._lock:
            self._known[name] = table
        return table

    def _path(self, name: TableName) -> str:
        if self._prefix is None:
            answer = self._http.get("/v1/config", params={"warehouse": self._warehouse})
            config = answer.raise_for_status().json()
            prefix = (config.get("overrides") or {}).get("prefix") or (config.get("defaults") or {}).get("prefix")
            self._prefix = f"/v1/{prefix}" if prefix else "/v1"
        namespace = quote("\x1f".join(name.levels), safe="")
        return f"{self._prefix}/namespaces/{namespace}/tables/{quote(name.table, safe='')}"


def _checked(answer: httpx.Response) -> Mapping[str, Any]:
    """The metadata in an answer, or what went wrong in our own words."""
    if answer.status_code == httpx.codes.OK:
        metadata: Mapping[str, Any] = msgspec.json.decode(answer.content)["metadata"]
        return metadata
    told = answer.text[:300]
    if answer.status_code == httpx.codes.CONFLICT:
        raise Conflict(f"commit lost a race: {told}")
    if answer.status_code == httpx.codes.NOT_FOUND:
        raise NotFound(f"the table is gone: {told}")
    if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
        raise OutcomeUnknown(f"the catalog failed. got={answer.status_code} {told}")
    raise MainstemError(f"the catalog refused. got={answer.status_code} {told}")
