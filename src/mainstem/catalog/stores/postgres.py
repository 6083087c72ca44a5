"""The store of several gateways: PostgreSQL, through psycopg (the extra `mainstem[postgres]`).

Gateways share nothing but this database and the warehouse. Transactions run at READ COMMITTED, because every check that
matters is part of the statement that writes.
"""

import importlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from mainstem.catalog.names import TableIdent
from mainstem.catalog.stores.postgres_watch import CHANNEL, PostgresWatch, payload
from mainstem.catalog.stores.sql import Connection, Cursor, SqlStore, Violated, write_mark
from mainstem.catalog.stores.store import CURRENT_MARK, Watch
from mainstem.model import Corrupt, Invalid, OutcomeUnknown, Overloaded

CONNECT_TIMEOUT_S = 10
STATEMENT_TIMEOUT_MS = 30_000
# Advisory locks, by numbers that are used for nothing else in this database: for migrations, for changes of namespaces.
_MIGRATION_LOCK = 7_302_211
_NAMESPACES_LOCK = 7_302_212

# Names sort and compare by their bytes ("C"), whatever the database's language is: paging and nesting rely on it.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE namespaces (
        namespace TEXT COLLATE "C" PRIMARY KEY,
        properties TEXT NOT NULL
    );
    CREATE TABLE tables (
        namespace TEXT COLLATE "C" NOT NULL REFERENCES namespaces (namespace),
        name TEXT COLLATE "C" NOT NULL,
        metadata_location TEXT NOT NULL,
        location TEXT NOT NULL,
        snapshot_id BIGINT,
        covered BIGINT NOT NULL,
        kind TEXT NOT NULL DEFAULT 'table',
        PRIMARY KEY (namespace, name)
    );
    CREATE INDEX tables_location ON tables (location);
    CREATE TABLE marks (
        key TEXT PRIMARY KEY,
        request TEXT NOT NULL,
        status INTEGER NOT NULL,
        body BYTEA NOT NULL,
        time_ms BIGINT NOT NULL
    );
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

T = TypeVar("T")


class _Session:
    """A psycopg connection that takes `?` for a parameter."""

    def __init__(self, connection: Any) -> None:
        self.raw = connection

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        cursor: Cursor = self.raw.execute(sql.replace("?", "%s"), parameters)
        return cursor


class PostgresStore(SqlStore):
    """A store in a PostgreSQL database, in the schema that the connection's search path names."""

    def __init__(self, dsn: str) -> None:
        try:
            # An extra, and slow to import: only who has a PostgreSQL pays for it.
            self._psycopg: Any = importlib.import_module("psycopg")
        except ImportError as error:
            raise Invalid("PostgreSQL needs psycopg. expected=pip install 'mainstem[postgres]' got=none") from error
        self._dsn = dsn
        # By which this process knows its own notifications.
        self._id = uuid.uuid4().hex
        self._idle: list[_Session] = []
        self._lock = threading.Lock()
        self._migrate()

    def _connect(self) -> _Session:
        options = f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout={STATEMENT_TIMEOUT_MS}"
        try:
            connection = self._psycopg.connect(
                self._dsn, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, options=options
            )
        except self._psycopg.OperationalError as error:
            raise Overloaded(f"catalog store cannot be reached. got={error}", retry_after_s=1.0) from error
        return _Session(connection)

    def _take(self) -> _Session:
        with self._lock:
            while self._idle:
                session = self._idle.pop()
                if not session.raw.closed:
                    return session
        return self._connect()

    def _give_back(self, session: _Session) -> None:
        if not session.raw.closed:
            with self._lock:
                self._idle.append(session)

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        session = self._take()
        try:
            yield session
        except self._psycopg.OperationalError as error:
            session.raw.close()
            self._drop_idle()
            raise Overloaded(f"catalog store cannot be read. got={error}", retry_after_s=1.0) from error
        finally:
            self._give_back(session)

    def _transact(self, statements: Callable[[Connection], T], *, is_one_write: bool = False) -> T:
        # The server lets those who commit at the same time share what it takes to be durable.
        with self._write() as connection:
            return statements(connection)

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        session = self._take()
        try:
            yield from self._transaction(session)
        finally:
            self._give_back(session)

    def _transaction(self, session: _Session) -> Iterator[Connection]:
        try:
            session.execute("BEGIN")
            yield session
            if (mark := CURRENT_MARK.get()) is not None:
                write_mark(session, mark)
        except BaseException as error:
            self._roll_back(session)
            if isinstance(error, self._psycopg.IntegrityError):
                raise Violated(str(error)) from error
            if isinstance(error, self._psycopg.OperationalError):
                self._drop_idle()
                # Lost before COMMIT was sent, or a lock that was not had in time: nothing was written.
                raise Overloaded(f"catalog store cannot write. got={error}", retry_after_s=1.0) from error
            raise
        try:
            session.execute("COMMIT")
        except self._psycopg.Error as error:
            # The server may have committed before the connection broke.
            session.raw.close()
            raise OutcomeUnknown(f"catalog store could not confirm a commit. got={error}") from error

    def _roll_back(self, session: _Session) -> None:
        try:
            session.execute("ROLLBACK")
        except self._psycopg.Error:
            # A connection that cannot even roll back is of no more use; the server does it when the socket closes.
            session.raw.close()

    def _tell_others(self, connection: Connection, idents: Sequence[TableIdent]) -> None:
        connection.execute("SELECT pg_notify(?, ?)", (CHANNEL, payload(self._id, idents)))

    def watch(self) -> Watch | None:
        return PostgresWatch(lambda: self._connect().raw, self._id, self._psycopg.OperationalError)

    def _lock_namespaces(self, connection: Connection) -> None:
        connection.execute("SELECT pg_advisory_xact_lock(?)", (_NAMESPACES_LOCK,))

    def _migrate(self) -> None:
        with self._write() as connection:
            # Several gateways may start at once.
            connection.execute("SELECT pg_advisory_xact_lock(?)", (_MIGRATION_LOCK,))
            connection.execute("CREATE TABLE IF NOT EXISTS catalog_version (version INTEGER NOT NULL)")
            row = connection.execute("SELECT version FROM catalog_version").fetchone()
            version = 0 if row is None else int(row[0])
            if version > len(MIGRATIONS):
                raise Corrupt(
                    f"catalog is of a later version. expected=at most {len(MIGRATIONS)} got={version}",
                    place="the table catalog_version",
                )
            for script in MIGRATIONS[version:]:
                for statement in filter(str.strip, script.split(";")):
                    connection.execute(statement)
            if version < len(MIGRATIONS):
                connection.execute("DELETE FROM catalog_version")
                connection.execute("INSERT INTO catalog_version (version) VALUES (?)", (len(MIGRATIONS),))

    def _drop_idle(self) -> None:
        # Where one connection broke, the others did too: each would cost somebody a failure.
        self.close()

    def close(self) -> None:
        """Release every connection."""
        with self._lock:
            while self._idle:
                self._idle.pop().raw.close()
