"""A Delta table at one version: what it is, and queries of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from mainstem.client.delta.engine import engine_of
from mainstem.client.delta.find import Find, Question, Sort
from mainstem.client.delta.log import State
from mainstem.client.delta.schema import schema_of
from mainstem.client.delta.storage import Storage
from mainstem.model.errors import Invalid

Filter = Mapping[str, Any]


class Snapshot:
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

    def find(
        self,
        filter: Filter | None = None,
        *,
        projection: Mapping[str, Any] | Sequence[str] | None = None,
        sort: Sort = (),
        limit: int | None = None,
        skip: int = 0,
    ) -> Find:
        """A query, not yet run: `rows()`, `arrow()` or `batches()` runs it, `statistics` says what it can skip."""
        if (limit is not None and limit < 0) or skip < 0:
            raise Invalid(f"limit and skip. expected=0 or more got={limit} {skip}")
        question = Question(filter or {}, projection, sort, limit, skip)
        return Find(engine_of(self._storage), self._name, self._state, question)

    def query(self, filter: Filter | None = None, **options: Any) -> list[dict[str, Any]]:
        """The matching rows as documents. Options as for `find`."""
        return self.find(filter, **options).rows()

    def query_arrow(self, filter: Filter | None = None, **options: Any) -> pa.Table:
        """The matching rows in Arrow. Options as for `find`."""
        return self.find(filter, **options).arrow()

    def query_batches(self, filter: Filter | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """The matching rows in Arrow, batch by batch. Options as for `find`."""
        return self.find(filter, **options).batches()
