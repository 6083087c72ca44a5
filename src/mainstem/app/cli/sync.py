"""`mainstem sync`: a sync client on the command line, with a local database that also works offline."""

import asyncio
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

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

_URL = "http://127.0.0.1:8181"


class Place(msgspec.Struct, frozen=True):
    """Which copy, and what it is kept in step with."""

    url: str
    token: str | None
    gateway: str
    db: Path
    client_id: str | None


@click.group()
@click.option("--url", default=_URL, show_default=True, help="The server.")
@click.option("--token", envvar="MAINSTEM_TOKEN", help="A bearer token, where the server asks for one.")
@click.option("--gateway", required=True, help="The gateway: the namespace of the tables.")
@click.option(
    "--db", type=click.Path(dir_okay=False, path_type=Path), default=Path("mainstem-sync.db"), show_default=True,
    help="The local copy. It keeps the edits that the server does not have yet.",
)  # fmt: skip
@click.option("--client-id", help="Who writes; a random name by default. With a token, its subject.")
@click.pass_context
def sync(context: click.Context, url: str, token: str | None, gateway: str, db: Path, client_id: str | None) -> None:
    """Keep a local copy of a gateway's rows, read it and write to it. Rows are JSON, one per line."""
    context.obj = Place(url, token, gateway, db, client_id)


@sync.command()
@click.argument("table")
@click.pass_obj
def pull(place: Place, table: str) -> None:
    """Sync, then print the rows of TABLE. Without a network: an error, and the rows that are here."""
    with _opened(place) as db:
        error = asyncio.run(_sync_once(place, db))
        for row in db.all(table):
            _print(row.row_id, row.values)
        _end(db, error)


@sync.command()
@click.argument("table")
@click.argument("row_id", metavar="ROW")
@click.argument("columns", metavar="[COLUMNS]", required=False)
@click.option("--delete", is_flag=True, help="Delete the row.")
@click.pass_obj
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
        _end(db, asyncio.run(_sync_once(place, db)))


@sync.command()
@click.argument("table")
@click.pass_obj
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


def _end(db: LocalDB, error: MainstemError | None) -> None:
    """Say what waits and what was refused, and fail where there is any such thing."""
    state = db.state()
    for letter in db.dead_letters():
        click.echo(f"refused: {letter.reason} {letter.delta.table} {letter.delta.row_id}: {letter.message}", err=True)
    if error is not None:
        raise click.ClickException(f"{error} ({state.pending} waiting)")
    if state.dead:
        raise SystemExit(1)


def _print(row_id: str, values: dict[str, Any] | None) -> None:
    click.echo(msgspec.json.encode({"id": row_id, "row": values}))
