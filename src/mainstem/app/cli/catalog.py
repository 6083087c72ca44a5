"""`mainstem catalog`: look at the tables of a running server, and put one back to an earlier snapshot.

Speaks the Iceberg REST protocol like any other client, so it shows any catalog that does.
"""

from collections.abc import Iterator
from typing import Any

import rich_click as click

from mainstem.app.cli.options import Server, asking, json_option, token_option, url_option
from mainstem.app.cli.remote import Remote, table_path
from mainstem.app.cli.verify import rebuild, verify
from mainstem.app.cli.views import View, moment, number, print_json, show, size, tell
from mainstem.catalog.metadata.fence import marks_text
from mainstem.catalog.metadata.rollback import rollback_commit
from mainstem.catalog.metadata.table import by_id
from mainstem.formats.iceberg.snapshots import MAIN, ancestry, current_snapshot_id
from mainstem.tables.live_rows import rows_changed
from mainstem.tables.marks import positions_of

DAY_MS = 24 * 60 * 60 * 1000
_COUNTS = {"total-data-files": "files", "total-delete-files": "delete files", "total-files-size": "bytes"}


@click.group()
@url_option
@token_option
@click.pass_context
def catalog(context: click.Context, url: str, token: str | None) -> None:
    """Look at tables, their snapshots and what changed; put one back."""
    context.obj = Server(url, token)


catalog.add_command(verify)
catalog.add_command(rebuild)


@catalog.command("list")
@click.argument("namespace", required=False)
@click.option("--long", "is_long", is_flag=True, help="Load each table, to show its size.")
@json_option
@asking(Remote)
def list_(remote: Remote, namespace: str | None, is_long: bool, as_json: bool) -> None:
    """List tables and views, of one namespace or of all."""
    namespaces = [tuple(namespace.split("."))] if namespace else list(remote.namespaces())
    more = ("rows", "files", "size", "last change") if is_long else ()
    view = View("name", "kind", *more)
    unknown = (None,) * len(more)
    for levels in namespaces:
        dotted = ".".join(levels)
        for name in remote.names(levels, "tables"):
            view.add(f"{dotted}.{name}", "table", *(_sizes(remote, f"{dotted}.{name}") if is_long else ()))
        for table in remote.generic(levels):
            name = f"{dotted}.{table['name']}"
            view.add(name, f"{table['format']} table", *(remote.sizes(name) if is_long else ()))
        for name in remote.names(levels, "views"):
            view.add(f"{dotted}.{name}", "view", *unknown)
    if as_json:
        print_json(view.rows)
    else:
        show(view)


@catalog.command("show")
@click.argument("table")
@json_option
@asking(Remote)
def show_(remote: Remote, table: str, as_json: bool) -> None:
    """Show a table: where it is, its columns, its partitions, its branches and tags."""
    document = remote.table(table, "refs")
    current = by_id(document["snapshots"], "snapshot-id", current_snapshot_id(document))
    facts = _facts(document, current, remote.rows(table, document, 1))
    columns = View("id", "column", "type", "required", title="columns")
    schema = by_id(document["schemas"], "schema-id", document["current-schema-id"]) or {"fields": []}
    for field in schema["fields"]:
        columns.add(field["id"], field["name"], _type(field["type"]), bool(field.get("required")))
    spec = by_id(document["partition-specs"], "spec-id", document["default-spec-id"]) or {"fields": []}
    partitions = View("partition", "of column", "transform", title="partitions")
    names = {field["id"]: field["name"] for field in schema["fields"]}
    for field in spec["fields"]:
        partitions.add(field["name"], names.get(field.get("source-id"), "?"), field["transform"])
    refs = View("name", "kind", "snapshot", title="branches and tags")
    for name, ref in document["refs"].items():
        refs.add(name, ref["type"], str(ref["snapshot-id"]))
    if as_json:
        parts = {"columns": columns.rows, "partitions": partitions.rows, "refs": refs.rows}
        print_json({"table": table, **facts, **parts, "properties": document["properties"]})
        return
    first = View("", " ", title=table)
    told = {
        **facts,
        "last change": moment(facts["last change"]),
        "rows": number(facts["rows"]),
        "files": number(facts["files"]),
        "size": size(facts["size"]),
    }
    for name, value in told.items():
        if value:
            first.add(name, str(value))
    properties = View("property", "value", title="properties")
    for name, value in sorted(document["properties"].items()):
        properties.add(name, value)
    show(first, columns, partitions, refs, properties)


