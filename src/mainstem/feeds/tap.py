"""Stands between admission and the log, and tells what became durable, in the log's order, whatever door it came by."""

import asyncio
from collections.abc import Callable

import msgspec

from mainstem.log import Log
from mainstem.log.stats import Appended
from mainstem.model.batch import Admitted, Batch
from mainstem.model.errors import OutcomeUnknown
from mainstem.wire.sync import RowDelta


class DeltaBatch(Batch, frozen=True, kw_only=True, gc=False):
    """A batch of the sync door, with its deltas at hand: whoever hears of it need not read the payload again."""

    gateway: str
    deltas: tuple[RowDelta, ...]
    # The same as they are encoded in the payload.
    parts: tuple[bytes, ...]


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A batch that is durable."""

    batch: Batch
    appended: Appended


class Tap:
    """The log as admission sees it. `on_arrival` is called before whoever waits for the batch hears of it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.on_arrival: Callable[[Arrival], None] = lambda _: None
        # Others who want to hear of the same, right after.
        self.listeners: list[Callable[[Arrival], None]] = []
        # A batch that is in the log, but of which nobody could be told the place.
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
