"""Puts sealed segments where the tables are: executors on other machines read them there, and nowhere else.

The log names a segment on its own disk first, and that decides what is in it. Then it is put into the store, strictly
in log order: the pipeline takes a segment that is there for a sign that all before it are. What the log drops is
removed there as well, oldest first. The store is compared with the log at the start, and again after every failure, so
a crash or an outage at any line leaves nothing out. While the store is away the log goes on sealing on its own disk.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from mainstem.formats.segments import is_segment_name, last_of_name
from mainstem.log import Log
from mainstem.model import LogPosition
from mainstem.runtime.backoff import doubled

logger = logging.getLogger(__name__)

RETRY_S_MIN = 0.2
RETRY_S_MAX = 10.0


class StoredSegments:
    """The segments that are in the store, for a gateway that takes over a log."""

    def __init__(self, location: str, store: Mapping[str, str]) -> None:
        self._location = location
        self._store = store

    def names(self) -> list[str]:
        """What is there."""
        from mainstem.pipeline.passes import stores

        return list(stores.list_files(self._location, self._store))

    def fetch(self, name: str, target: Path) -> None:
        """Copy one to a local file."""
        from mainstem.pipeline.passes import stores

        target.write_bytes(stores.read_file(f"{self._location}/{name}", self._store))

    def put(self, path: Path) -> None:
        """Keep a local one, under its name."""
        from mainstem.pipeline.passes import stores

        stores.put_file(path, f"{self._location}/{path.name}", self._store)


class Shipper:
    """Lives on the event loop; the store's part is done in threads. Without a location there is nothing to do."""

    def __init__(self, log: Log, location: str | None, store: Mapping[str, str]) -> None:
        self._log = log
        self.location = location
        self._store = store
        # The names that are in the store; None: that has to be looked up.
        self._there: set[str] | None = None
        self._wake = asyncio.Event()
        # Why it does not work now.
        self.error: str | None = None
        log.on_sealed(lambda _: self.wake())

    @property
    def shipped(self) -> LogPosition:
        """Every segment up to here is in the store, or was."""
        there = self._there or set()
        segments = self._log.segments()
        missing = next((segment for segment in segments if segment.path.name not in there), None)
        if missing is not None:
            return LogPosition(missing.first - 1)
        return segments[-1].last if segments else self._log.sealed

    def wake(self) -> None:
        """The log has other segments than before."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while self.location is not None:
            self._wake.clear()
            try:
                await self._bring_up_to_date(self.location)
            # The task's edge: it is tried again, and the status says why it has not worked yet.
            except OSError as error:
                self._there = None
                failures += 1
                retry_s = doubled(failures, RETRY_S_MIN, RETRY_S_MAX)
                self.error = f"segments cannot be put into the store. got={error}"[:500]
                logger.error("shipping.failed", extra={"error": self.error, "retry_s": retry_s})
                await asyncio.sleep(retry_s)
                continue
            self.error, failures = None, 0
            await self._wake.wait()

    async def _bring_up_to_date(self, location: str) -> None:
        # Not above: it takes some time to load, and most gateways have no use for it.
        from mainstem.pipeline.passes import stores

        if self._there is None:
            found = await asyncio.to_thread(stores.list_files, location, self._store)
            self._there = {name for name in found if is_segment_name(name)}
        for segment in self._log.segments():
            name = segment.path.name
            if name not in self._there:
                await asyncio.to_thread(stores.put_file, segment.path, f"{location}/{name}", self._store)
                self._there.add(name)
        # Not what comes after our last segment: another gateway may own the log by now, and have made it.
        ours = {name for name in self._there if last_of_name(name) <= self._log.sealed}
        for name in sorted(ours - {segment.path.name for segment in self._log.segments()}):
            await asyncio.to_thread(stores.remove_file, f"{location}/{name}", self._store)
            self._there.remove(name)
