"""`mainstem migrate`: the log of a data folder goes to Apache Kafka, while no server runs on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from mainstem.app.cli.options import json_option
from mainstem.app.cli.views import tell
from mainstem.app.config import load_config
from mainstem.app.folder.moving import Plan, bring_back
from mainstem.app.folder.moving import migrate as moved_by
from mainstem.log.kafka.moved import ASIDE
from mainstem.model import MainstemError


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("data"),
    show_default=True,
    help="The data folder. Its server must be stopped.",
)
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    required=True,
    help='The configuration that the server is to have afterwards, with [log] kind = "kafka".',
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
@click.option("--back", is_flag=True, help="Bring the log back, as long as it has taken nothing new on Kafka.")
@json_option
def migrate(data: Path, config_path: Path, dry_run: bool, back: bool, as_json: bool) -> None:
    """Move the log of a data folder to Apache Kafka: what is not in the tables yet, and what producers, clients and
    consumers are known by. Catalog and tables stay where they are. After a crash run it again: it goes on."""
    parts = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        config = load_config(config_path)
        with Progress(*parts, console=Console(stderr=True)) as progress:
            if back:
                said, facts = _brought_back(data, bring_back(data, config, _telling(progress)).last)
            else:
                plan = moved_by(data, config, _telling(progress), is_dry_run=dry_run)
                said, facts = _described(plan, data, config_path, is_dry_run=dry_run)
    except (MainstemError, OSError) as error:
        raise click.ClickException(str(error)) from error
    tell(said, facts, as_json=as_json)


def _telling(progress: Progress) -> Callable[[str, int, int], None]:
    task = progress.add_task("looking at what is there", total=None)

    def told(what: str, done: int, total: int) -> None:
        progress.update(task, description=what, completed=done, total=total or None)

    return told


def _brought_back(data: Path, last: int) -> tuple[str, dict[str, Any]]:
    said = f'The log is in {data} again, up to {last}. Serve it with [log] kind = "embedded".'
    return said, {"data": str(data), "last": last, "back": True}


def _described(plan: Plan, data: Path, config_path: Path, *, is_dry_run: bool) -> tuple[str, dict[str, Any]]:
    leaving, moved = plan.leaving, plan.moved
    lines: list[str] = []
    facts: dict[str, Any] = {
        "topic": moved.topic,
        "found": plan.found.value,
        "last": moved.last,
        "dryRun": is_dry_run,
        "records": plan.records,
    }
    if leaving is not None:
        size = leaving.bytes(with_segments=plan.segments_url is None)
        segments = [*leaving.segments, *leaving.planned]
        facts |= {"changes": leaving.changes, "batches": leaving.batches, "segments": len(segments), "bytes": size}
        where = "into the topic" if plan.segments_url is None else f"to {plan.segments_url}"
        verb = "would go" if is_dry_run else "went"
        lines += [
            f"The log of {data} ends at {moved.last}. Topic {moved.topic} has {plan.found.value} of it.",
            f"{leaving.changes:,} changes in {leaving.batches:,} batches {verb} into the topic as they are, "
            f"{len(segments)} segments {where}: {size:,} bytes.",
        ]
        if leaving.torn is not None:
            lines.append(f"A torn tail of {leaving.torn.bytes} bytes, which was never acknowledged, stays behind.")
    if not is_dry_run:
        facts["log"] = moved.spans[-1][0]
        lines += [
            f"All of it was read again and compared: {plan.records:,} records." if plan.records else "It was there.",
            f"The log goes on at {moved.last + 1} as {moved.spans[-1][0]}. Serve it from now on with",
            f"  mainstem serve --data {data} --config {config_path}",
            f"The old log is in {data / 'log' / ASIDE}, which no server takes. Until something new was taken,",
            f"  mainstem migrate --data {data} --config {config_path} --back",
            "brings it back. Remove that folder once you need neither.",
        ]
    if (data / "users.json").exists():
        facts["users"] = "users.json"
        lines.append("Users that commands made are not known to a gateway on Kafka: put them into [users].")
    return "\n".join(lines), facts
