"""The way to a server, as the coordinator sees it."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from mainstem.wire.sync import SyncPull, SyncPush, SyncResponse

# What the server may send us beyond LakeSync's own messages.
FEATURES = "evict"
TIMEOUT_S = 30.0

TokenSource = str | Callable[[], str | Awaitable[str]] | None


class LiveListener(Protocol):
    """Hears what others change as it happens. Called in the event loop; returns at once."""

    def broadcast(self, response: SyncResponse) -> None:
        """Changes that follow those told before."""

    def lost(self) -> None:
        """The connection went away: a pull finds out what was missed, and connects again."""


class Transport(Protocol):
    """Each call either answers or raises one of the errors that `client.sync.errors` lists."""

    async def push(self, push: SyncPush) -> SyncResponse:
        """All deltas of the push are durable once this answers. Sending the same push again is safe."""

    async def pull(self, pull: SyncPull) -> SyncResponse:
        """A page of what arrived after a cursor."""

    async def checkpoint(self, client_id: str) -> AsyncIterator[SyncResponse] | None:
        """For a client, the pieces of a checkpoint; None where the server has none and a pull from 0 is the way."""

    def subscribe(self, listener: LiveListener) -> Callable[[], None] | None:
        """Hear of changes by themselves; the answer stops it. None where the transport can only be polled."""

    async def close(self) -> None:
        """Let go of the connections."""


async def token_of(source: TokenSource) -> str | None:
    """A token, asked for before each use where a function gives it."""
    given = source() if callable(source) else source
    return await given if inspect.isawaitable(given) else given
