"""HTTP on a socket, bounded: a request that is never finished does not keep its connection for ever.

uvicorn waits for the rest of a request as long as the client likes, and takes a head of any size. Here each part has
its bound. Time that the application takes does not count, nor does the client's while the server does not read from it.

    nothing at all, or a head that is not whole   closed after `request_timeout_s`, by 408 once a request has begun
    a body, of which nothing comes                408 after the same time
    a body that drips                             408 after `BODY_S_MAX` in all
    a head of more than HEAD_BYTES_MAX            431

The pipeline sends rows of a query as they are made, which may take a while: its paths have no bound on the body.
"""

import asyncio
from typing import Any

from mainstem.doors.http.upgrades import StayingProtocol

REQUEST_TIMEOUT_S = 30.0
BODY_S_MAX = 600.0
# More than any token and all cookies take. It is counted by what is read at once.
HEAD_BYTES_MAX = 512 * 1024
_STREAMED = b"/v1/pipeline/"
_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedProtocol(StayingProtocol):
    """One connection. The application that uvicorn was given says by its `request_timeout_s` how long it waits."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._timeout_s: float = getattr(self.config.app, "request_timeout_s", REQUEST_TIMEOUT_S)
        self._bound_timer: asyncio.TimerHandle | None = None
        # When the connection was made, or the request that is being read began.
        self._began_s = 0.0
        self._last_bytes_s = 0.0
        self._head_bytes = 0
        self._is_in_head = False
        self._is_in_body = False
        self._has_begun = False

    def connection_made(self, transport: Any) -> None:
        """Somebody is there."""
        super().connection_made(transport)
        self._began_s = self._last_bytes_s = self.loop.time()
        self._bound_timer = self.loop.call_later(self._timeout_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """And gone."""
        self._forget_timer()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Another protocol takes over, with bounds of its own."""
        self._forget_timer()
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._last_bytes_s = self.loop.time()
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(_TOO_LARGE)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_in_head = self._has_begun = True
        self._head_bytes = 0
        self._began_s = self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """All of the request is known but its body."""
        self._is_in_head = False
        self._is_in_body = not self.url.startswith(_STREAMED)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The end of the request."""
        self._is_in_body = False
        super().on_message_complete()

    def _look(self) -> None:
        now_s = self.loop.time()
        due_s = self._due_s(now_s)
        if due_s > now_s:
            self._bound_timer = self.loop.call_later(due_s - now_s, self._look)
        else:
            self._refuse(_TOO_LATE if self._has_begun else b"")

    def _due_s(self, now_s: float) -> float:
        """When the client has to have sent more, at the latest."""
        if self._is_in_head or not self._has_begun:
            return self._began_s + self._timeout_s
        is_answered = self.cycle is None or self.cycle.response_started
        if self._is_in_body and not is_answered and not self.flow.read_paused:
            return min(self._last_bytes_s + self._timeout_s, self._began_s + BODY_S_MAX)
        # Between two requests, or the application's turn: uvicorn's own timers hold.
        return now_s + self._timeout_s

    def _refuse(self, answer: bytes) -> None:
        self._forget_timer()
        if self.transport.is_closing():
            return
        is_free = self.cycle is None or self.cycle.response_complete or not self.cycle.response_started
        if answer and is_free:
            self.transport.write(answer)
        self.transport.close()

    def _forget_timer(self) -> None:
        if self._bound_timer is not None:
            self._bound_timer.cancel()
            self._bound_timer = None
