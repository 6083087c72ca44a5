"""What a running pipeline is given: variables, other collections, a bound on memory, and chance.

A stage is compiled once into a function of documents and a `Run`. It keeps nothing between runs.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

from bson import encode

from mainstem.documents.errors import Refused
from mainstem.documents.expressions import NO_NAMES, Names, Scope

MEMORY_BYTES_MAX: Final = 100 * 1024 * 1024
# Every so many documents one is measured and stands for the others.
_SAMPLED = 16

Document = Mapping[str, Any]
Documents = Iterable[Document]


class Namespace(NamedTuple):
    """A collection; without a database, of the one that the pipeline runs in."""

    database: str | None
    name: str


class Sources(Protocol):
    """Where other collections are read. A door implements it on its snapshots; nothing here waits or writes."""

    def read(self, namespace: Namespace, filter: Mapping[str, Any]) -> Documents:
        """The documents that match; others may come too, and are left out here. Of an unknown collection, none."""

    def has_index(self, namespace: Namespace, path: str) -> bool:
        """Whether reading by equality of this path is much cheaper than reading all."""


class NoSources:
    """For pipelines that read no other collection."""

    def read(self, namespace: Namespace, filter: Mapping[str, Any]) -> Documents:
        raise Refused(f"no other collection can be read here. got={namespace.name}", code=115)

    def has_index(self, namespace: Namespace, path: str) -> bool:
        return False


class Spilled(Protocol):
    """Where documents in order go that are too much for memory. Nothing here does I/O: the door provides it."""

    def add(self, run: Documents, /) -> None:
        """One run, sorted, of documents that came after those of the earlier runs."""

    def merged(self, last: Documents, /) -> Iterator[Document]:
        """All runs in order, the last of which is in memory."""

    def close(self) -> None:
        """Let go of it."""


# Makes room for runs in the order of a key.
Spill = Callable[[Callable[[Document], Any]], Spilled]


@dataclass(frozen=True)
class Run:
    """One run of a pipeline. `cache` holds what stages keep for the length of the run, by stage.

    `scope` has the values of the variables: those of the command's `let`, and `NOW` (a date), which nobody here reads
    from a clock. A variable that is used and has no value is refused.
    """

    scope: Scope = field(default_factory=dict)
    sources: Sources = field(default_factory=NoSources)
    memory_bytes_max: int = MEMORY_BYTES_MAX
    chance: random.Random = field(default_factory=random.Random)
    cache: dict[Any, Any] = field(default_factory=dict)
    # None: what is too much for memory is refused.
    spill: Spill | None = None

    def within(self, variables: Scope) -> "Run":
        """The same run with more variables."""
        return replace(self, scope={**self.scope, **variables})


Stage = Callable[[Documents, Run], Iterator[Document]]


@dataclass(frozen=True)
class Reading:
    """What a stage may know while it is read: the variables around it, and how deep it is nested."""

    names: Names = NO_NAMES
    depth: int = 0
    # Compiles a pipeline inside this one; given by `pipeline`, so that stages need not know it.
    inner: Callable[[Any, "Reading"], Stage] | None = None

    def pipeline(self, source: Any, *, names: Iterable[str] = ()) -> Stage:
        """A pipeline inside this one, as one stage."""
        assert self.inner is not None
        return self.inner(source, replace(self, names=self.names | set(names), depth=self.depth + 1))


class Ledger:
    """Counts what a stage holds in memory, and refuses the document that is too much."""

    def __init__(self, stage: str, bytes_max: int) -> None:
        self._stage = stage
        self._bytes_max = bytes_max
        self._bytes = 0
        self._count = 0

    def add(self, value: Any) -> None:
        """One more value is held. Sizes are sampled: the bound is kept roughly, at a small part of the cost."""
        count = self._count
        self._count = count + 1
        if count < _SAMPLED or count % _SAMPLED == 0:
            size = len(encode(value if type(value) is dict else {"": value}))
            self._bytes += size if count < _SAMPLED else size * _SAMPLED
            if self._bytes > self._bytes_max:
                raise Refused(
                    f"{self._stage} needs too much memory. expected=at most {self._bytes_max} bytes", code=292
                )
