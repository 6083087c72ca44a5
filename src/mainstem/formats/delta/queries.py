"""The questions that a table answers, at its newest version or at one that is past: once for both."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from mainstem.formats.delta.find import Find, Question, Sort
from mainstem.model.errors import Invalid

Filter = Mapping[str, Any]


class Queryable(ABC):
    """Something that can be asked for rows."""

    @abstractmethod
    def _asked(self, question: Question) -> Find:
        """A query of the version that is meant."""

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
        return self._asked(Question(filter or {}, projection, sort, limit, skip))

    def query(self, filter: Filter | None = None, **options: Any) -> list[dict[str, Any]]:
        """The matching rows as documents. Options as for `find`."""
        return self.find(filter, **options).rows()

    def query_arrow(self, filter: Filter | None = None, **options: Any) -> pa.Table:
        """The matching rows in Arrow. Options as for `find`."""
        return self.find(filter, **options).arrow()

    def query_batches(self, filter: Filter | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """The matching rows in Arrow, batch by batch. Options as for `find`."""
        return self.find(filter, **options).batches()
