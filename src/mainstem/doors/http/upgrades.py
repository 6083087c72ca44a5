"""HTTP on a socket: a request that offers another protocol than WebSocket is answered as the HTTP/1.1 that it is.

Java's own client (Debezium Server posts with it) offers HTTP/2 with its first request on a connection (`Upgrade: h2c`).
A server may pass over such an offer. httptools takes it for accepted: it passes over the body, and reads the body's
bytes as the next request. So the head is given to the parser once more without the offer, then the bytes behind it.
"""

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Of a head that is read once more: these belong to the offer.
_OFFER = frozenset((b"upgrade", b"http2-settings"))


class StayingProtocol(HttpToolsProtocol):
    """One connection that becomes a WebSocket or stays HTTP/1.1."""

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._unset_keepalive_if_required()
        try:
            while data:
                data = self._fed(data)
        except httptools.HttpParserError:
            message = "Invalid HTTP request received."
            self.logger.warning(message)
            self.send_400_response(message)

    def on_headers_complete(self) -> None:
        """All of the request is known but its body. One with an offer begins when it is read without it."""
        if not self.parser.should_upgrade() or self._should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The end of the request; of one with an offer, the end of its head."""
        if not self.parser.should_upgrade() or self._should_upgrade():
            super().on_message_complete()

    def _fed(self, data: bytes) -> bytes:
        """Let the parser read; returns what it has to read after that."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offered:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
                return b""
            return self._head_without_offer() + data[int(offered.args[0]) :]
        return b""

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            kept: Any = value
            if name == b"connection":
                kept = b", ".join(each for each in value.split(b",") if each.strip().lower() not in _OFFER)
            if name not in _OFFER and kept:
                lines.append(b"%b: %b" % (name, kept))
        return b"\r\n".join([*lines, b"", b""])
