"""The log: the facade that everything above talks to.

It lives on the event loop. Blocking work is elsewhere: appends in the writer's thread, sealing in a child process,
the rest of the disk's work in worker threads.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from itertools import takewhile

import msgspec

from mainstem.log import frames
from mainstem.log import lineage as lineages
from mainstem.log.companion import Companion, NoCompanion, ReadingCompanion, Stored, recorder
from mainstem.log.disk import Disk, OsDisk
from mainstem.log.holds import Holds
from mainstem.log.kafka.port import Journal, JournalCalls, check_own
from mainstem.log.keeper import Keeper
from mainstem.log.kept import KeptFrames, Place, placed, read_places, read_tail
from mainstem.log.lock import FolderLock
from mainstem.log.opening import Found, Torn, find
from mainstem.log.seal.children import Sealer, SealerProcesses
from mainstem.log.seal.segments import SegmentInfo
from mainstem.log.sealing import Sealing
from mainstem.log.settings import LogSettings
from mainstem.log.shelf import Shelf
from mainstem.log.stats import Appended, LogStats
from mainstem.log.wal.outcomes import (
    Away,
    Back,
    Called,
    Committed,
    Lost,
    Outcome,
    Pending,
    Refused,
    RollDone,
    Rolled,
    Stopped,
    Unsure,
)
from mainstem.log.wal.writer import WalWriter, describe
from mainstem.model.batch import Admitted
from mainstem.model.errors import Conflict, OutcomeUnknown, Overloaded
from mainstem.model.hlc import HlcClock
from mainstem.model.position import Lineage, LogPosition
from mainstem.runtime.clock import Clock, SystemClock

logger = logging.getLogger(__name__)


class Log:
    """One open log. `await Log.open(…)` makes one; only one process can have a folder open."""

    def __init__(
        self,
        settings: LogSettings,
        found: Found,
        lineage: Lineage,
        *,
        companion: Companion | ReadingCompanion,
        clock: Clock,
        disk: Disk,
        sealer: Sealer,
        lock: FolderLock,
        journal: Journal | None = None,
    ) -> None:
        self._settings = settings
        self._companion = companion
        self._record = recorder(companion)
        self._disk = disk
        self._clock = clock
        self._sealer = sealer
        self._hlc = HlcClock(found.hlc)
        self._loop = asyncio.get_running_loop()
        make = WalWriter if journal is None else journal.writer
        self._writer = make(settings, disk, clock, self._hlc, self._deliver)
        self._journal = None if journal is None else JournalCalls(journal, self._writer)
        self._lineage = lineage
        self._shelf = Shelf(found)
        self._keeper = Keeper(settings, companion, clock, disk, found.spent)
        self._sealing = Sealing(
            settings,
            self._shelf,
            self._writer,
            sealer,
            self._keeper,
            lineage,
            keep=self._keep,
            journal=self._journal,
            clock=clock,
            disk=disk,
        )
        self._holds = Holds(clock, settings.retry_after_s)
        self._pending_bytes = 0
        self._place: Place | None = None
        self._lock = lock
        self._stopped = asyncio.Event()
        self._dropping = asyncio.Lock()
        self._closing = False
        self._refusing: str | None = None
        # Why nothing is appended now: only a journal is ever away. `lost`: another process owns the log from now on.
        self._away: str | None = None
        self.lost = asyncio.Event()
        self.recovered: Torn | None = found.torn

    @classmethod
    async def open(
        cls,
        settings: LogSettings,
        *,
        companion: Companion | ReadingCompanion | None = None,
        clock: Clock | None = None,
        disk: Disk | None = None,
        sealer: Sealer | None = None,
        journal: Journal | None = None,
    ) -> "Log":
        """Recover what is there and go on after it. Raises `Corrupt` rather than skip anything."""
        # Not `or`: a companion that is empty yet may count as false.
        companion = NoCompanion() if companion is None else companion
        disk = disk or OsDisk()
        for folder in (settings.wal_folder, settings.segments_folder, settings.scratch_folder):
            folder.mkdir(parents=True, exist_ok=True)
        lock = await FolderLock.acquire(settings.folder / "lock")
        try:
            await asyncio.to_thread(KeptFrames(settings, disk).clear)
            if journal is None:
                check_own(settings.folder)
                found = await find(settings, disk, companion)
                lineage = await asyncio.to_thread(
                    lineages.settle, settings.folder, settings.scratch_folder, disk, found.segments, found.last
                )
            else:
                lineage = await asyncio.to_thread(journal.open, settings)
                found = await find(settings, disk, companion)
            log = cls(
                settings,
                found,
                lineage,
                companion=companion,
                clock=clock or SystemClock(),
                disk=disk,
                sealer=sealer or SealerProcesses(settings.sealers, settings.times),
                lock=lock,
                journal=journal,
            )
            await log._start()
        except BaseException:
            if journal is not None:
                await asyncio.to_thread(journal.close)
            lock.release()
            raise
        return log

    async def _start(self) -> None:
        await self._sealer.start(self._lock.fd)
        try:
            self._shelf.active = await asyncio.to_thread(self._writer.start, LogPosition(self._shelf.durable + 1))
        except BaseException:
            await self._sealer.close()
            raise
        self._sealing.start()

    async def close(self) -> None:
        """Finish what was appended, store the companion, and let go of the folder. A second call does nothing."""
        if self._closing:
            return
        self._closing = True
        self._sealing.stop()
        self._writer.stop()
        await self._stopped.wait()
        await asyncio.to_thread(self._writer.join)
        await self._sealing.stopped()
        try:
            await self._keep()
        except OSError as error:
            # Nothing is lost: the files of frames stay, and the next opening reads them again.
            logger.error("log.store_failed", extra={"error": describe(error)})
        finally:
            await self._sealer.close()
            self._lock.release()

    # Appending

    def append(self, admitted: Admitted) -> asyncio.Future[Appended]:
        """Put a batch in line, at once and in the order of calls; the future is done when it is durable.

        Raises `Overloaded` at the bounds and behind a batch of its source that was refused and has not come back
        (`log/holds`), and `Invalid` for what no frame can hold. The future fails with
        `Overloaded` where the disk refused; then nothing of the batch is in the log, and a retry is right.
        """
        batch = admitted.batch
        source = batch.source.encode()
        frames.check_storable(source, batch.sequence, batch.count, batch.fingerprint, len(batch.payload))
        size = frames.OVERHEAD_BYTES + len(source) + len(batch.payload)
        if self._closing:
            raise self._shutting_down()
        self._check_room(size)
        self._holds.check(batch.source, batch.sequence)
        future: asyncio.Future[Appended] = self._loop.create_future()
        self._pending_bytes += size
        self._writer.submit(Pending(batch, size, future))
        return future

    def _check_room(self, size: int) -> None:
        if self._away is not None:
            raise self._cannot_write(self._away)
        if self._pending_bytes and self._pending_bytes + size > self._settings.pending_bytes_max:
            raise Overloaded(
                f"log is behind its disk. expected=at most {self._settings.pending_bytes_max} bytes waiting "
                f"got={self._pending_bytes + size}",
                retry_after_s=self._settings.retry_after_s,
            )
        if self._shelf.unsealed_bytes > self._settings.unsealed_bytes_max:
            raise Overloaded(
                f"sealing is behind. expected=at most {self._settings.unsealed_bytes_max} bytes unsealed "
                f"got={self._shelf.unsealed_bytes}. last error={self._sealing.last_error}",
                retry_after_s=self._settings.retry_after_s,
            )

    def _shutting_down(self) -> Overloaded:
        return Overloaded("log is closing", retry_after_s=self._settings.retry_after_s, reason="shutting_down")

    def _deliver(self, outcome: Outcome) -> None:
        """In the writer's thread: hand an outcome to the loop."""
        self._loop.call_soon_threadsafe(self._on_outcome, outcome)

    def _on_outcome(self, outcome: Outcome) -> None:
        match outcome:
            case Committed():
                self._on_committed(outcome)
            case Refused():
                self._on_refused(outcome)
            case Rolled(file, active):
                self._shelf.rolled(file, active)
                self._sealing.wake()
            case RollDone(ticket, why):
                self._sealing.roll_done(ticket, why)
            case Stopped():
                self._stopped.set()
                self._sealing.writer_ended()
                if self._journal is not None:
                    self._journal.ended()
            case _:
                self._on_journal(outcome)

    def _on_journal(self, outcome: Called | Unsure | Away | Back | Lost) -> None:
        """What only a log with a journal hears."""
        match outcome:
            case Called():
                assert self._journal is not None
                self._journal.called(outcome)
            case Unsure(group, why):
                for pending in group:
                    self._pending_bytes -= pending.size
                    if not pending.ticket.done():
                        pending.ticket.set_exception(OutcomeUnknown(f"log cannot tell of a batch. got={why}"))
            case Away(why):
                self._away = self._refusing = why
            case Back():
                # Once lost it stays so, whatever Kafka answers.
                if not self.lost.is_set():
                    self._away = self._refusing = None
            case Lost(why):
                self._away = self._refusing = why
                logger.error("log.lost", extra={"error": why})
                self.lost.set()

    def _on_committed(self, committed: Committed) -> None:
        start = committed.start
        for pending, header in zip(committed.group, committed.headers, strict=True):
            future: asyncio.Future[Appended] = pending.ticket
            self._place = Place(committed.file, start, pending.size)
            start += pending.size
            try:
                self._record(header, pending.batch.payload)
            # The callback's edge: the others of the group must hear of their batches all the same.
            except Exception as error:
                logger.exception("log.companion_failed", extra={"first": header.first})
                if not future.done():
                    future.set_exception(OutcomeUnknown(f"batch is durable, but not recorded. got={error!r}"))
            if not future.done():
                future.set_result(Appended(header.first, header.last, header.hlc_first))
        self._shelf.committed(committed)
        self._pending_bytes -= committed.bytes
        self._refusing = self._away = None
        self._sealing.committed(len(committed.group))

    def _on_refused(self, refused: Refused) -> None:
        self._refusing = refused.why
        for pending in refused.group:
            self._pending_bytes -= pending.size
            self._holds.refused(pending.batch.source, pending.batch.sequence)
            if not pending.ticket.done():
                pending.ticket.set_exception(self._cannot_write(refused.why))
        # From here on our own hold stands before the writer's queue.
        self._writer.release(refused.number)

    def _cannot_write(self, why: str) -> Overloaded:
        retry_after_s = self._settings.retry_after_s
        return Overloaded(
            f"log cannot write. expected=a durable write got={why}. retry in {retry_after_s:g} s",
            retry_after_s=retry_after_s,
            reason="internal_error",
        )

    def retune(self, *, seal_changes: int, seal_bytes: int, seal_age_s: float, seal_interval_s: float) -> None:
        """Other thresholds for sealing, from now on."""
        self._settings = msgspec.structs.replace(
            self._settings,
            seal_changes=seal_changes,
            seal_bytes=seal_bytes,
            seal_age_s=seal_age_s,
            seal_interval_s=seal_interval_s,
        )
        self._sealing.settings = self._settings
        # What waits now may be due by the new ones.
        self._sealing.wake()

    # Identity

    @property
    def lineage(self) -> Lineage:
        """Which log the positions are of."""
        return self._lineage

    @property
    def is_derived(self) -> bool:
        """Whether a journal has the log: the folder, and what is kept beside it, may be new or an earlier owner's."""
        return self._journal is not None

    async def renew_identity(self) -> None:
        """Be another log from the next position on. Only before anything is appended: raises `Conflict` after."""
        if self._pending_bytes or self._shelf.active.batches:
            raise Conflict("a log takes a new identity only before its first append")
        renewed = lineages.renew(self._lineage, self._shelf.durable)
        if self._journal is not None:
            await self._journal.rename(renewed)
        else:
            await asyncio.to_thread(
                lineages.write, self._disk, self._settings.folder, self._settings.scratch_folder, renewed
            )
        self._lineage = self._sealing.lineage = renewed

    # Reading

    @property
    def durable(self) -> LogPosition:
        """The last position that is durable."""
        return self._shelf.durable

    @property
    def sealed(self) -> LogPosition:
        """The last position that is in a segment, or was."""
        return self._shelf.sealed

    @property
    def unsealed_bytes(self) -> int:
        """Durable, and not yet in a segment."""
        return self._shelf.unsealed_bytes

    @property
    def utilization(self) -> float:
        """How full the fuller of the two buffers is: waiting for the disk, waiting for the sealer. 1.0 refuses."""
        return max(
            self._pending_bytes / self._settings.pending_bytes_max,
            self._shelf.unsealed_bytes / self._settings.unsealed_bytes_max,
        )

    def segments(self) -> list[SegmentInfo]:
        """Every segment that is kept, in log order."""
        return list(self._shelf.segments)

    @property
    def place(self) -> Place | None:
        """Where the frame is that the companion is told of at this moment; None while the log is being opened."""
        return self._place

    def places(self, after: LogPosition) -> Generator[tuple[frames.Frame, Place], None, None]:
        """The frames that `tail` gives, and where each of them is."""
        files = [file.first for file in self._shelf.files_past(after)]
        return placed(self.tail(after), files)

    def read_places(self, places: Sequence[Place]) -> list[bytes]:
        """The bytes at places, in order. Blocks: called in threads. Raises FileNotFoundError where a file is gone."""
        return read_places(self._settings, places)

    def tail(self, after: LogPosition) -> Generator[frames.Frame, None, None]:
        """The frames past `after` that are durable and not sealed. The files are opened now, and read as it goes."""
        return read_tail(self._shelf.files_past(after), after)

    def on_sealed(self, listener: Callable[[SegmentInfo], None]) -> Callable[[], None]:
        """Call `listener` on the loop with each new segment, in order; the answer takes it off again."""
        return self._sealing.on_sealed(listener)

    def stats(self) -> LogStats:
        """Everything that a status page wants to know."""
        files = [file for file in (*self._shelf.unsealed, self._shelf.active) if file.batches]
        return LogStats(
            durable=self._shelf.durable,
            sealed=self._shelf.sealed,
            pending_bytes=self._pending_bytes,
            unsealed_batches=sum(file.batches for file in files),
            unsealed_changes=self._shelf.durable - self._shelf.sealed,
            unsealed_bytes=self._shelf.unsealed_bytes,
            unsealed_oldest_ms=files[0].oldest_ms if files else None,
            unsealed_newest_ms=files[-1].newest_ms if files else None,
            utilization=self.utilization,
            segments=len(self._shelf.segments),
            segment_bytes=self._shelf.segment_bytes,
            sealing=self._sealing.is_sealing,
            last_seal_ms=self._sealing.last_seal_ms,
            refusing=self._refusing,
            last_error=self._sealing.last_error,
            last_error_ms=self._sealing.last_error_ms,
        )

    async def flush(self) -> LogPosition:
        """Seal everything appended so far, and return its last position."""
        return await self._sealing.flush()

    # Retention

    async def _keep(self) -> None:
        await self._keeper.store(lambda: (self._shelf.durable, self._hlc.last, self._shelf.sealed))

    async def drop_segments(self, is_done: Callable[[SegmentInfo], bool], older_than_ms: int) -> list[SegmentInfo]:
        """Drop segments, oldest first, that are done with and whose changes all arrived so long ago.

        It stops at the first one that must stay: what is kept never has a hole.
        """
        limit_ms = self._clock.now_ms() - older_than_ms
        async with self._dropping:
            dropped = list(takewhile(lambda one: one.arrival_max_ms <= limit_ms and is_done(one), self._shelf.segments))
            if dropped:
                # The files of frames behind them must not be sealed a second time after a crash.
                await self._keep()
                await asyncio.to_thread(self._keeper.remove, dropped)
                self._shelf.dropped(dropped)
        return dropped

    async def let_go(self, done: LogPosition) -> None:
        """Everything up to `done` is where others read it. A journal may forget it; without one nothing happens."""
        done = min(done, self._shelf.sealed)
        if self._journal is not None and self._journal.journal.is_worth_trimming(done):
            stored = Stored(self._shelf.durable, self._hlc.last, self._shelf.sealed, self._companion.dump())
            await self._journal.trim(stored, done)
