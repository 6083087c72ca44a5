"""`mainstem analyst`: time travel, changes between two clocks, and who wrote a column, from the command line."""

from collections.abc import Iterable

import msgspec
import rich_click as click

from mainstem.app.cli.options import Server, asking, json_lines_option, token_option, url_option
from mainstem.client.analyst import Analyst


def _connect(url: str, token: str | None) -> Analyst:
    return Analyst(url, token=token)


_limit_option = click.option(
    "--limit", type=click.IntRange(1), default=10_000, show_default=True, help="How many at most."
)


@click.group()
@url_option
@token_option
@click.pass_context
def analyst(context: click.Context, url: str, token: str | None) -> None:
    """Ask a table's history. A CLOCK is a hybrid logical clock, or a time such as 2026-11-16T05:00:00Z."""
    context.obj = Server(url, token)


@analyst.command("as-of")
@click.argument("table")
@click.argument("clock")
@click.option("--key", help="Only this row.")
@_limit_option
@json_lines_option
@asking(_connect)
def as_of(asks: Analyst, table: str, clock: str, key: str | None, limit: int) -> None:
    """The rows of TABLE as they were at CLOCK, one JSON object per line."""
    _print(asks.as_of(table, clock, key=key, limit=limit))


@analyst.command()
@click.argument("table")
@click.argument("after", metavar="AFTER")
@click.argument("through", metavar="THROUGH")
@_limit_option
@json_lines_option
@asking(_connect)
def changes(asks: Analyst, table: str, after: str, through: str, limit: int) -> None:
    """What changed in TABLE after one clock and up to another."""
    _print(asks.changes(table, after=after, through=through, limit=limit))


@analyst.command()
@click.argument("table")
@click.argument("key")
@click.argument("column")
@_limit_option
@json_lines_option
@asking(_connect)
def blame(asks: Analyst, table: str, key: str, column: str, limit: int) -> None:
    """Who changed COLUMN of the row KEY, and when; the newest first."""
    _print(asks.blame(table, key=key, column=column, limit=limit))


def _print(rows: Iterable[object]) -> None:
    for each in rows:
        click.echo(msgspec.json.encode(each))
