"""The history tables as the feeds ask for them, read by the gateway's own query engine."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from mainstem.feeds.entries import StoredChange
from mainstem.feeds.seen import Identified
from mainstem.feeds.topics.changes import Told
from mainstem.model import Invalid, LogPosition, NotFound, TableName
from mainstem.model.names import DEAD_LETTERS_SUFFIX, HISTORY_SUFFIX
from mainstem.query.engine import TIMEOUT_MS_MAX, QueryEngine, QueryRequest
from mainstem.query.ports import Lake
from mainstem.sql import duckdb_name, duckdb_text

_IDS_PAGE = 200_000


class LakeHistory:
    """History tables, by namespace."""

    def __init__(self, lake: Lake, engine: QueryEngine) -> None:
        self._lake = lake
        self._engine = engine

    async def page(
        self, namespace: str, *, after: LogPosition, through: LogPosition, limit: int
    ) -> Sequence[StoredChange]:
        """The first `limit` changes at positions after < p <= through, in order."""
        logical = await self._logical(namespace)
        if not logical:
            return ()
        parts = [
            f"SELECT _position, _hlc, {duckdb_text(name.table)}, _op, _key, _columns, _source, _id "
            f"FROM {_quoted(name)} WHERE _position > {int(after)} AND _position <= {int(through)}"
            for name in logical
        ]
        rows = await self._rows(" UNION ALL ".join(parts) + f" ORDER BY 1 LIMIT {int(limit)}", limit)
        return [StoredChange(*row) for row in rows]

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
            f"WHERE _position > {int(after)} AND _position <= {int(through)} ORDER BY 1 LIMIT {int(limit)}",
            limit,
        )
        return [Told(*row) for row in rows]

    async def histories(self, namespace: str) -> Mapping[str, str | None]:
        """The logical tables of a namespace, and where the history of each is that is kept in Delta.

        Raises Invalid where one keeps no history.
        """
        found: dict[str, str | None] = {}
        for name in await self._logical(namespace):
            history = await self._lake.load(name.history)
            found[name.table] = None if history.delta is None else history.metadata_location
        return found

    async def identified(self, through: LogPosition) -> AsyncIterator[list[Identified]]:
        """Every change up to a position that has an id, of every namespace."""
        for table in await self._lake.tables():
            if not table.table.endswith(HISTORY_SUFFIX):
                continue
            name = TableName(table.namespace, table.table.removesuffix(HISTORY_SUFFIX))
            after = 0
            while True:
                rows = await self._rows(
                    f"SELECT _source, _id, _hlc, _position FROM {_quoted(name)} WHERE _id IS NOT NULL "
                    f"AND _position > {after} AND _position <= {int(through)} ORDER BY 4 LIMIT {_IDS_PAGE}",
                    _IDS_PAGE,
                )
                yield [Identified(name.namespace, row[0], row[1], row[2]) for row in rows]
                if len(rows) < _IDS_PAGE:
                    break
                after = rows[-1][3]

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
        async with self._engine.open(request) as running:
            async for batch in running.batches():
                rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return rows


def _quoted(name: TableName) -> str:
    return f"{duckdb_name(name.namespace)}.{duckdb_name(name.history.table)}"
