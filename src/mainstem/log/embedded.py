"""The log on the machine's own disk: the facade that everything above talks to.

It lives on the event loop. Blocking work is elsewhere: appends in the writer's thread, sealing in a child process,
the rest of the disk's work in worker threads.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Sequence
from itertools import islice, takewhile

import msgspec

from mainstem.log import frames
from mainstem.log import lineage as lineages
from mainstem.log.companion import Companion, NoCompanion, ReadingCompanion, recorder
from mainstem.log.disk import Disk, OsDisk
from mainstem.log.holds import Holds
from mainstem.log.keeper import Keeper
from mainstem.log.kept import KeptFrames, Place, read_places
from mainstem.log.lock import FolderLock
from mainstem.log.opening import Found, Torn, find
from mainstem.log.sealing import Sealer, SealerProcesses
from mainstem.log.segments import SegmentInfo, read_info, segment_name
from mainstem.log.settings import LogSettings
from mainstem.log.stats import Appended, LogStats
from mainstem.log.wal import (
    Committed,
    Outcome,
    Pending,
    Refused,
    RollDone,
    Rolled,
    WalFile,
    WalWriter,
    describe,
)
from mainstem.model.batch import Admitted
from mainstem.model.errors import Conflict, Corrupt, MainstemError, OutcomeUnknown, Overloaded
from mainstem.model.hlc import HlcClock
from mainstem.model.position import Lineage, LogPosition
from mainstem.runtime.clock import Clock, SystemClock

logger = logging.getLogger(__name__)

_SEAL_RETRY_S_MIN = 0.5
_SEAL_RETRY_S_MAX = 30.0
# So many times a threshold in one file, and changes come faster than they are sealed.
_FLOODED = 4


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
    ) -> None:
        self._settings = settings
        self._record = recorder(companion)
        self._clock = clock
        self._disk = disk
        self._sealer = sealer
        self._hlc = HlcClock(found.hlc)
        self._loop = asyncio.get_running_loop()
        self._writer = WalWriter(settings, disk, clock, self._hlc, self._deliver)
        self._lineage = lineage
        self._segments = found.segments
        self._segment_bytes = sum(segment.bytes for segment in found.segments)
        self._durable = found.last
        self._sealed = found.sealed
        self._unsealed: deque[WalFile] = deque(found.unsealed)
        self._keeper = Keeper(settings, companion, clock, disk, found.spent)
        self._active: WalFile
        self._holds = Holds(clock, settings.retry_after_s)
        self._pending_bytes = 0
        self._place: Place | None = None
        self._unsealed_bytes = sum(file.bytes for file in self._unsealed)
        self._lock = lock
        self._wake = asyncio.Event()
        self._stopped = asyncio.Event()
        self._dropping = asyncio.Lock()
        self._closing = False
        self._is_sealing = False
        # The files of a segment that may have its name already, though that is not durable yet: they stay together, or
        # the next attempt's segment would overlap it.
        self._naming: list[WalFile] = []
        self._seal_loop_task: asyncio.Task[None]
        self._rolls: set[asyncio.Future[str | None]] = set()
        self._flushes: list[tuple[LogPosition, asyncio.Future[None]]] = []
        self._flushing = 0
        self._listeners: list[Callable[[SegmentInfo], None]] = []
        self._rolled_s = clock.monotonic_s()
        self._seal_retry_s = 0.0
        self._seal_not_before_s = 0.0
        self._last_seal_ms: int | None = None
        self._refusing: str | None = None
        self._last_error: str | None = None
        self._last_error_ms: int | None = None
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
            found = await find(settings, disk, companion)
            lineage = await asyncio.to_thread(
                lineages.settle, settings.folder, settings.scratch_folder, disk, found.segments, found.last
            )
            log = cls(
                settings,
                found,
                lineage,
                companion=companion,
                clock=clock or SystemClock(),
                disk=disk,
                sealer=sealer or SealerProcesses(settings.sealers),
                lock=lock,
            )
            await log._start()
        except BaseException:
            lock.release()
            raise
        return log

    async def _start(self) -> None:
        await self._sealer.start(self._lock.fd)
        try:
            self._active = await asyncio.to_thread(self._writer.start, LogPosition(self._durable + 1))
        except BaseException:
            await self._sealer.close()
            raise
        self._wake.set()
        # Not in a task group: it must outlive the caller's scope, until `close`, which awaits it.
        self._seal_loop_task = asyncio.create_task(self._seal_loop(), name="mainstem-seal")

    async def close(self) -> None:
        """Finish what was appended, store the companion, and let go of the folder. A second call does nothing."""
        if self._closing:
            return
        self._closing = True
        self._writer.stop()
        await self._stopped.wait()
        await asyncio.to_thread(self._writer.join)
        self._wake.set()
        await self._seal_loop_task
        self._fail_flushes(self._shutting_down())
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
        if self._pending_bytes and self._pending_bytes + size > self._settings.pending_bytes_max:
            raise Overloaded(
                f"log is behind its disk. expected=at most {self._settings.pending_bytes_max} bytes waiting "
                f"got={self._pending_bytes + size}",
                retry_after_s=self._settings.retry_after_s,
            )
        if self._unsealed_bytes > self._settings.unsealed_bytes_max:
            raise Overloaded(
                f"sealing is behind. expected=at most {self._settings.unsealed_bytes_max} bytes unsealed "
                f"got={self._unsealed_bytes}. last error={self._last_error}",
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
                # The writer counts too; ours is the same count as far as it was delivered.
                self._unsealed.append(file)
                self._active = active
                self._wake.set()
            case RollDone(ticket, why):
                self._rolls.discard(ticket)
                if not ticket.done():
                    ticket.set_result(why)
            case _:
                self._stopped.set()
                for unanswered in self._rolls:
                    unanswered.set_result("log is closing")

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
        changes = committed.headers[-1].last - self._durable
        self._durable = committed.headers[-1].last
        self._active.add(len(committed.group), changes, committed.bytes, committed.headers[0].arrival_ms)
        self._pending_bytes -= committed.bytes
        self._unsealed_bytes += committed.bytes
        self._refusing = None
        # Also for the first batch in a file: the seal loop may be waiting without an end.
        if self._active.batches == len(committed.group) or self._is_over_threshold():
            self._wake.set()

    def _on_refused(self, refused: Refused) -> None:
        self._refusing = refused.why
        retry_after_s = self._settings.retry_after_s
        for pending in refused.group:
            self._pending_bytes -= pending.size
            self._holds.refused(pending.batch.source, pending.batch.sequence)
            if not pending.ticket.done():
                pending.ticket.set_exception(
                    Overloaded(
                        f"log cannot write. expected=a durable write got={refused.why}. retry in {retry_after_s:g} s",
                        retry_after_s=retry_after_s,
                        reason="internal_error",
                    )
                )
        # From here on our own hold stands before the writer's queue.
        self._writer.release(refused.number)

    def retune(self, *, seal_changes: int, seal_bytes: int, seal_age_s: float, seal_interval_s: float) -> None:
        """Other thresholds for sealing, from now on."""
        self._settings = msgspec.structs.replace(
            self._settings,
            seal_changes=seal_changes,
            seal_bytes=seal_bytes,
            seal_age_s=seal_age_s,
            seal_interval_s=seal_interval_s,
        )
        # What waits now may be due by the new ones.
        self._wake.set()

    # Identity

    @property
    def lineage(self) -> Lineage:
        """Which log the positions are of."""
        return self._lineage

    async def renew_identity(self) -> None:
        """Be another log from the next position on. Only before anything is appended: raises `Conflict` after."""
        if self._pending_bytes or self._active.batches:
            raise Conflict("a log takes a new identity only before its first append")
        renewed = lineages.renew(self._lineage, self._durable)
        await asyncio.to_thread(
            lineages.write, self._disk, self._settings.folder, self._settings.scratch_folder, renewed
        )
        self._lineage = renewed

    # Reading

    @property
    def durable(self) -> LogPosition:
        """The last position that is durable."""
        return self._durable

    @property
    def sealed(self) -> LogPosition:
        """The last position that is in a segment, or was."""
        return self._sealed

    @property
    def unsealed_bytes(self) -> int:
        """Durable, and not yet in a segment."""
        return self._unsealed_bytes

    @property
    def utilization(self) -> float:
        """How full the fuller of the two buffers is: waiting for the disk, waiting for the sealer. 1.0 refuses."""
        return max(
            self._pending_bytes / self._settings.pending_bytes_max,
            self._unsealed_bytes / self._settings.unsealed_bytes_max,
        )

    def segments(self) -> list[SegmentInfo]:
        """Every segment that is kept, in log order."""
        return list(self._segments)

    @property
    def place(self) -> Place | None:
        """Where the frame is that the companion is told of at this moment; None while the log is being opened."""
        return self._place

    def places(self, after: LogPosition) -> Generator[tuple[frames.Frame, Place], None, None]:
        """The frames that `tail` gives, and where each of them is."""
        files = [file.first for file in (*self._unsealed, self._active) if file.last > after]
        return _placed(self.tail(after), files)

    def read_places(self, places: Sequence[Place]) -> list[bytes]:
        """The bytes at places, in order. Blocks: called in threads. Raises FileNotFoundError where a file is gone."""
        return read_places(self._settings, places)

    def tail(self, after: LogPosition) -> Generator[frames.Frame, None, None]:
        """The frames past `after` that are durable and not sealed. The files are opened now, and read as it goes."""
        parts = [(file.path.open("rb"), file.bytes) for file in (*self._unsealed, self._active) if file.last > after]

        def read() -> Generator[frames.Frame, None, None]:
            try:
                for handle, size in parts:
                    with handle:
                        data = handle.read(size)
                    for frame in frames.decode_all(data, handle.name):
                        if frame.header.last > after:
                            yield frame
            finally:
                # Whoever stops early leaves files behind that were not read yet.
                for handle, _ in parts:
                    handle.close()

        return read()

    def on_sealed(self, listener: Callable[[SegmentInfo], None]) -> Callable[[], None]:
        """Call `listener` on the loop with each new segment, in order; the answer takes it off again."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def stats(self) -> LogStats:
        """Everything that a status page wants to know."""
        files = [file for file in (*self._unsealed, self._active) if file.batches]
        return LogStats(
            durable=self._durable,
            sealed=self._sealed,
            pending_bytes=self._pending_bytes,
            unsealed_batches=sum(file.batches for file in files),
            unsealed_changes=self._durable - self._sealed,
            unsealed_bytes=self._unsealed_bytes,
            unsealed_oldest_ms=files[0].oldest_ms if files else None,
            unsealed_newest_ms=files[-1].newest_ms if files else None,
            utilization=self.utilization,
            segments=len(self._segments),
            segment_bytes=self._segment_bytes,
            sealing=self._is_sealing,
            last_seal_ms=self._last_seal_ms,
            refusing=self._refusing,
            last_error=self._last_error,
            last_error_ms=self._last_error_ms,
        )

    # Sealing

    async def flush(self) -> LogPosition:
        """Seal everything appended so far, and return its last position."""
        if self._closing:
            raise self._shutting_down()
        self._flushing += 1
        try:
            await self._roll()
            position = self._durable
            if self._sealed < position:
                future: asyncio.Future[None] = self._loop.create_future()
                self._flushes.append((position, future))
                self._seal_not_before_s = 0.0
                self._wake.set()
                await future
        finally:
            self._flushing -= 1
        return position

    async def _roll(self) -> None:
        if self._stopped.is_set():
            raise self._shutting_down()
        ticket: asyncio.Future[str | None] = self._loop.create_future()
        self._rolls.add(ticket)
        self._writer.roll(ticket)
        if why := await ticket:
            raise Overloaded(
                f"log cannot begin a file. got={why}",
                retry_after_s=self._settings.retry_after_s,
                reason="internal_error",
            )
        self._rolled_s = self._clock.monotonic_s()

    async def _seal_loop(self) -> None:
        while not self._closing:
            await self._wait_for_work()
            try:
                if not self._closing and not self._unsealed and self._is_due():
                    await self._roll()
                if self._may_seal():
                    await self._seal_waiting()
                if self._keeper.due_in_s() == 0.0:
                    await self._keep()
            # The task's edge: sealing is tried again, and says in `stats` why it has not worked yet.
            except (MainstemError, OSError) as error:
                self._on_seal_failed(error)

    async def _wait_for_work(self) -> None:
        timeout_s = self._next_check_s()
        try:
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes together with the event.
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _next_check_s(self) -> float | None:
        """How long nothing can become due unless something happens; None for ever."""
        now_s = self._clock.monotonic_s()
        waits: list[float] = []
        if self._unsealed:
            waits.append(self._seal_not_before_s - now_s)
        elif self._active.batches:
            waits.append(self._rolled_s + self._settings.seal_interval_s - now_s)
            waits.append(self._settings.seal_age_s - (self._clock.now_ms() - self._active.oldest_ms) / 1000)
        if (due_in_s := self._keeper.due_in_s()) is not None:
            waits.append(due_in_s)
        return max(0.0, min(waits)) if waits else None

    def _is_over_threshold(self) -> bool:
        return self._active.changes >= self._settings.seal_changes or self._active.bytes >= self._settings.seal_bytes

    def _is_due(self) -> bool:
        if not self._active.batches:
            return False
        age_s = (self._clock.now_ms() - self._active.oldest_ms) / 1000
        return (
            self._is_over_threshold()
            or age_s >= self._settings.seal_age_s
            or self._clock.monotonic_s() - self._rolled_s >= self._settings.seal_interval_s
        )

    def _may_seal(self) -> bool:
        is_time = self._clock.monotonic_s() >= self._seal_not_before_s
        return bool(self._unsealed) and not self._closing and is_time

    async def _seal_waiting(self) -> None:
        """Segments from the rolled files that wait. Where many do several are made at once, but named in order."""
        making: deque[tuple[list[WalFile], asyncio.Task[None]]] = deque()
        self._is_sealing = True
        try:
            while self._may_seal():
                while len(making) < self._sealer.lanes and (files := self._next_files(making)):
                    making.append((files, self._begin_segment(files)))
                files, made = making[0]
                if not made.done():
                    # Or until a file is rolled that another may begin with.
                    await self._wake.wait()
                    self._wake.clear()
                    continue
                made.result()
                making.popleft()
                self._naming = files
                self._on_segment(await asyncio.to_thread(self._name_segment, files), files)
                self._naming = []
        finally:
            self._is_sealing = False
            # Whoever else wanted to wake us up while we waited in here.
            self._wake.set()
            for files, unfinished in making:
                unfinished.cancel()
                await asyncio.gather(unfinished, return_exceptions=True)
                # The next attempt may put its files together in another way.
                await asyncio.to_thread(self._disk.remove, self._settings.scratch_folder / _segment_of(files))

    def _begin_segment(self, files: list[WalFile]) -> asyncio.Task[None]:
        more = files[-1] is not self._unsealed[-1] or self._is_flooded(files[-1])
        task = asyncio.create_task(self._make_segment(files, more=more))
        task.add_done_callback(lambda _: self._wake.set())
        return task

    def _is_flooded(self, file: WalFile) -> bool:
        """Whether a file filled up so far beyond a threshold, while others were sealed, that the next one will too.

        Not while somebody waits for a flush: nobody knows of anything that comes after it.
        """
        return not self._flushing and (
            file.changes >= _FLOODED * self._settings.seal_changes
            or file.bytes >= _FLOODED * self._settings.seal_bytes
            or file.changes >= self._settings.file_changes
            or file.bytes >= self._settings.file_bytes
        )

    async def _make_segment(self, files: list[WalFile], *, more: bool) -> None:
        name = _segment_of(files)
        # It is there already where its name could not be made durable.
        if not await asyncio.to_thread((self._settings.segments_folder / name).exists):
            paths = [file.path for file in files]
            log = self._lineage.log_at(files[0].first)
            await self._sealer.seal(paths, self._settings.scratch_folder / name, more=more, log=log)

    def _name_segment(self, files: list[WalFile]) -> SegmentInfo:
        """In a worker thread: let readers see a segment."""
        name = _segment_of(files)
        scratch, target = self._settings.scratch_folder / name, self._settings.segments_folder / name
        if not target.exists():
            self._disk.rename(scratch, target)
        self._disk.sync_dir(target.parent)
        info = read_info(target)
        if (info.first, info.last) != (files[0].first, files[-1].last):
            raise Corrupt(f"segment positions. expected={name} got={info.first}-{info.last}", place=str(target))
        return info

    def _next_files(self, making: Sequence[tuple[list[WalFile], object]]) -> list[WalFile]:
        """The files for the next segment; one beside others must be worth it."""
        if self._naming and not making:
            return self._naming
        files: list[WalFile] = []
        changes = size = 0
        for file in islice(self._unsealed, sum(len(taken) for taken, _ in making), None):
            over = (
                changes + file.changes > self._settings.segment_changes_max
                or size + file.bytes > self._settings.segment_bytes_max
            )
            # A segment is of one log.
            is_others = files and self._lineage.log_at(files[0].first) != self._lineage.log_at(file.first)
            if is_others or (files and over):
                break
            files.append(file)
            changes += file.changes
            size += file.bytes
        return files if not making or changes * 2 >= self._settings.segment_changes_max else []

    def _on_segment(self, info: SegmentInfo, files: list[WalFile]) -> None:
        self._segments.append(info)
        self._segment_bytes += info.bytes
        for _ in files:
            self._unsealed.popleft()
        self._keeper.sealed(files)
        self._unsealed_bytes -= sum(file.bytes for file in files)
        self._sealed = info.last
        self._last_seal_ms = self._clock.now_ms()
        self._last_error = self._last_error_ms = None
        self._seal_retry_s = self._seal_not_before_s = 0.0
        for listener in list(self._listeners):
            listener(info)
        waiting = self._flushes
        self._flushes = [(position, future) for position, future in waiting if position > self._sealed]
        for position, future in waiting:
            if position <= self._sealed and not future.done():
                future.set_result(None)

    def _on_seal_failed(self, error: Exception) -> None:
        self._last_error = describe(error)
        self._last_error_ms = self._clock.now_ms()
        self._seal_retry_s = min(max(self._seal_retry_s * 2, _SEAL_RETRY_S_MIN), _SEAL_RETRY_S_MAX)
        now_s = self._clock.monotonic_s()
        self._seal_not_before_s = now_s + self._seal_retry_s
        # A roll that failed waits as well, or the loop would spin on it.
        self._rolled_s = now_s
        logger.error("log.seal_failed", extra={"error": self._last_error, "retry_s": self._seal_retry_s})
        self._fail_flushes(
            Overloaded(
                f"sealing failed. got={self._last_error}", retry_after_s=self._seal_retry_s, reason="internal_error"
            )
        )

    def _fail_flushes(self, error: Overloaded) -> None:
        waiting, self._flushes = self._flushes, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)

    # Retention

    async def _keep(self) -> None:
        await self._keeper.store(lambda: (self._durable, self._hlc.last, self._sealed))

    async def drop_segments(self, is_done: Callable[[SegmentInfo], bool], older_than_ms: int) -> list[SegmentInfo]:
        """Drop segments, oldest first, that are done with and whose changes all arrived so long ago.

        It stops at the first one that must stay: what is kept never has a hole.
        """
        limit_ms = self._clock.now_ms() - older_than_ms
        async with self._dropping:
            dropped = list(takewhile(lambda one: one.arrival_max_ms <= limit_ms and is_done(one), self._segments))
            if dropped:
                # The files of frames behind them must not be sealed a second time after a crash.
                await self._keep()
                await asyncio.to_thread(self._remove_segments, dropped)
                del self._segments[: len(dropped)]
                self._segment_bytes -= sum(segment.bytes for segment in dropped)
        return dropped

    def _remove_segments(self, segments: list[SegmentInfo]) -> None:
        for segment in segments:
            self._disk.remove(segment.path)
        self._disk.sync_dir(self._settings.segments_folder)


def _placed(
    tail: Generator[frames.Frame, None, None], files: Sequence[LogPosition]
) -> Generator[tuple[frames.Frame, Place], None, None]:
    for frame in tail:
        file = files[bisect_right(files, frame.header.first) - 1]
        size = frames.OVERHEAD_BYTES + len(frame.header.source.encode()) + len(frame.payload)
        yield frame, Place(file, frame.end - size, size)


def _segment_of(files: list[WalFile]) -> str:
    return segment_name(files[0].first, files[-1].last)
