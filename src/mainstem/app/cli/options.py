"""The options that commands share: each means the same everywhere, and may stand before or after a command's name."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
import rich_click as click

from mainstem.model import MainstemError

P = ParamSpec("P")
T = TypeVar("T")
DEFAULT_URL = "http://127.0.0.1:8181"


def _whole(_context: click.Context, _option: click.Parameter, url: str | None) -> str | None:
    """People type `127.0.0.1:8181`, as curl takes it."""
    if url is None:
        return None
    return (url if "://" in url else f"http://{url}").rstrip("/")


url_option = click.option(
    "--url",
    envvar="MAINSTEM_URL",
    default=DEFAULT_URL,
    show_default=True,
    callback=_whole,
    help="The server to ask; or MAINSTEM_URL.",
)
# For a command of a group that has been told already.
own_url_option = click.option(
    "--url", callback=_whole, help=f"The server to ask; or MAINSTEM_URL.  [default: {DEFAULT_URL}]"
)
own_token_option = click.option("--token", help="A bearer token, where the server asks for one; or MAINSTEM_TOKEN.")
token_option = click.option(
    "--token", envvar="MAINSTEM_TOKEN", help="A bearer token, where the server asks for one; or MAINSTEM_TOKEN."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
# For commands whose answer is JSON in any case: asking for it is no mistake.
json_lines_option = click.option("--json", is_flag=True, expose_value=False, help="It is JSON in any case.")


class Server(msgspec.Struct, frozen=True):
    """Where to ask, and as whom: what stands before a command's name."""

    url: str
    token: str | None


def asking(
    connect: Callable[[str, str | None], T],
) -> Callable[[Callable[Concatenate[T, P], None]], Callable[..., None]]:
    """Give a command of a group the connection that `connect` makes of its server, as its first argument.

    The group has `--url` and `--token`; the command takes them too, since people type them last. Errors become a line.
    """

    def decorate(command: Callable[Concatenate[T, P], None]) -> Callable[..., None]:
        @own_url_option
        @own_token_option
        @click.pass_context
        @wraps(command)
        def run(context: click.Context, url: str | None, token: str | None, *args: Any, **kwargs: Any) -> None:
            group: Server = context.obj
            with in_one_line():
                remote = connect(url or group.url, token or group.token)
                if isinstance(remote, AbstractContextManager):
                    context.with_resource(remote)
                command(remote, *args, **kwargs)

        return run

    return decorate


class in_one_line:  # noqa: N801 - used as a function is
    """Turn an error of ours into the one line that a terminal shows."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MainstemError):
            raise click.ClickException(str(error)) from error
