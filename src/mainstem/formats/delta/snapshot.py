"""A Delta table at one version: what it is, and queries of it."""

import pyarrow as pa

from mainstem.formats.delta.files.engine import engine_of
from mainstem.formats.delta.find import Find, Question
from mainstem.formats.delta.log import State
from mainstem.formats.delta.queries import Queryable
from mainstem.formats.delta.schema import schema_of
from mainstem.formats.delta.storage import Storage


class Snapshot(Queryable):
    """A table at one version; it never changes."""

    def __init__(self, storage: Storage, name: str, state: State) -> None:
        self._storage = storage
        self._name = name
        self._state = state

    @property
    def version(self) -> int:
        """Which version this is."""
        return self._state.version

    @property
    def schema(self) -> pa.Schema:
        """The columns in Arrow. A text column that stands for another type says so in its metadata."""
        return schema_of(self._state.metadata).arrow

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        return tuple(self._state.metadata.partitionColumns)

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return {name: value for name, value in self._state.metadata.configuration.items() if value is not None}

    @property
    def transactions(self) -> dict[str, int]:
        """How far each application has come that commits its own progress with its rows."""
        return dict(self._state.transactions)

    def file_uris(self) -> list[str]:
        """The data files."""
        return [self._storage.uri(f"{self._name}/{file.path}") for file in self._state.files.values()]

    def _asked(self, question: Question) -> Find:
        return Find(engine_of(self._storage), self._name, self._state, question)
