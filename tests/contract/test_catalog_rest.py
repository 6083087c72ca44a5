"""The REST protocol, bytes in and bytes out: codes, error types and texts that clients match on, paging, ETags."""

import subprocess
import sys
from typing import Any

import pytest

from mainstem.wire.iceberg_rest import ENDPOINTS, Operation, route
from tests.contract.catalog_client import SCHEMA, Client, catalog_client, make_table

client = catalog_client


def test_config(client: Client) -> None:
    config = client.ok("GET", "config?warehouse=lake")
    assert (config["defaults"], config["overrides"]) == ({}, {})
    assert config["endpoints"] == list(ENDPOINTS)
    assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}" in config["endpoints"]
    assert client.error("GET", "config?warehouse=pond") == (
        404,
        "NoSuchWarehouseException",
        "Warehouse does not exist: pond",
    )


def test_routes() -> None:
    found = route("GET", "namespaces/a%1Fb%2Fc/tables/t%20x")
    assert found is not None
    assert found[:3] == (Operation.LOAD_TABLE, ("a", "b/c"), "t x")
    assert route("PUT", "namespaces") is None
    assert route("GET", "namespaces//tables") is None
    assert route("GET", "elsewhere") is None
    # Mainstem's own are served, and not told of to clients of the protocol.
    own = {
        Operation.LIST_PARTITIONS,
        Operation.SET_PARTITIONS,
        Operation.PARTITION_STATS,
        Operation.LIST_SCHEMAS,
        Operation.SET_SCHEMA,
    }
    assert set(Operation) - own == {
        Operation.CONFIG,
        *(call.operation for line in ENDPOINTS if (call := route(*_example(line))) is not None),
    }


def _example(endpoint: str) -> tuple[str, str]:
    method, path = endpoint.split(" ")
    return method, path.removeprefix("/v1/{prefix}/").replace("{namespace}", "n").replace("{table}", "t")


def test_functions_are_asked_for_and_there_are_none(client: Client) -> None:
    client.ok("POST", "namespaces", {"namespace": ["db"]})
    assert client.ok("GET", "namespaces/db/functions?pageSize=10")["identifiers"] == []
    wanted = (404, "NoSuchFunctionException", "Function does not exist: db.f")
    assert client.error("GET", "namespaces/db/functions/f") == wanted


