"""`mainstem backup`, `restore` and `relocate`: what is done to a data folder while no server runs on it."""

from pathlib import Path

import rich_click as click

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
def backup(target: Path, data: Path) -> None:
    """Copy a data folder to TARGET, with a list of its files by which `restore` checks them."""
    try:
        made = back_up(data, target, SystemClock())
    except (MainstemError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{len(made.files)} files, {made.bytes} bytes, in {target}")
    if not any(file.path.startswith("catalog/") for file in made.files):
        click.echo("The catalog is not in this folder: back its database and the warehouse up as well.")


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@_data_option
def restore(source: Path, data: Path) -> None:
    """Make a data folder of the backup in SOURCE. The folder must not exist yet, or be empty."""
    try:
        listed, moved = restored(source, data)
    except (MainstemError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{len(listed.files)} files, {listed.bytes} bytes, in {data}")
    _tell_moved(moved)


@click.command()
@_data_option
def relocate(data: Path) -> None:
    """Make the tables of a data folder that was moved or copied its own."""
    try:
        old, moved = relocate_data(data)
    except (MainstemError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if old is None:
        click.echo("The tables are where the folder is: nothing to do.")
        return
    click.echo(f"The folder was at {old}.")
    _tell_moved(moved)


def _tell_moved(moved: list[str]) -> None:
    if moved:
        click.echo(f"{len(moved)} tables and views name their files here now.")
