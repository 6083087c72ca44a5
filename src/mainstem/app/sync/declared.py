"""The declared types of a namespace's tables, for the feeds: from the configuration and from the tables themselves."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from mainstem.app.config import Config
from mainstem.catalog import Catalog, TableIdent
from mainstem.feeds.fitting import Columns
from mainstem.model import NotFound, TableName, parse_table_name
from mainstem.model.names import DEAD_LETTERS_SUFFIX, HISTORY_SUFFIX
from mainstem.tables.declaring import declared_types

NAMESPACES_MAX = 10_000
_LOGS = (HISTORY_SUFFIX, DEAD_LETTERS_SUFFIX)


class _Known(NamedTuple):
    columns: dict[str, Columns]
    # The snapshot of each table when it was looked at, or when it last changed.
    snapshots: dict[str, int | None]


class DeclaredTypes:
    """What is declared, by namespace. Belongs to the event loop; the catalog is read in threads."""

    def __init__(self, catalog: Catalog, config: Config) -> None:
        self._catalog = catalog
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
                loaded = await asyncio.to_thread(self._load, namespace)
                if not self._is_stale:
                    if len(self._known) >= NAMESPACES_MAX:
                        self._known.clear()
                    found = self._known[namespace] = loaded
            self._loaded = None
        return found.columns

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

    def _load(self, namespace: str) -> _Known:
        known = _Known({}, {})
        for each in self._catalog.tables():
            if each.table.namespace != namespace or each.table.table.endswith(_LOGS):
                continue
            known.snapshots[each.table.table] = each.snapshot_id
            try:
                document = self._catalog.load_table(TableIdent(each.table.levels, each.table.table)).stored.document
            except NotFound:
                # In Delta, or dropped meanwhile.
                continue
            if types := declared_types(document):
                known.columns[each.table.table] = types
        for name, columns in self._configured.get(namespace, {}).items():
            if columns:
                known.columns[name] = {**known.columns.get(name, {}), **columns}
        return known
