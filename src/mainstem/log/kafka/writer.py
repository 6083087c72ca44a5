"""The writer of a log on Kafka: a group is written there first, and is durable then; files of frames come after.

They are what the log seals from and reads its tail from. They need no sync: when the log is opened they are made anew.
"""

import threading
from collections.abc import Callable, Sequence
from queue import Empty

from mainstem.log.disk import Buffer, Disk
from mainstem.log.kafka.journal import KafkaJournal
from mainstem.log.kafka.port import Fenced
from mainstem.log.settings import LogSettings
from mainstem.log.wal.files import WalFile
from mainstem.log.wal.outcomes import Away, Back, Committed, Item, Lost, Outcome, Pending, Unsure
from mainstem.log.wal.writer import WalWriter, describe
from mainstem.model.batch import BatchHeader
from mainstem.model.errors import MainstemError, OutcomeUnknown
from mainstem.model.hlc import HlcClock
from mainstem.model.position import LogPosition
from mainstem.runtime.clock import Clock

_RETRY_S = 0.2


class KafkaWriter(WalWriter):
    """As the embedded log's, with Kafka before the files."""

    def __init__(
        self,
        journal: KafkaJournal,
        settings: LogSettings,
        disk: Disk,
        clock: Clock,
        hlc: HlcClock,
        deliver: Callable[[Outcome], None],
    ) -> None:
        super().__init__(settings, disk, clock, hlc, deliver)
        self._journal = journal
        self._ending = threading.Event()
        journal.on_away = lambda why: deliver(Away(why))
        journal.on_back = lambda: deliver(Back())
        self._is_lost = False

    def start(self, next_position: LogPosition) -> WalFile:
        self._journal.begin()
        return super().start(next_position)

    def stop(self) -> None:
        self._ending.set()
        self._journal.end()
        super().stop()

    def _next(self) -> Item:
        while True:
            try:
                return self._queue.get(timeout=self._journal.beat_s)
            except Empty:
                if not self._is_lost:
                    self._beat()

    def _beat(self) -> None:
        try:
            self._journal.beat()
        except Fenced as error:
            self._lose(str(error))
        except OutcomeUnknown:
            # We end; a `_Stop` is on its way.
            pass

    def _lose(self, why: str) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._deliver(Lost(why))

    def _commit(self, group: list[Pending]) -> None:
        try:
            if self._damage is not None:
                self._mend()
            elif self._is_full():
                self._roll()
            headers, buffers = self._stamp(group)
        # The thread's edge: whatever went wrong before Kafka had anything, the group must be told.
        except Exception as error:
            self._refuse(group, describe(error))
            if isinstance(error, Fenced):
                self._lose(str(error))
            return
        values = [b"".join(buffers[at : at + 2]) for at in range(0, len(buffers), 2)]
        began_s = self._clock.monotonic_s()
        try:
            counted = self._journal.append(headers, values)
        except Fenced as error:
            self._refuse(group, str(error))
            self._lose(str(error))
            return
        # Also where the partition cannot be read any more: then it cannot be known.
        except Exception as error:
            self._taken_bytes += sum(pending.size for pending in group)
            self._deliver(Unsure(group, describe(error)))
            if not isinstance(error, OutcomeUnknown):
                self._lose(describe(error))
            return
        size = sum(pending.size for pending in group[:counted])
        self._taken_bytes += size
        self._gathering.synced(size, self._submitted_bytes - self._taken_bytes, self._clock.monotonic_s() - began_s)
        if counted:
            self._on_durable(group[:counted], headers[:counted], values[:counted])
        if counted < len(group):
            self._refuse(group[counted:], "Kafka did not take it")

    def _on_durable(self, group: list[Pending], headers: list[BatchHeader], values: Sequence[Buffer]) -> None:
        """Kafka has the group. It is told only when the files have it too: the log reads from there."""
        while (why := self._write(values)) is not None:
            self._deliver(Away(why))
            if self._ending.wait(_RETRY_S):
                self._deliver(Unsure(group, f"it is durable, but could not be told. got={why}"))
                return
        size = sum(pending.size for pending in group)
        start = self._active.bytes
        self._active.add(len(group), sum(header.count for header in headers), size, headers[0].arrival_ms)
        self._deliver(Committed(group, headers, size, self._active.first, start))

    def _write(self, values: Sequence[Buffer]) -> str | None:
        """Write to the active file; why not, if it cannot be done now."""
        try:
            if self._damage is not None:
                self._mend()
            self._disk.write(self._fd, values)
        except (OSError, MainstemError) as error:
            self._damage = describe(error)
            if isinstance(error, Fenced):
                self._lose(str(error))
            return self._damage
        return None

    def _roll(self) -> None:
        # A gateway that reads the partition begins a file where we do, so that segments end where files do.
        if self._active.changes:
            self._journal.mark()
        super()._roll()

    def _close(self) -> None:
        super()._close()
        self._journal.close()
