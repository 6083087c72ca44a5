"""The catalog's own state: which namespaces and tables there are, and which metadata file each table is at.

The store holds pointers, never metadata. `swap` is the one moment at which a commit happens: it compares and sets
the pointers of any number of tables in one transaction. SQLite with its standard module serves one gateway: no
dependency, no import time, one fsync per transaction (WAL, synchronous=FULL). Several gateways on PostgreSQL are
another implementation of `Store`.
"""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from mainstem.catalog.errors import AlreadyExists, NamespaceNotEmpty, NoSuchNamespace, NoSuchTable
from mainstem.catalog.names import Namespace, TableIdent
from mainstem.model import Corrupt, LogPosition, OutcomeUnknown, Overloaded

SEPARATOR = "\x1f"
# One above the separator: everything that starts with "ns\x1f" sorts below "ns\x20".
SEPARATOR_AFTER = "\x20"
BUSY_TIMEOUT_S = 30.0

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
)


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a table stands: its current metadata file, and what that says of its folder and its main branch."""

    metadata_location: str
    location: str
    snapshot_id: int | None
    covered: LogPosition


@dataclass(frozen=True, slots=True)
class Swap:
    """One table's part of a commit. `expected` is the metadata file that must be current; None: no such table."""

    ident: TableIdent
    expected: str | None
    pointer: Pointer


class Store(Protocol):
    """The contract of every backend. Writes are durable when they return."""

    def namespaces(self, parent: Namespace) -> list[Namespace]:
        """The namespaces right below `parent` (empty: the top level), sorted."""

    def namespace_properties(self, namespace: Namespace) -> dict[str, str]:
        """The properties of a namespace."""

    def create_namespace(self, namespace: Namespace, properties: dict[str, str]) -> None:
        """Create a namespace, and the ones above it that do not exist."""

    def update_namespace(
        self, namespace: Namespace, removals: Sequence[str], updates: dict[str, str]
    ) -> tuple[list[str], list[str]]:
        """Set and remove properties. Returns the removed keys and the missing ones."""

    def drop_namespace(self, namespace: Namespace) -> None:
        """Drop an empty namespace."""

    def tables(self, namespace: Namespace | None) -> list[tuple[TableIdent, Pointer]]:
        """The tables of one namespace, or (None) of all, sorted by name."""

    def table(self, ident: TableIdent) -> Pointer | None:
        """Where a table stands, None if there is no such table."""

    def swap(self, swaps: Sequence[Swap]) -> bool:
        """Point every table at its new metadata, or none of them: False if one is not at what was expected."""

    def rename_table(self, source: TableIdent, destination: TableIdent) -> None:
        """Move a table to another name."""

    def drop_table(self, ident: TableIdent) -> Pointer:
        """Forget a table. Returns where it stood."""

    def is_location_used(self, location: str) -> bool:
        """Whether a table lives in exactly this folder."""

    def close(self) -> None:
        """Release every resource."""


