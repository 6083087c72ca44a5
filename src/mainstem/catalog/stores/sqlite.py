"""The embedded store: SQLite with Python's own module. One file, one writer at a time, readers beside it.

No dependency, no import time, and one fsync per transaction (WAL, synchronous=FULL), which those share who write at the
same time. The lock on the data folder makes this process the only one that writes, so that pointers can be remembered.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from mainstem.catalog.names import TableIdent
from mainstem.catalog.stores.pointer_cache import PointerCache
from mainstem.catalog.stores.shared_writes import SharedWrites, Turn
from mainstem.catalog.stores.sql import Connection, SqlStore, Violated, write_mark
from mainstem.catalog.stores.store import Kind, Pointer, Swap
from mainstem.model import Corrupt, OutcomeUnknown, Overloaded

BUSY_TIMEOUT_S = 30.0

T = TypeVar("T")

# Each entry takes the database from the version of its index to the next one. Entries are only ever added.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE namespaces (
        namespace TEXT PRIMARY KEY,
        properties TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE tables (
        namespace TEXT NOT NULL REFERENCES namespaces (namespace),
        name TEXT NOT NULL,
        metadata_location TEXT NOT NULL,
        location TEXT NOT NULL,
        snapshot_id INTEGER,
        covered INTEGER NOT NULL,
        PRIMARY KEY (namespace, name)
    ) WITHOUT ROWID;
    """,
    """
    ALTER TABLE tables ADD COLUMN kind TEXT NOT NULL DEFAULT 'table';
    CREATE INDEX tables_location ON tables (location);
    CREATE TABLE marks (
        key TEXT PRIMARY KEY,
        request TEXT NOT NULL,
        status INTEGER NOT NULL,
        body BLOB NOT NULL,
        time_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX marks_time ON marks (time_ms);
    """,
    """
    ALTER TABLE tables ADD COLUMN details TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE tables ADD COLUMN marks TEXT NOT NULL DEFAULT '{}';
    UPDATE tables SET marks = '{"":' || covered || '}' WHERE covered > 0;
    ALTER TABLE tables DROP COLUMN covered;
    """,
)


class SqliteStore(SqlStore):
    """A store in one file."""

    is_embedded = True

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        # As many connections as there are calls at the same moment; the callers' threads are what bounds them.
        self._idle: list[sqlite3.Connection] = []
        # Writers queue here rather than in SQLite, whose busy handler sleeps and polls.
        self._writes = SharedWrites(self._carry_out)
        self._pointers = PointerCache(super().entry)
        self._migrate()

    def entry(self, ident: TableIdent) -> Pointer | None:
        return self._pointers.find(ident)

    def swap(self, swaps: Sequence[Swap]) -> bool:
        is_done = False
        try:
            is_done = super().swap(swaps)
        finally:
            if is_done:
                self._pointers.advance(swaps)
            else:
                self._pointers.forget(swap.ident for swap in swaps)
        return is_done

    def rename(self, source: TableIdent, destination: TableIdent, kind: Kind) -> None:
        with self._writing(source, destination):
            super().rename(source, destination, kind)

    def drop(self, ident: TableIdent, kind: Kind) -> Pointer:
        with self._writing(ident):
            return super().drop(ident, kind)

    @contextmanager
    def _writing(self, *idents: TableIdent) -> Iterator[None]:
        try:
            yield
        finally:
            self._pointers.forget(idents)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        return connection

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        finally:
            self._idle.append(connection)

    def _transact(self, statements: Callable[[Connection], T], *, is_one_write: bool = False) -> T:
        return self._writes.run(statements, is_one_write=is_one_write)

    def _carry_out(self, turns: list[Turn]) -> None:
        """One transaction for all: what fails is undone by itself, and the others are durable at the end."""
        with self._read() as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                _take_turns(connection, turns)
            except sqlite3.OperationalError as error:
                # A full or failing disk, or another process in the way: nothing was written.
                _roll_back(connection)
                for turn in turns:
                    turn.error = _cannot_write(error)
                return
            except BaseException:
                _roll_back(connection)
                raise
            if all(turn.error is not None for turn in turns):
                _roll_back(connection)
                return
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                # A failed COMMIT may have reached the disk or not; only a look after recovery tells. Who was refused
                # may have been for what another one of them did: that is as little known.
                _roll_back(connection)
                for turn in turns:
                    turn.error = OutcomeUnknown(f"catalog store could not confirm a commit. got={error}")

    def _migrate(self) -> None:
        self._transact(self._bring_up_to_date)

    def _bring_up_to_date(self, connection: Connection) -> None:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version > len(MIGRATIONS):
            raise Corrupt(
                f"catalog is of a later version. expected=at most {len(MIGRATIONS)} got={version}",
                place=str(self._path),
            )
        for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
            for statement in filter(str.strip, script.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={number}")

    def close(self) -> None:
        """Release every connection."""
        while self._idle:
            self._idle.pop().close()


def _take_turns(connection: sqlite3.Connection, turns: list[Turn]) -> None:
    for turn in turns:
        # One alone is undone with the transaction, and a statement that fails has done nothing.
        is_apart = len(turns) > 1 and not (turn.is_one_write and turn.mark is None)
        if is_apart:
            connection.execute("SAVEPOINT turn")
        try:
            turn.value = turn.statements(connection)
            if turn.mark is not None:
                write_mark(connection, turn.mark)
        except Exception as error:
            if not connection.in_transaction:
                # On some errors SQLite rolls back all there is.
                raise
            turn.error = _told(error)
            if is_apart:
                connection.execute("ROLLBACK TO turn")
        if is_apart:
            connection.execute("RELEASE turn")


def _told(error: Exception) -> Exception:
    match error:
        case sqlite3.IntegrityError():
            return Violated(str(error))
        case sqlite3.OperationalError():
            return _cannot_write(error)
        case _:
            return error


def _cannot_write(error: sqlite3.OperationalError) -> Overloaded:
    return Overloaded(f"catalog store cannot write. got={error}", retry_after_s=1.0)


def _roll_back(connection: sqlite3.Connection) -> None:
    # SQLite itself rolls back on some errors, such as a full disk.
    if connection.in_transaction:
        connection.execute("ROLLBACK")
