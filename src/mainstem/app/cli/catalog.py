"""`mainstem catalog`: look at the tables of a running server, and put one back to an earlier snapshot.

Speaks the Iceberg REST protocol like any other client, so it shows any catalog that does.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import rich_click as click
from rich.console import Console
from rich.table import Table

from mainstem.app.cli.verify import rebuild, verify
from mainstem.catalog.fence import marks_text
from mainstem.catalog.metadata import ancestry, by_id, current_snapshot_id, normalized
from mainstem.catalog.rollback import rollback_commit
from mainstem.tables.live_rows import rows_changed, rows_without_deletes
from mainstem.tables.marks import positions_of

TIMEOUT_S = 60.0
MAIN = "main"
DAY_MS = 24 * 60 * 60 * 1000
_SEPARATOR = "\x1f"
_COUNTS = ("total-data-files", "total-delete-files", "total-files-size")
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


def table_path(name: str) -> str:
    """Where a table is, by its dotted name."""
    *levels, table = name.split(".")
    if not levels or not table:
        raise click.BadParameter(f"expected namespace.table, got {name!r}")
    return f"namespaces/{_quoted(tuple(levels))}/tables/{quote(table, safe='')}"


def _quoted(namespace: tuple[str, ...]) -> str:
    return quote(_SEPARATOR.join(namespace), safe="")


@click.group()
@click.option("--url", default="http://127.0.0.1:8181", show_default=True, help="The server to ask.")
@click.option("--token", envvar="MAINSTEM_TOKEN", help="A bearer token, where the server asks for one.")
@click.pass_context
def catalog(context: click.Context, url: str, token: str | None) -> None:
    """Look at tables, their snapshots and what changed; put one back."""
    context.obj = Remote(url, token)


catalog.add_command(verify)
catalog.add_command(rebuild)


@catalog.command("list")
@click.argument("namespace", required=False)
@click.option("--long", "is_long", is_flag=True, help="Load each table, to show its size.")
@click.pass_obj
def list_(remote: Remote, namespace: str | None, is_long: bool) -> None:
    """List tables and views, of one namespace or of all."""
    namespaces = [tuple(namespace.split("."))] if namespace else list(remote.namespaces())
    view = _table("name", "kind", *(("rows", "files", "size", "last change") if is_long else ()))
    for levels in namespaces:
        dotted = ".".join(levels)
        for name in remote.names(levels, "tables"):
            view.add_row(f"{dotted}.{name}", "table", *(_sizes(remote, f"{dotted}.{name}") if is_long else ()))
        for table in remote.generic(levels):
            view.add_row(f"{dotted}.{table['name']}", f"{table['format']} table")
        for name in remote.names(levels, "views"):
            view.add_row(f"{dotted}.{name}", "view")
    Console().print(view)


@catalog.command()
@click.argument("table")
@click.pass_obj
def show(remote: Remote, table: str) -> None:
    """Show a table: where it is, its columns, its partitions, its branches and tags."""
    document = remote.table(table, "refs")
    current = by_id(document["snapshots"], "snapshot-id", current_snapshot_id(document))
    facts = _table("", "", title=table)
    for name, value in (
        ("location", document["location"]),
        ("metadata", document["metadata-location"]),
        ("format", f"v{document['format-version']}"),
        ("last change", _time(document.get("last-updated-ms"))),
        ("snapshot", "none" if current is None else str(current["snapshot-id"])),
        *(_summary(current, remote.rows(table, document, 1))),
    ):
        facts.add_row(name, str(value))
    columns = _table("id", "column", "type", "required", title="columns")
    schema = by_id(document["schemas"], "schema-id", document["current-schema-id"]) or {"fields": []}
    for field in schema["fields"]:
        columns.add_row(str(field["id"]), field["name"], _type(field["type"]), "yes" if field.get("required") else "")
    console = Console()
    console.print(facts, columns)
    spec = by_id(document["partition-specs"], "spec-id", document["default-spec-id"]) or {"fields": []}
    if spec["fields"]:
        partitions = _table("partition", "of column", "transform", title="partitions")
        names = {field["id"]: field["name"] for field in schema["fields"]}
        for field in spec["fields"]:
            partitions.add_row(field["name"], names.get(field.get("source-id"), "?"), field["transform"])
        console.print(partitions)
    refs = _table("name", "kind", "snapshot", title="branches and tags")
    for name, ref in document["refs"].items():
        refs.add_row(name, ref["type"], str(ref["snapshot-id"]))
    console.print(refs)
    if document["properties"]:
        properties = _table("property", "value", title="properties")
        for name, value in sorted(document["properties"].items()):
            properties.add_row(name, value)
        console.print(properties)


@catalog.command()
@click.argument("table")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many, newest first.")
@click.pass_obj
def history(remote: Remote, table: str, limit: int) -> None:
    """Show the snapshots of a table, newest first."""
    document = remote.table(table)
    line = {snapshot["snapshot-id"] for snapshot in ancestry(document, current_snapshot_id(document))}
    names: dict[int, list[str]] = {}
    for name, ref in document["refs"].items():
        names.setdefault(ref["snapshot-id"], []).append(name)
    rows = remote.rows(table, document)
    view = _table("snapshot", "time", "operation", "rows", "change", "position", "names")
    for snapshot in sorted(document["snapshots"], key=lambda s: s["timestamp-ms"], reverse=True)[:limit]:
        summary = snapshot.get("summary") or {}
        held, before = (rows.get(snapshot.get(key) or 0) for key in ("snapshot-id", "parent-snapshot-id"))
        changed = rows_changed(summary) if held is None or before is None else held - before
        on_main = snapshot["snapshot-id"] in line
        view.add_row(
            str(snapshot["snapshot-id"]),
            _time(snapshot["timestamp-ms"]),
            summary.get("operation", ""),
            _number(held),
            "" if changed is None else _signed(changed),
            _position(summary),
            ", ".join(names.get(snapshot["snapshot-id"], [])) or ("" if on_main else "not on main"),
            style=None if on_main else "dim",
        )
    Console().print(view)


@catalog.command()
@click.argument("table")
@click.argument("before", type=int)
@click.argument("after", type=int)
@click.pass_obj
def diff(remote: Remote, table: str, before: int, after: int) -> None:
    """Show what changed between two snapshots: columns, rows, files."""
    document = remote.table(table)
    old, new = _snapshot(document, before), _snapshot(document, after)
    sums = _table("", str(before), str(after), "change", title=f"{table}: from {_time_of(old)} to {_time_of(new)}")
    rows = remote.rows(table, document)
    held = [rows.get(each["snapshot-id"]) for each in (old, new)]
    change = "" if None in held else _signed((held[1] or 0) - (held[0] or 0))
    sums.add_row("rows", *(_number(each) for each in held), change)
    for name in _COUNTS:
        values = [int((snapshot.get("summary") or {}).get(name, 0)) for snapshot in (old, new)]
        change = _signed(values[1] - values[0])
        sums.add_row(name.removeprefix("total-"), _number(values[0]), _number(values[1]), change)
    columns = _table("column", "before", "after", title="columns")
    for name, was, now in _column_changes(document, old, new):
        columns.add_row(name, was, now)
    between = []
    for snapshot in ancestry(document, after):
        if snapshot["snapshot-id"] == before:
            break
        between.append((snapshot.get("summary") or {}).get("operation", "?"))
    else:
        between = []
    console = Console()
    console.print(sums)
    console.print(columns if columns.row_count else "the columns are the same")
    if between:
        counts = ", ".join(f"{between.count(kind)} {kind}" for kind in dict.fromkeys(between))
        console.print(f"{len(between)} snapshot(s) in between: {counts}")
    else:
        console.print(f"{before} is not an ancestor of {after}")


@catalog.command()
@click.argument("table")
@click.argument("snapshot", type=int)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def rollback(remote: Remote, table: str, snapshot: int, yes: bool) -> None:
    """Put the table's main branch back to an earlier snapshot. The later ones stay, and can be rolled forward to."""
    document = remote.table(table)
    target = _snapshot(document, snapshot)
    current = current_snapshot_id(document)
    if current == snapshot:
        Console().print(f"{table} is at {snapshot} already")
        return
    if not yes:
        click.confirm(f"Put {table} back from {current} to {snapshot} of {_time_of(target)}?", abort=True)
    requirements, updates = rollback_commit(document, snapshot)
    body = {"requirements": requirements, "updates": updates}
    remote.ask("POST", table_path(table), body)
    Console().print(f"{table} is at {snapshot} again. To undo: mainstem catalog rollback {table} {current}")


