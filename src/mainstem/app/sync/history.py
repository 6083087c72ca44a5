"""The history tables as the feeds ask for them, read by the gateway's own query engine."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from mainstem.feeds.checkpoints import HistoryTable
from mainstem.feeds.entries import StoredChange
from mainstem.feeds.seen import Identified
from mainstem.feeds.topics.changes import Told
from mainstem.model import NOWHERE, Invalid, Lineage, LogPosition, MainstemError, NotFound, TableName
from mainstem.model.names import DEAD_LETTERS_SUFFIX, HISTORY_SUFFIX
from mainstem.query.engine import TIMEOUT_MS_MAX, QueryEngine, QueryRequest
from mainstem.query.ports import Lake, LoadedTable, named_tables
from mainstem.query.tables import columns, marks
from mainstem.sql import duckdb_name, duckdb_text
from mainstem.tables.origins import Origins, has_others, origins_of

logger = logging.getLogger(__name__)

_IDS_PAGE = 200_000
_OTHERS_PAGE = 50_000
# Of a delta, whatever types somebody has given the columns.
_IDENTIFIED = "try_cast(_source AS VARCHAR), try_cast(_id AS VARCHAR), try_cast(_hlc AS BIGINT)"
_IS_IDENTIFIED = "_source IS NOT NULL AND _id IS NOT NULL AND try_cast(_hlc AS BIGINT) IS NOT NULL"


class LakeHistory:
    """History tables, by namespace."""

    def __init__(
        self,
        lake: Lake,
        engine: QueryEngine,
        lineage: Callable[[], Lineage] = Lineage,
        *,
        page_rows: int = _OTHERS_PAGE,
    ) -> None:
        """`lineage` says which positions are of our log: a table may have rows of others, at the same positions."""
        self._page_rows = page_rows
        self._lake = lake
        self._engine = engine
        self._lineage = lineage

    async def page(
        self, namespace: str, *, after: LogPosition, through: LogPosition, limit: int
    ) -> Sequence[StoredChange]:
        """The first `limit` changes at positions after < p <= through, in order."""
        logical = await self._logical(namespace)
        if not logical:
            return ()
        parts = [
            f"SELECT _position, _hlc, {duckdb_text(name.table)}, _op, _key, _columns, _source, _id "
            f"FROM {_quoted(name)} WHERE _position > {int(after)} AND _position <= {int(through)} "
            f"AND {await self._ours(name)}"
            for name in logical
        ]
        rows = await self._rows(" UNION ALL ".join(parts) + f" ORDER BY 1 LIMIT {int(limit)}", limit)
        return [StoredChange(*row) for row in rows]

    async def has_others(self, namespace: str) -> bool:
        """Whether its tables hold changes of another log, or of a part of ours that was lost: no pull has those."""
        lineage = self._lineage()
        for name in await self._with_history(namespace):
            if await self._lake_has_others(name, lineage):
                return True
        return False

    async def lost_since(self, namespace: str, position: LogPosition) -> bool:
        """Whether its tables hold changes of the log that a position is of, and that log has lost them."""
        lineage = self._lineage()
        log = lineage.log_at(position)
        for name in await self._with_history(namespace):
            held = marks((await self._lake.load(name.history)).metadata).get(log)
            if held is not None and has_others({log: held}, lineage):
                return True
        return False

    async def others(self, namespace: str) -> AsyncIterator[list[StoredChange]]:
        """Those changes, in any order, before the first position of ours."""
        for name in await self._with_history(namespace):
            selected = f"_hlc, {duckdb_text(name.table)}, _op, _key, _columns, _source, _id"
            async for rows in self._others(name, selected):
                yield [StoredChange(0, *row) for row in rows]

    async def of_table(
        self, table: TableName, *, after: LogPosition, through: LogPosition, limit: int
    ) -> Sequence[Told]:
        """The first changes of one table at positions after < p <= through, in order."""
        if table.history not in await self._lake.tables():
            if not await self._has_rows(table):
                return ()
            raise Invalid(f"the table keeps no history. got={table}", reason="offset_out_of_range")
        rows = await self._rows(
            f"SELECT _position, _hlc, _op, _key, _columns, _before, _source, _sequence FROM {_quoted(table)} "
            f"WHERE _position > {int(after)} AND _position <= {int(through)} AND {await self._ours(table)} "
            f"ORDER BY 1 LIMIT {int(limit)}",
            limit,
        )
        return [Told(*row) for row in rows]

    async def histories(self, namespace: str) -> Mapping[str, HistoryTable]:
        """The logical tables of a namespace, and the history of each. Raises Invalid where one keeps none."""
        found: dict[str, HistoryTable] = {}
        for name in await self._logical(namespace):
            history = await self._lake.load(name.history)
            place = None if history.delta is None else history.metadata_location
            found[name.table] = HistoryTable(place, marks(history.metadata), _origins(history).unlogged)
        return found

    async def identified(self, through: LogPosition) -> AsyncIterator[list[Identified]]:
        """Every change with an id, of every namespace: ours up to a position, and all of other logs.

        What the tables have counts once, whichever log brought it there.
        """
        for table in await self._lake.tables():
            if not table.table.endswith(HISTORY_SUFFIX):
                continue
            name = table.logical
            try:
                async for rows in self._others(name, _IDENTIFIED, _IS_IDENTIFIED):
                    yield [Identified(name.namespace, *row) for row in rows]
                async for found in self._own_ids(name, through):
                    yield found
            except MainstemError as error:
                # Anybody may make a table of that name, with anything in it. The start does not wait for it: a delta
                # that is sent again is then in the history twice, and changes nothing.
                logger.warning("which deltas a table has could not be read: %s", error, extra={"table": str(table)})

    async def _own_ids(self, name: TableName, through: LogPosition) -> AsyncIterator[list[Identified]]:
        if through == NOWHERE:
            return
        ours, after = await self._ours(name), 0
        while True:
            rows = await self._rows(
                f"SELECT {_IDENTIFIED}, _position FROM {_quoted(name)} WHERE {_IS_IDENTIFIED} AND {ours} "
                f"AND _position > {after} AND _position <= {int(through)} ORDER BY 4 LIMIT {_IDS_PAGE}",
                _IDS_PAGE,
            )
            yield [Identified(name.namespace, row[0], row[1], row[2]) for row in rows]
            if len(rows) < _IDS_PAGE:
                return
            after = rows[-1][3]

    async def _ours(self, name: TableName) -> str:
        """The rows of a table's history whose positions are of our log."""
        return _origins(await self._lake.load(name.history)).of_ours(self._lineage())

    async def _lake_has_others(self, name: TableName, lineage: Lineage) -> bool:
        return has_others(marks((await self._lake.load(name.history)).metadata), lineage)

    async def _others(
        self, name: TableName, selected: str, where: str = "true"
    ) -> AsyncIterator[list[tuple[Any, ...]]]:
        """What is selected of the rows that are not of our log, in pages."""
        lineage = self._lineage()
        if not await self._lake_has_others(name, lineage):
            return
        origins = _origins(await self._lake.load(name.history))
        log = "coalesce(_log, '')" if origins.has_log else "''"
        wanted = f"{where} AND {origins.of_others(lineage)}"
        # By their clocks, too: rows that say no log may be of two logs, at the same positions.
        last, after, clock = "", -1, -1
        while True:
            rows = await self._rows(
                f"SELECT {selected}, {log} AS log, _position, _hlc AS clock FROM {_quoted(name)} WHERE {wanted} "
                f"AND ({log}, _position, _hlc) > ({duckdb_text(last)}, {int(after)}, {int(clock)}) "
                f"ORDER BY log, _position, clock LIMIT {self._page_rows}",
                self._page_rows,
            )
            yield [row[:-3] for row in rows]
            if len(rows) < self._page_rows:
                return
            last, after, clock = rows[-1][-3:]

    async def _logical(self, namespace: str) -> list[TableName]:
        """The tables of a namespace, each with a history. Raises Invalid where one has none."""
        names = {name.table for name in await self._lake.tables() if name.namespace == namespace}
        own = sorted(name for name in names if not name.endswith((HISTORY_SUFFIX, DEAD_LETTERS_SUFFIX)))
        logical = []
        for name in (TableName(namespace, each) for each in own):
            if name.history.table in names:
                logical.append(name)
            elif await self._has_rows(name):
                raise Invalid(f"the cursor is too old: a table keeps no history. got={name}", reason="cursor_expired")
        return logical

    async def _with_history(self, namespace: str) -> list[TableName]:
        """The tables of a namespace that have a history."""
        names = [name for name in await self._lake.tables() if name.namespace == namespace]
        return [name.logical for name in names if name.table.endswith(HISTORY_SUFFIX)]

    async def _has_rows(self, name: TableName) -> bool:
        """Whether anything was ever written to a table. One that was only declared has nothing to go back to."""
        try:
            loaded = await self._lake.load(name)
        except NotFound:
            return False
        return loaded.delta is not None or bool(loaded.metadata.get("snapshots"))

    async def _rows(self, sql: str, limit: int) -> list[tuple[Any, ...]]:
        request = QueryRequest(sql=sql, limit=limit, timeout_ms=TIMEOUT_MS_MAX)
        rows: list[tuple[Any, ...]] = []
        async with self._engine.open(request, named_tables) as running:
            async for batch in running.batches():
                rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return rows


def _origins(history: LoadedTable) -> Origins:
    return origins_of(columns(history.metadata), history.metadata.get("properties") or {}, marks(history.metadata))


def _quoted(name: TableName) -> str:
    return f"{duckdb_name(name.namespace)}.{duckdb_name(name.history.table)}"
