"""The tables behind the documents, as this package asks for them. It knows no engine; the app provides one.

Of tables that no Mongo client has asked for yet the store keeps the names: their rows may be in the log alone.
"""

import sqlite3
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from mainstem.model.names import TableName, parse_table_name
from mainstem.model.position import LogPosition


class TableRow(NamedTuple):
    """A row of a table: its key, the exact document where it has one, and its columns."""

    key: str
    hlc: int
    document: bytes | None
    columns: dict[str, Any]
    # Columns that were written after the document, by another door.
    newer: dict[str, tuple[int, str]]


class Told(NamedTuple):
    """Documents that stages made of a table's, and the position of the log that the table was at."""

    documents: list[bytes]
    position: LogPosition


class Tables(Protocol):
    """The tables behind the log. The app provides it; this package knows no engine."""

    @property
    def answered(self) -> Mapping[str, int]:
        """How many times `select` answered, by the name of the engine that did."""
        ...

    async def names(self) -> list[TableName]:
        """Every state table there is."""
        ...

    async def covered(self, table: TableName) -> LogPosition:
        """How much of the log a table holds."""
        ...

    def rows(self, table: TableName) -> AsyncIterator[list[TableRow]]:
        """A table's rows."""
        ...

    async def columns(self, table: TableName) -> Mapping[str, str] | None:
        """The fields that are columns under their own names, with the columns' SQL types; None without a table, or
        with one whose declared columns may refuse a row."""
        ...

    async def select(self, sql: str, *, latest: bool, rows_max: int, timeout_s: float) -> list[tuple[Any, ...]] | None:
        """The rows of a query over tables, with what the log has beyond them where `latest`; None where there are too
        many, or the answer cannot be had now."""
        ...

    async def is_large(self, table: TableName) -> bool:
        """Whether reading all of a table is Spark's, by the route of queries."""
        ...

    async def run(self, table: TableName, stages: str, *, rows_max: int, timeout_s: float) -> Told | None:
        """Have Spark run an order of stages over a table's documents; None where it is not large, or no answer can be
        had now, or with too many documents."""
        ...


def keep_untracked(db: sqlite3.Connection, tables: Iterable[TableName]) -> None:
    """Other doors wrote to these tables; the store has not taken them over."""
    db.executemany("INSERT OR IGNORE INTO untracked VALUES (?)", [(str(table),) for table in tables])


def kept_untracked(db: sqlite3.Connection) -> set[TableName]:
    """The tables that were kept, some of which have been taken over since."""
    return {parse_table_name(name) for (name,) in db.execute("SELECT name FROM untracked")}


def forget_untracked(db: sqlite3.Connection, table: TableName) -> None:
    """The table's collection was dropped."""
    db.execute("DELETE FROM untracked WHERE name = ?", (str(table),))
