"""uvicorn's WebSocket protocol, less two copies of every text message.

uvicorn makes a string of a text message; the CDC door would make bytes of it again, since JSON is decoded from bytes.
Here the bytes of a text message are handed on as they came, under a key of their own, so that a door can still tell
text from binary. That they are UTF-8 is for the door to find out: it can answer with a reason, where uvicorn closes.
"""

from typing import Any, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

# In a `websocket.receive` event, where ASGI has `text`.
TEXT_BYTES = "mainstem.text_bytes"


class RawTextProtocol(WebSocketsSansIOProtocol):
    """As its base, but a text message is an event with `TEXT_BYTES`."""

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type != "text":
            super().send_receive_event_to_app()
            return
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        if self.close_sent:
            return
        self.queue.put_nowait(cast(Any, {"type": "websocket.receive", TEXT_BYTES: bytes(data)}))
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    async def send(self, message: Any) -> None:
        if self.close_sent and message["type"] == "websocket.send":
            # Closed by the gate while the door had something to say: to the door the peer is gone.
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            # A refusal is an answer to the handshake: uvicorn would log it as one that never came.
            self.handshake_complete = True


def message_of(event: dict[str, Any]) -> bytes:
    """The data of a `websocket.receive` event, text or binary, whichever server it comes from."""
    data = event.get(TEXT_BYTES)
    if data is None:
        text = event.get("text")
        data = text.encode() if text is not None else event.get("bytes") or b""
    return cast(bytes, data)
