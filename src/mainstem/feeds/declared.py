"""Which columns of which tables have a declared type. The app knows; this package only asks."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from mainstem.feeds.fitting import Columns

NOTHING: Mapping[str, Columns] = MappingProxyType({})


class Declared(Protocol):
    """Declared types by table, for each namespace."""

    def known(self, namespace: str, /) -> Mapping[str, Columns] | None:
        """What is declared, from memory; None where it has to be loaded first."""

    async def load(self, namespace: str, /) -> Mapping[str, Columns]:
        """The same, looked up where it is not in memory."""


class NothingDeclared:
    """For a server whose tables all have inferred types."""

    def known(self, namespace: str, /) -> Mapping[str, Columns]:
        """Nothing."""
        return NOTHING

    async def load(self, namespace: str, /) -> Mapping[str, Columns]:
        """Nothing."""
        return NOTHING
