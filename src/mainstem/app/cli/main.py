"""The `mainstem` command: reads the words, calls the rest, and says in one line what went wrong."""

import asyncio
import gc
import json
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, ParamSpec

import msgspec
import rich_click as click

from mainstem.app.cli.options import json_lines_option, token_option, url_option
from mainstem.app.config import load_config
from mainstem.app.version import VERSION
from mainstem.model import MainstemError

P = ParamSpec("P")


def _fails_in_one_line(command: Callable[P, None]) -> Callable[P, None]:
    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except MainstemError as error:
            raise click.ClickException(str(error)) from error

    return run


class _Main(click.RichGroup):
    """Loads a command's module when that command is asked for: `serve` has two seconds to accept its first change."""

    _MODULES: Mapping[str, str] = {
        "analyst": "analyst",
        "backup": "data",
        "catalog": "catalog",
        "dead-letters": "letters",
        "groups": "kafka",
        "key": "tokens",
        "load": "load",
        "migrate": "moving",
        "password": "tokens",
        "relocate": "data",
        "restore": "data",
        "sync": "sync",
        "token": "tokens",
        "topics": "kafka",
    }

    def main(self, *args: Any, **options: Any) -> Any:
        """Errors are plain lines: a frame around them would break addresses and ids, which people copy."""
        run: Callable[..., Any] = super().main
        if not options.pop("standalone_mode", True):
            return run(*args, standalone_mode=False, **options)
        try:
            code = run(*args, standalone_mode=False, **options)
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except click.Abort:
            click.echo("Aborted!", err=True)
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self._MODULES])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = self._MODULES.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(f"mainstem.app.cli.{module}"), cmd_name.replace("-", "_"))
        return command


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="mainstem")
@click.pass_context
def main(context: click.Context) -> None:
    """Every change an application makes, on one durable log, into an open lakehouse."""
    # Off while modules load. The server has more to load, and says itself when all of it is there.
    if context.invoked_subcommand != "serve":
        gc.enable()


@main.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Where everything is kept: log, catalog, tables.",
)
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 picks a free one.  [default: 8181]")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help="A TOML file; `mainstem config` prints one with the defaults.",
)
@click.option(
    "--flush-interval",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Carry changes into the tables at least this often.  [default: 30]",
)
@click.option(
    "--kafka-port",
    type=click.IntRange(0, 65535),
    help="Open the door for Kafka's clients on this port; 0 picks a free one.  [default: not open]",
)
@click.option(
    "--mongo-port",
    type=click.IntRange(0, 65535),
    help="Port for MongoDB's protocol; 0 picks a free one.  [default: none]",
)
@click.option("--no-pipeline", is_flag=True, help="Only accept changes; Spark runs elsewhere or later.")
@_fails_in_one_line
def serve(
    data: Path,
    host: str | None,
    port: int | None,
    config_path: Path | None,
    flush_interval: float | None,
    kafka_port: int | None,
    mongo_port: int | None,
    no_pipeline: bool,
) -> None:
    """Start the server and keep it up. Ctrl-C drains and stops it."""
    from mainstem.app.serve import serve as run

    config = load_config(config_path)
    server = {"host": host, "port": port}
    config = msgspec.structs.replace(
        config,
        server=msgspec.structs.replace(config.server, **{k: v for k, v in server.items() if v is not None}),
        log=msgspec.structs.replace(config.log, **({"flush_interval_s": flush_interval} if flush_interval else {})),
        kafka=msgspec.structs.replace(
            config.kafka, **({} if kafka_port is None else {"enabled": True, "port": kafka_port})
        ),
        mongo=msgspec.structs.replace(config.mongo, **({} if mongo_port is None else {"port": mongo_port})),
        pipeline=msgspec.structs.replace(config.pipeline, **({"enabled": False} if no_pipeline else {})),
    )
    sys.exit(run(config, data))


@main.command()
@click.option(
    "--changes", type=click.IntRange(min=1000), default=50_000, show_default=True, help="How many changes to stream."
)
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Keep the data in this folder instead of a temporary one."
)
@click.option("--stay", is_flag=True, help="Keep the server up until Ctrl-C, to look around.")
@_fails_in_one_line
def demo(changes: int, keep: Path | None, stay: bool) -> None:
    """Send changes through every door of a real server, and read the tables back with DuckDB and Spark."""
    from mainstem.app.demo.demo import run_demo

    sys.exit(asyncio.run(run_demo(changes, keep, stay=stay)))


@main.command()
@_fails_in_one_line
def config() -> None:
    """Print a configuration file with every key, its default and what it is for."""
    from mainstem.app.reference import to_toml

    click.echo(to_toml(), nl=False)


@main.command()
@url_option
@token_option
@json_lines_option
@_fails_in_one_line
def status(url: str, token: str | None) -> None:
    """Show how a running server is: log, buffer, pipeline, lag per table."""
    click.echo(json.dumps(_ask(url, "GET", "/status", token), indent=2))


@main.command()
@url_option
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, max=600, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for it.",
)
@token_option
@json_lines_option
@_fails_in_one_line
def flush(url: str, timeout: float, token: str | None) -> None:
    """Carry everything accepted so far into the tables, and wait for it."""
    pipeline = _ask(url, "GET", "/status", token).get("pipeline")
    if isinstance(pipeline, dict) and pipeline.get("state") in ("off", "down"):
        said = f"the pipeline is {pipeline['state']}: what is accepted waits in the log until one runs"
        click.echo(f"{said}; waiting up to {timeout:g} s", err=True)
    answer = _ask(url, "POST", f"/flush?timeoutS={timeout}", token, timeout)
    click.echo(json.dumps(answer, indent=2))
    if not answer.get("complete"):
        waits_for = answer.get("waitsFor")
        why = f": they wait for {waits_for}" if waits_for else ""
        raise click.ClickException(
            f"the tables do not cover everything yet{why}; nothing is lost, see `mainstem status`"
        )


def _ask(url: str, method: str, path: str, token: str | None, timeout_s: float = 10.0) -> dict[str, object]:
    import httpx

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.request(method, url + path, headers=headers, timeout=timeout_s + 10)
    except httpx.HTTPError as error:
        raise click.ClickException(f"no answer from {url}: {error}") from error
    if answer.status_code not in (200, 504):
        raise click.ClickException(f"{url}{path} answered {answer.status_code}: {answer.text[:500]}")
    body: dict[str, object] = answer.json()
    return body


if __name__ == "__main__":
    main()
