"""Frames of Kafka's protocol: four bytes of length, then a request whose head says which API it is for. No I/O."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from mainstem.model.errors import Invalid

Buffer = bytes | bytearray | memoryview

_LENGTH = struct.Struct(">i")
_HEAD = struct.Struct(">hhi")
_SHORT = struct.Struct(">h")


class FrameTooLarge(Invalid):
    """A frame larger than any that a client may send: the connection is of no use any more."""


class RequestHead(NamedTuple):
    """The part of a request that every version of every API has. `body` is where the rest begins, tags included."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: int


class Framer:
    """Takes bytes as they come and gives whole frames. Holds at most one frame that is not whole yet."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()

    @property
    def held_bytes(self) -> int:
        """What waits for the rest of its frame."""
        return len(self._buffer)

    def feed(self, data: bytes, frame_bytes_max: int | None = None) -> list[bytes]:
        """The frames that are whole now, without their length. Raises FrameTooLarge at the first that may not be;
        `frame_bytes_max` is a tighter bound for now."""
        most = self._frame_bytes_max if frame_bytes_max is None else min(frame_bytes_max, self._frame_bytes_max)
        buffer = self._buffer
        if buffer:
            buffer += data
            source: bytes | bytearray = buffer
        else:
            source = data
        frames: list[bytes] = []
        start, end = 0, len(source)
        while end - start >= 4:
            (length,) = _LENGTH.unpack_from(source, start)
            if not 8 <= length <= most:
                raise FrameTooLarge(f"frame. expected=8 to {most} bytes got={length}")
            if end - start - 4 < length:
                break
            with memoryview(source) as view:
                frames.append(bytes(view[start + 4 : start + 4 + length]))
            start += 4 + length
        if source is buffer:
            del buffer[:start]
        elif start < end:
            buffer += source[start:]
        return frames


def read_head(frame: bytes) -> RequestHead:
    """Read the head as far as all versions agree. Raises Invalid where the frame is too short for it."""
    try:
        api_key, version, correlation_id = _HEAD.unpack_from(frame)
        (length,) = _SHORT.unpack_from(frame, 8)
    except struct.error as error:
        raise Invalid(f"request head. expected=at least 10 bytes got={len(frame)}") from error
    if length < 0:
        return RequestHead(api_key, version, correlation_id, None, 10)
    if len(frame) < 10 + length:
        raise Invalid(f"client id. expected={length} bytes got={len(frame) - 10}")
    client_id = frame[10 : 10 + length].decode("utf-8", "replace")
    return RequestHead(api_key, version, correlation_id, client_id, 10 + length)


def framed(parts: Sequence[Buffer]) -> list[Buffer]:
    """One message, with its length before it, as the buffers of one write."""
    return [_LENGTH.pack(sum(map(len, parts))), *parts]
