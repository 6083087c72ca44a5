"""Tables of other formats in the catalog: listed beside the Iceberg ones, and never mistaken for one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

from mainstem.model import UNNAMED, TableName
from tests.compat.catalog_server import Server
from tests.contract.catalog_client import SCHEMA, Client, catalog_client, make_table

client = catalog_client
NEW = {"name": "d", "format": "DELTA", "base-location": "/lake/db/d/", "doc": "of another kind"}
PATH = "namespaces/db/generic-tables"


@pytest.fixture(autouse=True)
def _namespace(request: pytest.FixtureRequest) -> None:
    if "client" in request.fixturenames:
        request.getfixturevalue("client").ok("POST", "namespaces", {"namespace": ["db"]})


def test_create_list_load_and_drop(client: Client) -> None:
    told = {"name": "d", "format": "delta", "base-location": "/lake/db/d", "doc": "of another kind", "properties": {}}
    assert client.ok("POST", PATH, NEW) == {"table": told}
    assert client.ok("GET", f"{PATH}/d") == {"table": told}
    listed = {"identifiers": [{"namespace": ["db"], "name": "d"}], "next-page-token": None}
    assert client.ok("GET", PATH) == listed
    assert client.ok("GET", "namespaces/db/tables")["identifiers"] == []
    assert client.error("DELETE", "namespaces/db")[:2] == (409, "NamespaceNotEmptyException")
    client.ok("DELETE", f"{PATH}/d")
    gone = (404, "NoSuchGenericTableException", "Generic table does not exist: db.d")
    assert client.error("GET", f"{PATH}/d") == gone
    assert client.error("DELETE", f"{PATH}/d") == gone


def test_names_are_shared_with_tables_and_views(client: Client) -> None:
    client.ok("POST", PATH, NEW)
    make_table(client, name="t")
    assert client.error("POST", PATH, NEW) == (409, "AlreadyExistsException", "Generic table already exists: db.d")
    taken = (409, "AlreadyExistsException", "Generic table with same name already exists: db.d")
    assert client.error("POST", "namespaces/db/tables", {"name": "d", "schema": SCHEMA}) == taken
    taken = (409, "AlreadyExistsException", "Table with same name already exists: db.t")
    assert client.error("POST", PATH, {**NEW, "name": "t"}) == taken
    assert client.error("GET", f"{PATH}/t")[:2] == (404, "NoSuchGenericTableException")


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_iceberg_client_is_told_what_there_is(client: Client, method: str) -> None:
    client.ok("POST", PATH, NEW)
    body: Any = {"requirements": [], "updates": []} if method == "POST" else None
    status, kind, message = client.error(method, "namespaces/db/tables/d", body)
    assert (status, kind) == (404, "NoSuchTableException")
    assert message.startswith("Table does not exist: db.d")
    if method != "DELETE":
        assert message.endswith("There is a delta table of that name, at /lake/db/d")
    assert client.send("HEAD", "namespaces/db/tables/d").status == 404


@pytest.mark.parametrize(
    "body",
    [{**NEW, "name": ""}, {**NEW, "format": ""}, {**NEW, "format": "x" * 65}, {**NEW, "base-location": ""}, {}],
)
def test_what_is_wrong_is_refused(client: Client, body: dict[str, Any]) -> None:
    assert client.error("POST", PATH, body)[:2] == (400, "BadRequestException")
    assert client.ok("GET", PATH)["identifiers"] == []


def test_positions_are_heard_and_never_go_backwards(client: Client) -> None:
    client.ok("POST", PATH, NEW)
    for position, version in (("7", "1"), ("9", "2")):
        properties = {"mainstem.position": position, "mainstem.version": version}
        client.ok("POST", f"{PATH}/d", {"properties": properties})
    assert [(c.table, c.marks, c.snapshot_id) for c in client.heard[-2:]] == [
        (TableName("db", "d"), {UNNAMED: 7}, 1),
        (TableName("db", "d"), {UNNAMED: 9}, 2),
    ]
    refused = client.error("POST", f"{PATH}/d", {"properties": {"mainstem.position": "8"}})
    assert refused[:2] == (409, "CommitFailedException")
    assert client.ok("GET", f"{PATH}/d")["table"]["properties"] == {"mainstem.position": "9", "mainstem.version": "2"}
    assert [(t.table, t.marks) for t in client.catalog.tables()] == [(TableName("db", "d"), {UNNAMED: 9})]


def test_engines_find_the_delta_table_or_say_why_not(tmp_path: Path) -> None:
    location = tmp_path / "warehouse" / "db" / "d"
    write_deltalake(location, pa.table({"id": [1, 2, 3]}))
    with Server(tmp_path, str(tmp_path / "warehouse")) as server:
        iceberg = server.pyiceberg()
        iceberg.create_namespace("db")
        new = {"name": "d", "format": "delta", "base-location": str(location)}
        httpx.post(f"{server.url}/v1/{PATH}", json=new, timeout=60).raise_for_status()
        found = httpx.get(f"{server.url}/v1/{PATH}/d", timeout=60).json()["table"]["base-location"]
        assert DeltaTable(found).to_pyarrow_table()["id"].to_pylist() == [1, 2, 3]
        with pytest.raises(NoSuchTableError, match="There is a delta table of that name, at"):
            iceberg.load_table("db.d")
        with pytest.raises(TableAlreadyExistsError):
            iceberg.create_table("db.d", pa.schema([("id", pa.int64())]))
        assert iceberg.list_tables("db") == []
        with server.duckdb() as duck, pytest.raises(duckdb.Error, match="d does not exist"):
            duck.execute("SELECT * FROM lake.db.d")
        command = [sys.executable, "-m", "mainstem.app.cli.main", "catalog", "--url", server.url, "list"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert "db.d" in listed
        assert "delta table" in listed
