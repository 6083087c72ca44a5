"""`mainstem backup`, `restore` and `relocate`: what is done to a data folder while no server runs on it."""

from pathlib import Path

import rich_click as click

from mainstem.app.cli.options import json_option
from mainstem.app.cli.views import tell
from mainstem.app.folder.backing_up import back_up
from mainstem.app.folder.backing_up import restore as restored
from mainstem.app.folder.home import relocate_data
from mainstem.model import MainstemError
from mainstem.runtime.clock import SystemClock

_data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("data"),
    show_default=True,
    help="The data folder. Its server must be stopped.",
)


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@_data_option
@json_option
def backup(target: Path, data: Path, as_json: bool) -> None:
    """Copy a data folder to TARGET, with a list of its files by which `restore` checks them."""
    try:
        made = back_up(data, target, SystemClock())
    except (MainstemError, OSError) as error:
        raise click.ClickException(str(error)) from error
    has_catalog = any(file.path.startswith("catalog/") for file in made.files)
    facts = {"files": len(made.files), "bytes": made.bytes, "target": str(target), "hasCatalog": has_catalog}
    tell(f"{len(made.files)} files, {made.bytes} bytes, in {target}", facts, as_json=as_json)
    if not has_catalog and not as_json:
        click.echo("The catalog is not in this folder: back its database and the warehouse up as well.")


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@_data_option
@json_option
def restore(source: Path, data: Path, as_json: bool) -> None:
    """Make a data folder of the backup in SOURCE. The folder must not exist yet, or be empty."""
    try:
        listed, moved = restored(source, data)
    except (MainstemError, OSError) as error:
        raise click.ClickException(str(error)) from error
    facts = {"files": len(listed.files), "bytes": listed.bytes, "data": str(data), "moved": moved}
    said = f"{len(listed.files)} files, {listed.bytes} bytes, in {data}"
    tell("\n".join([said, *_moved(moved)]), facts, as_json=as_json)


@click.command()
@_data_option
@json_option
def relocate(data: Path, as_json: bool) -> None:
    """Make the tables of a data folder that was moved or copied its own."""
    try:
        old, moved = relocate_data(data)
    except (MainstemError, OSError) as error:
        raise click.ClickException(str(error)) from error
    said = "The tables are where the folder is: nothing to do." if old is None else f"The folder was at {old}."
    facts = {"data": str(data), "before": None if old is None else str(old), "moved": moved}
    tell("\n".join([said, *_moved(moved)]), facts, as_json=as_json)


def _moved(moved: list[str]) -> list[str]:
    return [f"{len(moved)} tables and views name their files here now."] if moved else []
