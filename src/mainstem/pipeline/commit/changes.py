"""What one physical table gets from a pass, whatever its format, and what such a table says of itself."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from mainstem.model.errors import Invalid
from mainstem.model.names import TableName
from mainstem.pipeline.commit.marks import Marks
from mainstem.tables.evolution import Column
from mainstem.tables.since import Since


class NameTaken(Invalid):
    """No table can be made: a view, or a table of another kind, has its name."""


class PhysicalTable(Protocol):
    """A table of some format, at the snapshot that was looked at last."""

    @property
    def name(self) -> TableName:
        """Its name."""

    @property
    def snapshot_id(self) -> int | None:
        """What is looked at. None: the table is empty."""

    @property
    def rows(self) -> int:
        """How many rows its files have, deleted ones included."""

    def names(self) -> set[str]:
        """Of all its columns."""

    def marks(self) -> Marks:
        """What it covers."""

    def columns(self) -> tuple[Column, ...]:
        """The rows' own columns, of a state."""

    def columns_since(self) -> Since:
        """Columns that came later than the table, and which rows lack them."""

    def say_logs(self) -> None:
        """Give a history, or a table of dead letters, of before a column for the log of each position."""

    def transforms(self) -> dict[str, set[str]]:
        """By column, what partition fields are made of it, where that binds its type."""

    def committed(self) -> tuple[int | None, int]:
        """The snapshot that a commit of ours has just made, and the rows of its files."""


T = TypeVar("T", bound=PhysicalTable)


@dataclass(slots=True, kw_only=True)
class TableChange(ABC, Generic[T]):
    """What one physical table gets from a pass. Files are described in JSON."""

    table: T
    marks: Marks
    files: list[str] = field(default_factory=list)
    # Delete files that were written already.
    deletes: list[str] = field(default_factory=list)
    # Rows that stay were written anew, so an index does not know where they are from now on.
    moves_rows: bool = False
    is_committed: bool = False

    @abstractmethod
    def commit(self) -> None:
        """Make it visible by itself. Raises Conflict where the table has changed meanwhile."""
