"""DuckDB on the driver, for what is small and must be quick: a bounded batch's rows, and where their old ones are.

It only ever sees one bounded batch and the key column of one table. Where files are not on a local disk, or a table is
too large for one machine, Spark answers the same questions (see `keys`, `lookup`, `driverpass`).
"""

import os
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

import duckdb

THREADS_MAX = 8
MEMORY_LIMIT = "2GB"


class DriverSql:
    """One in-memory database; every use gets a cursor of its own, so that lanes do not wait for each other."""

    def __init__(self) -> None:
        self.threads = min(THREADS_MAX, os.cpu_count() or 1)
        self._database = duckdb.connect(
            ":memory:",
            config={
                "threads": str(self.threads),
                "memory_limit": MEMORY_LIMIT,
                # Nothing is to be fetched at run time.
                "autoinstall_known_extensions": "false",
                "preserve_insertion_order": "false",
            },
        )

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """To be used by one thread, and closed."""
        return self._database.cursor()


def local_path(location: str) -> str | None:
    """The path of a file on this machine, or None where it is elsewhere."""
    if location.startswith("/"):
        return location
    parts = urlsplit(location)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        # Hadoop writes `file:/a b`, others `file:///a%20b`.
        return unquote(parts.path) if location.startswith("file://") else location[len("file:") :]
    return None


def text_of(value: str) -> str:
    """A string in SQL."""
    return "'" + value.replace("'", "''") + "'"


def text_list(values: Iterable[str]) -> str:
    """A list of strings in SQL."""
    return "[" + ", ".join(map(text_of, values)) + "]"


def name_of(column: str) -> str:
    """An identifier in SQL."""
    return '"' + column.replace('"', '""') + '"'
