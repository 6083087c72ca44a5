"""One table, looked at closely: see `doors.admin.tables` for what is told."""

import asyncio
from collections.abc import Callable
from typing import Any

from mainstem.admission import Principal
from mainstem.app.insight import Observer
from mainstem.app.pages.activity import Activity
from mainstem.app.pages.describing import ShownTable, by_id, current_of, snapshot_view, type_words, view_of
from mainstem.catalog import Catalog, Commit, TableIdent
from mainstem.catalog.metadata.rollback import rollback_commit
from mainstem.doors.admin import tables as door
from mainstem.doors.admin.server import Status, TableStatus
from mainstem.log import Log
from mainstem.model import DEFAULT_NAMESPACE, Denied, Invalid, NotFound, TableName
from mainstem.runtime.clock import Clock


def shown_name(text: str, principal: Principal) -> TableName:
    """A table's name, its history's or its dead letters', as far as it exists for the principal."""
    namespace, _, table = text.rpartition(".")
    name = TableName(namespace or DEFAULT_NAMESPACE, table)
    if not table or not principal.may_read(name):
        raise NotFound(f"table does not exist. got={text[:300]}")
    return name


def behind_s(now_ms: int, committed_ms: int | None, waits_since_ms: int | None) -> float:
    """How old what a table lacks is at most. Its last commit alone would say hours of one that was idle for hours."""
    known = [each for each in (committed_ms, waits_since_ms) if each is not None]
    return round(max(0, now_ms - max(known)) / 1000, 1) if known else 0.0


