"""A catalog over HTTP, as the commands that look at tables ask it."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import rich_click as click

from mainstem.catalog.metadata.table import normalized
from mainstem.model.names import DEFAULT_NAMESPACE
from mainstem.tables.live_rows import rows_without_deletes

TIMEOUT_S = 60.0
_SEPARATOR = "\x1f"
# How many snapshots' rows are asked for.
_SNAPSHOTS_MAX = 500


class Remote:
    """A catalog over HTTP."""

    def __init__(self, url: str, token: str | None) -> None:
        # Every `mainstem` command loads this module; only these need an HTTP client.
        import httpx

        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=url.rstrip("/") + "/v1/", headers=headers, timeout=TIMEOUT_S)
        self.url = url
        self.token = token
        self._endpoints: frozenset[str] | None = None

    def ask(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """One request; the answer's body."""
        import httpx

        try:
            answer = self._http.request(method, path, json=body, params=query)
        except httpx.HTTPError as error:
            raise click.ClickException(f"no answer from {self.url}: {error}") from error
        if answer.is_success:
            return answer.json() if answer.content else None
        try:
            message = answer.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = answer.text[:500]
        raise click.ClickException(f"{answer.status_code}: {message}")

    def namespaces(self, parent: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """Every namespace below one, each before those below itself."""
        query = {"parent": _SEPARATOR.join(parent)} if parent else {}
        for levels in self.ask("GET", "namespaces", **query)["namespaces"]:
            yield tuple(levels)
            yield from self.namespaces(tuple(levels))

    def has(self, endpoint: str) -> bool:
        """Whether the server lists an endpoint."""
        if self._endpoints is None:
            self._endpoints = frozenset(self.ask("GET", "config").get("endpoints") or ())
        return endpoint in self._endpoints

    def generic(self, namespace: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """The tables of other formats in a namespace; none where the server knows of none."""
        if self.has("GET /v1/{prefix}/namespaces/{namespace}/generic-tables"):
            for name in self.names(namespace, "generic-tables"):
                path = f"namespaces/{_quoted(namespace)}/generic-tables/{quote(name, safe='')}"
                yield self.ask("GET", path)["table"]

    def names(self, namespace: tuple[str, ...], kind: str) -> list[str]:
        """The names of the tables or views of a namespace."""
        path = f"namespaces/{_quoted(namespace)}/{kind}"
        return [entry["name"] for entry in self.ask("GET", path)["identifiers"]]

    def table(self, name: str, snapshots: str = "all") -> dict[str, Any]:
        """The metadata of a table."""
        found: dict[str, Any] = self.ask("GET", table_path(name), snapshots=snapshots)
        return normalized(found["metadata"]) | {"metadata-location": found.get("metadata-location")}

    def rows(self, name: str, document: dict[str, Any], limit: int = _SNAPSHOTS_MAX) -> dict[int, int | None]:
        """The rows of a table's latest snapshots, without those that are deleted, by snapshot.

        A server of ours has counted them; of any other catalog we know what the summaries say.
        """
        path = f"tables/{quote(name, safe='')}/snapshots"
        try:
            told = self.ask("GET", path, limit=str(min(limit, _SNAPSHOTS_MAX)))
        except click.ClickException:
            return {
                each["snapshot-id"]: rows_without_deletes(each.get("summary") or {}) for each in document["snapshots"]
            }
        return {int(each["snapshotId"]): each["rows"] for each in told["snapshots"]}

    def other(self, name: str) -> dict[str, Any] | None:
        """What a server of ours tells of a table in Delta; None for every other table and server."""
        try:
            view: dict[str, Any] = self.ask("GET", f"tables/{quote(name, safe='')}")["view"]
        except (click.ClickException, KeyError, TypeError):
            return None
        return view if view.get("format") == "delta" else None

    def versions(self, name: str, limit: int) -> list[dict[str, Any]]:
        """The latest versions of a table in Delta."""
        asked = str(min(limit, _SNAPSHOTS_MAX))
        found: list[dict[str, Any]] = self.ask("GET", f"tables/{quote(name, safe='')}/snapshots", limit=asked)[
            "snapshots"
        ]
        return found

    def restore(self, name: str, version: int) -> None:
        """Put a table in Delta back."""
        self.ask("POST", f"tables/{quote(name, safe='')}/rollback", {"snapshotId": str(version)})

    def sizes(self, name: str) -> tuple[int | None, ...]:
        """Rows, files, bytes and the last change of a table of another format, where the server knows them."""
        try:
            current = self.ask("GET", f"tables/{quote(name, safe='')}")["view"]["current"]
            return current["rows"], current["dataFiles"], current["bytes"], current["atMs"]
        except (click.ClickException, KeyError, TypeError):
            return (None,) * 4


def table_path(name: str) -> str:
    """Where a table is, by its dotted name; without a namespace it is in the default one, as everywhere."""
    *levels, table = name.split(".")
    if not table or not all(levels):
        raise click.BadParameter(f"expected namespace.table, got {name!r}")
    return f"namespaces/{_quoted(tuple(levels or [DEFAULT_NAMESPACE]))}/tables/{quote(table, safe='')}"


def _quoted(namespace: tuple[str, ...]) -> str:
    return quote(_SEPARATOR.join(namespace), safe="")
