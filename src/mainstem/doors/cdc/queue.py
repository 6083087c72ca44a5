"""The answers of one connection, in the order of the messages they belong to, bounded by number and by size."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from mainstem.doors.cdc.ports import CdcSettings
from mainstem.wire import cdc


class Reply:
    """A place in the queue. `render` is called once `ready` is done, when the answer is about to leave."""

    __slots__ = ("ready", "render", "size_bytes")

    def __init__(
        self,
        render: Callable[[], tuple[cdc.ServerMessage, ...]],
        ready: "asyncio.Future[Any] | None" = None,
        size_bytes: int = 0,
    ) -> None:
        self.render = render
        self.ready = ready
        self.size_bytes = size_bytes


class Replies:
    """`add` puts a place at the end. The reader of messages waits for `room`, the writer of answers for `changed`."""

    def __init__(self, settings: CdcSettings) -> None:
        self._settings = settings
        self._places: deque[Reply] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._places)

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be read from the peer, who then feels a full socket."""
        settings = self._settings
        return len(self._places) >= settings.replies_max or self._bytes >= settings.replies_bytes_max

    def add(self, reply: Reply) -> None:
        """Put an answer behind those that are queued."""
        self._places.append(reply)
        self._bytes += reply.size_bytes
        self._wake.set()

    def take(self) -> Reply | None:
        """The first answer, if what it waits for is done."""
        if not self._places or not ((ready := self._places[0].ready) is None or ready.done()):
            return None
        reply = self._places.popleft()
        self._bytes -= reply.size_bytes
        self._room.set()
        return reply

    def wake(self) -> None:
        """Let the writer look again: an outcome is known, or the connection is to end."""
        self._wake.set()

    async def changed(self) -> None:
        """Wait for the next `add` or `wake`. What happened since the writer's last look wakes it as well, as long as
        nothing is awaited in between."""
        self._wake.clear()
        await self._wake.wait()

    async def room(self) -> None:
        """Wait until an answer has left, or the writer has ended."""
        self._room.clear()
        await self._room.wait()

    def ended(self) -> None:
        """The writer has ended: a reader that waits for room goes on."""
        self._room.set()
