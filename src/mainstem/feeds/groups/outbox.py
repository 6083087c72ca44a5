"""Holds answers back until what they tell of is durable: the one place where coordinators touch the journal.

Entries of many groups are written together, in the order in which they came; one write is under way at a time. An
answer that depends on no write passes at once, unless its group still has one under way: a member must not hear of a
state that a crash could take back.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from mainstem.model.change import Change
from mainstem.model.errors import Invalid, MainstemError, OutcomeUnknown

logger = logging.getLogger(__name__)

# Changes of one write. A journal's batch is bounded by the gate's limits.
CHANGES_MAX = 1_000

Deliver = Callable[[], None]
Fail = Callable[[MainstemError], None]


class Journal(Protocol):
    """The log, as far as coordinators need it."""

    def append(self, changes: Sequence[Change]) -> Awaitable[object]:
        """Awaited, it ends once the changes are durable, in one batch, and the sections have them. Raises MainstemError
        where they are not in the log."""


class _Held:
    __slots__ = ("changes", "deliver", "fail", "owner")

    def __init__(self, owner: str, changes: Sequence[Change], deliver: Deliver, fail: Fail) -> None:
        self.owner = owner
        self.changes = changes
        self.deliver = deliver
        self.fail = fail


class Outbox:
    """Belongs to the event loop. `run` does the writing."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._held: list[_Held] = []
        self._under_way: Counter[str] = Counter()
        self._wake = asyncio.Event()

    @property
    def waiting_count(self) -> int:
        """Writes and answers that are held."""
        return self._under_way.total()

    def send(self, owner: str, changes: Sequence[Change], deliver: Deliver, fail: Fail) -> None:
        """Write the changes, then deliver; at once where there is nothing to wait for. One of both is called, once."""
        if not changes and not self._under_way[owner]:
            deliver()
            return
        self._under_way[owner] += 1
        self._held.append(_Held(owner, changes, deliver, fail))
        self._wake.set()

    async def write(self, owner: str, changes: Sequence[Change]) -> None:
        """The same for somebody who waits."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.send(owner, changes, lambda: settle(future, None), lambda error: settle(future, error))
        await future

    async def run(self) -> None:
        """Write what is held, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._held:
                await self._write_some()

    async def _write_some(self) -> None:
        count = size = 0
        for held in self._held:
            if count and size + len(held.changes) > CHANGES_MAX:
                break
            count += 1
            size += len(held.changes)
        group, self._held = self._held[:count], self._held[count:]
        await self._write(group)

    async def _write(self, group: Sequence[_Held]) -> None:
        error: MainstemError | None = None
        changes = [change for held in group for change in held.changes]
        try:
            if changes:
                await self._journal.append(changes)
        except MainstemError as failed:
            if isinstance(failed, Invalid) and len(group) > 1:
                # Too large, together or because of one of them: the others have nothing to do with it.
                for held in group:
                    await self._write([held])
                return
            # The members that wait are told, and ask again.
            error = failed
            logger.warning("a write of the groups' journal failed: %s", failed)
        # An error of ours. What is durable is not known, and no caller may wait for ever: all groups pass here.
        except Exception as failed:
            error = OutcomeUnknown(f"the groups' journal failed. got={failed!r}")
            logger.exception("kafka.outbox_failed")
        for held in group:
            self._under_way[held.owner] -= 1
            if not self._under_way[held.owner]:
                del self._under_way[held.owner]
            if error is None:
                held.deliver()
            else:
                held.fail(error)


def settle(future: "asyncio.Future[Any]", said: Any) -> None:
    """Resolve a future, unless the request that waited has gone."""
    if future.done():
        return
    if isinstance(said, BaseException):
        future.set_exception(said)
    else:
        future.set_result(said)
