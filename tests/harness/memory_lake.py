"""A lake in memory behind the CDC door: every port of the door in one hand-written fake.

For tests, and for measuring the door without a disk. It keeps what it was given and decides nothing by itself: a test
says when a batch becomes durable, when it fails and when the tables have it.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from mainstem.admission import Dedup
from mainstem.doors.cdc.ports import BufferView
from mainstem.model.batch import Admitted, Batch, BatchHeader
from mainstem.model.hlc import Hlc
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.runtime.clock import Clock


class MemoryAppended(msgspec.Struct, frozen=True, gc=False):
    """Where a batch lies."""

    first: LogPosition
    last: LogPosition


class MemoryLake:
    """Log, watermark, flush and status. With `by_hand` nothing is durable before the test says so."""

    def __init__(self, dedup: Dedup, clock: Clock, *, by_hand: bool = False, kept_max: int = 100_000) -> None:
        self.batches: deque[Batch] = deque(maxlen=kept_max)
        self.pending: deque[tuple[Batch, asyncio.Future[MemoryAppended]]] = deque()
        self.watermark: LogPosition = NOWHERE
        self.durable: LogPosition = NOWHERE
        self.refusal: Exception | None = None
        self.buffer = BufferView()
        self.flushes = 0
        self.breaker_state: str | None = None
        self._dedup = dedup
        self._clock = clock
        self._by_hand = by_hand
        self._arrived = asyncio.Event()
        self._listeners: list[Callable[[LogPosition], None]] = []

    def append(self, admitted: Admitted) -> "asyncio.Future[MemoryAppended]":
        """Take a batch in; durable at once, unless by hand."""
        outcome: asyncio.Future[MemoryAppended] = asyncio.get_running_loop().create_future()
        if self.refusal is not None:
            outcome.set_exception(self.refusal)
            return outcome
        self.pending.append((admitted.batch, outcome))
        self._arrived.set()
        if not self._by_hand:
            self.make_durable()
        return outcome

    async def until_pending(self, count: int) -> None:
        """Wait until so many batches are on their way to the disk."""
        while len(self.pending) < count:
            self._arrived.clear()
            await self._arrived.wait()

    def make_durable(self, count: int | None = None) -> None:
        """The oldest pending batches, or all of them, are on disk now."""
        for _ in range(len(self.pending) if count is None else count):
            batch, outcome = self.pending.popleft()
            header = BatchHeader(
                first=LogPosition(self.durable + 1),
                count=batch.count,
                hlc_first=Hlc(self._clock.now_ms() << 16),
                arrival_ms=self._clock.now_ms(),
                source=batch.source,
                sequence=batch.sequence,
                fingerprint=batch.fingerprint,
                encoding=batch.encoding,
            )
            self.durable = header.last
            self.batches.append(batch)
            self._dedup.record(header)
            outcome.set_result(MemoryAppended(header.first, header.last))

    def fail(self, error: Exception) -> None:
        """The oldest pending batch did not reach the disk."""
        self.pending.popleft()[1].set_exception(error)

    def persist(self, position: LogPosition | None = None) -> None:
        """The tables cover the log up to a position, or all of it."""
        self.watermark = self.durable if position is None else position
        for listener in list(self._listeners):
            listener(self.watermark)

    def on_advance(self, listener: Callable[[LogPosition], None]) -> Callable[[], None]:
        """Hear of the watermark."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def flush(self, timeout_s: float) -> LogPosition:
        """Everything durable is in the tables."""
        self.flushes += 1
        self.persist()
        return self.watermark

    def breaker(self) -> str | None:
        """As the test set it."""
        return self.breaker_state

    def persisted_path(self) -> str | None:
        """Nowhere."""
        return None

    def utilization(self) -> float:
        """As the test set it in `buffer`."""
        return self.buffer.utilization

    def view(self) -> BufferView:
        """As the test set it."""
        return self.buffer
