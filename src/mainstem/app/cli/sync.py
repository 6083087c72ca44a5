"""`mainstem sync`: a sync client on the command line, with a local database that also works offline."""

import asyncio
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import msgspec
import rich_click as click

from mainstem.app.cli.options import json_lines_option, own_token_option, own_url_option, token_option, url_option
from mainstem.client.sync import (
    Changed,
    HttpTransport,
    LocalDB,
    SyncCoordinator,
    SyncThread,
    SyncTracker,
    WebSocketTransport,
)
from mainstem.model import MainstemError

_GATEWAY_HELP = "The gateway: the namespace of the tables."
_DB = Path("mainstem-sync.db")
_DB_HELP = "The local copy. It keeps the edits that the server does not have yet."
_CLIENT_HELP = "Who writes; a random name by default. With a token, its subject."
P = ParamSpec("P")


class Place(msgspec.Struct, frozen=True):
    """Which copy, and what it is kept in step with."""

    url: str
    token: str | None
    gateway: str
    db: Path
    client_id: str | None


def _placed(command: Callable[Concatenate[Place, P], None]) -> Callable[..., None]:
    """Where the copy is and what it is of, from before the command's name or from after it, where people type it."""

    @own_url_option
    @own_token_option
    @click.option("--gateway", help=f"{_GATEWAY_HELP}  [required]")
    @click.option("--db", type=click.Path(dir_okay=False, path_type=Path), help=f"{_DB_HELP}  [default: {_DB}]")
    @click.option("--client-id", help=_CLIENT_HELP)
    @click.pass_context
    @wraps(command)
    def run(context: click.Context, *args: Any, **kwargs: Any) -> None:
        group: dict[str, Any] = context.obj
        told = {name: kwargs.pop(name) for name in group}
        place = {name: each if each is not None else group[name] for name, each in told.items()}
        if place["gateway"] is None:
            raise click.UsageError("say which gateway: --gateway, the namespace of the tables", context)
        command(Place(**place), *args, **kwargs)

    return run


@click.group()
@url_option
@token_option
@click.option("--gateway", help=_GATEWAY_HELP)
@click.option("--db", type=click.Path(dir_okay=False, path_type=Path), default=_DB, show_default=True, help=_DB_HELP)
@click.option("--client-id", help=_CLIENT_HELP)
@click.pass_context
def sync(context: click.Context, /, **place: Any) -> None:
    """Keep a local copy of a gateway's rows, read it and write to it. Rows are JSON, one per line."""
    context.obj = place


@sync.command()
@click.argument("table")
@json_lines_option
@_placed
def pull(place: Place, table: str) -> None:
    """Sync, then print the rows of TABLE. Without a network: an error, and the rows that are here."""
    with _opened(place) as db:
        error = asyncio.run(_sync_once(place, db))
        for row in db.all(table):
            _print(row.row_id, row.values)
        _end(place, db, error)


@sync.command()
@click.argument("table")
@click.argument("row_id", metavar="ROW")
@click.argument("columns", metavar="[COLUMNS]", required=False)
@click.option("--delete", is_flag=True, help="Delete the row.")
@json_lines_option
@_placed
def push(place: Place, table: str, row_id: str, columns: str | None, delete: bool) -> None:
    """Set columns of a row, given as a JSON object, and sync. Without a network the edit waits for the next sync."""
    if delete == (columns is not None):
        raise click.UsageError("either COLUMNS or --delete")
    with _opened(place) as db:
        tracker = SyncTracker(db)
        try:
            if columns is None:
                tracker.delete(table, row_id)
            else:
                tracker.insert(table, row_id, msgspec.json.decode(columns, type=dict[str, Any]))
        except (MainstemError, msgspec.MsgspecError) as error:
            raise click.ClickException(str(error)) from error
        _end(place, db, asyncio.run(_sync_once(place, db)))


@sync.command()
@click.argument("table")
@json_lines_option
@_placed
def watch(place: Place, table: str) -> None:
    """Print the rows of TABLE, and each row again whenever it changes, until Ctrl-C. A row that is gone is null."""
    changes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def note(changed: Changed) -> None:
        if table in changed.rows:
            changes.put(None)

    with _opened(place) as db:
        db.changed.connect(note)
        shown: dict[str, Any] = {}
        with SyncThread(db, lambda: WebSocketTransport(place.url, place.gateway, token=place.token)) as thread:
            thread.start_auto_sync()
            while True:
                rows = {row.row_id: row.values for row in db.all(table)}
                for row_id in sorted(rows.keys() | shown.keys()):
                    if rows.get(row_id) != shown.get(row_id):
                        _print(row_id, rows.get(row_id))
                shown = rows
                changes.get()


@contextmanager
def _opened(place: Place) -> Iterator[LocalDB]:
    try:
        db = LocalDB.open(place.db, client_id=place.client_id)
    except MainstemError as error:
        raise click.ClickException(str(error)) from error
    with db:
        yield db


async def _sync_once(place: Place, db: LocalDB) -> MainstemError | None:
    coordinator = SyncCoordinator(db, HttpTransport(place.url, place.gateway, token=place.token))
    try:
        await coordinator.sync_once()
    except MainstemError as error:
        return error
    finally:
        await coordinator.close()
    return None


def _end(place: Place, db: LocalDB, error: MainstemError | None) -> None:
    """Say what waits and what was refused, and fail where there is any such thing."""
    state = db.state()
    for letter in db.dead_letters():
        click.echo(f"refused: {letter.reason} {letter.delta.table} {letter.delta.row_id}: {letter.message}", err=True)
    if error is not None:
        raise click.ClickException(f"{place.url}: {error} ({state.pending} waiting)")
    if state.dead:
        raise SystemExit(1)


def _print(row_id: str, values: dict[str, Any] | None) -> None:
    click.echo(msgspec.json.encode({"id": row_id, "row": values}))
