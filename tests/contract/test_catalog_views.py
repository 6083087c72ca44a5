"""Views over the REST protocol, on every store: versions, dialects, names that tables and views share."""

from typing import Any

from tests.contract.catalog_client import SCHEMA, Client, catalog_client, make_table

client = catalog_client


def version(sql: str, dialect: str = "spark", number: int = 1) -> dict[str, Any]:
    return {
        "version-id": number,
        "timestamp-ms": 1_000 + number,
        "schema-id": 0,
        "summary": {"operation": "create"},
        "representations": [{"type": "sql", "sql": sql, "dialect": dialect}],
        "default-namespace": ["db"],
    }


def make_view(client: Client, name: str = "v") -> Any:
    if client.send("HEAD", "namespaces/db").status == 404:
        client.ok("POST", "namespaces", {"namespace": ["db"]})
    body = {"name": name, "schema": SCHEMA, "view-version": version("select 1"), "properties": {"owner": "me"}}
    return client.ok("POST", "namespaces/db/views", body)


def replace(sql: str, dialect: str = "spark", number: int = 2) -> list[dict[str, Any]]:
    return [
        {"action": "add-view-version", "view-version": version(sql, dialect, number)},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]


def test_a_view_is_created_loaded_listed_and_dropped(client: Client) -> None:
    made = make_view(client)
    assert made["metadata"]["current-version-id"] == 1
    assert made["metadata"]["versions"][0]["schema-id"] == made["metadata"]["schemas"][0]["schema-id"]
    assert client.ok("GET", "namespaces/db/views/v") == made
    assert client.ok("GET", "namespaces/db/views")["identifiers"] == [{"namespace": ["db"], "name": "v"}]
    assert client.ok("GET", "namespaces/db/tables")["identifiers"] == []
    assert client.send("HEAD", "namespaces/db/views/v").status == 204
    assert client.error("DELETE", "namespaces/db")[:2] == (409, "NamespaceNotEmptyException")
    client.ok("DELETE", "namespaces/db/views/v")
    assert client.error("GET", "namespaces/db/views/v") == (404, "NoSuchViewException", "View does not exist: db.v")
    registered = client.ok(
        "POST", "namespaces/db/register-view", {"name": "v", "metadata-location": made["metadata-location"]}
    )
    assert registered["metadata"] == made["metadata"]


def test_a_view_is_replaced_and_remembers_its_last_versions(client: Client) -> None:
    uuid = make_view(client)["metadata"]["view-uuid"]
    requirements = [{"type": "assert-view-uuid", "uuid": uuid}]
    for number in range(2, 15):
        body = {"requirements": requirements, "updates": replace(f"select {number}", number=number)}
        done = client.ok("POST", "namespaces/db/views/v", body)
    found = done["metadata"]
    assert found["current-version-id"] == 14
    assert [v["version-id"] for v in found["versions"]] == list(range(5, 15))
    assert [entry["version-id"] for entry in found["version-log"]] == list(range(5, 15))
    again = client.ok("POST", "namespaces/db/views/v", {"updates": replace("select 14", number=99)})
    assert again["metadata-location"] == done["metadata-location"], "the same query is the same version"


def test_what_a_view_refuses(client: Client) -> None:
    make_view(client)
    make_table(client, "db", "t")
    target = "namespaces/db/views/v"
    two = version("select 1")
    two["representations"] *= 2
    cases: list[tuple[dict[str, Any], tuple[int, str]]] = [
        ({"requirements": [{"type": "assert-view-uuid", "uuid": "x"}], "updates": []}, (409, "CommitFailedException")),
        ({"requirements": [{"type": "assert-create"}], "updates": []}, (400, "BadRequestException")),
        ({"updates": [{"action": "add-snapshot"}]}, (400, "BadRequestException")),
        ({"updates": replace("select 2", "trino")}, (400, "IllegalArgumentException")),
        ({"updates": [{"action": "add-view-version", "view-version": two}]}, (400, "IllegalArgumentException")),
        ({"updates": replace("select 2")[1:]}, (400, "IllegalArgumentException")),
    ]
    for body, expected in cases:
        assert client.error("POST", target, body)[:2] == expected, body
    taken = {"name": "t", "schema": SCHEMA, "view-version": version("select 1"), "properties": {}}
    message = "Table with same name already exists: db.t"
    assert client.error("POST", "namespaces/db/views", taken) == (409, "AlreadyExistsException", message)
    message = "View with same name already exists: db.v"
    table = {"name": "v", "schema": SCHEMA}
    assert client.error("POST", "namespaces/db/tables", table) == (409, "AlreadyExistsException", message)
    assert client.error("GET", "namespaces/db/tables/v")[:2] == (404, "NoSuchTableException")
    assert client.error("GET", "namespaces/db/views/t")[:2] == (404, "NoSuchViewException")


def test_renames_keep_tables_and_views_apart(client: Client) -> None:
    make_view(client)
    make_table(client, "db", "t")

    def rename(kind: str, source: str, destination: str) -> tuple[str, dict[str, Any]]:
        names = {"source": source, "destination": destination}
        return f"{kind}/rename", {key: {"namespace": ["db"], "name": name} for key, name in names.items()}

    assert client.error("POST", *rename("views", "v", "t"))[2] == "Cannot rename db.v to db.t. Table already exists"
    assert client.error("POST", *rename("tables", "t", "v"))[2] == "Cannot rename db.t to db.v. View already exists"
    assert client.error("POST", *rename("views", "t", "u"))[:2] == (404, "NoSuchViewException")
    client.ok("POST", *rename("views", "v", "w"))
    assert client.ok("GET", "namespaces/db/views")["identifiers"] == [{"namespace": ["db"], "name": "w"}]