class SqliteStore:
    """The embedded backend: one file, one writer at a time, readers beside it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        # As many connections as there are calls at the same moment; the callers' threads are what bounds them.
        self._idle: list[sqlite3.Connection] = []
        # Writers queue here rather than in SQLite, whose busy handler sleeps and polls.
        self._write_lock = threading.Lock()
        self._migrate()

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

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._write_lock, self._read() as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
            except BaseException as error:
                _roll_back(connection)
                if isinstance(error, sqlite3.OperationalError):
                    # A full or failing disk, or another process in the way: nothing was written.
                    raise Overloaded(f"catalog store cannot write. got={error}", retry_after_s=1.0) from error
                raise
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                # A failed COMMIT may have reached the disk or not; only a look after recovery tells.
                _roll_back(connection)
                raise OutcomeUnknown(f"catalog store could not confirm a commit. got={error}") from error

    def _migrate(self) -> None:
        with self._write() as connection:
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

    def namespaces(self, parent: Namespace) -> list[Namespace]:
        with self._read() as connection:
            if parent:
                _properties(connection, parent)
                key = SEPARATOR.join(parent)
                rows = connection.execute(
                    "SELECT namespace FROM namespaces WHERE namespace > ? AND namespace < ? ORDER BY namespace",
                    (key + SEPARATOR, key + SEPARATOR_AFTER),
                ).fetchall()
            else:
                rows = connection.execute("SELECT namespace FROM namespaces ORDER BY namespace").fetchall()
        found = (_levels(row[0]) for row in rows)
        return [namespace for namespace in found if len(namespace) == len(parent) + 1]

    def namespace_properties(self, namespace: Namespace) -> dict[str, str]:
        with self._read() as connection:
            return _properties(connection, namespace)

    def create_namespace(self, namespace: Namespace, properties: dict[str, str]) -> None:
        with self._write() as connection:
            insert = "INSERT OR IGNORE INTO namespaces (namespace, properties) VALUES (?, ?)"
            for depth in range(1, len(namespace)):
                connection.execute(insert, (SEPARATOR.join(namespace[:depth]), "{}"))
            done = connection.execute(insert, (SEPARATOR.join(namespace), _text(properties)))
            if done.rowcount == 0:
                raise AlreadyExists(f"Namespace already exists: {'.'.join(namespace)}")

    def update_namespace(
        self, namespace: Namespace, removals: Sequence[str], updates: dict[str, str]
    ) -> tuple[list[str], list[str]]:
        with self._write() as connection:
            properties = _properties(connection, namespace)
            removed = [key for key in removals if key in properties]
            missing = [key for key in removals if key not in properties]
            kept = {key: value for key, value in properties.items() if key not in removed} | updates
            connection.execute(
                "UPDATE namespaces SET properties = ? WHERE namespace = ?", (_text(kept), SEPARATOR.join(namespace))
            )
        return removed, missing

    def drop_namespace(self, namespace: Namespace) -> None:
        key = SEPARATOR.join(namespace)
        with self._write() as connection:
            tables = connection.execute("SELECT count(*) FROM tables WHERE namespace = ?", (key,)).fetchone()[0]
            below = connection.execute(
                "SELECT count(*) FROM namespaces WHERE namespace > ? AND namespace < ?",
                (key + SEPARATOR, key + SEPARATOR_AFTER),
            ).fetchone()[0]
            if tables or below:
                what = f"{tables} table(s)" if tables else f"{below} namespace(s)"
                raise NamespaceNotEmpty(f"Namespace {'.'.join(namespace)} is not empty. Contains {what}.")
            if connection.execute("DELETE FROM namespaces WHERE namespace = ?", (key,)).rowcount == 0:
                raise NoSuchNamespace(namespace)

    def tables(self, namespace: Namespace | None) -> list[tuple[TableIdent, Pointer]]:
        select = f"SELECT namespace, name, {_POINTER} FROM tables"
        with self._read() as connection:
            if namespace is None:
                rows = connection.execute(f"{select} ORDER BY namespace, name").fetchall()
            else:
                _properties(connection, namespace)
                key = SEPARATOR.join(namespace)
                rows = connection.execute(f"{select} WHERE namespace = ? ORDER BY name", (key,)).fetchall()
        return [(TableIdent(_levels(row[0]), row[1]), _pointer(row[2:])) for row in rows]

    def table(self, ident: TableIdent) -> Pointer | None:
        with self._read() as connection:
            return _table(connection, ident)

    def swap(self, swaps: Sequence[Swap]) -> bool:
        with self._write() as connection:
            for swap in swaps:
                current = _table(connection, swap.ident)
                if (None if current is None else current.metadata_location) != swap.expected:
                    return False
            for swap in swaps:
                if swap.expected is None:
                    _properties(connection, swap.ident.namespace)
                to = swap.pointer
                connection.execute(
                    f"INSERT INTO tables (namespace, name, {_POINTER}) VALUES (?, ?, ?, ?, ?, ?)"
                    " ON CONFLICT (namespace, name) DO UPDATE SET metadata_location = excluded.metadata_location,"
                    " location = excluded.location, snapshot_id = excluded.snapshot_id, covered = excluded.covered",
                    (*_key(swap.ident), to.metadata_location, to.location, to.snapshot_id, to.covered),
                )
        return True

    def rename_table(self, source: TableIdent, destination: TableIdent) -> None:
        with self._write() as connection:
            if _table(connection, source) is None:
                raise NoSuchTable(source)
            _properties(connection, destination.namespace)
            if _table(connection, destination) is not None:
                raise AlreadyExists(f"Table already exists: {destination}")
            connection.execute(
                "UPDATE tables SET namespace = ?, name = ? WHERE namespace = ? AND name = ?",
                (*_key(destination), *_key(source)),
            )

    def drop_table(self, ident: TableIdent) -> Pointer:
        with self._write() as connection:
            pointer = _table(connection, ident)
            if pointer is None:
                raise NoSuchTable(ident)
            connection.execute("DELETE FROM tables WHERE namespace = ? AND name = ?", _key(ident))
        return pointer

    def is_location_used(self, location: str) -> bool:
        with self._read() as connection:
            return connection.execute("SELECT 1 FROM tables WHERE location = ?", (location,)).fetchone() is not None

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


_POINTER = "metadata_location, location, snapshot_id, covered"


def _properties(connection: sqlite3.Connection, namespace: Namespace) -> dict[str, str]:
    row = connection.execute(
        "SELECT properties FROM namespaces WHERE namespace = ?", (SEPARATOR.join(namespace),)
    ).fetchone()
    if row is None:
        raise NoSuchNamespace(namespace)
    return msgspec.json.decode(row[0], type=dict[str, str])


def _table(connection: sqlite3.Connection, ident: TableIdent) -> Pointer | None:
    select = f"SELECT {_POINTER} FROM tables WHERE namespace = ? AND name = ?"
    row = connection.execute(select, _key(ident)).fetchone()
    return None if row is None else _pointer(row)


def _pointer(row: Sequence[Any]) -> Pointer:
    return Pointer(row[0], row[1], row[2], LogPosition(row[3]))


def _roll_back(connection: sqlite3.Connection) -> None:
    # SQLite itself rolls back on some errors, such as a full disk.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _key(ident: TableIdent) -> tuple[str, str]:
    return SEPARATOR.join(ident.namespace), ident.name


def _levels(text: str) -> Namespace:
    return tuple(text.split(SEPARATOR))


def _text(properties: dict[str, str]) -> str:
    return msgspec.json.encode(properties).decode()
