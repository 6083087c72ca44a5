"""The configuration as people read it: every key with its default and what it is for.

The words are the comments above the fields of the settings' own classes, so that `mainstem config`, the guide
(docs/guides/configuration.md, written by `make docs`) and the code cannot say different things.
"""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from mainstem.admission import UserSettings
from mainstem.app.config import Config
from mainstem.tables.settings import TableSettings

_FIELD = re.compile(r"^    ([a-z][a-z_0-9]*): ")
_WIDTH = 100
# Sections whose names the user gives, with the class that says what each of them holds.
_NAMED = {"users": ("users.NAME", UserSettings), "tables": ('tables."NAMESPACE.TABLE"', TableSettings)}


class Key(NamedTuple):
    """One key of a section. `default` is TOML, or None for one that has to be given."""

    name: str
    default: str | None
    words: str


class Section(NamedTuple):
    """One section of the file. A `named` one stands for as many as the user likes; a default file has none of it."""

    name: str
    words: str
    keys: tuple[Key, ...]
    named: bool = False


def comments(kind: type) -> dict[str, str]:
    """The comment above each field of a class, as one line of text; fields without one are missing."""
    found: dict[str, str] = {}
    gathered: list[str] = []
    # What a class takes over from another of ours is told there.
    ours = [each for each in reversed(kind.__mro__) if each.__module__.startswith("mainstem.")]
    for line in (line for each in ours for line in inspect.getsource(each).splitlines()):
        if line.startswith("    # "):
            gathered.append(line[6:].strip())
            continue
        if (field := _FIELD.match(line)) and gathered:
            found[field[1]] = " ".join(gathered)
        gathered = []
    return found


def sections() -> Iterator[Section]:
    """Every section, in the order of the file."""
    words = comments(Config)
    config = Config()
    for field in msgspec.structs.fields(Config):
        if field.name in _NAMED:
            name, kind = _NAMED[field.name]
            yield _named(name, kind)
        else:
            yield from _sections(field.name, getattr(config, field.name), words.get(field.name, ""))


def _sections(path: str, settings: Any, words: str) -> Iterator[Section]:
    if isinstance(settings, dict):
        yield Section(path, words, ())
        return
    kind = type(settings)
    told, inner, keys = comments(kind), [], []
    for field in msgspec.structs.fields(kind):
        value = getattr(settings, field.name)
        if isinstance(value, dict | msgspec.Struct):
            inner.append((field.name, value))
        else:
            keys.append(Key(field.name, _toml(value), told.get(field.name, "")))
    yield Section(path, _first(words, kind.__doc__), tuple(keys))
    for name, value in inner:
        yield from _sections(f"{path}.{name}", value, told.get(name, ""))


def _named(path: str, kind: type) -> Section:
    told = comments(kind)
    return Section(path, _first("", kind.__doc__), tuple(_keys_of(kind, told)), named=True)


def _keys_of(kind: Any, told: Mapping[str, str]) -> Iterator[Key]:
    if issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            default = None if field.default is msgspec.NODEFAULT else _toml(field.default)
            yield Key(field.name, default, told.get(field.name, ""))
        return
    settings = kind()
    for each in dataclasses.fields(settings):
        yield Key(each.name, _toml(getattr(settings, each.name)), told.get(each.name, ""))


def _first(words: str, docstring: str | None) -> str:
    """A section's own words, or the first paragraph of its class's docstring."""
    return words or " ".join((docstring or "").split("\n\n", maxsplit=1)[0].split())


def _toml(value: Any) -> str:
    if isinstance(value, MappingProxyType | dict):
        return "{}"
    if value is None or isinstance(value, msgspec.Struct):
        return "not set"
    text = msgspec.toml.encode({"x": msgspec.to_builtins(value)}).decode().strip().removeprefix("x = ")
    return " ".join(text.split()).replace("[ ", "[").replace(", ]", "]")


def to_toml() -> str:
    """A configuration file with every default, each key under its comment."""
    parts = []
    for section in sections():
        lines = [*_commented(section.words)]
        mark = "# " if section.named else ""
        lines.append(f"{mark}[{section.name}]")
        for key in section.keys:
            lines += _commented(key.words)
            lines.append(f"{mark}{key.name} = {'...' if key.default is None else key.default}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _commented(words: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(words, _WIDTH)]


def to_markdown() -> str:
    """The same as a page of the guide."""
    parts = [
        "# Configuration",
        "`mainstem serve --config FILE` reads a TOML file; what the file does not name has its default, and an unknown "
        "key is refused by name. `mainstem config` prints this page as such a file. Times end in `_s` (seconds) or "
        "`_ms`, sizes in `_bytes`. Some settings can be changed while the server runs: [operations](operations.md).",
        "This page is made from the settings' own comments by `make docs`.",
    ]
    for section in sections():
        rows = "\n".join(
            f"| `{key.name}` | {'required' if key.default is None else f'`{key.default}`'} | {_cell(key.words)} |"
            for key in section.keys
        )
        table = f"\n\n| key | default | meaning |\n|---|---|---|\n{rows}" if rows else ""
        parts.append(f"## `[{section.name}]`\n\n{section.words}{table}")
    return "\n\n".join(parts) + "\n"


def _cell(words: str) -> str:
    return words.replace("|", "\\|")
