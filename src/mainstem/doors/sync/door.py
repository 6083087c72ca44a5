"""The sync door: offline-first clients, over HTTP and WebSockets, as `docs/protocol/sync.md` has it.

An ASGI application of its own, before the router: bodies have their own bound, refusals their own shape, and a
framework's request and response would cost more than a pull from memory does.
"""

import re
from typing import Any

from litestar.types import ASGIApp, Receive, Scope, Send

from mainstem.admission import Rates
from mainstem.doors.sync.http import Flusher, SyncHttp
from mainstem.doors.sync.ws import SyncSockets
from mainstem.feeds.service import SyncService

_OURS = re.compile(
    r"(/v1)?/(sync/[^/]+/(push|pull|checkpoint|ws)|admin/(flush|schema|rules|checkpoint)/[^/]+)"
    r"|/v1/pipeline/checkpoints"
).fullmatch

# An application in a browser syncs with whatever serves it, so these are for pages of other origins too. What an admin
# does is not.
_CROSS_ORIGIN = re.compile(r"(/v1)?/sync/[^/]+/(push|pull|checkpoint|ws)").fullmatch


class SyncDoor:
    """Both halves of the door."""

    def __init__(self, service: SyncService, flusher: Flusher, rates: Rates, *, connections_max: int) -> None:
        self._service = service
        self._http = SyncHttp(service, flusher, self.is_cross_origin)
        self.sockets = SyncSockets(service, rates, connections_max=connections_max)

    @property
    def connection_count(self) -> int:
        """Clients that are connected now."""
        return self.sockets.connection_count

    def is_ours(self, path: str) -> bool:
        """Whether a path is this door's."""
        return _OURS(path) is not None

    def is_cross_origin(self, path: str) -> bool:
        """Whether a path is for pages of other origins too."""
        return _CROSS_ORIGIN(path) is not None

    def before(self, app: ASGIApp) -> ASGIApp:
        """An application that takes this door's paths, and leaves the others to the one given."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            asked: Any = scope
            if asked["type"] == "lifespan" or not _OURS(asked["path"]):
                await app(scope, receive, send)
            elif asked["type"] == "websocket":
                await self.sockets.serve(asked, receive, send)
            else:
                await self._http.serve(asked, receive, send)

        return serve

    async def close(self) -> None:
        """Answer what is under way, then let go."""
        await self.sockets.drain()
        await self._service.close()
