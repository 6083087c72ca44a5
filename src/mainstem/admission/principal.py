"""Who asks, and what that lets it see and do. A value: the gate makes it from a token, the doors ask it questions.

What a principal may not see does not exist for it. What it sees and may not change is denied.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import msgspec

from mainstem.admission.sources import own_sources
from mainstem.model.errors import Denied
from mainstem.model.names import DEAD_LETTERS_SUFFIX, HISTORY_SUFFIX, RULES_TABLE, TableName, describes_collections


class Role(StrEnum):
    """What somebody may do with what it may see. Each role may do what the ones before it may."""

    # An application's copy of its data: the sync door and nothing else.
    CLIENT = "client"
    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


_RANKS = {role: rank for rank, role in enumerate(Role)}


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody, as the gate knows it. `None` for namespaces or tables means every one."""

    sub: str
    role: Role
    namespaces: tuple[str, ...] | None = ()
    # Patterns: a table's name, or `namespace.table`; `*` stands for anything.
    tables: tuple[str, ...] | None = None
    # The gateway id of a sync client.
    gw: str | None = None
    claims: Mapping[str, Any] = MappingProxyType({})
    # When the token ends, in seconds since 1970. None: never.
    expires_s: int | None = None
    # False where nobody was asked for a token.
    is_authenticated: bool = True

    @property
    def is_unbounded(self) -> bool:
        """Whether every table is its own to see."""
        return self.namespaces is None and self.tables is None

    def has(self, role: Role) -> bool:
        """Whether it may do what this role may."""
        return _RANKS[self.role] >= _RANKS[role]

    def covers(self, namespace: str) -> bool:
        """Whether a namespace, dotted, is one of its own or lies below one."""
        if self.namespaces is None:
            return True
        return any(namespace == own or namespace.startswith(own + ".") for own in self.namespaces)

    def leads_to(self, namespace: str) -> bool:
        """Whether one of its own namespaces lies below this one: the way there may be listed, and no more."""
        return any(own.startswith(namespace + ".") for own in self.namespaces or ())

    def may_read(self, name: TableName) -> bool:
        """Whether the table exists for it. History and dead letters go with their table."""
        if not self.has(Role.READER) or not self.covers(name.namespace):
            return False
        if self.tables is None:
            return True
        table = name.table.removesuffix(HISTORY_SUFFIX).removesuffix(DEAD_LETTERS_SUFFIX)
        return any(fnmatchcase(table, own) or fnmatchcase(f"{name.namespace}.{table}", own) for own in self.tables)

    def may_write(self, name: TableName) -> bool:
        """Whether it may change the table. Who sees which rows of a sync gateway is its admin's to say, and what there
        is in MongoDB's databases nobody's who is bound to some of them."""
        if describes_collections(name) and not (self.is_unbounded and self.has(Role.ADMIN)):
            return False
        is_rules = name.logical.table == RULES_TABLE
        return self.has(Role.ADMIN if is_rules else Role.WRITER) and self.may_read(name)

    def check_write(self, names: Iterable[TableName]) -> None:
        """Refuse what it may not change, at the first such table."""
        if self.is_unbounded and self.has(Role.ADMIN):
            return
        for name in names:
            if not self.may_write(name):
                raise Denied(f"the token does not let {self.sub!r:.100} write this table. got={name}")

    def source(self, name: str) -> str:
        """The source that a name means. Who is bound to namespaces or tables has sources of its own: it can neither
        use up the numbers of somebody else's source nor ask how far that is."""
        return own_sources(self.namespaces, self.tables) + name


# Everybody, where no token is asked for.
ANYONE = Principal(sub="anyone", role=Role.ADMIN, namespaces=None, is_authenticated=False)