class Tables:
    """Answers the door's questions about one table."""

    def __init__(
        self,
        catalog: Catalog,
        observer: Observer,
        status: Callable[[], Status],
        log: Log,
        clock: Clock,
        activity: Activity,
        kind_of: Callable[[TableName], str],
    ) -> None:
        """`kind_of` says of which kind a door's own table is: empty for every other."""
        self._kind_of = kind_of
        self._activity = activity
        self._catalog = catalog
        self._observer = observer
        self._status = status
        self._log = log
        self._clock = clock

    async def detail(self, principal: Principal, name: str) -> door.TableDetail:
        """One table."""
        asked = shown_name(name, principal)
        status = self._status().tables.get(str(asked.logical))
        return await asyncio.to_thread(
            self._detail, asked, status, principal.may_write(asked), waits_since=self._activity.waits_since()
        )

    async def snapshots(self, principal: Principal, name: str, limit: int) -> door.Snapshots:
        """Its snapshots, the latest first."""
        return await asyncio.to_thread(self._snapshots, shown_name(name, principal), limit)

    async def difference(self, principal: Principal, name: str, before: str, after: str) -> door.Difference:
        """What changed between two of them."""
        return await asyncio.to_thread(self._difference, shown_name(name, principal), before, after)

    async def files(self, principal: Principal, name: str, limit: int) -> door.Files:
        """Its data files, the largest first."""
        return await asyncio.to_thread(self._files, shown_name(name, principal), limit)

    async def roll_back(self, principal: Principal, name: str, snapshot_id: str) -> door.RolledBack:
        """Put it back to an earlier snapshot."""
        asked = shown_name(name, principal)
        if not principal.may_write(asked):
            raise Denied(f"the token does not let {principal.sub!r:.100} write this table. got={asked}")
        return await asyncio.to_thread(self._roll_back, asked, int(snapshot_id))

    # In a thread

    def _load(self, name: TableName, commits_max: int) -> ShownTable:
        found = self._observer.load(name, commits_max)
        if found is None:
            raise NotFound(f"table does not exist. got={name}")
        return found

    def _detail(
        self, name: TableName, status: TableStatus | None, may_write: bool, waits_since: int | None
    ) -> door.TableDetail:
        table = self._load(name, door.SNAPSHOTS_MAX)
        rows = self._observer.rows(table, table.shown())
        lag = 0 if status is None else status.lag_changes
        committed = (current_of(table.document) or {}).get("timestamp-ms")
        others = (name.history, name.dead_letters) if name == name.logical else ()
        there = [self._exists(each) for each in others] or [None, None]
        return door.TableDetail(
            view=view_of(table, self._log.lineage, rows, lag, None if status is None else status.error),
            freshness=door.Freshness(
                lag_changes=lag,
                behind_s=behind_s(self._clock.now_ms(), committed, waits_since) if lag else 0.0,
                last_commit_ms=committed,
            ),
            properties={key: str(value) for key, value in (table.document.get("properties") or {}).items()},
            history=there[0],
            dead_letters=there[1],
            may_write=may_write,
            may_roll_back=may_write and (table.format != "delta" or self._refused(name) is None),
        )

    def _exists(self, name: TableName) -> str | None:
        return None if self._observer.load(name, 1) is None else str(name)

    def _snapshots(self, name: TableName, limit: int) -> door.Snapshots:
        table = self._load(name, limit)
        shown = table.latest(limit)
        rows = self._observer.rows(table, shown)
        views = [snapshot_view(each, self._log.lineage, rows) for each in reversed(shown)]
        return door.Snapshots(snapshots=views, total=table.snapshot_count)

    def _difference(self, name: TableName, before: str, after: str) -> door.Difference:
        table = self._load(name, door.SNAPSHOTS_MAX)
        old, new = (_snapshot(table, each) for each in (before, after))
        rows = self._observer.rows(table, [old, new])
        views = [snapshot_view(each, self._log.lineage, rows) for each in (old, new)]
        return door.Difference(before=views[0], after=views[1], columns=_column_changes(table, old, new))

    def _files(self, name: TableName, limit: int) -> door.Files:
        table = self._load(name, 1)
        if table.format == "delta":
            other = self._catalog.other_inventory(name)
            if other is None:
                raise NotFound(f"table does not exist. got={name}")
            inventory = other.inventory
        else:
            inventory = self._catalog.inventories.take(table.document)
        location = str(table.document.get("location", "")).rstrip("/") + "/"
        largest = sorted(inventory.files, key=lambda file: (-file.size_bytes, file.path))[:limit]
        files = [
            door.DataFile(
                path=file.path.removeprefix(location),
                partition=file.partition,
                rows=file.rows,
                deleted_rows=file.deleted_rows,
                bytes=file.size_bytes,
                delete_files=file.delete_files,
            )
            for file in largest
        ]
        return door.Files(files=files, total=len(inventory.files), delete_files=inventory.delete_files)

    def _roll_back(self, name: TableName, snapshot_id: int) -> door.RolledBack:
        table = self._load(name, 1)
        if table.format == "delta":
            return self._restore(name, snapshot_id)
        target = _snapshot(table, str(snapshot_id))
        was = (current_of(table.document) or {}).get("snapshot-id")
        requirements, updates = rollback_commit(table.document, target["snapshot-id"])
        ident = TableIdent(name.levels, name.table)
        self._catalog.commit_table(Commit(ident, requirements, updates))
        return door.RolledBack(snapshot_id=str(snapshot_id), was=str(was))

    def _refused(self, name: TableName) -> str | None:
        """Why a table in Delta is not put back: feeds and consumers are told from it, and what it lost would not come
        again."""
        if name != name.logical:
            return "a history or dead letters"
        return f"a {kind}" if (kind := self._kind_of(name)) else None

    def _restore(self, name: TableName, version: int) -> door.RolledBack:
        """A new version with the files and columns of an earlier one. What the table covers of the log stays as it is,
        so that no change comes a second time."""
        if what := self._refused(name):
            raise Invalid(f"only the rows of a table can be put back. got={name}, {what} in Delta")
        loaded = self._observer.in_delta(name)
        if loaded is None or loaded.delta is None:
            raise NotFound(f"table does not exist. got={name}")
        # Not needed before somebody asks for this.
        from mainstem.formats.delta.table import DeltaTable

        was = loaded.delta.state.version
        DeltaTable(loaded.delta.storage, loaded.delta.path, clock=self._clock).restore(version)
        return door.RolledBack(snapshot_id=str(version), was=str(was))


def _snapshot(table: ShownTable, snapshot_id: str) -> Any:
    for snapshot in table.document.get("snapshots") or ():
        if str(snapshot.get("snapshot-id")) == snapshot_id:
            return snapshot
    raise NotFound(f"snapshot does not exist. table={table.name} got={snapshot_id[:40]}")


def _column_changes(table: ShownTable, old: Any, new: Any) -> list[door.ColumnChange]:
    before, after = (_columns(table, each) for each in (old, new))
    found = []
    for number in sorted(before.keys() | after.keys()):
        was, now = before.get(number), after.get(number)
        if was != now:
            name = (now or was or ("", ""))[0]
            shown = [None if each is None else " ".join(each) for each in (was, now)]
            found.append(door.ColumnChange(name=name, before=shown[0], after=shown[1]))
    return found


def _columns(table: ShownTable, snapshot: Any) -> dict[int, tuple[str, str]]:
    document = table.document
    schema_id = snapshot.get("schema-id", document.get("current-schema-id"))
    schema = by_id(document.get("schemas"), "schema-id", schema_id)
    return {field["id"]: (field["name"], type_words(field["type"])) for field in schema.get("fields", ())}
