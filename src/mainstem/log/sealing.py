"""Sealing: when files of frames become segments, several at once where many wait, and what happens when it fails.

It lives on the event loop, in a task of its own. The work is done by the sealer's processes, names are given in log
order by worker threads. It never changes what is durable.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from mainstem.formats.segments import segment_name
from mainstem.log.disk import Disk
from mainstem.log.kafka.port import JournalCalls
from mainstem.log.keeper import Keeper
from mainstem.log.seal.children import Sealer
from mainstem.log.seal.segments import SegmentInfo, read_info
from mainstem.log.settings import LogSettings
from mainstem.log.shelf import Shelf
from mainstem.log.wal.files import WalFile
from mainstem.log.wal.writer import WalWriter, describe
from mainstem.model.errors import Corrupt, MainstemError, Overloaded
from mainstem.model.position import Lineage, LogPosition
from mainstem.runtime.backoff import doubled
from mainstem.runtime.clock import Clock

logger = logging.getLogger(__name__)

_SEAL_RETRY_S_MIN = 0.5
_SEAL_RETRY_S_MAX = 30.0
# So many times a threshold in one file, and changes come faster than they are sealed.
_FLOODED = 4


class Sealing:
    """Makes segments of a log's files of frames until it is stopped."""

    def __init__(
        self,
        settings: LogSettings,
        shelf: Shelf,
        writer: WalWriter,
        sealer: Sealer,
        keeper: Keeper,
        lineage: Lineage,
        *,
        keep: Callable[[], Awaitable[None]],
        journal: JournalCalls | None,
        clock: Clock,
        disk: Disk,
    ) -> None:
        self.settings = settings
        self.lineage = lineage
        self._shelf = shelf
        self._writer = writer
        self._sealer = sealer
        self._keeper = keeper
        self._keep = keep
        self._journal = journal
        self._clock = clock
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._closing = False
        self._is_sealing = False
        # The files of a segment that may have its name already, though that is not durable yet: they stay together, or
        # the next attempt's segment would overlap it.
        self._naming: list[WalFile] = []
        self._task: asyncio.Task[None]
        # Requests to roll that the writer has not answered; None once it has ended.
        self._rolls: set[asyncio.Future[str | None]] | None = set()
        self._flushes: list[tuple[LogPosition, asyncio.Future[None]]] = []
        self._flushing = 0
        self._listeners: list[Callable[[SegmentInfo], None]] = []
        self._rolled_s = clock.monotonic_s()
        self._seal_failures = 0
        self._seal_not_before_s = 0.0
        self.last_seal_ms: int | None = None
        self.last_error: str | None = None
        self.last_error_ms: int | None = None

    def start(self) -> None:
        """Begin."""
        self._wake.set()
        # Not in a task group: it must outlive the caller's scope, until `stop`, which awaits it.
        self._task = asyncio.create_task(self._seal_loop(), name="mainstem-seal")

    def stop(self) -> None:
        """Nothing more is begun."""
        self._closing = True

    async def stopped(self) -> None:
        """Wait until what was begun is done, and tell those who wait for a flush that it will not be."""
        self._wake.set()
        await self._task
        self._fail_flushes(self._shutting_down())

    @property
    def is_sealing(self) -> bool:
        """Whether a segment is being made."""
        return self._is_sealing

    def wake(self) -> None:
        """Something may have become due."""
        self._wake.set()

    def committed(self, batches: int) -> None:
        """So many batches more are durable in the active file."""
        # Also for the first batch in a file: the seal loop may be waiting without an end.
        if self._shelf.active.batches == batches or self._is_over_threshold():
            self._wake.set()

    def roll_done(self, ticket: asyncio.Future[str | None], why: str | None) -> None:
        """The writer's answer to a request to roll."""
        if self._rolls is not None:
            self._rolls.discard(ticket)
        if not ticket.done():
            ticket.set_result(why)

    def writer_ended(self) -> None:
        """No roll is answered any more."""
        unanswered, self._rolls = self._rolls or set(), None
        for ticket in unanswered:
            if not ticket.done():
                ticket.set_result("log is closing")

    def on_sealed(self, listener: Callable[[SegmentInfo], None]) -> Callable[[], None]:
        """Call `listener` on the loop with each new segment, in order; the answer takes it off again."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _shutting_down(self) -> Overloaded:
        return Overloaded("log is closing", retry_after_s=self.settings.retry_after_s, reason="shutting_down")

    async def flush(self) -> LogPosition:
        """Seal everything appended so far, and return its last position."""
        if self._closing:
            raise self._shutting_down()
        self._flushing += 1
        try:
            await self._roll()
            position = self._shelf.durable
            if self._shelf.sealed < position:
                future: asyncio.Future[None] = self._loop.create_future()
                self._flushes.append((position, future))
                self._seal_not_before_s = 0.0
                self._wake.set()
                await future
        finally:
            self._flushing -= 1
        return position

    async def _roll(self) -> None:
        if self._rolls is None:
            raise self._shutting_down()
        ticket: asyncio.Future[str | None] = self._loop.create_future()
        self._rolls.add(ticket)
        self._writer.roll(ticket)
        if why := await ticket:
            raise Overloaded(
                f"log cannot begin a file. got={why}",
                retry_after_s=self.settings.retry_after_s,
                reason="internal_error",
            )
        self._rolled_s = self._clock.monotonic_s()

    async def _seal_loop(self) -> None:
        while not self._closing:
            await self._wait_for_work()
            try:
                if not self._closing and not self._shelf.unsealed and self._is_due():
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
        if self._shelf.unsealed:
            waits.append(self._seal_not_before_s - now_s)
        elif self._shelf.active.batches:
            waits.append(self._rolled_s + self.settings.seal_interval_s - now_s)
            waits.append(self.settings.seal_age_s - (self._clock.now_ms() - self._shelf.active.oldest_ms) / 1000)
        if (due_in_s := self._keeper.due_in_s()) is not None:
            waits.append(due_in_s)
        return max(0.0, min(waits)) if waits else None

    def _is_over_threshold(self) -> bool:
        return (
            self._shelf.active.changes >= self.settings.seal_changes
            or self._shelf.active.bytes >= self.settings.seal_bytes
        )

    def _is_due(self) -> bool:
        if not self._shelf.active.batches:
            return False
        age_s = (self._clock.now_ms() - self._shelf.active.oldest_ms) / 1000
        return (
            self._is_over_threshold()
            or age_s >= self.settings.seal_age_s
            or self._clock.monotonic_s() - self._rolled_s >= self.settings.seal_interval_s
        )

    def _may_seal(self) -> bool:
        is_time = self._clock.monotonic_s() >= self._seal_not_before_s
        return bool(self._shelf.unsealed) and not self._closing and is_time

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
                if self._journal is not None:
                    await self._journal.plan(files[0].first, files[-1].last)
                self._on_segment(await asyncio.to_thread(self._name_segment, files), files)
                self._naming = []
        finally:
            self._is_sealing = False
            # The wait above cleared the event: look once more for what else set it.
            self._wake.set()
            for files, unfinished in making:
                unfinished.cancel()
                await asyncio.gather(unfinished, return_exceptions=True)
                # The next attempt may put its files together in another way.
                await asyncio.to_thread(self._disk.remove, self.settings.scratch_folder / _segment_of(files))

    def _begin_segment(self, files: list[WalFile]) -> asyncio.Task[None]:
        more = files[-1] is not self._shelf.unsealed[-1] or self._is_flooded(files[-1])
        task = asyncio.create_task(self._make_segment(files, more=more))
        task.add_done_callback(lambda _: self._wake.set())
        return task

    def _is_flooded(self, file: WalFile) -> bool:
        """Whether a file filled up so far beyond a threshold, while others were sealed, that the next one will too.

        Not while a caller waits for a flush: what comes after it may come much later.
        """
        return not self._flushing and (
            file.changes >= _FLOODED * self.settings.seal_changes
            or file.bytes >= _FLOODED * self.settings.seal_bytes
            or file.changes >= self.settings.file_changes
            or file.bytes >= self.settings.file_bytes
        )

    async def _make_segment(self, files: list[WalFile], *, more: bool) -> None:
        name = _segment_of(files)
        # It is there already where its name could not be made durable.
        if not await asyncio.to_thread((self.settings.segments_folder / name).exists):
            paths = [file.path for file in files]
            log = self.lineage.log_at(files[0].first)
            await self._sealer.seal(paths, self.settings.scratch_folder / name, more=more, log=log)

    def _name_segment(self, files: list[WalFile]) -> SegmentInfo:
        """In a worker thread: let readers see a segment."""
        name = _segment_of(files)
        scratch, target = self.settings.scratch_folder / name, self.settings.segments_folder / name
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
        if self._journal is not None and (planned := self._planned_files(making)):
            return planned
        files: list[WalFile] = []
        changes = size = 0
        for file in islice(self._shelf.unsealed, sum(len(taken) for taken, _ in making), None):
            over = (
                changes + file.changes > self.settings.segment_changes_max
                or size + file.bytes > self.settings.segment_bytes_max
            )
            # A segment is of one log.
            is_others = files and self.lineage.log_at(files[0].first) != self.lineage.log_at(file.first)
            if is_others or (files and over):
                break
            files.append(file)
            changes += file.changes
            size += file.bytes
        return files if not making or changes * 2 >= self.settings.segment_changes_max else []

    def _planned_files(self, making: Sequence[tuple[list[WalFile], object]]) -> list[WalFile]:
        """The files for the next segment where it was decided on before the log came to us."""
        assert self._journal is not None
        waiting = list(islice(self._shelf.unsealed, sum(len(taken) for taken, _ in making), None))
        last = self._journal.journal.planned.get(waiting[0].first) if waiting else None
        return [] if last is None else [file for file in waiting if file.last <= last]

    def _on_segment(self, info: SegmentInfo, files: list[WalFile]) -> None:
        self._shelf.sealed_into(info, files)
        self._keeper.sealed(files)
        self.last_seal_ms = self._clock.now_ms()
        self.last_error = self.last_error_ms = None
        self._seal_failures = 0
        self._seal_not_before_s = 0.0
        for listener in list(self._listeners):
            listener(info)
        waiting = self._flushes
        self._flushes = [(position, future) for position, future in waiting if position > self._shelf.sealed]
        for position, future in waiting:
            if position <= self._shelf.sealed and not future.done():
                future.set_result(None)

    def _on_seal_failed(self, error: Exception) -> None:
        self.last_error = describe(error)
        self.last_error_ms = self._clock.now_ms()
        self._seal_failures += 1
        retry_s = doubled(self._seal_failures, _SEAL_RETRY_S_MIN, _SEAL_RETRY_S_MAX)
        now_s = self._clock.monotonic_s()
        self._seal_not_before_s = now_s + retry_s
        # A roll that failed waits as well, or the loop would spin on it.
        self._rolled_s = now_s
        logger.error("log.seal_failed", extra={"error": self.last_error, "retry_s": retry_s})
        self._fail_flushes(
            Overloaded(f"sealing failed. got={self.last_error}", retry_after_s=retry_s, reason="internal_error")
        )

    def _fail_flushes(self, error: Overloaded) -> None:
        waiting, self._flushes = self._flushes, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)


def _segment_of(files: list[WalFile]) -> str:
    return segment_name(files[0].first, files[-1].last)