@catalog.command()
@click.argument("table")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many, newest first.")
@json_option
@asking(Remote)
def history(remote: Remote, table: str, limit: int, as_json: bool) -> None:
    """Show the snapshots of a table, newest first; of one in Delta, its versions."""
    if remote.other(table) is not None:
        _show_versions(remote.versions(table, limit), as_json=as_json)
        return
    document = remote.table(table)
    line = {snapshot["snapshot-id"] for snapshot in ancestry(document, current_snapshot_id(document))}
    names: dict[int, list[str]] = {}
    for name, ref in document["refs"].items():
        names.setdefault(ref["snapshot-id"], []).append(name)
    rows = remote.rows(table, document)
    view = View("snapshot", "time", "operation", "rows", "change", "position", "names")
    for snapshot in sorted(document["snapshots"], key=lambda s: s["timestamp-ms"], reverse=True)[:limit]:
        summary = snapshot.get("summary") or {}
        held, before = (rows.get(snapshot.get(key) or 0) for key in ("snapshot-id", "parent-snapshot-id"))
        on_main = snapshot["snapshot-id"] in line
        view.add(
            # As text: programs in JavaScript would round it.
            str(snapshot["snapshot-id"]),
            snapshot["timestamp-ms"],
            summary.get("operation", ""),
            held,
            rows_changed(summary) if held is None or before is None else held - before,
            _position(summary),
            ", ".join(names.get(snapshot["snapshot-id"], [])) or ("" if on_main else "not on main"),
            style=None if on_main else "dim",
        )
    if as_json:
        print_json(view.rows)
    else:
        show(view)


@catalog.command()
@click.argument("table")
@click.argument("before", type=int)
@click.argument("after", type=int)
@json_option
@asking(Remote)
def diff(remote: Remote, table: str, before: int, after: int, as_json: bool) -> None:
    """Show what changed between two snapshots: columns, rows, files."""
    document = remote.table(table)
    old, new = _snapshot(document, before), _snapshot(document, after)
    rows = remote.rows(table, document)
    counts = {"rows": [rows.get(each["snapshot-id"]) for each in (old, new)]}
    for name, heading in _COUNTS.items():
        counts[heading] = [int((each.get("summary") or {}).get(name, 0)) for each in (old, new)]
    columns = View("column", "before", "after", title="columns")
    for name, was, now in _column_changes(document, old, new):
        columns.add(name, was, now)
    between = _between(document, before, after)
    if as_json:
        pairs = {name: {"before": values[0], "after": values[1]} for name, values in counts.items()}
        print_json({"table": table, **pairs, "columns": columns.rows, "between": between})
        return
    sums = View("", str(before), str(after), "change", title=f"{table}: from {_time_of(old)} to {_time_of(new)}")
    for name, (held, holds) in counts.items():
        sums.add(name, held, holds, None if held is None or holds is None else holds - held)
    show(sums, columns)
    if not columns.rows:
        click.echo("the columns are the same")
    if between is None:
        click.echo(f"{before} is not an ancestor of {after}")
    else:
        kinds = ", ".join(f"{between.count(kind)} {kind}" for kind in dict.fromkeys(between))
        click.echo(f"{len(between)} snapshot(s) in between: {kinds}")


@catalog.command()
@click.argument("table")
@click.argument("snapshot", type=int)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@asking(Remote)
def rollback(remote: Remote, table: str, snapshot: int, yes: bool, as_json: bool) -> None:
    """Put the table's main branch back to an earlier snapshot. The later ones stay, and can be rolled forward to.

    A table in Delta gets a new version with the files of the earlier one.
    """
    if (other := remote.other(table)) is not None:
        _restore(remote, table, int(other["current"]["snapshotId"]), snapshot, yes=yes, as_json=as_json)
        return
    document = remote.table(table)
    target = _snapshot(document, snapshot)
    current = current_snapshot_id(document)
    if current == snapshot:
        tell(f"{table} is at {snapshot} already", _moved(table, MAIN, current, snapshot), as_json=as_json)
        return
    if not yes:
        click.confirm(f"Put {table} back from {current} to {snapshot} of {_time_of(target)}?", abort=True)
    requirements, updates = rollback_commit(document, snapshot)
    body = {"requirements": requirements, "updates": updates}
    remote.ask("POST", table_path(table), body)
    said = f"{table} is at {snapshot} again. To undo: mainstem catalog rollback {table} {current}"
    tell(said, _moved(table, MAIN, current, snapshot), as_json=as_json)


@catalog.command()
@click.argument("table")
@click.argument("name")
@click.argument("snapshot", type=int, required=False)
@click.option("--keep-days", type=click.FloatRange(min=0, min_open=True), help="For how long; always by default.")
@json_option
@asking(Remote)
def branch(remote: Remote, table: str, name: str, snapshot: int | None, keep_days: float | None, as_json: bool) -> None:
    """Make a branch at a snapshot, or move it there. Without a snapshot: at the current one."""
    _set_ref(remote, table, name, "branch", snapshot, keep_days, as_json=as_json)


