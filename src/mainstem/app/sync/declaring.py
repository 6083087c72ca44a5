"""What holds while columns get declared types: rows that clients may have, and the tables have not, must fit them.

Such rows become dead letters otherwise, and the clients keep them.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from mainstem.app.sync.declared import DeclaredTypes
from mainstem.feeds.feeds import Feeds
from mainstem.feeds.fitting import Columns
from mainstem.model import NOWHERE, Invalid, LogPosition, TableName


class Declaring:
    """`async with declaring(table, columns)` around each change of declared types."""

    def __init__(
        self, feeds: Feeds, declared: DeclaredTypes, held: Callable[[], Mapping[TableName, LogPosition]]
    ) -> None:
        """`held` says what each table has of the log."""
        self._feeds = feeds
        self._declared = declared
        self._held = held

    @asynccontextmanager
    async def __call__(self, table: TableName, columns: Columns) -> AsyncIterator[None]:
        """Declare within. Raises Invalid (`schema_mismatch`) where a row on its way to the table does not fit."""
        before = (await self._declared.load(table.namespace)).get(table.table, {})
        fresh = {name: kind for name, kind in columns.items() if before.get(name) != kind}
        looked = await self._check(table, fresh, self._held().get(table, NOWHERE))
        async with self._declared.changing(table.namespace):
            # What came since; from here on no client is shown a row before the types are known.
            await self._check(table, fresh, looked)
            yield

    async def _check(self, table: TableName, columns: Columns, after: LogPosition) -> LogPosition:
        misfit, through = await self._feeds.first_misfit(table, columns, after)
        if misfit is not None:
            raise Invalid(
                f"a row on its way to the table has a value of another type. table={table} column={misfit.column} "
                f"expected={columns[misfit.column]} got={misfit.value[:64]!r}",
                reason="schema_mismatch",
            )
        return through
