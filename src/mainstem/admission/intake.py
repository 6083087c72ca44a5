"""The way in: from a decoded batch to a durable one, once, however often and on however many connections it is sent."""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from mainstem.admission.gate import Duplicate, Gate
from mainstem.admission.limits import OutOfSequence
from mainstem.admission.turns import SourceTurns, TurnSettings
from mainstem.model.batch import Admitted, Batch
from mainstem.model.change import SourceId
from mainstem.model.position import LogPosition


class Appended(Protocol):
    """Where a batch lies in the log."""

    @property
    def first(self) -> LogPosition: ...

    @property
    def last(self) -> LogPosition: ...


class Appender(Protocol):
    """The log, as far as admission needs it.

    Batches are appended in the order of the calls. The awaitable ends when the batch is durable, after the log called
    the companion's `record`; it raises a MainstemError where the batch is not in the log.
    """

    def append(self, admitted: Admitted, /) -> Awaitable[Appended]: ...


class Ticket:
    """A batch on its way. `outcome` ends when it is durable or failed; do not await it bare, since cancelling one
    waiter would cancel it for all: use `asyncio.wait` or a callback."""

    __slots__ = ("duplicate", "fingerprint", "outcome")

    def __init__(self, outcome: "asyncio.Future[Appended] | None", fingerprint: int, *, duplicate: bool) -> None:
        # None where the batch was durable before.
        self.outcome = outcome
        self.fingerprint = fingerprint
        # Whether somebody else sent it first.
        self.duplicate = duplicate

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.outcome is None or self.outcome.done()

    @property
    def failed(self) -> bool:
        """Whether it is known that the batch is not in the log."""
        outcome = self.outcome
        return outcome is not None and outcome.done() and (outcome.cancelled() or outcome.exception() is not None)


class Intake:
    """Admits and appends. A batch that is sent again while the first one is under way shares its outcome.

    An append is never cancelled with the connection that brought it: its outcome decides what a retry is told.
    """

    def __init__(self, gate: Gate, appender: Appender, turns: TurnSettings | None = None) -> None:
        self.gate = gate
        self._turns: SourceTurns[Appended] = SourceTurns(appender.append, turns)
        self._under_way: dict[tuple[str, int], Ticket] = {}

    def take(self, batch: Batch) -> Ticket:
        """Let a batch in. Raises Invalid or Overloaded where it is refused at once; does not wait for the disk."""
        place = (batch.source, batch.sequence)
        first = self._under_way.get(place)
        if first is not None and not first.failed:
            return self._join(first, batch)
        verdict = self.gate.admit(batch)
        if isinstance(verdict, Duplicate):
            return Ticket(None, batch.fingerprint, duplicate=True)
        ticket = Ticket(self._turns.enter(verdict), batch.fingerprint, duplicate=False)
        assert ticket.outcome is not None
        self._under_way[place] = ticket
        ticket.outcome.add_done_callback(lambda _: self._leave(place, ticket))
        return ticket

    async def settled(self, source: SourceId) -> None:
        """Wait until what is under way for a source now has an outcome, good or bad."""
        outcomes = [t.outcome for (name, _), t in self._under_way.items() if name == source and t.outcome is not None]
        if outcomes:
            await asyncio.wait(outcomes)

    def persisted(self, source: SourceId) -> int | None:
        """The sequence up to which every batch of the source that was let in is in the tables; None where none is.

        What is under way bounds it as well: an old batch that is sent again late is not in the tables yet, though
        newer ones are.
        """
        below = min(
            (number for (name, number), ticket in self._under_way.items() if name == source and not ticket.done),
            default=None,
        )
        return self.gate.dedup.persisted(source, below)

    @property
    def under_way_count(self) -> int:
        """Batches that are neither durable nor failed."""
        return len(self._under_way)

    def _join(self, first: Ticket, batch: Batch) -> Ticket:
        if first.fingerprint != batch.fingerprint:
            highest = max(sequence for name, sequence in self._under_way if name == batch.source)
            raise OutOfSequence(
                f"sequence is under way with other changes. source={batch.source} got={batch.sequence}",
                sequence_next=max(highest, self.gate.dedup.highest(batch.source)) + 1,
            )
        return Ticket(first.outcome, batch.fingerprint, duplicate=True)

    def _leave(self, place: tuple[str, int], ticket: Ticket) -> None:
        # A retry of a failed batch may have taken its place before this was called.
        if self._under_way.get(place) is ticket:
            del self._under_way[place]
        # Asking marks the exception as seen: the sender of the batch may be gone.
        _ = ticket.failed
