"""Keeps the companion stored beside the log, and drops files of frames and segments that are not needed any more.

A file is needed until its batches are in a segment and in the stored companion. Dumps can be large, so they are not
made with every segment: sealed files wait for the next dump, which is due after a time or a size.
"""

import asyncio
from collections.abc import Callable

from mainstem.log import companion as companions
from mainstem.log.companion import Companion, ReadingCompanion
from mainstem.log.disk import Disk
from mainstem.log.kept import KeptFrames
from mainstem.log.seal.segments import SegmentInfo
from mainstem.log.settings import LogSettings
from mainstem.log.wal.files import WalFile
from mainstem.model.hlc import Hlc
from mainstem.model.position import LogPosition
from mainstem.runtime.clock import Clock


class Keeper:
    """Lives on the event loop; the disk's part is done in a thread."""

    def __init__(
        self,
        settings: LogSettings,
        companion: Companion | ReadingCompanion,
        clock: Clock,
        disk: Disk,
        spent: list[WalFile],
    ) -> None:
        self._settings = settings
        self._companion = companion
        self._clock = clock
        self._disk = disk
        self._kept = KeptFrames(settings, disk)
        # Sealed, but some batch in them may be missing in the stored companion.
        self._spent = spent
        self._spent_bytes = sum(file.bytes for file in spent)
        self._stored_s = clock.monotonic_s()
        self._storing = asyncio.Lock()

    def sealed(self, files: list[WalFile]) -> None:
        """These files are in a segment now."""
        self._spent += files
        self._spent_bytes += sum(file.bytes for file in files)

    def due_in_s(self) -> float | None:
        """How long until the next dump is due; None while there is nothing to drop."""
        if not self._spent:
            return None
        if self._spent_bytes >= self._settings.companion_lag_bytes:
            return 0.0
        return max(0.0, self._stored_s + self._settings.companion_interval_s - self._clock.monotonic_s())

    async def store(self, counters: Callable[[], tuple[LogPosition, Hlc, LogPosition]]) -> None:
        """Store the companion, then drop the sealed files that it covers.

        `counters` gives the durable position, the last clock and the sealed position.
        """
        async with self._storing:
            # Counters, dump and files in one step of the loop: the dump is exactly what is durable, and holds every
            # batch of the files.
            stored = companions.Stored(*counters(), self._companion.dump())
            spent, self._spent, self._spent_bytes = self._spent, [], 0
            try:
                await asyncio.to_thread(self._store_and_drop, stored, spent)
            except OSError:
                self.sealed(spent)
                raise
            finally:
                # Also after a failure: the next try waits its turn.
                self._stored_s = self._clock.monotonic_s()

    def _store_and_drop(self, stored: companions.Stored, spent: list[WalFile]) -> None:
        companions.write(self._disk, self._settings.folder, self._settings.scratch_folder, stored)
        for file in spent:
            self._kept.take(file)

    def remove(self, segments: list[SegmentInfo]) -> None:
        """Remove segments that everybody is done with, durably. Blocks on the disk."""
        for segment in segments:
            self._disk.remove(segment.path)
        self._disk.sync_dir(self._settings.segments_folder)
