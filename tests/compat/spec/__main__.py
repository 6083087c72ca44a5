"""Let schemathesis make requests out of the REST specification, and hold the server's answers against it.

The specification stays where it is; this reads a copy that is changed in three ways: without the optional prefix of the
paths, only with the endpoints that the server lists in its configuration (as the specification has clients do), and
with names of tables that exist beside the made-up ones. The server asks for tokens, so that they are tested as well.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import msgspec
import yaml  # type: ignore[import-untyped]

from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.catalog.settings import CatalogSettings
from mainstem.wire import iceberg_rest as wire

PREFIX = "/v1/{prefix}/"
CLIENT, SECRET = "schemathesis", "a secret of this run"
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
VIEW = {
    "schema": SCHEMA,
    "view-version": {
        "version-id": 1,
        "timestamp-ms": 1_600_000_000_000,
        "schema-id": 0,
        "summary": {"engine": "none"},
        "representations": [{"type": "sql", "sql": "SELECT 1 AS id", "dialect": "spark"}],
        "default-namespace": ["accounting"],
    },
    "properties": {},
}
# The names that exist. A request takes one of them, or one that was made up; some may be dropped, and some must stay.
NAMES = {"namespace": ["accounting"], "table": ["sales", "orders"], "view": ["seen"]}
DROPPED = {"table": ["dropped"], "view": ["unseen"]}
NOT_CHECKED = (
    # Most requests that are valid by their types are refused for what they mean: an id that is not there, a name that
    # is taken. This check takes that for a failure.
    "positive_data_acceptance",
    # It asks for the namespace ["a"] as "['a']", and misses it.
    "ensure_resource_availability",
)
# A report is welcome whatever else it says: nothing more of it is read.
REPORT = {
    "type": "object",
    "required": ["report-type", "table-name", "snapshot-id", "metrics"],
    "properties": {
        "report-type": {"type": "string"},
        "table-name": {"type": "string"},
        "snapshot-id": {"type": "integer", "format": "int64"},
        "metrics": {"type": "object"},
    },
}
METHODS = ("get", "head", "post", "put", "patch", "delete")
# Requests that bring a location, for which the server makes folders.
PLACED = ("CreateTableRequest", "CreateViewRequest", "SetLocationUpdate")


def adapted(specification: dict[str, Any], endpoints: list[str], folder: Path) -> dict[str, Any]:
    """The specification as this server serves it."""
    listed = {tuple(line.split(" ", 1)) for line in endpoints}
    paths: dict[str, Any] = {}
    for path, operations in specification["paths"].items():
        kept = {
            method: operation
            for method, operation in operations.items()
            if method == "parameters" or not path.startswith(PREFIX) or (method.upper(), path) in listed
        }
        if "parameters" in kept:
            kept["parameters"] = [p for p in kept["parameters"] if not p.get("$ref", "").endswith("/prefix")]
        # Methods that the server has beyond the specification are its own business.
        for method in METHODS:
            if method not in operations and wire.route(method.upper(), _example(path)) is not None:
                kept[method] = {"responses": {"default": {"description": "not of the specification"}}}
        if set(kept) - {"parameters"}:
            paths[path.replace(PREFIX, "/v1/")] = kept
    specification["paths"] = paths
    specification["servers"] = []
    components = specification["components"]
    for name, existing in NAMES.items():
        components["parameters"][name] = _named(name, existing)
    for path, operations in paths.items():
        for method, operation in operations.items():
            if method == "parameters":
                continue
            if method == "delete" or path.endswith("/unregister"):
                own = [_named(name, names) for name, names in DROPPED.items() if f"{{{name}}}" in path]
                operation["parameters"] = [*operation.get("parameters", []), *own]
            _mend_errors(operation)
    # The one key of the example would make every request but the first a misuse of it.
    del components["parameters"]["idempotency-key"]["schema"]["example"]
    components["schemas"]["ReportMetricsRequest"] = REPORT
    for name in PLACED:
        _properties(components["schemas"][name])["location"] = {
            "type": "string",
            "pattern": f"^{folder}/[a-z]{{1,8}}$",
        }
    return specification


def _example(path: str) -> str:
    return path.removeprefix(PREFIX).removeprefix("/v1/").replace("{", "").replace("}", "")


def _named(name: str, existing: list[str]) -> dict[str, Any]:
    # Clients take a dot at the start for a step in the path.
    schema = {"anyOf": [{"type": "string", "enum": existing}, {"type": "string", "pattern": "^[^.]"}]}
    return {"name": name, "in": "path", "required": True, "schema": schema, "example": existing[0]}


def _mend_errors(operation: dict[str, Any]) -> None:
    """The endpoints of views name the inner object of an error as the whole body, unlike their own examples."""
    for response in operation["responses"].values():
        for content in response.get("content", {}).values():
            if content["schema"].get("$ref") == "#/components/schemas/ErrorModel":
                content["schema"]["$ref"] = "#/components/schemas/IcebergErrorResponse"


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(part for part in (schema, *schema.get("allOf", ())) if "properties" in part)[
        "properties"
    ]
    return found


def prepare(url: str) -> str:
    """Get a token, and make what the requests will find. Returns the token."""
    grant = {"grant_type": "client_credentials", "client_id": CLIENT, "client_secret": SECRET}
    answer = httpx.post(f"{url}/v1/oauth/tokens", data=grant).raise_for_status().json()
    token = str(answer["access_token"])
    with httpx.Client(base_url=f"{url}/v1/", headers={"Authorization": f"Bearer {token}"}) as client:
        client.post("namespaces", json={"namespace": NAMES["namespace"]}).raise_for_status()
        for table in NAMES["table"] + DROPPED["table"]:
            path = f"namespaces/{NAMES['namespace'][0]}/tables"
            client.post(path, json={"name": table, "schema": SCHEMA}).raise_for_status()
        for view in NAMES["view"] + DROPPED["view"]:
            path = f"namespaces/{NAMES['namespace'][0]}/views"
            client.post(path, json={"name": view, **VIEW}).raise_for_status()
    return token


def run_schemathesis(specification: Path, url: str, folder: Path, rest: list[str]) -> int:
    """Its exit code: 0 if every check passed."""
    token = prepare(url)
    authorization = {"Authorization": f"Bearer {token}"}
    endpoints = httpx.get(f"{url}/v1/config", headers=authorization).raise_for_status().json()["endpoints"]
    document = adapted(yaml.safe_load(specification.read_text()), endpoints, folder / "elsewhere")
    copy = folder / "specification.json"
    copy.write_bytes(msgspec.json.encode(document))
    print(f"{len(endpoints)} endpoints are listed by the server; the others of the specification are left out")
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(copy), "--url", url, "--no-color"]
    command += ["--exclude-checks", ",".join(NOT_CHECKED), "--continue-on-failure"]
    # The specification is large, and what it asks for in a request to create a table is rarely met by chance.
    command += ["--suppress-health-check", "filter_too_much"]
    command += ["-H", f"Authorization: Bearer {token}", *rest]
    return subprocess.run(command, cwd=folder, check=False).returncode


async def _with_server(specification: Path, rest: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="mainstem-spec-") as temporary:
        folder = Path(temporary)
        config = Config(
            server=ServerConfig(port=0),
            pipeline=PipelineConfig(enabled=False),
            catalog=CatalogSettings(clients={CLIENT: SECRET}),
        )
        async with ServerProcess(folder / "data", config) as server:
            return await asyncio.to_thread(run_schemathesis, specification, server.url, folder, rest)


def main() -> int:
    """0 if schemathesis finds nothing. What follows the path goes to `schemathesis run`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("specification", type=Path, help="the Iceberg REST specification, in YAML")
    arguments, rest = parser.parse_known_args()
    return asyncio.run(_with_server(arguments.specification.absolute(), rest))


if __name__ == "__main__":
    sys.exit(main())
