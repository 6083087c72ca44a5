"""The files of frames: one writer thread, group commit, rolling, and what happens when the disk refuses.

The thread takes everything that is pending, gives out positions and clocks in order, writes, syncs, and only then
hands the outcome back through `deliver`, once per group. A position counts as used only when its group is durable,
so positions stay dense over failures.

After a failed write or sync nothing past the last durable offset is trusted: the file is cut there, durably, and a
new file is begun before the next group is written. While that fails too, every group is refused, and each one tries
again.

What a source has pending behind a batch that was refused is refused with it, though the disk may be well again: it was
handed over by somebody who did not know of the refusal yet, and would overtake the retry. That ends with a `release`,
which says that the refusal is known and that whatever follows in the queue was let in all the same.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from mainstem.log import frames
from mainstem.log.disk import Disk
from mainstem.log.settings import LogSettings
from mainstem.log.wal.files import WalFile, wal_path
from mainstem.log.wal.gathering import Gathering
from mainstem.log.wal.outcomes import (
    Call,
    Called,
    Committed,
    Item,
    Outcome,
    Pending,
    Refused,
    Release,
    Roll,
    RollDone,
    Rolled,
    Stop,
    Stopped,
)
from mainstem.model.batch import BatchHeader
from mainstem.model.errors import MainstemError
from mainstem.model.hlc import HlcClock
from mainstem.model.position import LogPosition
from mainstem.runtime.clock import Clock

logger = logging.getLogger(__name__)


def describe(error: BaseException) -> str:
    """What the disk said, for people."""
    if isinstance(error, OSError):
        return f"{error.strerror or error} ({error.filename})" if error.filename else str(error.strerror or error)
    return f"{type(error).__name__}: {error}"


class WalWriter:
    """Owns the active file. All methods but the thread's own are called from the event loop."""

    def __init__(
        self,
        settings: LogSettings,
        disk: Disk,
        clock: Clock,
        hlc: HlcClock,
        deliver: Callable[[Outcome], None],
        gathering: Gathering | None = None,
    ) -> None:
        self._settings = settings
        self._disk = disk
        self._clock = clock
        self._hlc = hlc
        self._deliver = deliver
        self._gathering = gathering or Gathering()
        # One is the event loop's, one the thread's: the difference waits in the queue or is being written.
        self._submitted_bytes = 0
        self._taken_bytes = 0
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mainstem-wal", daemon=True)
        self._fd = -1
        self._active: WalFile
        # Why the file's tail may not be what we think; None while all is well.
        self._damage: str | None = None
        self._refusals = 0
        # By source: the lowest sequence that was refused, why, and the number of the latest refusal.
        self._behind: dict[str, tuple[int, str, int]] = {}

    def start(self, next_position: LogPosition) -> WalFile:
        """Begin the active file and the thread. Blocks on the disk."""
        self._active = self._begin(next_position)
        self._thread.start()
        return self._copy_of_active()

    def submit(self, pending: Pending) -> None:
        """Hand over a batch; a `Committed` or `Refused` with it follows."""
        self._submitted_bytes += pending.size
        self._queue.put(pending)

    def roll(self, ticket: Any) -> None:
        """Ask for a new file; a `RollDone` follows, after a `Rolled` if there was anything in the old one."""
        self._queue.put(Roll(ticket))

    def release(self, number: int) -> None:
        """Everything handed over from now on is meant to come after the refusals up to this number."""
        self._queue.put(Release(number))

    def call(self, call: Call) -> None:
        """Have something done in the thread; a `Called` follows."""
        self._queue.put(call)

    def stop(self) -> None:
        """Let the thread finish what is pending and end; `Stopped` follows."""
        self._queue.put(Stop())

    def join(self) -> None:
        """Wait for the thread's end. Blocks."""
        self._thread.join()

    def _run(self) -> None:
        item: Item | None = None
        while True:
            # Not `item or`: a stop is an empty tuple.
            item = self._next() if item is None else item
            if isinstance(item, Pending):
                group, item = self._gather(item)
                if group := self._without_those_behind(group):
                    self._commit(group)
            elif isinstance(item, Roll):
                self._deliver(RollDone(item.ticket, self._roll_on_request()))
                item = None
            elif isinstance(item, Release):
                known = item.number
                self._behind = {source: held for source, held in self._behind.items() if held[2] > known}
                item = None
            elif isinstance(item, Call):
                self._do(item)
                item = None
            else:
                self._close()
                self._deliver(Stopped())
                return

    def _next(self) -> Item:
        return self._queue.get()

    def _do(self, call: Call) -> None:
        try:
            call.work()
        # The thread's edge: the caller is told the error.
        except Exception as error:
            self._deliver(Called(call.ticket, error))
        else:
            self._deliver(Called(call.ticket, None))

    def _gather(self, first: Pending) -> tuple[list[Pending], Item | None]:
        """Everything that is pending now or will be in a moment, up to the group's bound, and the item that did not
        belong to it."""
        group = [first]
        size, bytes_max = first.size, self._settings.group_bytes_max
        until_s: float | None = None
        while size < bytes_max:
            try:
                item = self._queue.get_nowait() if until_s is None else self._queue.get(timeout=self._left_s(until_s))
            except queue.Empty:
                if until_s is not None:
                    self._gathering.waited(in_vain=True)
                    break
                wait_s, enough = self._gathering.wait_s(size)
                if not wait_s:
                    break
                until_s, bytes_max = self._clock.monotonic_s() + wait_s, min(enough, bytes_max)
                continue
            if not isinstance(item, Pending):
                return group, item
            group.append(item)
            size += item.size
        else:
            if until_s is not None:
                self._gathering.waited(in_vain=False)
        return group, None

    def _left_s(self, until_s: float) -> float:
        return max(0.0, until_s - self._clock.monotonic_s())

    def _without_those_behind(self, group: list[Pending]) -> list[Pending]:
        """What may be written of a group; the rest is refused."""
        if not self._behind:
            return group
        taken: list[Pending] = []
        late: list[Pending] = []
        why = ""
        for pending in group:
            held = self._behind.get(pending.batch.source)
            if held is None or pending.batch.sequence < held[0]:
                taken.append(pending)
            else:
                late.append(pending)
                why = held[1]
        if late:
            self._refuse(late, why)
        return taken

    def _refuse(self, group: list[Pending], why: str) -> None:
        self._refusals += 1
        self._taken_bytes += sum(pending.size for pending in group)
        for pending in group:
            source, sequence = pending.batch.source, pending.batch.sequence
            held = self._behind.get(source)
            lowest = sequence if held is None else min(held[0], sequence)
            self._behind[source] = (lowest, why, self._refusals)
        self._deliver(Refused(group, why, self._refusals))

    def _commit(self, group: list[Pending]) -> None:
        try:
            if self._damage is not None:
                self._mend()
            elif self._is_full():
                self._roll()
            headers, buffers = self._stamp(group)
            self._disk.write(self._fd, buffers)
            began_s = self._clock.monotonic_s()
            self._disk.sync(self._fd)
            sync_s = self._clock.monotonic_s() - began_s
        # The thread's edge: whatever went wrong, the group must be told, and the tail is not to be trusted.
        except Exception as error:
            why = describe(error)
            if self._damage is None:
                logger.error("log.write_failed", extra={"file": str(self._active.path), "error": why})
            self._damage = why
            self._try_to_mend()
            self._refuse(group, why)
            return
        size = sum(pending.size for pending in group)
        self._taken_bytes += size
        self._gathering.synced(size, self._submitted_bytes - self._taken_bytes, sync_s)
        changes = sum(header.count for header in headers)
        start = self._active.bytes
        self._active.add(len(group), changes, size, headers[0].arrival_ms)
        self._deliver(Committed(group, headers, size, self._active.first, start))

    def _stamp(self, group: list[Pending]) -> tuple[list[BatchHeader], list[frames.Buffer]]:
        now_ms = self._clock.now_ms()
        group_first = position = LogPosition(self._active.last + 1)
        headers: list[BatchHeader] = []
        buffers: list[frames.Buffer] = []
        for batch, _, _ in group:
            self._hlc.last = max(self._hlc.last, batch.hlc_max)
            header = BatchHeader(
                first=position,
                count=batch.count,
                hlc_first=self._hlc.tick(now_ms, batch.count),
                arrival_ms=now_ms,
                source=batch.source,
                sequence=batch.sequence,
                fingerprint=batch.fingerprint,
                encoding=batch.encoding,
            )
            headers.append(header)
            buffers += frames.encode(header, batch.payload, group_first)
            position = LogPosition(position + batch.count)
        return headers, buffers

    def _is_full(self) -> bool:
        return self._active.bytes >= self._settings.file_bytes or self._active.changes >= self._settings.file_changes

    def _begin(self, first: LogPosition) -> WalFile:
        """A new file whose name is durable, so that no ack can be in a file that a crash makes disappear."""
        path = wal_path(self._settings.wal_folder, first)
        fd = self._disk.create(path)
        try:
            self._disk.sync_dir(path.parent)
        except BaseException:
            self._disk.close(fd)
            raise
        old, self._fd = self._fd, fd
        if old >= 0:
            self._disk.close(old)
        return WalFile(path, first)

    def _roll(self) -> None:
        """Begin a new file; the old one stays the active one if that fails. An empty one is kept."""
        if self._active.changes == 0:
            return
        old = self._active
        self._active = self._begin(LogPosition(old.last + 1))
        self._deliver(Rolled(old, self._copy_of_active()))

    def _roll_on_request(self) -> str | None:
        try:
            if self._damage is not None:
                self._mend()
            self._roll()
        except (OSError, MainstemError) as error:
            # The next file may exist by now, so the old one must not grow past its name: mend before the next group.
            self._damage = describe(error)
            return self._damage
        return None

    def _mend(self) -> None:
        """Cut the damaged file to what is durable, and go on in a new one. Raises while the disk refuses."""
        active = self._active
        self._disk.truncate(active.path, active.bytes)
        if active.changes == 0:
            # Nothing in it: the same name, from the start.
            self._active = self._begin(active.first)
        else:
            self._roll()
        self._damage = None
        logger.warning("log.mended", extra={"file": str(active.path), "bytes": active.bytes})

    def _try_to_mend(self) -> None:
        """Right after a failure, so that what we refuse is also gone from the disk where that is possible."""
        try:
            self._mend()
        except (OSError, MainstemError) as error:
            logger.error("log.mend_failed", extra={"file": str(self._active.path), "error": describe(error)})

    def _copy_of_active(self) -> WalFile:
        return WalFile(self._active.path, self._active.first)

    def _close(self) -> None:
        if self._damage is not None:
            self._try_to_mend()
        self._disk.close(self._fd)
