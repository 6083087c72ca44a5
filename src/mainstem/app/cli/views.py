"""What commands print: tables for people, JSON for programs. Nothing that somebody may copy is broken over lines."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import rich_click as click
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


def number(value: object) -> str:
    """A count, with its thousands apart."""
    return "" if value is None else f"{int(str(value)):,}"


def signed(value: int | None) -> str:
    """A change of a count."""
    return "" if value is None else f"{value:+,}" if value else "0"


def size(count: int | None) -> str:
    """Bytes, in the unit that fits."""
    if count is None:
        return ""
    left = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if left < 1024:
            return f"{left:.0f} {unit}" if unit == "B" else f"{left:.1f} {unit}"
        left /= 1024
    return f"{left:.1f} TiB"


def moment(ms: int | None) -> str:
    """A time of the server's, in UTC."""
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _text(value: object) -> str:
    match value:
        case None | False:
            return ""
        case True:
            return "yes"
        case int():
            return number(value)
        case dict() | list():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return str(value)


# How the columns of these names are shown, in any table; all others by their values alone.
_SHOWN: Mapping[str, Callable[[Any], str]] = {"change": signed, "size": size, "time": moment, "last change": moment}


_WIDTH_MAX = 100_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _cell(text: str) -> Text:
    """A cell as it is: what rows hold is anybody's, so it is no markup of ours, and nothing that steers a terminal."""
    return Text(_CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text))


class View:
    """Rows under headings, as values. A program gets the values, a person gets them formatted."""

    def __init__(self, *columns: str, title: str | None = None) -> None:
        self.columns = columns
        self.title = title
        self.rows: list[dict[str, Any]] = []
        self._styles: list[str | None] = []

    def add(self, *values: Any, style: str | None = None) -> None:
        """One more row."""
        self.rows.append(dict(zip(self.columns, values, strict=True)))
        self._styles.append(style)

    def to_table(self) -> Table:
        """As people see it."""
        table = Table(title=self.title, title_justify="left", show_header=any(self.columns), box=None, pad_edge=False)
        for name in self.columns:
            counts = all(isinstance(row[name], int | None) for row in self.rows) and _SHOWN.get(name) is not moment
            table.add_column(name, justify="right" if counts else "left", no_wrap=True)
        for row, style in zip(self.rows, self._styles, strict=True):
            table.add_row(*(_cell(_SHOWN.get(name, _text)(value)) for name, value in row.items()), style=style)
        return table


def show(*views: View) -> None:
    """Print tables, each as wide as it needs to be: the terminal may wrap a long line, we never break an id."""
    wide = Console(width=_WIDTH_MAX)
    for place, view in enumerate(each for each in views if each.rows):
        table = view.to_table()
        needed = Measurement.get(wide, wide.options, table).maximum
        if place:
            click.echo()
        Console(width=max(needed, len(view.title or ""))).print(table)


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print what a program reads."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def tell(sentence: str, facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Say what was done, in a sentence or as its facts."""
    if as_json:
        print_json(facts)
    else:
        click.echo(sentence)
