"""Turns: batches go to the log source by source, so that no source waits behind the queue of another.

What is on its way to the disk is written and synced together: a batch waits for the group before its own and for its
own, so both must stay small where somebody else waits. A source that is alone may fill a group; beside others it has a
share of one. Beyond that it has a queue of its own, and queues are served one batch at a time, in turn. A source with
nothing on its way goes straight on. The order of a source's batches stays as it is: where one is refused for now, those
that wait behind it are refused as well, since it will be sent again, and so are those that come before its sender has
been told. A future's callbacks run some time after its end, so the ends are looked at, not only the callbacks: another
source's callback that ran first would let the next batch overtake.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from mainstem.model.batch import Admitted
from mainstem.model.errors import Overloaded

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSettings:
    """How much may be on its way to the disk, of all and of each where there are several; how much may wait."""

    on_the_way_bytes_max: int = 2 * 1024 * 1024
    share_bytes: int = 256 * 1024
    waiting_bytes_max: int = 64 * 1024 * 1024
    retry_s: float = 0.5


class _Waiting(Generic[T]):
    __slots__ = ("admitted", "outcome")

    def __init__(self, admitted: Admitted, outcome: "asyncio.Future[T]") -> None:
        self.admitted = admitted
        self.outcome = outcome


class SourceTurns(Generic[T]):
    """In front of one log. Belongs to the event loop."""

    def __init__(self, append: Callable[[Admitted], Awaitable[T]], settings: TurnSettings | None = None) -> None:
        self._append = append
        self._settings = settings or TurnSettings()
        self._on_the_way_bytes = 0
        self._waiting_bytes = 0
        # By source, of what is on its way: how much, and the log's outcomes in order.
        self._shares: dict[str, int] = {}
        self._outcomes: dict[str, deque[tuple[int, asyncio.Future[T]]]] = {}
        # By source, the sequence that the log refused, and why, where its sender has not heard of it yet.
        self._untold: dict[str, tuple[int, Overloaded]] = {}
        # By source, the next one to be served first.
        self._queues: OrderedDict[str, deque[_Waiting[T]]] = OrderedDict()

    def enter(self, admitted: Admitted) -> "asyncio.Future[T]":
        """Take a batch; the future has the log's outcome. Raises Overloaded where too much waits already."""
        source = admitted.batch.source
        if (refusal := self._refusal(source, admitted.batch.sequence)) is not None:
            raise _behind(refusal)
        if source not in self._queues and self._may_pass(source):
            return self._pass_on(admitted)
        self._check_room(source, len(admitted.batch.payload))
        waiting = _Waiting(admitted, asyncio.get_running_loop().create_future())
        self._queues.setdefault(source, deque()).append(waiting)
        self._waiting_bytes += len(admitted.batch.payload)
        return waiting.outcome

    @property
    def waiting_bytes(self) -> int:
        """What waits for its turn."""
        return self._waiting_bytes

    def _check_room(self, source: str, size: int) -> None:
        """Who has nothing waiting yet is let in as long as there is any sense in it: the others fill the room."""
        limit = self._settings.waiting_bytes_max * (1 if source in self._queues else 2)
        if self._waiting_bytes + size > limit:
            raise Overloaded(
                f"too much waits for the disk. expected=at most {limit} bytes got={self._waiting_bytes + size}",
                retry_after_s=self._settings.retry_s,
            )

    def _may_pass(self, source: str) -> bool:
        """Whether there is room for one more batch of a source on the way to the disk."""
        limit = self._settings.on_the_way_bytes_max
        share = self._shares.get(source)
        if share is None:
            # The others fill the room; it gets some that they cannot have.
            return self._on_the_way_bytes < 2 * limit
        is_alone = len(self._shares) == 1 and self._queues.keys() <= {source}
        return self._on_the_way_bytes < limit and (is_alone or share < self._settings.share_bytes)

    def _refusal(self, source: str, sequence: int) -> Overloaded | None:
        """The refusal of a batch that this one would overtake, and that its source sends again; None without one."""
        untold = self._untold.get(source)
        if untold is not None and sequence > untold[0]:
            return untold[1]
        for earlier, outcome in self._outcomes.get(source, ()):
            if not outcome.done():
                return None
            if sequence > earlier and isinstance(error := _error(outcome), Overloaded):
                return error
        return None

    def _pass_on(self, admitted: Admitted, waiter: "asyncio.Future[T] | None" = None) -> "asyncio.Future[T]":
        """To the log. `waiter` is what the sender was given, where it was not given the log's own future."""
        outcome = asyncio.ensure_future(self._append(admitted))
        source, sequence, size = admitted.batch.source, admitted.batch.sequence, max(1, len(admitted.batch.payload))
        self._on_the_way_bytes += size
        self._shares[source] = self._shares.get(source, 0) + size
        self._outcomes.setdefault(source, deque()).append((sequence, outcome))
        outcome.add_done_callback(partial(self._left, source, sequence, size, waiter))
        return outcome

    def _left(
        self, source: str, sequence: int, size: int, waiter: "asyncio.Future[T] | None", outcome: "asyncio.Future[T]"
    ) -> None:
        if waiter is not None:
            _hand_on(waiter, outcome)
        self._outcomes[source].remove((sequence, outcome))
        if isinstance(error := _error(outcome), Overloaded):
            self._refuse_waiting(source, sequence, error)
        self._on_the_way_bytes -= size
        self._shares[source] -= size
        if not self._shares[source]:
            del self._shares[source], self._outcomes[source]
        self._serve()

    def _serve(self) -> None:
        """Pass on what waits, as far as there is room."""
        while (following := next(filter(self._may_pass, self._queues), None)) is not None:
            first = self._queues[following][0].admitted.batch.sequence
            if (refusal := self._refusal(following, first)) is not None:
                self._refuse_waiting(following, first, refusal)
                continue
            queue = self._queues.pop(following)
            waiting = queue.popleft()
            if queue:
                self._queues[following] = queue
            self._waiting_bytes -= len(waiting.admitted.batch.payload)
            try:
                self._pass_on(waiting.admitted, waiting.outcome)
            except Exception as error:
                # What the log refuses at once is told like what it refuses later.
                if not waiting.outcome.done():
                    waiting.outcome.set_exception(error)
                if isinstance(error, Overloaded):
                    self._refuse_waiting(following, waiting.admitted.batch.sequence, error)

    def _refuse_waiting(self, source: str, sequence: int, error: Overloaded) -> None:
        """Refuse what waits behind a refused batch, and what comes until its sender has heard of the refusal."""
        for waiting in self._queues.pop(source, ()):
            self._waiting_bytes -= len(waiting.admitted.batch.payload)
            if not waiting.outcome.done():
                waiting.outcome.set_exception(_behind(error))
        earlier = self._untold.get(source)
        untold = (sequence, error) if earlier is None else (min(sequence, earlier[0]), error)
        self._untold[source] = untold
        # After the callbacks of the futures that were ended above: they tell the senders.
        asyncio.get_running_loop().call_soon(self._told, source, untold)

    def _told(self, source: str, untold: tuple[int, Overloaded]) -> None:
        if self._untold.get(source) is untold:
            del self._untold[source]


def _behind(error: Overloaded) -> Overloaded:
    told = f"an earlier batch was refused: {error}"
    return Overloaded(told, retry_after_s=error.retry_after_s, reason=error.reason)


def _error(outcome: "asyncio.Future[T]") -> BaseException | None:
    return None if outcome.cancelled() else outcome.exception()


def _hand_on(outcome: "asyncio.Future[T]", inner: "asyncio.Future[T]") -> None:
    if outcome.done():
        return
    if inner.cancelled():
        outcome.cancel()
    elif (error := inner.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(inner.result())