@catalog.command()
@click.argument("table")
@click.argument("name")
@click.argument("snapshot", type=int, required=False)
@click.option("--keep-days", type=click.FloatRange(min=0, min_open=True), help="For how long; always by default.")
@json_option
@asking(Remote)
def tag(remote: Remote, table: str, name: str, snapshot: int | None, keep_days: float | None, as_json: bool) -> None:
    """Name a snapshot, so that it is kept and can be read by that name. Without a snapshot: the current one."""
    _set_ref(remote, table, name, "tag", snapshot, keep_days, as_json=as_json)


@catalog.command("drop-ref")
@click.argument("table")
@click.argument("name")
@json_option
@asking(Remote)
def drop_ref(remote: Remote, table: str, name: str, as_json: bool) -> None:
    """Remove a branch or a tag. Its snapshots stay until they expire."""
    document = remote.table(table, "refs")
    ref = document["refs"].get(name)
    if name == MAIN or ref is None:
        raise click.ClickException(f"{table} has no branch or tag {name!r} that can be removed")
    _commit_ref(remote, table, document, name, {"action": "remove-snapshot-ref", "ref-name": name})
    said = f"{ref['type']} {name} of {table} is gone; it was at {ref['snapshot-id']}"
    tell(said, _moved(table, name, ref["snapshot-id"], None), as_json=as_json)


def _show_versions(versions: list[dict[str, Any]], *, as_json: bool) -> None:
    view = View("snapshot", "time", "operation", "rows", "change", "position", "names")
    for each, before in zip(versions, [*versions[1:], None], strict=True):
        held, held_before = each["rows"], None if before is None else before["rows"]
        change = None if held is None or held_before is None else held - held_before
        view.add(each["snapshotId"], each["atMs"], each["operation"], held, change, each["position"], "")
    if as_json:
        print_json(view.rows)
    else:
        show(view)


def _restore(remote: Remote, table: str, current: int, version: int, *, yes: bool, as_json: bool) -> None:
    moved = _moved(table, MAIN, current, version)
    if current == version:
        tell(f"{table} is at {version} already", moved, as_json=as_json)
        return
    if not yes:
        click.confirm(f"Put {table} back from {current} to {version}?", abort=True)
    remote.restore(table, version)
    tell(
        f"{table} is as at {version} again. To undo: mainstem catalog rollback {table} {current}",
        moved,
        as_json=as_json,
    )


def _between(document: dict[str, Any], before: int, after: int) -> list[str] | None:
    """What the snapshots did from one to the next; None where they are not of one line."""
    operations: list[str] = []
    for snapshot in ancestry(document, after):
        if snapshot["snapshot-id"] == before:
            return operations
        operations.append((snapshot.get("summary") or {}).get("operation", "?"))
    return None


def _moved(table: str, name: str, before: int | None, after: int | None) -> dict[str, Any]:
    ids = {"before": before, "after": after}
    return {"table": table, "ref": name} | {when: None if each is None else str(each) for when, each in ids.items()}


def _set_ref(
    remote: Remote,
    table: str,
    name: str,
    kind: str,
    snapshot: int | None,
    keep_days: float | None,
    *,
    as_json: bool,
) -> None:
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
    before = document["refs"].get(name, {}).get("snapshot-id")
    _commit_ref(remote, table, document, name, update)
    tell(f"{kind} {name} of {table} is at {target}", _moved(table, name, before, target), as_json=as_json)


def _commit_ref(remote: Remote, table: str, document: dict[str, Any], name: str, update: dict[str, Any]) -> None:
    known = document["refs"].get(name, {}).get("snapshot-id")
    requirements = [
        {"type": "assert-table-uuid", "uuid": document["table-uuid"]},
        # A move that came in between must not be undone unseen.
        {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": known},
    ]
    remote.ask("POST", table_path(table), {"requirements": requirements, "updates": [update]})


def _sizes(remote: Remote, name: str) -> tuple[int | None, ...]:
    document = remote.table(name, "refs")
    current = by_id(document["snapshots"], "snapshot-id", current_snapshot_id(document)) or {}
    summary = current.get("summary") or {}
    return (
        remote.rows(name, document, 1).get(current.get("snapshot-id", 0), 0),
        int(summary.get("total-data-files", 0)),
        int(summary.get("total-files-size", 0)),
        document.get("last-updated-ms"),
    )


def _facts(document: dict[str, Any], current: dict[str, Any] | None, rows: dict[int, int | None]) -> dict[str, Any]:
    summary = (current or {}).get("summary") or {}
    files, held_bytes = (summary.get(name) for name in ("total-data-files", "total-files-size"))
    return {
        "location": document["location"],
        "metadata": document["metadata-location"],
        "format": f"v{document['format-version']}",
        "last change": document.get("last-updated-ms"),
        "snapshot": None if current is None else str(current["snapshot-id"]),
        "rows": rows.get((current or {}).get("snapshot-id", 0)),
        "files": None if files is None else int(files),
        "size": None if held_bytes is None else int(held_bytes),
        "log position": _position(summary),
    }


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


def _time_of(snapshot: dict[str, Any]) -> str:
    return moment(snapshot["timestamp-ms"])
