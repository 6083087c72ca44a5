"""`mainstem dead-letters`: look at changes that did not fit their table, mend them, and send them again."""

import json
from typing import Any
from urllib.parse import quote

import rich_click as click

from mainstem.app.cli.options import Server, asking, json_option, token_option, url_option
from mainstem.app.cli.remote import Remote
from mainstem.app.cli.views import View, print_json, show

# One call takes no more.
_LETTERS_MAX = 1_000
# A table with more dead letters than this has another problem; run the command again.
_ROUNDS_MAX = 1_000


@click.group("dead-letters")
@url_option
@token_option
@click.pass_context
def dead_letters(context: click.Context, url: str, token: str | None) -> None:
    """Look at changes that did not fit their table, and send them again, mended or as they are."""
    context.obj = Server(url, token)


@dead_letters.command("list")
@click.argument("table")
@click.option(
    "--limit", type=click.IntRange(1, _LETTERS_MAX), default=20, show_default=True, help="How many, newest first."
)
@click.option("--reason", help="Only those of one reason, as it is counted.")
@json_option
@asking(Remote)
def list_(remote: Remote, table: str, limit: int, reason: str | None, as_json: bool) -> None:
    """Show the dead letters of TABLE, and how many there are of each reason."""
    query = {"limit": str(limit)} | ({} if reason is None else {"reason": reason})
    found = remote.ask("GET", _path(table), **query)
    if as_json:
        print_json(found)
        return
    counts = View("reason", "letters")
    for each, count in found["reasons"].items():
        counts.add(each, count)
    view = View("id", "key", "operation", "reason", "columns", "replayed")
    for letter in found["letters"]:
        view.add(*(letter[name] for name in view.columns))
    click.echo(f"{table}: {found['total']:,} dead letters, {found['replayed']:,} replayed")
    show(counts, view)


@dead_letters.command()
@click.argument("table")
@click.option("--id", "ids", multiple=True, help="One of them, by its id; may be given more than once.")
@click.option("--reason", help="All of one reason, as `list` counts it.")
@click.option("--all", "is_all", is_flag=True, help="All that were not replayed yet.")
@click.option(
    "--set", "columns", multiple=True, metavar="COLUMN=JSON", help="A corrected column; text needs no quotes."
)
@click.option("--drop", multiple=True, metavar="COLUMN", help="A column to leave out.")
@json_option
@asking(Remote)
def replay(
    remote: Remote,
    table: str,
    ids: tuple[str, ...],
    reason: str | None,
    is_all: bool,
    columns: tuple[str, ...],
    drop: tuple[str, ...],
    as_json: bool,
) -> None:
    """Send dead letters of TABLE again. Doing it twice changes nothing."""
    mend: dict[str, Any] = {"columns": dict(_assigned(each) for each in columns), "drop": list(drop)}
    if ids:
        body: dict[str, Any] = {"letters": [{"id": each, **mend} for each in ids]}
        if reason is not None or is_all:
            raise click.UsageError("--id goes neither with --reason nor with --all")
    elif reason is not None or is_all:
        body = mend | ({"reason": reason} if reason is not None else {"all": True})
    else:
        raise click.UsageError("say which: --id, --reason or --all")
    replayed = duplicates = 0
    failures: list[dict[str, str]] = []
    for _ in range(_ROUNDS_MAX):
        told = remote.ask("POST", f"{_path(table)}/replay", body)
        replayed += told["replayed"]
        duplicates += told["duplicates"]
        failures += told["failures"]
        # What failed would come again and again.
        if not told["remaining"] or not told["replayed"]:
            break
    if as_json:
        print_json({"table": table, "replayed": replayed, "duplicates": duplicates, "failures": failures})
    else:
        click.echo(f"{replayed} replayed, {duplicates} had been before")
        for each in failures[:20]:
            click.echo(f"{each['id']}: {each['error']}", err=True)
    if failures:
        raise click.ClickException(f"{len(failures)} could not be replayed")


def _path(table: str) -> str:
    return f"tables/{quote(table, safe='')}/dead-letters"


def _assigned(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise click.BadParameter(f"expected COLUMN=JSON, got {text!r}", param_hint="--set")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
