"""The second wall: a session itself refuses, even where a statement got past the first."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from mainstem.model import TableName
from mainstem.query.sandbox.session import SandboxSettings, Session, Sessions, settings_of
from tests.unit.query.folder_lake import FolderCatalog

SETTINGS = SandboxSettings(memory_bytes_max=128 * 1024 * 1024, threads=1, idle_max=2)


@pytest.fixture
def session(catalog: FolderCatalog) -> Iterator[Session]:
    session = Session(SETTINGS, frozenset({f"{catalog.folder}/default/"}))
    yield session
    session.close()


def test_its_own_folder_can_be_read(session: Session, catalog: FolderCatalog) -> None:
    session.view(TableName("default", "o"), f"SELECT * FROM iceberg_scan('{catalog.locations['default', 'orders']}')")
    assert session.connection.execute("SELECT count(*) FROM lake.default.o").fetchall() == [(999,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_text('{folder}/default/../other/secrets/metadata/v1.json')",
        "SELECT * FROM read_text('{folder}/other/secrets/metadata/x.json')",
        "SELECT * FROM iceberg_scan('{other}')",
        "SELECT * FROM read_text('https://localhost:1/x')",
        "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
        "COPY (SELECT 1) TO '/tmp/mainstem-escape.csv'",
        "ATTACH '/tmp/mainstem-escape.db' AS x",
        "EXPORT DATABASE '/tmp/mainstem-escape'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "LOAD '/tmp/mainstem-escape.duckdb_extension'",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
        "SET threads = 64",
        "SET memory_limit = '64GB'",
        "SET temp_directory = '/tmp'",
        "SET lock_configuration = false",
        "RESET memory_limit",
        "PRAGMA memory_limit = '64GB'",
        "SELECT getenv('HOME')",
        "CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')",
    ],
)
def test_attempts_fail(session: Session, catalog: FolderCatalog, sql: str) -> None:
    text = sql.format(folder=catalog.folder, other=catalog.locations["other", "secrets"])
    with pytest.raises(duckdb.Error):
        session.connection.execute(text).fetchall()
    assert not list(Path("/tmp").glob("mainstem-escape*"))


def test_the_frames_of_python_cannot_be_read(session: Session) -> None:
    import pyarrow as pa

    visible = pa.table({"secret": [1]})
    with pytest.raises(duckdb.Error):
        session.connection.execute("SELECT * FROM visible").fetchall()
    assert visible.num_rows == 1


def test_the_bounds_are_set(session: Session) -> None:
    settings = settings_of(session)
    assert settings["memory_limit"] == "128.0 MiB"
    assert settings["threads"] == "1"
    assert settings["temp_directory"] == ""
    assert settings["lock_configuration"] == "true"
    assert settings["enable_external_access"] == "false"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT list(range) FROM range(100000000)",
        "SELECT sum(a.range) FROM (SELECT DISTINCT range FROM range(100000000)) a",
        "SELECT string_agg(repeat('x', 1000000), '') FROM range(2000)",
    ],
)
def test_memory_is_bounded_and_nothing_is_spilled(session: Session, sql: str) -> None:
    with pytest.raises(duckdb.Error, match=r"(?i)memory|too large|exceed|spill|temp"):
        session.connection.execute(sql).fetchone()


def test_sessions_are_kept_by_their_folders_and_bounded() -> None:
    sessions = Sessions(SETTINGS)
    first = sessions.take({"/a/"})
    sessions.give_back(first, reusable=True)
    assert sessions.take({"/a/"}) is first
    second = sessions.take({"/a/"})
    third = sessions.take({"/b/"})
    for each in (first, second, third):
        sessions.give_back(each, reusable=True)
    with pytest.raises(duckdb.Error):
        first.connection.execute("SELECT 1")
    assert sessions.take({"/b/"}) is third
    sessions.give_back(third, reusable=False)
    with pytest.raises(duckdb.Error):
        third.connection.execute("SELECT 1")
    sessions.close()


def test_views_of_an_earlier_query_are_gone(session: Session) -> None:
    session.view(TableName("default", "a"), "SELECT 1 AS x")
    session.clear()
    session.only([TableName("default", "b")])
    with pytest.raises(duckdb.CatalogException):
        session.connection.execute("SELECT * FROM a")
