"""Stands between admission and the log, and tells what became durable, in the log's order, whatever door it came by."""

import asyncio
from collections.abc import Callable

import msgspec

from mainstem.log.log import Log
from mainstem.log.seal.expand import Expander, Rows
from mainstem.log.stats import Appended
from mainstem.model.batch import Admitted, Batch, BatchHeader
from mainstem.model.errors import OutcomeUnknown


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A batch that is durable."""

    batch: Batch
    appended: Appended

    def rows(self) -> list[Rows]:
        """Its changes, by table, as sealing would expand them."""
        batch, appended = self.batch, self.appended
        header = BatchHeader(
            first=appended.first,
            count=batch.count,
            hlc_first=appended.hlc_first,
            arrival_ms=0,
            source=batch.source,
            sequence=batch.sequence,
            fingerprint=batch.fingerprint,
            encoding=batch.encoding,
        )
        return Expander().expand(header, batch.payload, "a batch that just arrived")


class Tap:
    """The log as admission sees it. `on_arrival` is called before the door that waits for the batch hears of it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.on_arrival: Callable[[Arrival], None] = lambda _: None
        # Others who want to hear of the same, right after.
        self.listeners: list[Callable[[Arrival], None]] = []
        # Called for a batch that is in the log at a place that its sender could not be told.
        self.on_lost: Callable[[], None] = lambda: None

    def append(self, admitted: Admitted, /) -> "asyncio.Future[Appended]":
        """Put a batch in line, as the log does."""
        future = self._log.append(admitted)
        batch = admitted.batch
        future.add_done_callback(lambda done: self._done(batch, done))
        return future

    def _done(self, batch: Batch, done: "asyncio.Future[Appended]") -> None:
        if done.cancelled() or isinstance(done.exception(), OutcomeUnknown):
            self.on_lost()
        elif done.exception() is None:
            arrival = Arrival(batch, done.result())
            self.on_arrival(arrival)
            for listener in self.listeners:
                listener(arrival)
