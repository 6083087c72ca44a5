"""What a pass wants from the writer of one logical table, whatever its format."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from mainstem.model.errors import Denied
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.pipeline.passes.plan import DEAD_LETTERS, HISTORY, STATE, TableTask
from mainstem.pipeline.source.segments import TableSlice

# A table with fewer rows is rewritten, or has its keys read, within a pass: that takes a second or two.
PREPARED_ROWS_MIN = 500_000


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that the executors wrote: what its commit says of it, and the hashes of its keys, of a state."""

    description: str
    rows: int
    hashes: bytes = b""


@dataclass(slots=True)
class Written:
    """What the executors made of one table's changes."""

    read: int = 0
    state: list[WrittenFile] = field(default_factory=list)
    history: list[WrittenFile] = field(default_factory=list)
    dead_letters: list[WrittenFile] = field(default_factory=list)
    # Hashes of keys that have no row any more.
    gone: bytes = b""
    # Dead letters that have no table to go to.
    homeless: int = 0

    @property
    def files(self) -> list[WrittenFile]:
        """All of them."""
        return [*self.state, *self.history, *self.dead_letters]


class Writer(Protocol):
    """The only writer of one logical table. A pass calls these in order, and none of them from two threads at once."""

    @property
    def table(self) -> TableName:
        """Its name."""

    def covered(self) -> LogPosition:
        """What the table holds of this log: the less of its state and its history. Looks at the store."""

    def preparation(self, run: TableSlice) -> Callable[[], None] | None:
        """Long work that a large table needs before its next pass: a rewrite of its rows, or an index of its keys.

        The carrier does it beside the passes, so that the other tables do not wait for it. None where there is none.
        """

    def plan(self, run: TableSlice) -> TableTask:
        """Bring the schema up to date, and say what the executors are to do."""

    def evidence(self, changes: DataFrame) -> list[DataFrame]:
        """What a merge has to know besides the changes: old rows and earlier deletes of their keys."""

    def stage(self, written: Written) -> list[Any]:
        """Make commits of what was written. Raises Conflict where the pass must be done again."""

    def committed(self) -> None:
        """What was staged is visible."""

    def discard(self, written: Written) -> None:
        """What was written will not be committed: remove it."""

    def dropped(self, covered: LogPosition) -> None:
        """Somebody may have dropped the table, which has held the changes up to a position: look again.

        If it is gone, one that is made in its place starts after that. Raises nothing.
        """


def refuse_dropped(table: TableName, held: LogPosition, *, refuses: bool) -> None:
    """Raise Denied where a table that is missing must not be made again: it has held changes, so it was dropped."""
    if refuses and held > NOWHERE:
        raise Denied(
            f"the table was dropped, and [pipeline] dropped_tables is refuse. table={table} held={held} "
            "expected=the table registered again, or dropped_tables = recreate"
        )


def sorted_by_table(described: pa.Table) -> dict[TableName, Written]:
    """The executors' descriptions, table by table."""
    found: dict[TableName, Written] = {}
    for row in described.to_pylist():
        written = found.setdefault(TableName(row["namespace"], row["table"]), Written())
        written.read += row["read"] or 0
        written.gone += row["gone"] or b""
        if row["file"] is None:
            written.homeless += row["rows"] if row["part"] == DEAD_LETTERS else 0
            continue
        files = {STATE: written.state, HISTORY: written.history, DEAD_LETTERS: written.dead_letters}[row["part"]]
        files.append(WrittenFile(row["file"], row["rows"], row["hashes"] or b""))
    return found
