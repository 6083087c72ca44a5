"""Broadcast frames, framed once for everyone, and written without a task switch per connection.

A round to a thousand connections is a thousand writes of the same bytes. Through ASGI each of them costs a message, a
frame of its own and a switch to its task, ten times as much as the write. So where the server's own protocol object can
be reached behind `send`, it is asked for its transport; where it can't, or its buffer is full, ASGI is the way.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from mainstem.doors.sync.stream import Send

_BINARY = 0x82


class Frame(NamedTuple):
    """A payload, and the same as a WebSocket frame from a server."""

    payload: bytes
    framed: bytes

    @classmethod
    def of(cls, payload: bytes) -> "Frame":
        """Frame a payload."""
        size = len(payload)
        if size < 126:
            head = bytes([_BINARY, size])
        elif size < 1 << 16:
            head = bytes([_BINARY, 126]) + size.to_bytes(2, "big")
        else:
            head = bytes([_BINARY, 127]) + size.to_bytes(8, "big")
        return cls(payload, head + payload)


def writer_of(send: Send) -> Callable[[bytes], bool]:
    """A function that writes a frame at once and says whether it could; without one, it never can."""
    protocol: Any = getattr(send, "__self__", None)
    writable = getattr(protocol, "writable", None)
    transport = getattr(protocol, "transport", None)
    if not isinstance(writable, asyncio.Event) or transport is None or not hasattr(protocol, "close_sent"):
        return lambda framed: False

    def write(framed: bytes) -> bool:
        if not writable.is_set() or protocol.close_sent or transport.is_closing():
            return False
        transport.write(framed)
        return True

    return write
