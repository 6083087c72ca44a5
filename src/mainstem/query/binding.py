"""From the names in a statement to tables at one moment: which snapshots, which pending rows, which position.

All tables of a query are loaded first, then the log's durable position is taken once, and each table is brought up to
that one position. A table that the caller may not read does not exist for it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import msgspec

from mainstem.model import Conflict, Invalid, Lineage, LogPosition, NotFound, TableName
from mainstem.query.overlay import overlay_sql
from mainstem.query.ports import Lake, LoadedTable, Pending, PendingRow, Readable
from mainstem.query.sandbox.session import Session
from mainstem.query.statements.statement import Statement
from mainstem.query.tables import SnapshotUse, current_snapshot, folder, is_state, lean, marks, scan_sql

PENDING_ROWS_MAX = 200_000
# A table may be committed and the log trimmed between two steps; losing that race again and again is not plausible.
_TRIES = 4


class Freshness(StrEnum):
    """`snapshot` reads what is committed; `latest` also what is durable in the log and not yet in a table."""

    SNAPSHOT = "snapshot"
    LATEST = "latest"


class BoundTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table as a query will read it. `loaded` is None where only the log knows the table yet."""

    name: TableName
    loaded: LoadedTable | None
    history: LoadedTable | None = None
    pending: Mapping[str, PendingRow] | None = None
    position: LogPosition

    def use(self) -> SnapshotUse:
        """What to tell the caller of it."""
        snapshot = current_snapshot(self.loaded.metadata) if self.loaded else None
        return SnapshotUse(
            table=str(self.name),
            # A snapshot id has 63 bits, which JSON numbers do not carry.
            snapshot_id=str(snapshot["snapshot-id"]) if snapshot else None,
            position=self.position,
            freshness=Freshness.SNAPSHOT if self.pending is None else Freshness.LATEST,
        )

    def folders(self) -> set[str]:
        """The folders that reading it opens."""
        return {folder(each) for each in (self.loaded, self.history) if each}

    def lean(self) -> "BoundTable":
        """The same, with no more of its metadata than reading it takes: that is what a sandbox process is sent."""
        loaded, history = (each and lean(each) for each in (self.loaded, self.history))
        return msgspec.structs.replace(self, loaded=loaded, history=history)

    def show(self, session: Session, label: str) -> None:
        """Make it visible in a session. Runs in the sandbox process."""
        if self.pending is not None:
            sql = overlay_sql(session, self.loaded, self.history, self.pending, label)
        else:
            assert self.loaded is not None
            sql = scan_sql(session, self.loaded)
        session.view(self.name, sql)


class Binder:
    """Finds and loads the tables of a statement."""

    def __init__(self, lake: Lake, pending: Pending | None) -> None:
        self._lake = lake
        self._pending = pending

    async def tables(self, readable: Readable) -> Sequence[TableName]:
        """Every table that the caller may read."""
        return [name for name in await self._lake.tables() if readable(name)]

    async def bind(self, statement: Statement, freshness: Freshness, readable: Readable) -> tuple[BoundTable, ...]:
        """Load every table of the statement, all at one moment."""
        for attempt in range(1, _TRIES + 1):
            try:
                return await self._bind(statement, freshness, readable)
            except Conflict:
                if attempt == _TRIES:
                    raise
        raise AssertionError("the loop returns or raises")

    async def _bind(self, statement: Statement, freshness: Freshness, readable: Readable) -> tuple[BoundTable, ...]:
        latest = freshness is Freshness.LATEST and self._pending is not None
        wanted = sorted(statement.names | statement.shadowed)
        found = await asyncio.gather(*(self._find(name, readable) for name in wanted))
        loaded: dict[TableName, LoadedTable | None] = {}
        for name, table in zip(wanted, found, strict=True):
            if table is not None:
                loaded[table.name] = table
            elif latest and name in statement.names and readable(name):
                loaded[name] = None
            elif name in statement.names:
                raise NotFound(f"table does not exist. got={name}")
        _refuse_twins(loaded)
        if not latest:
            return tuple(self._at_snapshot(table) for table in loaded.values() if table is not None)
        assert self._pending is not None
        through = self._pending.durable()
        return tuple([await self._at(name, table, through) for name, table in loaded.items()])

    async def _at(self, name: TableName, table: LoadedTable | None, through: LogPosition) -> BoundTable:
        assert self._pending is not None
        if table is not None and not is_state(name, table.metadata):
            return self._at_snapshot(table)
        after = self._covered(table) if table is not None else LogPosition(0)
        rows = await self._pending.rows(name, after=after, through=through, limit=PENDING_ROWS_MAX)
        if table is None and not rows:
            raise NotFound(f"table does not exist. got={name}")
        history = await _or_none(self._lake.load, name.history) if rows and table is not None else None
        return BoundTable(name=name, loaded=table, history=history, pending=rows, position=max(after, through))

    def _at_snapshot(self, table: LoadedTable) -> BoundTable:
        return BoundTable(name=table.name, loaded=table, position=self._covered(table))

    def _covered(self, table: LoadedTable) -> LogPosition:
        lineage = Lineage() if self._pending is None else self._pending.lineage
        return lineage.covered(marks(table.metadata))

    async def _find(self, name: TableName, readable: Readable) -> LoadedTable | None:
        if readable(name) and (table := await _or_none(self._lake.load, name)):
            return table
        # SQL names have no case; the catalog's do.
        same = [each for each in await self.tables(readable) if _folded(each) == _folded(name)]
        if len(same) > 1:
            raise Invalid(f"table name is ambiguous without its case. expected=one of {', '.join(map(str, same))}")
        return await _or_none(self._lake.load, same[0]) if same else None


def _refuse_twins(loaded: Mapping[TableName, object]) -> None:
    if len({_folded(name) for name in loaded}) < len(loaded):
        names = ", ".join(map(str, loaded))
        raise Invalid(f"tables whose names differ only in case cannot be read in one statement. got={names}")


def _folded(name: TableName) -> tuple[str, str]:
    return name.namespace.lower(), name.table.lower()


async def _or_none(load: Callable[[TableName], object], name: TableName) -> LoadedTable | None:
    try:
        return await load(name)  # type: ignore[misc, no-any-return]
    except NotFound:
        return None
