"""The whole API a second time under `/lakehouse`, where DoLake's clients look for it.

Plain ASGI in front of everything else: a request by the longer name meets the same limits, the same gate and the
same doors. DoLake's examples give engines `/lakehouse/v1` as the catalog, to which those add their own `/v1`.
"""

from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from mainstem.doors.http.at_hand import AtHand, FindAtHand, nothing_at_hand
from mainstem.doors.http.bounds import REQUEST_TIMEOUT_S

PREFIX = "/lakehouse"


def _without(path: str, raw: bytes, prefix: str, following: str) -> tuple[str, bytes]:
    """A path without its beginning, if the path that was sent begins so too: both must stay one and the same."""
    whole = prefix + following
    if not path.startswith(whole) or not raw.startswith(whole.encode()):
        return path, raw
    return path.removeprefix(prefix), raw.removeprefix(prefix.encode())


class UnderLakehouse:
    """An application by both names. `/lakehouse` itself is a WebSocket's, and stays as it is."""

    def __init__(
        self, app: ASGIApp, find: FindAtHand = nothing_at_hand, request_timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        self._app = app
        self._find = find
        # Read by the connection: see `http_bounds`.
        self.request_timeout_s = request_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on by its short name."""
        if scope["type"] in ("http", "websocket"):
            path, raw = _without(scope["path"], scope["raw_path"], PREFIX, "/")
            if path is not scope["path"]:
                path, raw = _without(path, raw, "/v1", "/v1/")
                # Not the server's own: it may look at it again.
                scope = {**scope, "path": path, "raw_path": raw}  # type: ignore[assignment]
        await self._app(scope, receive, send)

    def at_hand(self, scope: HTTPScope) -> AtHand | None:
        """Answers that need no request are there by the short names only."""
        return self._find(scope)
