"""`mainstem load`: files into a table, through the log, with a progress bar."""

import time
from pathlib import Path

import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from mainstem.client.loading import Target, files_of, load_file
from mainstem.model import MainstemError


@click.command()
@click.argument("place", metavar="FILE|FOLDER", type=click.Path(exists=True, path_type=Path))
@click.option("--table", required=True, help="The table: `orders`, or with its namespace `shop.orders`.")
@click.option("--key", multiple=True, help="A key column; several make a key together. By default the declared key.")
@click.option(
    "--mode", type=click.Choice(["upsert", "append"]), default="upsert", show_default=True,
    help="By key, or every row a new one.",
)  # fmt: skip
@click.option("--url", default="http://127.0.0.1:8181", show_default=True, help="The server.")
@click.option("--token", envvar="MAINSTEM_TOKEN", help="A bearer token, where the server asks for one.")
def load(place: Path, table: str, key: tuple[str, ...], mode: str, url: str, token: str | None) -> None:
    """Load FILE, or every file of FOLDER, into a table: Parquet, CSV with a header, JSON lines.

    Rows go through the log like any other change. A load that was cut off may be run again as it was: what was taken
    before counts once.
    """
    target = Target(url, table, mode, tuple(name for each in key for name in each.split(",")), token)
    began_s, rows = time.monotonic(), 0
    try:
        files = files_of(place)
        parts = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*parts, console=Console(stderr=True)) as progress:
            for file in files:
                task = progress.add_task(file.name, total=file.stat().st_size)
                for count, done in load_file(file, target):
                    rows += count
                    progress.update(task, completed=done)
    except MainstemError as error:
        raise click.ClickException(str(error)) from error
    took_s = time.monotonic() - began_s
    click.echo(f"{rows:,} rows of {len(files)} file(s) are durable, in {took_s:.1f} s; the tables have them soon after")
