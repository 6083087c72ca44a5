"""Which columns tables have, and which of them have a declared type. The app knows; this package only asks."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from mainstem.feeds.fitting import Columns
from mainstem.model.position import LogPosition
from mainstem.tables.evolution import Names

NOTHING: Mapping[str, Columns] = MappingProxyType({})


class Begun(NamedTuple):
    """The columns that a table has, and what it covers of the log: what comes after that may bring more."""

    names: Names
    covered: LogPosition


# By a table's name within its namespace; None for a table that refuses no column.
Begin = Callable[[str], Begun | None]


class Declared(Protocol):
    """Declared types by table, for each namespace."""

    def known(self, namespace: str, /) -> Mapping[str, Columns] | None:
        """What is declared, from memory; None where it has to be loaded first."""

    async def load(self, namespace: str, /) -> Mapping[str, Columns]:
        """The same, looked up where it is not in memory."""

    def begin_of(self, namespace: str, /) -> Begin:
        """The columns of each table of a namespace that is in memory, for the caller to go on with."""


class NothingDeclared:
    """For a server whose tables all have inferred types."""

    def known(self, namespace: str, /) -> Mapping[str, Columns]:
        """Nothing."""
        return NOTHING

    async def load(self, namespace: str, /) -> Mapping[str, Columns]:
        """Nothing."""
        return NOTHING

    def begin_of(self, namespace: str, /) -> Begin:
        """No table refuses a column."""
        return lambda _: None