@pytest.mark.parametrize(
    ("method", "target", "body", "expected"),
    [
        ("GET", "namespaces/no", None, (404, "NoSuchNamespaceException", "Namespace does not exist: no")),
        ("GET", "namespaces/a%1Fb", None, (404, "NoSuchNamespaceException", "Namespace does not exist: a.b")),
        ("DELETE", "namespaces/no", None, (404, "NoSuchNamespaceException", "Namespace does not exist: no")),
        ("GET", "namespaces?parent=no", None, (404, "NoSuchNamespaceException", "Namespace does not exist: no")),
        ("GET", "namespaces/no/functions", None, (404, "NoSuchNamespaceException", "Namespace does not exist: no")),
        ("GET", "namespaces/no/functions/f", None, (404, "NoSuchNamespaceException", "Namespace does not exist: no")),
        ("GET", "namespaces/no/tables", None, (404, "NoSuchNamespaceException", "Namespace does not exist: no")),
        ("POST", "namespaces", {"namespace": ["db"]}, (409, "AlreadyExistsException", "Namespace already exists: db")),
        (
            "DELETE",
            "namespaces/db",
            None,
            (409, "NamespaceNotEmptyException", "Namespace db is not empty. Contains 1 table(s)."),
        ),
        ("GET", "namespaces/db/tables/no", None, (404, "NoSuchTableException", "Table does not exist: db.no")),
        ("DELETE", "namespaces/db/tables/no", None, (404, "NoSuchTableException", "Table does not exist: db.no")),
        (
            "POST",
            "namespaces/db/tables/no",
            {"requirements": [], "updates": []},
            (404, "NoSuchTableException", "Table does not exist: db.no"),
        ),
        (
            "POST",
            "namespaces/db/tables",
            {"name": "t", "schema": SCHEMA},
            (409, "AlreadyExistsException", "Table already exists: db.t"),
        ),
        (
            "POST",
            "namespaces/db/tables",
            {"name": "t", "schema": SCHEMA, "stage-create": True},
            (409, "AlreadyExistsException", "Table already exists: db.t"),
        ),
        (
            "POST",
            "namespaces/no/tables",
            {"name": "t", "schema": SCHEMA},
            (404, "NoSuchNamespaceException", "Namespace does not exist: no"),
        ),
        (
            "POST",
            "namespaces/db/tables/t",
            {"requirements": [{"type": "assert-create"}], "updates": []},
            (409, "CommitFailedException", "Requirement failed: table already exists"),
        ),
        (
            "POST",
            "tables/rename",
            {"source": {"namespace": ["db"], "name": "no"}, "destination": {"namespace": ["db"], "name": "u"}},
            (404, "NoSuchTableException", "Table does not exist: db.no"),
        ),
        (
            "POST",
            "tables/rename",
            {"source": {"namespace": ["db"], "name": "t"}, "destination": {"namespace": ["db"], "name": "t"}},
            (409, "AlreadyExistsException", "Table already exists: db.t"),
        ),
        (
            "POST",
            "tables/rename",
            {"source": {"namespace": ["db"], "name": "t"}, "destination": {"namespace": ["no"], "name": "t"}},
            (404, "NoSuchNamespaceException", "Namespace does not exist: no"),
        ),
        (
            "POST",
            "namespaces/db/properties",
            {"removals": ["a"], "updates": {"a": "b"}},
            (
                422,
                "UnprocessableEntityException",
                "Invalid namespace update: cannot simultaneously set and remove keys: ['a']",
            ),
        ),
    ],
)
def test_errors(client: Client, method: str, target: str, body: Any, expected: tuple[int, str, str]) -> None:
    make_table(client)
    assert client.error(method, target, body) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"name": 3}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"name": "", "schema": {"type": "struct", "fields": []}}',
        b'{"name": "a\\u0000b", "schema": {"type": "struct", "fields": []}}',
        b'{"name": "a", "schema": {"type": "struct"}}',
        b'{"name": "a", "schema": {"type": "struct", "fields": [3]}}',
        b'{"name": "a", "schema": {"type": "struct", "fields": []}, "properties": {"format-version": "x"}}',
        b'{"name": "a", "schema": {"type": "struct", "fields": []}, "partition-spec": {"fields": [{"source-id": 1}]}}',
    ],
)
def test_malformed_requests_are_named_and_move_nothing(client: Client, body: bytes) -> None:
    client.ok("POST", "namespaces", {"namespace": ["db"]})
    status, kind, _ = client.error("POST", "namespaces/db/tables", body)
    assert (status, kind) == (400, "BadRequestException")
    assert client.ok("GET", "namespaces/db/tables")["identifiers"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"requirements": [{"type": "assert-luck"}], "updates": []},
        {"requirements": [], "updates": [{"action": "explode"}]},
        {"requirements": [{}], "updates": []},
        {"requirements": [], "updates": [{"action": "add-spec", "spec": {"fields": 3}}]},
        {"requirements": [], "updates": [{"action": "remove-snapshots", "snapshot-ids": 3}]},
        {"requirements": [], "updates": [{"action": "add-schema", "schema": {"fields": [{"name": "x"}]}}]},
    ],
)
def test_malformed_commits_are_named_and_move_nothing(client: Client, body: Any) -> None:
    before = make_table(client)["metadata-location"]
    assert client.error("POST", "namespaces/db/tables/t", body)[:2] == (400, "BadRequestException")
    assert client.ok("GET", "namespaces/db/tables/t")["metadata-location"] == before


def test_namespaces_page_by_page(client: Client) -> None:
    for name in ("c", "a", "b", "d"):
        client.ok("POST", "namespaces", {"namespace": ["top", name]})
    everything = client.ok("GET", "namespaces?parent=top")
    assert everything == {"namespaces": [["top", n] for n in "abcd"], "next-page-token": None}
    first = client.ok("GET", "namespaces?parent=top&pageToken=&pageSize=3")
    assert first["namespaces"] == [["top", n] for n in "abc"]
    last = client.ok("GET", f"namespaces?parent=top&pageSize=3&pageToken={first['next-page-token']}")
    assert last == {"namespaces": [["top", "d"]], "next-page-token": None}
    assert client.error("GET", "namespaces?pageToken=&pageSize=x")[0] == 400
    assert client.error("GET", "namespaces?pageToken=%25%25")[0] == 400
    assert client.ok("GET", "namespaces")["namespaces"] == [["top"]]


