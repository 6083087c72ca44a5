"""Databases of every earlier version are taken up as they are, and those of a later one are left alone."""

import hashlib
import sqlite3
from pathlib import Path

import psycopg
import pytest

from mainstem.catalog import TableIdent
from mainstem.catalog.stores import postgres as postgres_store
from mainstem.catalog.stores import sqlite as sqlite_store
from mainstem.catalog.stores.store import Kind, Pointer, Store
from mainstem.model import UNNAMED, Corrupt, LogPosition
from tests.contract.catalog_client import new_database

# Databases that were made by these exist: whoever changes one of them, instead of adding another, breaks theirs.
GOLDEN = {
    "sqlite": ["bd19e1", "a29db4", "636c3f", "0dee78"],
    "postgres": ["ee35f1", "636c3f", "0dee78"],
}
MIGRATIONS = {"sqlite": sqlite_store.MIGRATIONS, "postgres": postgres_store.MIGRATIONS}
# As the versions before the last one have them, and as the last one has.
ROWS = (
    "INSERT INTO namespaces (namespace, properties) VALUES ('db', '{\"owner\":\"me\"}')",
    "INSERT INTO tables (namespace, name, metadata_location, location, snapshot_id, covered)"
    " VALUES ('db', 't', '/db/t/metadata/1', '/db/t', 5, 7)",
)
NEWEST_ROWS = (
    ROWS[0],
    "INSERT INTO tables (namespace, name, metadata_location, location, snapshot_id, marks)"
    " VALUES ('db', 't', '/db/t/metadata/1', '/db/t', 5, '{\"\":7}')",
)
EXPECTED = [(TableIdent(("db",), "t"), Pointer("/db/t/metadata/1", "/db/t", 5, {UNNAMED: LogPosition(7)}))]


@pytest.mark.parametrize("kind", list(GOLDEN))
def test_migrations_are_only_ever_added(kind: str) -> None:
    found = [hashlib.sha256(" ".join(script.split()).encode()).hexdigest()[:6] for script in MIGRATIONS[kind]]
    assert found == GOLDEN[kind]


def _check(store: Store) -> None:
    assert store.namespace_properties(("db",)) == {"owner": "me"}
    assert store.entries(None, Kind.TABLE) == EXPECTED
    assert store.mark("none") is None
    store.close()


@pytest.mark.parametrize("version", range(1, len(sqlite_store.MIGRATIONS) + 1))
def test_sqlite_of_an_earlier_version(tmp_path: Path, version: int) -> None:
    path = tmp_path / "catalog.db"
    with sqlite3.connect(path) as connection:
        for script in sqlite_store.MIGRATIONS[:version]:
            connection.executescript(script)
        for row in NEWEST_ROWS if version == len(sqlite_store.MIGRATIONS) else ROWS:
            connection.execute(row)
        connection.execute(f"PRAGMA user_version={version}")
    # Twice: the second time there is nothing to do.
    for _ in range(2):
        _check(sqlite_store.SqliteStore(path))


@pytest.mark.parametrize("version", range(1, len(postgres_store.MIGRATIONS) + 1))
def test_postgresql_of_an_earlier_version(version: int) -> None:
    database = new_database()
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE catalog_version (version INTEGER NOT NULL)")
        connection.execute("INSERT INTO catalog_version VALUES (%s)", (version,))
        for script in postgres_store.MIGRATIONS[:version]:
            connection.execute(script)
        for row in NEWEST_ROWS if version == len(postgres_store.MIGRATIONS) else ROWS:
            connection.execute(row)
    for _ in range(2):
        _check(postgres_store.PostgresStore(database))


def test_postgresql_of_a_later_version_is_left_alone() -> None:
    database = new_database()
    postgres_store.PostgresStore(database).close()
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE catalog_version SET version = 999")
    with pytest.raises(Corrupt, match="later version"):
        postgres_store.PostgresStore(database)
