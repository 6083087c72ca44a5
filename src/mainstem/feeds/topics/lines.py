"""A line of batches to the log: one source, numbered without a gap, also over refusals.

The log keeps a source's order: where a batch is refused (the disk failed), it refuses those behind it that are on their
way already (`log/wal`, `log/holds`). So after a refusal everything from the refused batch on is known not to be in the
log, and its numbers, and whatever was assigned with them (offsets), are free to be used again. A number that was
refused is never remembered by admission's dedup. Nothing else may send under the line's source.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from mainstem.admission import Appended, Appender, Duplicate, Gate
from mainstem.model.batch import Batch, Encoding
from mainstem.model.change import SourceId
from mainstem.model.errors import Conflict, OutcomeUnknown
from mainstem.model.names import TableName

T = TypeVar("T")


class Sent(Generic[T]):
    """A batch on its way, with what its sender assigned to it."""

    __slots__ = ("number", "outcome", "what")

    def __init__(self, number: int, what: T, outcome: "asyncio.Future[Appended]") -> None:
        self.number = number
        self.what = what
        self.outcome = outcome


class Line(Generic[T]):
    """Sends batches in order. `number` is the next one's; `on_rewind` hears that what is not in `sent` any more is not
    in the log. Belongs to the event loop."""

    def __init__(self, gate: Gate, log: Appender, source: SourceId, number: int) -> None:
        self._gate = gate
        self._log = log
        self._source = source
        self._number = number
        self.sent: deque[Sent[T]] = deque()
        self.on_rewind: Callable[[], None] = lambda: None

    def send(
        self, what: T, *, encoding: Encoding, payload: bytes, count: int, fingerprint: int, tables: frozenset[TableName]
    ) -> Sent[T]:
        """Admit a batch and put it in line, at once. Raises what admission or the log refuse it with: then nothing was
        assigned. `outcome` ends when it is durable, after the log's companion heard of it, or fails where it is not in
        the log; do not await it bare, use `asyncio.shield` or `asyncio.wait`."""
        self._check_sent()
        batch = Batch(
            source=self._source,
            sequence=self._number,
            count=count,
            encoding=encoding,
            payload=payload,
            fingerprint=fingerprint,
            tables=tables,
        )
        admitted = self._gate.admit(batch)
        if isinstance(admitted, Duplicate):
            raise Conflict(f"a number of this line was used before. source={self._source} number={self._number}")
        outcome = asyncio.ensure_future(self._log.append(admitted))
        sent = Sent(self._number, what, outcome)
        self.sent.append(sent)
        self._number += 1
        outcome.add_done_callback(lambda _: self._settle(sent))
        return sent

    def _check_sent(self) -> None:
        """Refuse a batch behind one that the log has refused and `_settle` was not called for yet: the number that it
        would get is given out again."""
        for each in self.sent:
            if not each.outcome.done():
                return
            error = None if each.outcome.cancelled() else each.outcome.exception()
            if error is not None and not isinstance(error, OutcomeUnknown):
                raise error

    def _settle(self, sent: Sent[T]) -> None:
        error = None if sent.outcome.cancelled() else sent.outcome.exception()
        if error is None or isinstance(error, OutcomeUnknown):
            # Durable: so is all that was sent before.
            while self.sent and self.sent[0].number <= sent.number:
                self.sent.popleft()
            return
        if sent not in self.sent:
            # One before it failed already.
            return
        while self.sent and self.sent[-1].number >= sent.number:
            self.sent.pop()
        self._number = sent.number
        self.on_rewind()


async def durable(outcome: "asyncio.Future[Appended]") -> Appended:
    """Wait for an outcome. Who waits may be cancelled; the batch is not."""
    return await asyncio.shield(outcome)
