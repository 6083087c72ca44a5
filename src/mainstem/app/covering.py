"""Folds what the catalog says of physical tables into what the log wants to know of logical ones.

A table may have marks of several logs: only those of our own lineage say how much of our log it covers.
A logical table is a state, a history, or both, by its settings; it covers the less of the two. Dead letters are written
before either, so they need no say.
"""

from collections.abc import Callable, Mapping

from mainstem.model import NOWHERE, Lineage, LogId, LogPosition, TableName
from mainstem.model.names import DEAD_LETTERS_SUFFIX, HISTORY_SUFFIX
from mainstem.tables.settings import TableSettings


class Covering:
    """Remembers how far each physical table is."""

    def __init__(self, settings_of: Callable[[TableName], TableSettings], lineage: Callable[[], Lineage]) -> None:
        self._settings_of = settings_of
        self._lineage = lineage
        self._state: dict[TableName, LogPosition] = {}
        self._history: dict[TableName, LogPosition] = {}
        self._snapshots: dict[TableName, int | None] = {}

    @property
    def snapshots(self) -> Mapping[TableName, int | None]:
        """The current snapshot of each logical table's state (of its history, where it has no state)."""
        return self._snapshots

    def knows(self, name: TableName) -> bool:
        """Whether a table commits through the catalog. One that a door wanted in Delta does not."""
        return name in self._state or name in self._history

    def committed(
        self, physical: TableName, marks: Mapping[LogId, LogPosition], snapshot_id: int | None
    ) -> tuple[TableName, LogPosition] | None:
        """A commit happened: the logical table with what it covers now, or None where that is no news."""
        if physical.table.endswith(DEAD_LETTERS_SUFFIX) or not marks:
            return None
        covered = self._lineage().covered(marks)
        if physical.table.endswith(HISTORY_SUFFIX):
            name = TableName(physical.namespace, physical.table.removesuffix(HISTORY_SUFFIX))
            self._history[name] = covered
            if not self._settings_of(name).state:
                self._snapshots[name] = snapshot_id
        else:
            name = physical
            self._state[name] = covered
            self._snapshots[name] = snapshot_id
        return name, self._covered(name)

    def _covered(self, name: TableName) -> LogPosition:
        settings = self._settings_of(name)
        parts = []
        if settings.state:
            parts.append(self._state.get(name, NOWHERE))
        if settings.history:
            parts.append(self._history.get(name, NOWHERE))
        return min(parts)
