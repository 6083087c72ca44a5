"""`mainstem analyst`: time travel, changes between two clocks, and who wrote a column, from the command line."""

from collections.abc import Callable, Iterable

import msgspec
import rich_click as click

from mainstem.client.analyst import Analyst
from mainstem.model import MainstemError

_URL = "http://127.0.0.1:8181"


@click.group()
@click.option("--url", default=_URL, show_default=True, help="The server.")
@click.option("--token", envvar="MAINSTEM_TOKEN", help="A bearer token, where the server asks for one.")
@click.pass_context
def analyst(context: click.Context, url: str, token: str | None) -> None:
    """Ask a table's history. A CLOCK is a hybrid logical clock, or a time such as 2026-11-16T05:00:00Z."""
    context.obj = context.with_resource(Analyst(url, token=token))


@analyst.command("as-of")
@click.argument("table")
@click.argument("clock")
@click.option("--key", help="Only this row.")
@click.option("--limit", type=click.IntRange(1), default=10_000, show_default=True)
@click.pass_obj
def as_of(asks: Analyst, table: str, clock: str, key: str | None, limit: int) -> None:
    """The rows of TABLE as they were at CLOCK, one JSON object per line."""
    _print(lambda: asks.as_of(table, clock, key=key, limit=limit))


@analyst.command()
@click.argument("table")
@click.argument("after", metavar="AFTER")
@click.argument("through", metavar="THROUGH")
@click.option("--limit", type=click.IntRange(1), default=10_000, show_default=True)
@click.pass_obj
def changes(asks: Analyst, table: str, after: str, through: str, limit: int) -> None:
    """What changed in TABLE after one clock and up to another."""
    _print(lambda: asks.changes(table, after=after, through=through, limit=limit))


@analyst.command()
@click.argument("table")
@click.argument("key")
@click.argument("column")
@click.option("--limit", type=click.IntRange(1), default=10_000, show_default=True)
@click.pass_obj
def blame(asks: Analyst, table: str, key: str, column: str, limit: int) -> None:
    """Who changed COLUMN of the row KEY, and when; the newest first."""
    _print(lambda: asks.blame(table, key=key, column=column, limit=limit))


def _print(ask: Callable[[], Iterable[object]]) -> None:
    try:
        for each in ask():
            click.echo(msgspec.json.encode(each))
    except MainstemError as error:
        raise click.ClickException(str(error)) from error
