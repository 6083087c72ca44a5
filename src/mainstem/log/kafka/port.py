"""The journal: where a log's changes are durable, if that is not the log's own folder.

Without one the folder's files are it. With one the folder is derived: it is made anew from the journal when the log is
opened, and what stands in it may be lost at any time.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from mainstem.log.companion import Stored
from mainstem.log.disk import Disk
from mainstem.log.kafka.moved import read_moved, refuse_half_moved
from mainstem.log.kafka.records import Peer
from mainstem.log.settings import LogSettings
from mainstem.log.wal.outcomes import Call, Called, Outcome
from mainstem.log.wal.writer import WalWriter
from mainstem.model.errors import Conflict, Invalid
from mainstem.model.hlc import HlcClock
from mainstem.model.position import Lineage, LogPosition
from mainstem.runtime.clock import Clock

# Beside a log whose folder is derived.
DERIVED_FILE = "journal.json"


class Derived(msgspec.Struct, frozen=True):
    """Of which log a folder is."""

    topic: str
    # All its identities, oldest first. A log only ever takes more of them.
    logs: list[str]


def read_derived(folder: Path) -> Derived | None:
    """What a folder was made of; None for one with a log of its own, or without any."""
    try:
        return msgspec.json.decode((folder / DERIVED_FILE).read_bytes(), type=Derived)
    except FileNotFoundError:
        return None


def check_own(folder: Path) -> None:
    """Raise Invalid where a folder is derived: without its journal it has only a part of the log. Also where its log
    was moved, or is about to be."""
    moved = read_moved(folder)
    if moved is not None and moved.state != "moved":
        refuse_half_moved(folder, moved)
    if moved is not None:
        raise Invalid(
            f'the log of this folder was moved to topic {moved.topic}. expected=[log] kind = "kafka" got=embedded. '
            "As long as nothing new was taken there, `mainstem migrate --back` brings it back."
        )
    derived = read_derived(folder)
    if derived is not None:
        raise Invalid(f'this folder is of a log on Kafka. expected=[log] kind = "kafka" got=none topic={derived.topic}')


class Fenced(Conflict):
    """Another process owns the log now: nothing of ours counts in it any more."""


class SegmentStore(Protocol):
    """Where sealed segments are kept for readers on other machines. Blocks; raises OSError."""

    def names(self) -> Sequence[str]:
        """The segments that are there."""

    def fetch(self, name: str, target: Path) -> None:
        """Copy one to a local file."""

    def put(self, path: Path) -> None:
        """Keep a local one, under its name."""


class Journal(Protocol):
    """A log's changes, in order, elsewhere. One process owns it at a time; all methods block.

    `open` is called first, once. After `writer` all others are called in the writer's thread.
    """

    # Where others pass connections on to us: told to them from `open` on, and so to be set before.
    peer: Peer | None

    @property
    def planned(self) -> Mapping[LogPosition, LogPosition]:
        """Segments that were decided on before, first positions to last, and that the folder may not have."""

    def get_ready(self) -> None:
        """Do what takes time and changes nothing, before `open`. May be left out."""

    def open(self, settings: LogSettings) -> Lineage:
        """Own it, and make the folder what it says."""

    def writer(
        self, settings: LogSettings, disk: Disk, clock: Clock, hlc: HlcClock, deliver: Callable[[Outcome], None]
    ) -> WalWriter:
        """What appends."""

    def rename(self, lineage: Lineage) -> None:
        """The log has another identity from the next position on. Its segments are in that one's store before."""

    def plan(self, first: LogPosition, last: LogPosition) -> None:
        """A segment is about to be made of these positions. A gateway that owns the log later makes the same."""

    def is_worth_trimming(self, done: LogPosition) -> bool:
        """Whether `trim` would forget enough. The one method that any thread may call."""

    def trim(self, stored: Stored, done: LogPosition) -> None:
        """Keep the companion, and forget changes up to `done`, which no reader will ask the journal for."""

    def close(self) -> None:
        """Let go of it, where no writer was begun."""


class JournalCalls:
    """A journal's methods, called from the event loop: they run in the writer's thread, between its groups."""

    def __init__(self, journal: Journal, writer: WalWriter) -> None:
        self.journal = journal
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        # None once the thread has ended.
        self._waiting: set[asyncio.Future[None]] | None = set()

    async def _call(self, work: Callable[[], None]) -> None:
        if self._waiting is None:
            raise Conflict("log is closing")
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(future)
        self._writer.call(Call(work, future))
        await future

    def called(self, called: Called) -> None:
        """The thread's answer."""
        future: asyncio.Future[Any] = called.ticket
        if self._waiting is not None:
            self._waiting.discard(future)
        if future.done():
            return
        if called.error is None:
            future.set_result(None)
        else:
            future.set_exception(called.error)

    def ended(self) -> None:
        """No call is answered any more."""
        waiting, self._waiting = self._waiting or set(), None
        for future in waiting:
            if not future.done():
                future.set_exception(Conflict("log is closing"))

    async def rename(self, lineage: Lineage) -> None:
        """As the journal's."""
        await self._call(partial(self.journal.rename, lineage))

    async def plan(self, first: LogPosition, last: LogPosition) -> None:
        """As the journal's; a plan that is known need not be told again."""
        if self.journal.planned.get(first) != last:
            await self._call(partial(self.journal.plan, first, last))

    async def trim(self, stored: Stored, done: LogPosition) -> None:
        """As the journal's."""
        await self._call(partial(self.journal.trim, stored, done))
