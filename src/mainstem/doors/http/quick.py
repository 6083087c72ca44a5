"""HTTP on a socket: uvicorn's protocol, which first asks whether the answer is at hand.

A load of a table takes the catalog a few microseconds; the task, the cycle of messages and the wrappers around them
took twenty times as long. Only a plain GET can be answered here: one with a body, of an older HTTP, of a proxy, or
behind a request that is not answered yet goes the ordinary way.

Clients that poll send the same bytes again and again: those are not even parsed a second time. What may have changed
between two of them (whom the token is for, the limits, what the table is at) is asked all the same.
"""

import logging
from typing import Any
from urllib.parse import unquote

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from mainstem.doors.http.at_hand import AtHand, FindAtHand, nothing_at_hand
from mainstem.doors.http.bounds import BoundedProtocol

# What may be at hand: everything else is spared the question.
PREFIX = b"/v1/namespaces/"
# Above this, head and body are written one after the other rather than copied together.
JOINED_BYTES_MAX = 64 * 1024
# They change what the request is, or whose.
_UNUSUAL = frozenset({b"content-length", b"transfer-encoding", b"expect", b"upgrade", b"x-forwarded-for"})

_logger = logging.getLogger(__name__)


class QuickProtocol(BoundedProtocol):
    """One connection. The application that uvicorn was given says by its `at_hand` what it has."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._find: FindAtHand = getattr(self.config.app, "at_hand", nothing_at_hand)
        self._is_answered = False
        # Since the bytes that are being read began: requests that began, and those of them that were answered here.
        self._begun = 0
        self._answered = 0
        self._is_between_requests = True
        # The last bytes that were one whole request and answered here, and what was read of them.
        self._last = b""
        self._last_scope: Any = None
        self._active_s = 0.0

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if data == self._last and self._is_between_requests and self._is_free():
            answer = self._found(self._last_scope)
            if answer is not None:
                # The timer that ends an idle connection is left running, and finds that there was something.
                self._active_s = self.loop.time()
                self.server_state.total_requests += 1
                self._write(answer)
                return
        is_whole = self._is_between_requests
        self._begun = self._answered = 0
        super().data_received(data)
        if is_whole and self._is_between_requests and self._begun == self._answered == 1:
            self._last, self._last_scope = data, self.scope

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came for as long as a connection may be idle, but for what was answered without setting the timer."""
        left_s = self._active_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._begun += 1
        self._is_between_requests = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """All of the request is known but its body."""
        answer = self._at_hand() if self.url.startswith(PREFIX) else None
        if answer is None:
            super().on_headers_complete()
            return
        self._is_in_head = False
        self._is_answered = True
        self._answered += 1
        self._write(answer)

    def _write(self, answer: AtHand) -> None:
        head = [STATUS_LINE[answer.status]]
        for name, value in (*self.server_state.default_headers, *answer.headers):
            head += (name, b": ", value, b"\r\n")
        head.append(b"\r\n")
        if len(answer.body) <= JOINED_BYTES_MAX:
            self.transport.write(b"".join((*head, answer.body)))
        else:
            self.transport.write(b"".join(head))
            self.transport.write(answer.body)

    def on_message_complete(self) -> None:
        """The end of the request."""
        self._is_between_requests = True
        if self._is_answered:
            self._is_answered = self._is_in_body = False
            self.on_response_complete()
        else:
            super().on_message_complete()

    def _at_hand(self) -> AtHand | None:
        if self.parser.get_method() != b"GET" or not self._is_free():
            return None
        if self.parser.get_http_version() != "1.1" or not self.parser.should_keep_alive():
            return None
        if not _UNUSUAL.isdisjoint(name for name, _ in self.headers):
            return None
        raw_path, _, query = self.url.partition(b"?")
        if b"#" in query or b"#" in raw_path or not raw_path.isascii():
            return None
        scope = self.scope
        path = raw_path.decode("ascii")
        scope["method"] = "GET"
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = raw_path
        scope["query_string"] = query
        return self._found(scope)

    def _found(self, scope: Any) -> AtHand | None:
        try:
            return self._find(scope)
        except Exception:
            # The edge of the connection: an error in the parser's callback would be told as the client's fault.
            _logger.exception("looking for an answer failed", extra={"path": scope["path"]})
            return None

    def _is_free(self) -> bool:
        """Whether every earlier request of the connection has its answer, and the client reads what it is sent."""
        is_idle = (self.cycle is None or self.cycle.response_complete) and not self.pipeline
        return is_idle and not self.flow.write_paused and not self.transport.is_closing()
