"""What the query package asks of its surroundings. The app wires these; tests write fakes by hand.

    Lake            names and loads tables: the catalog, as of one moment
    Pending         what is durable in the log and not yet in a table
    BigQueryEngine  runs what is too large for the gateway

Nothing here knows how any of them works.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from mainstem.model import Lineage, LogPosition, Row, TableName

if TYPE_CHECKING:
    from mainstem.query.delta import DeltaVersion


class LoadedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table as the catalog holds it at one moment: the metadata document and the file it was read from."""

    name: TableName
    metadata_location: str
    metadata: Mapping[str, Any]
    # Of a table in Delta's format: what its log says. The document is then made from it.
    delta: "DeltaVersion | None" = None


class Lake(Protocol):
    """The catalog, seen by a reader."""

    async def tables(self) -> Sequence[TableName]:
        """Every table there is."""
        ...

    async def load(self, name: TableName) -> LoadedTable:
        """The table's newest committed metadata. Raises NotFound."""
        ...


class PendingRow(NamedTuple):
    """What the pending changes of one key merge to, and the position of the last of them."""

    row: Row
    position: LogPosition


class Pending(Protocol):
    """The tail of the log, merged by `mainstem.model.merge`."""

    @property
    def lineage(self) -> Lineage:
        """Which log the positions are of: what a table covers is told by its marks of this one."""
        ...

    def durable(self) -> LogPosition:
        """The last durable position. A query takes it once, so that all its tables are read at one position."""
        ...

    async def rows(
        self, table: TableName, *, after: LogPosition, through: LogPosition, limit: int
    ) -> Mapping[str, PendingRow]:
        """By key, the merge of the table's changes at positions after < p <= through that fit the table.

        Raises Conflict where the log no longer holds everything past `after` (the table's newer snapshot covers
        it: load it again), and Overloaded where more than `limit` keys are pending.
        """
        ...


class PinnedTable(NamedTuple):
    """A table at one snapshot; None where it has none yet. One in Delta's format is found by its location."""

    name: TableName
    snapshot_id: int | None
    delta_location: str | None = None


class BigQueryEngine(Protocol):
    """An engine outside the gateway, for what `route` sends away: Spark."""

    name: str

    def query(
        self, sql: str, views: Mapping[str, PinnedTable], *, limit: int, timeout_s: float, stages: str = ""
    ) -> AsyncIterator[pa.RecordBatch]:
        """Run a checked SELECT in Spark's words over views of tables, for at most so many rows. With `stages` its rows
        are documents, and what comes is what those stages make of them (`wire/mongo/stages`).

        The first batch always comes, with or without rows; closing the iterator cancels. Raises Overloaded where the
        engine is not there.
        """
        ...


# Whether the caller may read a table. A table that it may not read does not exist for it.
Readable = Callable[[TableName], bool]


def everything(name: TableName) -> bool:
    """The scope of a caller without bounds: an engine may keep the whole warehouse open for it."""
    del name
    return True


def named_tables(name: TableName) -> bool:
    """The scope of the server's own reads, whose rows go to callers with bounds.

    Every table may be named, and an engine opens the folders of the named ones only: anybody may make a table whose
    manifests name another's files.
    """
    del name
    return True
