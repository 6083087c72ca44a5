"""The sync door: offline-first clients, over HTTP and WebSockets, as `docs/protocol/sync.md` has it.

An ASGI application of its own below a few paths: bodies have their own bound, and a framework's request and response
would cost more than a pull from memory does.
"""

from typing import Any

from litestar import asgi
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive, Scope, Send

from mainstem.doors.sync_http import Flusher, SyncHttp
from mainstem.doors.sync_ws import SyncSockets
from mainstem.feeds.service import SyncService
from mainstem.runtime.clock import Clock

PATHS = ("/sync", "/admin/flush", "/admin/schema")


class SyncDoor:
    """Both halves of the door."""

    def __init__(self, service: SyncService, flusher: Flusher, clock: Clock, *, connections_max: int) -> None:
        self._service = service
        self._http = SyncHttp(service, flusher)
        self.sockets = SyncSockets(service, clock, connections_max=connections_max)

    def routes(self) -> list[ASGIRouteHandler]:
        """The routes to mount, each also below `/v1`."""
        return [self._route(prefix + path) for path in PATHS for prefix in ("", "/v1")]

    async def close(self) -> None:
        """Answer what is under way, then let go."""
        await self.sockets.drain()
        await self._service.close()

    def _route(self, path: str) -> ASGIRouteHandler:
        @asgi(path, is_mount=True, copy_scope=False)
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            asgi_scope: Any = scope
            half = self.sockets if asgi_scope["type"] == "websocket" else self._http
            await half.serve(asgi_scope, receive, send)

        return serve
