"""WebSockets that stay open as long as their token is good, and no longer.

A connection is closed when its token ends, and within seconds after the key that signed it was taken out. What comes
after that is not passed on, whatever the client goes on sending.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from litestar.types import Receive, Send

from mainstem.admission import Unauthenticated

CLOSE_POLICY = 1008
# How often tokens of open connections are looked at. The guide promises 30 s.
RECHECK_S = 5.0
_GONE: Any = {"type": "websocket.disconnect", "code": CLOSE_POLICY}

# Raises Unauthenticated for a token that is not good any more.
Recheck = Callable[[str, str], None]


class HeldOpen:
    """Every WebSocket that a token opened."""

    def __init__(self, recheck: Recheck) -> None:
        self._recheck = recheck
        self._open: set[Held] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(
        self, token: str, path: str, ends_in_s: float | None, receive: Receive, send: Send, words: str = "{}"
    ) -> "Held":
        """Look after a connection until it is given to `remove`. `words`: how its protocol says the reason."""
        held = Held(token, path, ends_in_s, receive, send, words)
        self._open.add(held)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RECHECK_S, self._look)
        return held

    def remove(self, held: "Held") -> None:
        """It is over."""
        held.let_go()
        self._open.discard(held)
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(RECHECK_S, self._look)
        found: dict[tuple[str, str], str | None] = {}
        for held in list(self._open):
            asked = (held.token, held.path)
            if asked not in found:
                found[asked] = self._reason(*asked)
            if (reason := found[asked]) is not None:
                held.end(reason)

    def _reason(self, token: str, path: str) -> str | None:
        try:
            self._recheck(token, path)
        except Unauthenticated as error:
            return error.reason
        return None


class Held:
    """One connection."""

    def __init__(
        self, token: str, path: str, ends_in_s: float | None, receive: Receive, send: Send, words: str
    ) -> None:
        self._words = words
        self.token = token
        self.path = path
        self._ends_in_s = ends_in_s
        self._receive = receive
        self._send = send
        self._asked = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reason: str | None = None
        self._is_ended = False
        self._closing: asyncio.Task[None] | None = None

    async def receive(self) -> Any:
        """The next message; the end, where the token has ended."""
        self._asked += 1
        # The second time, the handshake is over: before it there is nothing to close.
        if self._asked == 2:
            self._arm()
        if self._is_ended:
            return _GONE
        message = await self._receive()
        return _GONE if self._is_ended else message

    def end(self, reason: str) -> None:
        """Close it, now or as soon as its handshake is over."""
        if self._is_ended:
            return
        if self._asked < 2:
            self._reason = reason
            return
        self._is_ended = True
        self._closing = asyncio.get_running_loop().create_task(self._close(reason))

    def let_go(self) -> None:
        """The client has left."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._reason is not None:
            self.end(self._reason)
        elif self._ends_in_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._ends_in_s), self.end, "token_expired")

    async def _close(self, reason: str) -> None:
        # The peer, or the door, may have been faster.
        with suppress(OSError, RuntimeError):
            told = self._words.format(reason)
            await self._send({"type": "websocket.close", "code": CLOSE_POLICY, "reason": told})
