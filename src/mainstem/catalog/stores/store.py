"""The catalog's own state: which namespaces, tables and views there are, and which metadata file each is at.

The store holds pointers, never metadata. `swap` is the one moment at which a commit happens: it compares and sets
the pointers of any number of tables in one transaction. This module owns the contract and its values; `sql_store` has
the statements, `sqlite_store` and `postgres_store` the two databases that run them.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mainstem.catalog.names import Namespace, TableIdent
from mainstem.model import LogId, LogPosition


class Kind(StrEnum):
    """What a name stands for. All of them share their names, so one cannot hide the other."""

    TABLE = "table"
    VIEW = "view"
    # A table of another format.
    GENERIC = "generic"


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a table or view stands: its metadata file, and what that says of its folder and its main branch."""

    metadata_location: str
    location: str
    snapshot_id: int | None
    # How much of each log it covers.
    marks: Mapping[LogId, LogPosition]
    kind: Kind = Kind.TABLE
    # What is known of a table that has no metadata file.
    details: str = ""


@dataclass(frozen=True, slots=True)
class Swap:
    """One table's part of a commit. `expected` is the metadata file that must be current; None: no such name."""

    ident: TableIdent
    expected: str | None
    pointer: Pointer
    # Whether the location is new to the name: then it must be free, in the same transaction.
    takes_location: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """That a request was carried out: its idempotency key, what it asked for, and how it ended."""

    key: str
    request: str
    status: int
    body: bytes
    time_ms: int


# The request whose thread this is. Its mark is written by the very transaction that has its effect, so that no crash
# can part the two.
CURRENT_MARK: ContextVar[Mark | None] = ContextVar("current_mark", default=None)


class Watch(Protocol):
    """Tells what other processes write to a store. For one thread at a time."""

    def wait(self, timeout_s: float) -> list[TableIdent] | None:
        """The names that others wrote to, as soon as there is one; none when the time is over. None: any name.

        Raises `Overloaded` while the store cannot be reached; what was missed is made up for by the next answer.
        """

    def close(self) -> None:
        """Stop watching. A `wait` after that begins anew, with any name."""


class Store(Protocol):
    """The contract of every backend. Writes are durable when they return."""

    @property
    def is_embedded(self) -> bool:
        """Whether reads answer at once, without a network and without waiting for writers."""

    def namespaces(self, parent: Namespace) -> list[Namespace]:
        """The namespaces right below `parent` (empty: the top level), sorted."""

    def namespace_properties(self, namespace: Namespace) -> dict[str, str]:
        """The properties of a namespace."""

    def create_namespace(self, namespace: Namespace, properties: dict[str, str]) -> None:
        """Create a namespace, and the ones above it that do not exist."""

    def update_namespace(
        self, namespace: Namespace, removals: Sequence[str], updates: dict[str, str]
    ) -> tuple[list[str], list[str]]:
        """Set and remove properties. Returns the removed keys and the missing ones."""

    def drop_namespace(self, namespace: Namespace) -> None:
        """Drop an empty namespace."""

    def entries(self, namespace: Namespace | None, kind: Kind) -> list[tuple[TableIdent, Pointer]]:
        """The names of one kind in one namespace, or (None) in all, sorted by name."""

    def entry(self, ident: TableIdent) -> Pointer | None:
        """Where a table or view stands, None if nothing has this name."""

    def swap(self, swaps: Sequence[Swap]) -> bool:
        """Point every name at its new metadata, or none of them: False if one is not at what was expected.

        Refuses one that takes a location which is not free.
        """

    def rename(self, source: TableIdent, destination: TableIdent, kind: Kind) -> None:
        """Move a table or view to another name."""

    def drop(self, ident: TableIdent, kind: Kind) -> Pointer:
        """Forget a table or view. Returns where it stood."""

    def overlapping(self, place: str, besides: TableIdent) -> list[tuple[TableIdent, str]]:
        """The other tables and views whose location is this place, holds it, or lies in it, however it is spelt."""

    def mark(self, key: str) -> Mark | None:
        """What is known of an idempotency key."""

    def remember(self, mark: Mark) -> None:
        """Keep the answer to a request that changed nothing."""

    def watch(self) -> Watch | None:
        """What others write; None where there are no others."""

    def close(self) -> None:
        """Release every resource."""
