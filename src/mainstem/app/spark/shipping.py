"""Puts sealed segments where the tables are: executors on other machines read them there, and nowhere else.

The log names a segment on its own disk first, and that decides what is in it. Then it is put into the store, strictly
in log order: the pipeline takes a segment that is there for a sign that all before it are. What the log drops is
removed there as well, oldest first. The store is compared with the log at the start, and again after every failure, so
a crash or an outage at any line leaves nothing out. While the store is away the log goes on sealing on its own disk.
"""

import asyncio
import logging
from collections.abc import Mapping

from mainstem.log import Log
from mainstem.log.segments import is_segment_name

logger = logging.getLogger(__name__)

RETRY_S_MIN = 0.2
RETRY_S_MAX = 10.0


class Shipper:
    """Lives on the event loop; the store's part is done in threads. Without a location there is nothing to do."""

    def __init__(self, log: Log, location: str | None, store: Mapping[str, str]) -> None:
        self._log = log
        self._location = location
        self._store = store
        # The names that are in the store; None: that has to be looked up.
        self._there: set[str] | None = None
        self._wake = asyncio.Event()
        # Why it does not work now.
        self.error: str | None = None
        log.on_sealed(lambda _: self.wake())

    def wake(self) -> None:
        """The log has other segments than before."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        retry_s = RETRY_S_MIN
        while self._location is not None:
            self._wake.clear()
            try:
                await self._bring_up_to_date(self._location)
            # The task's edge: it is tried again, and the status says why it has not worked yet.
            except OSError as error:
                self._there = None
                self.error = f"segments cannot be put into the store. got={error}"[:500]
                logger.error("shipping.failed", extra={"error": self.error, "retry_s": retry_s})
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, RETRY_S_MAX)
                continue
            self.error, retry_s = None, RETRY_S_MIN
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
        for name in sorted(self._there - {segment.path.name for segment in self._log.segments()}):
            await asyncio.to_thread(stores.remove_file, f"{location}/{name}", self._store)
            self._there.remove(name)
