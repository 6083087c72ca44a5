"""HTTP on a socket: uvicorn's protocol, which first asks whether the answer is at hand.

A load of a table takes the catalog a few microseconds; the task, the cycle of messages and the wrappers around them
took twenty times as long. Only a plain GET can be answered here: one with a body, of an older HTTP, of a proxy, or
behind a request that is not answered yet goes the ordinary way.
"""

import logging
from typing import Any
from urllib.parse import unquote

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from mainstem.doors.at_hand import AtHand, FindAtHand, nothing_at_hand

# What may be at hand: everything else is spared the question.
PREFIX = b"/v1/namespaces/"
# Above this, head and body are written one after the other rather than copied together.
JOINED_BYTES_MAX = 64 * 1024
# They change what the request is, or whose.
_UNUSUAL = frozenset({b"content-length", b"transfer-encoding", b"expect", b"upgrade", b"x-forwarded-for"})

_logger = logging.getLogger(__name__)


class QuickProtocol(HttpToolsProtocol):
    """One connection. The application that uvicorn was given says by its `at_hand` what it has."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._find: FindAtHand = getattr(self.config.app, "at_hand", nothing_at_hand)
        self._is_answered = False

    def on_headers_complete(self) -> None:
        """All of the request is known but its body."""
        answer = self._at_hand() if self.url.startswith(PREFIX) else None
        if answer is None:
            super().on_headers_complete()
            return
        self._is_answered = True
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
        if self._is_answered:
            self._is_answered = False
            self.on_response_complete()
        else:
            super().on_message_complete()

    def _at_hand(self) -> AtHand | None:
        # Whoever does not read what it asked for waits for its turn in the ordinary way.
        if self.parser.get_method() != b"GET" or not self._is_idle() or self.flow.write_paused:
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
        try:
            found: AtHand | None = self._find(scope)  # type: ignore[arg-type]
        except Exception:
            # The edge of the connection: an error in the parser's callback would be told as the client's fault.
            _logger.exception("looking for an answer failed", extra={"path": path})
            return None
        return found

    def _is_idle(self) -> bool:
        """Whether every earlier request of the connection has its answer."""
        return (self.cycle is None or self.cycle.response_complete) and not self.pipeline
