"""What the feeds know of a namespace's tables: their columns, and the declared types among them.

From the configuration and from the tables themselves.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from mainstem.app.config import Config
from mainstem.catalog import Catalog, TableIdent
from mainstem.feeds.declared import Begin, Begun
from mainstem.feeds.fitting import Columns
from mainstem.model import NOWHERE, LogPosition, NotFound, TableName, parse_table_name
from mainstem.model.names import DEAD_LETTERS_SUFFIX, HISTORY_SUFFIX
from mainstem.query.ports import LoadedTable
from mainstem.tables.declaring import Document, declared_types, stored_types
from mainstem.tables.evolution import Names, refuses_columns
from mainstem.tables.settings import TableSettings

NAMESPACES_MAX = 10_000
_LOGS = (HISTORY_SUFFIX, DEAD_LETTERS_SUFFIX)


class _Known(NamedTuple):
    columns: dict[str, Columns]
    # The snapshot of each table when it was looked at, or when it last changed.
    snapshots: dict[str, int | None]
    # The names of each table's columns, and what it covered of the log when they were looked up, or before.
    names: dict[str, tuple[str, ...]]
    covered: Mapping[TableName, LogPosition]


class DeclaredTypes:
    """What is declared, by namespace. Belongs to the event loop; the catalog is read in threads."""

    def __init__(
        self,
        catalog: Catalog,
        config: Config,
        settings_of: Callable[[TableName], TableSettings],
        covered: Callable[[], Mapping[TableName, LogPosition]],
        delta: Callable[[TableName], LoadedTable | None],
    ) -> None:
        """`covered` says what each table has of the log; `delta` gives a Delta table of ours, None for another."""
        self._catalog = catalog
        self._settings_of = settings_of
        self._covered = covered
        self._delta = delta
        self._configured: dict[str, dict[str, Columns]] = {}
        for text in config.tables:
            name = parse_table_name(text)
            self._configured.setdefault(name.namespace, {})[name.table] = config.table(name).columns
        self._known: dict[str, _Known] = {}
        self._loading = asyncio.Lock()
        # The namespace that is being loaded, and whether it changed meanwhile.
        self._loaded: str | None = None
        self._is_stale = False

    def known(self, namespace: str, /) -> Mapping[str, Columns] | None:
        """What is declared, from memory."""
        found = self._known.get(namespace)
        return None if found is None else found.columns

    async def load(self, namespace: str, /) -> Mapping[str, Columns]:
        """The same, from the catalog where it is not in memory."""
        found = self._known.get(namespace)
        if found is not None:
            return found.columns
        async with self._loading:
            found = self._known.get(namespace)
            while found is None:
                self._loaded, self._is_stale = namespace, False
                loaded = await asyncio.to_thread(self._load, namespace, self._covered())
                if not self._is_stale:
                    if len(self._known) >= NAMESPACES_MAX:
                        self._known.clear()
                    found = self._known[namespace] = loaded
            self._loaded = None
        return found.columns

    @asynccontextmanager
    async def changing(self, namespace: str) -> AsyncIterator[None]:
        """Make every reader wait for what is declared in a namespace while that changes."""
        async with self._loading:
            self._known.pop(namespace, None)
            yield
            self._known.pop(namespace, None)

    def begin_of(self, namespace: str, /) -> Begin:
        """The columns of each table of a namespace that is in memory, for the caller to go on with."""
        found = self._known[namespace]

        def begin(name: str) -> Begun | None:
            table = TableName(namespace, name)
            settings = self._settings_of(table)
            if not refuses_columns(settings):
                return None
            names = Names([*found.names.get(name, ()), *settings.columns], settings)
            return Begun(names, found.covered.get(table, NOWHERE))

        return begin

    def committed(self, table: TableName, snapshot_id: int | None) -> None:
        """A table changed. One that has no new snapshot has new metadata: its columns may be declared now."""
        if table.table.endswith(_LOGS):
            return
        found = self._known.get(table.namespace)
        if found is not None and found.snapshots.get(table.table, snapshot_id) != snapshot_id:
            found.snapshots[table.table] = snapshot_id
            return
        self._is_stale = self._is_stale or table.namespace == self._loaded
        self._known.pop(table.namespace, None)

    def _load(self, namespace: str, covered: Mapping[TableName, LogPosition]) -> _Known:
        """`covered` is of a moment before: columns that tables get meanwhile are learnt twice, and none is missed."""
        known = _Known({}, {}, {}, covered)
        for each in self._catalog.tables():
            if each.table.namespace != namespace or each.table.table.endswith(_LOGS):
                continue
            known.snapshots[each.table.table] = each.snapshot_id
            document = self._document(each.table)
            if document is None:
                continue
            known.names[each.table.table] = tuple(stored_types(document))
            if types := declared_types(document):
                known.columns[each.table.table] = types
        for name, columns in self._configured.get(namespace, {}).items():
            if columns:
                known.columns[name] = {**known.columns.get(name, {}), **columns}
        return known

    def _document(self, table: TableName) -> Document | None:
        """What a table says of itself; None for one of another kind, or that was dropped meanwhile."""
        try:
            return self._catalog.load_table(TableIdent(table.levels, table.table)).stored.document
        except NotFound:
            pass
        try:
            found = self._delta(table)
        except NotFound:
            return None
        return None if found is None else dict(found.metadata)
