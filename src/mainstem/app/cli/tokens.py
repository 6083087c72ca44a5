"""`mainstem token`, `key` and `password`: credentials, for development, and where there is no issuer of tokens."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from mainstem.admission import scram
from mainstem.admission.keys import Key, new_secret, private_key, secret_key
from mainstem.admission.keys import sign as signed
from mainstem.admission.principal import Role
from mainstem.app.config import load_config
from mainstem.model import MainstemError
from mainstem.runtime.clock import SystemClock

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LIFETIME_DEFAULT = "12h"


def _role_option(default: Role) -> Callable[[Callable[..., None]], Callable[..., None]]:
    roles = click.Choice([role.value for role in Role])
    return click.option("--role", type=roles, default=default.value, show_default=True, help="What it may do.")


@click.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="The server's configuration: its keys.")
@click.option("--private-key", type=click.Path(path_type=Path), help="A PEM file (RSA or P-256), instead of a secret.")
@click.option("--kid", help="Which key.  [default: the last one in the configuration]")
@click.option("--sub", default="dev", show_default=True, help="Who the token is for.")
@_role_option(Role.ADMIN)
@click.option(
    "--namespace", "namespaces", multiple=True, help="A namespace with all below it; again for more.  [default: *]"
)
@click.option("--table", "tables", multiple=True, help="A table, or a pattern such as sales.*; again for more.")
@click.option("--gw", help="The gateway id of a sync client.")
@click.option("--expires", default=_LIFETIME_DEFAULT, show_default=True, metavar="30m|12h|7d", help="Lifetime.")
def token(
    config_path: Path | None,
    private_key: Path | None,
    kid: str | None,
    sub: str,
    role: str,
    namespaces: tuple[str, ...],
    tables: tuple[str, ...],
    gw: str | None,
    expires: str,
) -> None:
    """Print a token that the server takes, signed with one of its keys."""
    now_s = SystemClock().now_ms() // 1000
    claims: dict[str, Any] = {
        "sub": sub,
        "role": role,
        "namespace": list(namespaces) or "*",
        "iat": now_s,
        "exp": now_s + _seconds(expires),
    }
    if tables:
        claims["tables"] = list(tables)
    if gw is not None:
        claims["gw"] = gw
    try:
        config = load_config(config_path)
        if config.auth.issuer:
            claims["iss"] = config.auth.issuer
        if config.auth.audience:
            claims["aud"] = config.auth.audience
        click.echo(signed(claims, _key(config.auth.keys, private_key, kid)))
    except MainstemError as error:
        raise click.ClickException(str(error)) from error


@click.command()
@click.argument("kid", default="")
def key(kid: str) -> None:
    """Print a new secret, as the configuration has it. KID names it; a date is a good name."""
    name = kid or f"key-{new_secret()[:6]}"
    text = f'[auth.keys]\n"{name}" = "{new_secret()}"'
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise click.ClickException(f"a key's name has no quotes and no line breaks. got={kid!r}") from error
    click.echo(text)


def _key(keys: dict[str, str], pem: Path | None, kid: str | None) -> Key:
    if pem is not None:
        try:
            return private_key(kid, pem.read_bytes())
        except OSError as error:
            raise click.ClickException(f"{pem}: {error.strerror}") from error
    if not keys:
        raise click.ClickException("no key. Give --config with [auth.keys] (see `mainstem key`), or --private-key")
    name = kid if kid is not None else list(keys)[-1]
    if name not in keys:
        raise click.ClickException(f"no such key. expected={', '.join(keys)} got={name}")
    return secret_key(name, keys[name])


def _seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None or int(match[1]) == 0:
        raise click.BadParameter(f"expected a number and s, m, h or d, such as 12h; got {text!r}")
    return int(match[1]) * _UNITS_S[match[2]]


@click.command()
@click.argument("user")
@click.option(
    "--password", prompt=True, hide_input=True, confirmation_prompt=True, help="Asked for where it is not given."
)
@_role_option(Role.WRITER)
@click.option(
    "--iterations",
    type=click.IntRange(scram.ITERATIONS_MIN, scram.ITERATIONS_MAX),
    default=scram.ITERATIONS,
    show_default=True,
    help="How dear a guess is.",
)
def password(user: str, password: str, role: str, iterations: int) -> None:
    """Print the section of the configuration that lets USER log in with a password: salted keys, never the password."""
    try:
        name = scram.saslprep(user)
        found = [
            scram.derive(password, hash_name=mechanism.hash_name, iterations=iterations)
            for mechanism in scram.Mechanism
        ]
    except MainstemError as error:
        raise click.ClickException(str(error)) from error
    settings = {"credentials": [scram.to_text(each) for each in found], "role": role}
    click.echo(msgspec.toml.encode({"users": {name: settings}}).decode(), nl=False)