@catalog.command()
@click.argument("table")
@click.argument("name")
@click.argument("snapshot", type=int, required=False)
@click.option("--keep-days", type=click.FloatRange(min=0, min_open=True), help="For how long; always by default.")
@click.pass_obj
def branch(remote: Remote, table: str, name: str, snapshot: int | None, keep_days: float | None) -> None:
    """Make a branch at a snapshot, or move it there. Without a snapshot: at the current one."""
    _set_ref(remote, table, name, "branch", snapshot, keep_days)


@catalog.command()
@click.argument("table")
@click.argument("name")
@click.argument("snapshot", type=int, required=False)
@click.option("--keep-days", type=click.FloatRange(min=0, min_open=True), help="For how long; always by default.")
@click.pass_obj
def tag(remote: Remote, table: str, name: str, snapshot: int | None, keep_days: float | None) -> None:
    """Name a snapshot, so that it is kept and can be read by that name. Without a snapshot: the current one."""
    _set_ref(remote, table, name, "tag", snapshot, keep_days)


@catalog.command("drop-ref")
@click.argument("table")
@click.argument("name")
@click.pass_obj
def drop_ref(remote: Remote, table: str, name: str) -> None:
    """Remove a branch or a tag. Its snapshots stay until they expire."""
    document = remote.table(table, "refs")
    ref = document["refs"].get(name)
    if name == MAIN or ref is None:
        raise click.ClickException(f"{table} has no branch or tag {name!r} that can be removed")
    _commit_ref(remote, table, document, name, {"action": "remove-snapshot-ref", "ref-name": name})
    Console().print(f"{ref['type']} {name} of {table} is gone; it was at {ref['snapshot-id']}")


