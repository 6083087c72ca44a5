"""A reader that looks at tables again and again while something is killed: it must never see a micro-batch in part."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import duckdb

from mainstem.client import connect_duckdb

# Columns of a table's rows, on a connection of its own: nothing of an earlier look is remembered.
Read = Callable[[str, str], list[tuple[Any, ...]]]
# Returns what was seen in part.
Look = Callable[[Read], Iterable[str]]


class Reader:
    """Reads by DuckDB in a thread of its own, and keeps what it saw in part. A context manager."""

    def __init__(self, url: str, looks: Sequence[Look], *, may_be_away: bool = False) -> None:
        self._url = url
        self._looks = looks
        # Whether the catalog is killed: a look that it does not answer is begun anew.
        self._may_be_away = may_be_away
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader")
        self.looks = 0
        self.unanswered = 0
        self.rows = 0
        self.seen_in_part: list[str] = []
        self.failure: BaseException | None = None

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def assert_saw_all(self, looks_min: int) -> None:
        """It has looked so often, and has seen nothing in part."""
        assert self.failure is None, self.failure
        assert self.looks >= looks_min and self.rows > 0
        assert not self.seen_in_part, self.seen_in_part[:10]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for look in self._looks:
                    try:
                        self.seen_in_part += look(self._read)
                    except duckdb.Error:
                        if not self._may_be_away:
                            raise
                        self.unanswered += 1
                    else:
                        self.looks += 1
        except BaseException as error:
            self.failure = error

    def _read(self, columns: str, table: str) -> list[tuple[Any, ...]]:
        with connect_duckdb(self._url) as connection:
            found = connection.execute(f"SELECT {columns} FROM lake.default.{table}").fetchall()
        self.rows += len(found)
        return found
