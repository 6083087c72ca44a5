"""The second wall of the sandbox: DuckDB sessions that can read the lake's folders and nothing else.

A session is a database in memory. What it may open is fixed and locked before any SQL from outside reaches it: no
file system beyond its folders, no network, no settings, no extensions, no spilling to disk, bounded memory and
threads. Loading the Iceberg extension takes longer than most queries, so sessions are kept and used again: a caller
cannot leave anything behind, since `statement` lets only SELECT through and the views in it are ours. The third wall
is the process that they live in (`worker`), which is not the gateway's.
"""

import importlib
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa

from mainstem.model import DEFAULT_NAMESPACE, TableName
from mainstem.query.statements.statement import WAREHOUSE
from mainstem.sql import duckdb_name, duckdb_text

_EXTENSIONS = ("avro", "iceberg")


class SandboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one session. `prepare` runs before the lock: the place for an object store's secret."""

    memory_bytes_max: int = 512 * 1024 * 1024
    # Of the whole process, beyond what it has when it is ready. The system holds it to this: DuckDB's own bound, above,
    # does not count what some functions take.
    process_bytes_max: int = 1024 * 1024 * 1024
    threads: int = 2
    extensions: tuple[str, ...] = _EXTENSIONS
    prepare: tuple[str, ...] = ()
    # Sessions kept ready beyond those in use.
    idle_max: int = 4


def extension_file(name: str) -> Path:
    """The extension out of its wheel: nothing is downloaded or installed at run time."""
    module = importlib.import_module(f"duckdb_extension_{name}")
    return Path(module.__path__[0]) / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"


class Session:
    """One locked database. Used by one query at a time; only `interrupt` may be called from another thread."""

    def __init__(self, settings: SandboxSettings, folders: frozenset[str]) -> None:
        self.folders = folders
        self._views: dict[TableName, str] = {}
        self._registered: list[str] = []
        self._scratch: list[str] = []
        self.connection = duckdb.connect(
            ":memory:",
            config={
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "allow_community_extensions": "false",
                "python_enable_replacements": "false",
                "python_scan_all_frames": "false",
            },
        )
        for name in settings.extensions:
            self.connection.execute(f"LOAD {duckdb_text(str(extension_file(name)))}")
        for statement in (
            # Before the first secret: it cannot be set later.
            "SET allow_persistent_secrets = false",
            *settings.prepare,
            f"SET threads = {settings.threads}",
            f"SET memory_limit = '{settings.memory_bytes_max} bytes'",
            "SET temp_directory = ''",
            "SET max_temp_directory_size = '0 bytes'",
            "SET max_expression_depth = 250",
            "SET TimeZone = 'UTC'",
            f"ATTACH ':memory:' AS {WAREHOUSE}",
            f"CREATE SCHEMA {WAREHOUSE}.{duckdb_name(DEFAULT_NAMESPACE)}",
            f"USE {WAREHOUSE}.{duckdb_name(DEFAULT_NAMESPACE)}",
            f"SET allowed_directories = [{', '.join(map(duckdb_text, sorted(folders)))}]",
            "SET enable_external_access = false",
            "SET lock_configuration = true",
        ):
            self.connection.execute(statement)

    def only(self, names: Iterable[TableName]) -> None:
        """Drop the views of earlier queries that this one does not name."""
        for name in self._views.keys() - set(names):
            del self._views[name]
            self.connection.execute(f"DROP VIEW IF EXISTS {_full(name)}")

    def view(self, name: TableName, sql: str) -> None:
        """Let the statement see `sql` under a table's name. A view that is there already costs nothing."""
        if self._views.get(name) == sql:
            return
        self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {WAREHOUSE}.{duckdb_name(name.namespace)}")
        self.connection.execute(f"CREATE OR REPLACE VIEW {_full(name)} AS {sql}")
        self._views[name] = sql

    def arrow(self, name: str, table: pa.Table) -> str:
        """Let a view of ours read an Arrow table; returns the name to use in SQL."""
        self._registered.append(name)
        self.connection.register(name, table)
        return duckdb_name(name)

    def scratch(self, name: str, sql: str) -> None:
        """Keep the rows of `sql` in memory for a view of ours."""
        self._scratch.append(name)
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {sql}")

    def clear(self) -> None:
        """Forget the rows of a query that is over, and every view on them. Views on files may serve the next one."""
        if self._scratch or self._registered:
            self.only(())
        for name in self._scratch:
            self.connection.execute(f"DROP TABLE IF EXISTS {name}")
        for name in self._registered:
            self.connection.unregister(name)
        self._registered.clear()
        self._scratch.clear()

    def close(self) -> None:
        """Give the memory back."""
        self.connection.close()


def _full(name: TableName) -> str:
    return f"{WAREHOUSE}.{duckdb_name(name.namespace)}.{duckdb_name(name.table)}"


class Sessions:
    """Locked sessions kept ready, by the folders that they may read. Called from worker threads."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._idle: list[Session] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self, folders: Iterable[str]) -> Session:
        """A session for these folders, ready or new."""
        wanted = frozenset(folders)
        with self._lock:
            for index, session in enumerate(self._idle):
                if session.folders == wanted:
                    return self._idle.pop(index)
        return Session(self._settings, wanted)

    def give_back(self, session: Session, *, reusable: bool) -> None:
        """Keep a session for the next query, or close it. The one that was idle the longest makes room."""
        leaving: list[Session] = []
        if reusable:
            session.clear()
        with self._lock:
            if reusable and not self._closed:
                self._idle.append(session)
                leaving = self._idle[: -self._settings.idle_max]
                self._idle = self._idle[-self._settings.idle_max :]
            else:
                leaving = [session]
        for each in leaving:
            each.close()

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        with self._lock:
            self._closed = True
            leaving, self._idle = self._idle, []
        for session in leaving:
            session.close()


def settings_of(session: Session) -> Mapping[str, str]:
    """The settings that a session runs with, for tests and for the status page."""
    rows = session.connection.execute("SELECT name, value FROM duckdb_settings()").fetchall()
    return dict(rows)
