"""`mainstem load`: files into a table, through the log or by Spark, with a progress bar."""

import time
from pathlib import Path
from typing import Any

import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from mainstem.app.cli.options import json_option, token_option, url_option
from mainstem.app.cli.views import tell
from mainstem.client.direct import load_direct
from mainstem.client.loading import Target, files_of, load_file
from mainstem.model import MainstemError


@click.command()
@click.argument("place", metavar="FILE|FOLDER")
@click.option("--table", required=True, help="The table: `orders`, or with its namespace `shop.orders`.")
@click.option("--key", multiple=True, help="A key column; several make a key together. By default the declared key.")
@click.option(
    "--mode", type=click.Choice(["upsert", "append"]), default="upsert", show_default=True,
    help="By key, or every row a new one.",
)  # fmt: skip
@click.option(
    "--direct", is_flag=True,
    help="A first load of any size: Spark reads the files where the server has them and writes them into the table, "
    "without the log. Each key once; they are no changes for sync, streams and topics.",
)  # fmt: skip
@url_option
@token_option
@json_option
def load(
    place: str, table: str, key: tuple[str, ...], mode: str, url: str, token: str | None, *, direct: bool, as_json: bool
) -> None:
    """Load FILE, or every file of FOLDER, into a table: Parquet, CSV with a header, JSON lines.

    Rows go through the log like any other change, or with --direct straight into the table. A load that was cut off
    may be run again as it was: what was taken before counts once.
    """
    target = Target(url, table, mode, tuple(name for each in key for name in each.split(",")), token)
    began_s = time.monotonic()
    try:
        said, numbers = _direct(place, target) if direct else _through_the_log(Path(place), target)
    except MainstemError as error:
        raise click.ClickException(str(error)) from error
    took_s = time.monotonic() - began_s
    tell(said.format(took=f"{took_s:.1f} s"), {"table": table, **numbers, "seconds": round(took_s, 3)}, as_json=as_json)


def _through_the_log(place: Path, target: Target) -> tuple[str, dict[str, Any]]:
    if not place.exists():
        raise click.ClickException(f"there is no such file or folder. got={place}")
    rows = 0
    files = files_of(place)
    parts = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*parts, console=Console(stderr=True)) as progress:
        for file in files:
            task = progress.add_task(file.name, total=file.stat().st_size)
            for count, done in load_file(file, target):
                rows += count
                progress.update(task, completed=done)
    said = f"{rows:,} rows of {len(files)} file(s) are durable, in {{took}}; the tables have them soon after"
    return said, {"rows": rows, "files": len(files)}


def _direct(place: str, target: Target) -> tuple[str, dict[str, Any]]:
    parts = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    done: dict[str, int] = {}
    with Progress(*parts, console=Console(stderr=True)) as progress:
        task = progress.add_task("waits for Spark", total=None)
        for told in load_direct(place, target):
            progress.update(task, description=told.what, completed=told.done, total=told.tasks or None)
            done = told.result
    numbers = {"rows": done["rows"], "merged": done["merged"], "repeated": bool(done["repeated"])}
    if done["repeated"]:
        return f"{done['rows']:,} rows of these files are in the table already: nothing was done, in {{took}}", numbers
    known = f"; the table knew {done['merged']:,} of their keys" if done["merged"] else ""
    return f"{done['rows']:,} rows are in the table, in {{took}}{known}", numbers
