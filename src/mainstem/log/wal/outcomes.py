"""What the event loop and the writer's thread tell each other: values only."""

from collections.abc import Callable
from typing import Any, NamedTuple

from mainstem.log.wal.files import WalFile
from mainstem.model.batch import Batch, BatchHeader
from mainstem.model.position import LogPosition


class Pending(NamedTuple):
    """A batch on its way to the disk. `ticket` is whatever the caller wants back with the outcome."""

    batch: Batch
    size: int
    ticket: Any


class Committed(NamedTuple):
    """A group that is durable, one header per batch."""

    group: list[Pending]
    headers: list[BatchHeader]
    bytes: int
    # In which file, by its first position, and from which byte on.
    file: LogPosition
    start: int


class Refused(NamedTuple):
    """A group that is not in the log. The loop calls `release` with its number once it has told the senders."""

    group: list[Pending]
    why: str
    number: int


class Rolled(NamedTuple):
    """The active file was closed, and `active` begun."""

    file: WalFile
    active: WalFile


class RollDone(NamedTuple):
    """The answer to a request to roll: whatever was pending before it is in rolled files, or `why` not."""

    ticket: Any
    why: str | None


class Stopped(NamedTuple):
    """The thread is about to end; everything pending before was dealt with."""


class Called(NamedTuple):
    """The answer to a `Call`: it was done, or `error` says why not."""

    ticket: Any
    error: Exception | None


class Unsure(NamedTuple):
    """A group that may be in the log or not: the thread had to end before it was known."""

    group: list[Pending]
    why: str


class Away(NamedTuple):
    """What groups are written to does not answer. They wait; a `Committed` or a `Back` says that it does again."""

    why: str


class Back(NamedTuple):
    """It answers again. There may be no group to say so: clients may send none while they are refused."""


class Lost(NamedTuple):
    """Somebody else owns the log now: every group from here on is refused."""

    why: str


Outcome = Committed | Refused | Rolled | RollDone | Stopped | Called | Unsure | Away | Back | Lost


class Roll(NamedTuple):
    ticket: Any


class Release(NamedTuple):
    number: int


class Stop(NamedTuple):
    pass


class Call(NamedTuple):
    """Work to be done in the thread, between two groups; a `Called` follows."""

    work: Callable[[], None]
    ticket: Any


Item = Pending | Roll | Release | Stop | Call
