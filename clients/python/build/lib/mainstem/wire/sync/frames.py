"""The WebSocket's frames and close codes."""

from enum import IntEnum

from mainstem.model.errors import Invalid
from mainstem.wire.sync.messages import SyncPull, SyncPush, decode_pull, decode_push, encode_pull, encode_push

SUBPROTOCOL = "lakesync.v1"
BEARER_PREFIX = "bearer."
CLOSE_REASON_BYTES_MAX = 123

PUSH, PULL, BROADCAST = 0x01, 0x02, 0x03
BROADCAST_TAG = bytes([BROADCAST])


class Close(IntEnum):
    """Why a connection was closed."""

    PROTOCOL = 1002
    TEXT = 1003
    REFUSED = 1008
    # From the server below the door, for what is beyond every bound.
    TOO_LARGE = 1009
    INTERNAL = 1011
    OVERLOADED = 1013


def decode_request(frame: bytes) -> SyncPush | SyncPull:
    """Read what a client sent. Raises Invalid: `unknown_tag`, or what the message deserves."""
    if len(frame) < 2:
        raise Invalid(f"a frame is too short. expected=at least 2 bytes got={len(frame)}", reason="unknown_tag")
    if frame[0] == PUSH:
        return decode_push(frame[1:])
    if frame[0] == PULL:
        return decode_pull(frame[1:])
    raise Invalid(f"a frame has an unknown tag. expected=1 or 2 got={frame[0]}", reason="unknown_tag")


def encode_request(message: SyncPush | SyncPull) -> bytes:
    """What a client sends."""
    if isinstance(message, SyncPush):
        return bytes([PUSH]) + encode_push(message)
    return bytes([PULL]) + encode_pull(message)