def _set_ref(remote: Remote, table: str, name: str, kind: str, snapshot: int | None, keep_days: float | None) -> None:
    if name == MAIN:
        raise click.ClickException("the main branch is moved with `mainstem catalog rollback`")
    document = remote.table(table)
    target = current_snapshot_id(document) if snapshot is None else snapshot
    if target is None:
        raise click.ClickException(f"{table} has no snapshot yet")
    _snapshot(document, target)
    update = {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": target}
    if keep_days is not None:
        update["max-ref-age-ms"] = round(keep_days * DAY_MS)
    _commit_ref(remote, table, document, name, update)
    Console().print(f"{kind} {name} of {table} is at {target}")


def _commit_ref(remote: Remote, table: str, document: dict[str, Any], name: str, update: dict[str, Any]) -> None:
    known = document["refs"].get(name, {}).get("snapshot-id")
    requirements = [
        {"type": "assert-table-uuid", "uuid": document["table-uuid"]},
        # Whoever moves it in between must not be undone unseen.
        {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": known},
    ]
    remote.ask("POST", table_path(table), {"requirements": requirements, "updates": [update]})


def _table(*headings: str, title: str | None = None) -> Table:
    right = {"rows", "files", "size", "change", "position", "id"}
    table = Table(title=title, title_justify="left", show_header=any(headings))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return table


def _sizes(remote: Remote, name: str) -> tuple[str, ...]:
    document = remote.table(name, "refs")
    current = by_id(document["snapshots"], "snapshot-id", current_snapshot_id(document)) or {}
    summary = current.get("summary") or {}
    held = remote.rows(name, document, 1).get(current.get("snapshot-id", 0), 0)
    return (
        _number(held),
        _number(summary.get("total-data-files", 0)),
        _bytes(int(summary.get("total-files-size", 0))),
        _time(document.get("last-updated-ms")),
    )


def _summary(snapshot: dict[str, Any] | None, rows: dict[int, int | None]) -> list[tuple[str, str]]:
    summary = (snapshot or {}).get("summary") or {}
    held = rows.get((snapshot or {}).get("snapshot-id", 0))
    found = [("rows", _number(held)), ("files", _number(summary.get("total-data-files")))]
    if "total-files-size" in summary:
        found.append(("size", _bytes(int(summary["total-files-size"]))))
    found.append(("log position", _position(summary)))
    return [(name, value) for name, value in found if value]


def _position(summary: dict[str, Any]) -> str:
    """How much of each log a snapshot covers; empty where it does not say."""
    marks = positions_of(summary)
    return marks_text(marks) if marks else ""


def _snapshot(document: dict[str, Any], snapshot_id: int) -> dict[str, Any]:
    found = by_id(document["snapshots"], "snapshot-id", snapshot_id)
    if found is None:
        raise click.ClickException(f"there is no snapshot {snapshot_id}; see `mainstem catalog history`")
    return found


def _column_changes(
    document: dict[str, Any], old: dict[str, Any], new: dict[str, Any]
) -> Iterator[tuple[str, str, str]]:
    before, after = (_columns(document, snapshot) for snapshot in (old, new))
    for field_id in sorted(before.keys() | after.keys()):
        was, now = before.get(field_id), after.get(field_id)
        if was != now:
            yield (now or was or ("", ""))[0], _described(was), _described(now)


def _columns(document: dict[str, Any], snapshot: dict[str, Any]) -> dict[int, tuple[str, str]]:
    schema = by_id(document["schemas"], "schema-id", snapshot.get("schema-id", document["current-schema-id"]))
    return {field["id"]: (field["name"], _type(field["type"])) for field in (schema or {"fields": []})["fields"]}


def _described(column: tuple[str, str] | None) -> str:
    return "" if column is None else f"{column[0]} {column[1]}"


def _type(kind: Any) -> str:
    match kind:
        case {"type": "struct"}:
            fields = ", ".join(f"{field['name']}: {_type(field['type'])}" for field in kind["fields"])
            return f"struct<{fields}>"
        case {"type": "list"}:
            return f"list<{_type(kind['element'])}>"
        case {"type": "map"}:
            return f"map<{_type(kind['key'])}, {_type(kind['value'])}>"
        case _:
            return str(kind)


def _time(ms: int | None) -> str:
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _time_of(snapshot: dict[str, Any]) -> str:
    return _time(snapshot["timestamp-ms"])


def _number(value: object) -> str:
    return "" if value is None else f"{int(str(value)):,}"


def _signed(value: int) -> str:
    return f"{value:+,}" if value else "0"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