def test_tables_page_by_page(client: Client) -> None:
    for name in ("b", "a", "c"):
        make_table(client, name=name)
    first = client.ok("GET", "namespaces/db/tables?pageToken=&pageSize=2")
    assert [t["name"] for t in first["identifiers"]] == ["a", "b"]
    last = client.ok("GET", f"namespaces/db/tables?pageSize=2&pageToken={first['next-page-token']}")
    assert (last["identifiers"], last["next-page-token"]) == ([{"namespace": ["db"], "name": "c"}], None)


def test_names_with_dots_slashes_and_spaces(client: Client) -> None:
    client.ok("POST", "namespaces", {"namespace": ["new.db"]})
    client.ok("POST", "namespaces/new.db/tables", {"name": "ta/b le.x", "schema": SCHEMA})
    assert client.ok("GET", "namespaces/new.db/tables")["identifiers"] == [
        {"namespace": ["new.db"], "name": "ta/b le.x"}
    ]
    assert client.send("HEAD", "namespaces/new.db/tables/ta%2Fb%20le.x").status == 204
    assert client.send("HEAD", "namespaces/new%1Fdb/tables/ta%2Fb%20le.x").status == 404


def test_etags(client: Client) -> None:
    make_table(client)
    first = client.send("GET", "namespaces/db/tables/t")
    assert first.headers is not None
    tag = first.headers["ETag"]
    same = client.send("GET", "namespaces/db/tables/t", if_none_match=tag)
    assert (same.status, same.body) == (304, b"")
    assert client.send("GET", "namespaces/db/tables/t?snapshots=refs", if_none_match=tag).status == 200
    update = {"action": "set-properties", "updates": {"a": "b"}}
    client.ok("POST", "namespaces/db/tables/t", {"requirements": [], "updates": [update]})
    assert client.send("GET", "namespaces/db/tables/t", if_none_match=tag).status == 200
    assert client.error("GET", "namespaces/db/tables/t?snapshots=some")[0] == 400


def test_a_staged_create_has_no_location_of_metadata(client: Client) -> None:
    client.ok("POST", "namespaces", {"namespace": ["db"]})
    staged = client.ok("POST", "namespaces/db/tables", {"name": "t", "schema": SCHEMA, "stage-create": True})
    assert "metadata-location" not in staged
    assert staged["metadata"]["location"].endswith("/warehouse/db/t")
    assert client.send("HEAD", "namespaces/db/tables/t").status == 404


def test_a_variant_column_of_v3_comes_back_as_it_was(client: Client) -> None:
    client.ok("POST", "namespaces", {"namespace": ["db"]})
    fields = [
        {"id": 1, "name": "v", "type": "variant", "required": False},
        {"id": 2, "name": "later", "type": {"type": "of-the-future", "x": [1, {"y": None}]}, "required": False},
    ]
    body = {
        "name": "t",
        "schema": {"type": "struct", "fields": fields, "x-hint": {"deep": True}},
        "properties": {"format-version": "3"},
    }
    client.ok("POST", "namespaces/db/tables", body)
    update = {"action": "set-properties", "updates": {"a": "b"}}
    client.ok("POST", "namespaces/db/tables/t", {"requirements": [], "updates": [update]})
    schema = client.ok("GET", "namespaces/db/tables/t")["metadata"]["schemas"][0]
    assert schema["fields"] == fields
    assert schema["x-hint"] == {"deep": True}


def test_the_door_does_not_import_what_is_slow() -> None:
    """The gateway accepts changes within two seconds of its start: pyiceberg must wait until S3 needs it."""
    slow = "{'pyiceberg', 'pyarrow', 'duckdb'}"
    code = f"import sys, mainstem.doors.catalog.door; print(sorted({slow} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
