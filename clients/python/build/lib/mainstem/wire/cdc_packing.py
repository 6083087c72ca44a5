"""The CDC protocol in other clothes: MessagePack for JSON, and zstd around either. No I/O.

A frame tells by its first bytes what it holds, because no message can begin like another kind: a JSON object begins
with `{` or white space, a MessagePack map with 0x80 to 0x8f, 0xde or 0xdf, and zstd with its magic number. So a server
reads all of them; what was agreed on at connect decides how it answers.

What is stored of a batch is JSON text either way: a batch in MessagePack is written anew as JSON, once, at the door.
"""

import math
import re
from enum import StrEnum
from typing import Any

import msgspec
import zstandard

from mainstem.model.errors import Invalid
from mainstem.wire import cdc

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# A window is memory that a sender makes us hold: no more than zstd's own tools ask for by default.
WINDOW_BYTES_MAX = 8 * 1024 * 1024
_COMPRESSION_LEVEL = 3
_MAP_STARTS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
# How MessagePack writes numbers that JSON has not: NaN and the infinities. May also match inside of a text.
_MAYBE_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]|\xca[\x7f\xff][\x80-\xff]")


class Packing(StrEnum):
    """How the messages of a connection are written."""

    JSON = "json"
    MSGPACK = "msgpack"


class TooMuch(Invalid):
    """A compressed frame holds more than is taken."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            f"frame is too large when unpacked. expected=at most {bytes_max} bytes", reason="payload_too_large"
        )
        self.bytes_max = bytes_max


_client_decoder: msgspec.msgpack.Decoder[cdc.ClientMessage] = msgspec.msgpack.Decoder(cdc.ClientMessage)
_events_decoder = msgspec.msgpack.Decoder(list[cdc.CdcEvent])
_raw_events_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])
_server_decoder: msgspec.msgpack.Decoder[cdc.ServerMessage] = msgspec.msgpack.Decoder(cdc.ServerMessage)
_any_decoder = msgspec.msgpack.Decoder(dict[str, Any])
_encoder = msgspec.msgpack.Encoder()
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


def packing_of(data: bytes) -> Packing:
    """How a frame that is not compressed is written."""
    return Packing.MSGPACK if data and data[0] in _MAP_STARTS else Packing.JSON


def decompress(data: bytes, bytes_max: int) -> bytes:
    """What a frame holds, compressed or not. Raises TooMuch before it makes room for more than `bytes_max`."""
    if not data.startswith(ZSTD_MAGIC):
        return data
    try:
        size = zstandard.frame_content_size(data)
        if size > bytes_max:
            raise TooMuch(bytes_max)
        unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
        if size >= 0:
            return unpacker.decompress(data, allow_extra_data=False)
        # The sender did not say how much it is.
        with unpacker.stream_reader(data) as reader:
            content = reader.read(bytes_max + 1)
    except zstandard.ZstdError as error:
        raise Invalid(f"message not accepted: malformed zstd. got={error}") from None
    if len(content) > bytes_max:
        raise TooMuch(bytes_max)
    return content


def compress(data: bytes) -> bytes:
    """A frame's content as zstd."""
    return zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(data)


def decode_client(data: bytes) -> cdc.ClientMessage:
    """Read what a producer sent in MessagePack. The events of a batch stay as they came."""
    try:
        return _client_decoder.decode(data)
    except _UNREADABLE as error:
        raise _unreadable("message", error) from None


def event_sizes(payload: bytes) -> list[int]:
    """The size of each event in bytes."""
    try:
        return [len(memoryview(event)) for event in _raw_events_decoder.decode(payload)]
    except _UNREADABLE as error:
        raise _unreadable("events", error) from None


def decode_events(payload: bytes) -> tuple[bytes, list[cdc.CdcEvent]]:
    """Read the events of a batch: their JSON text, and what they are. Raises Invalid with one clear sentence."""
    try:
        events = _events_decoder.decode(payload)
        if _MAYBE_NOT_FINITE.search(payload):
            for event in events:
                _check_finite((event.before, event.after, event.metadata))
        return cdc.encode_events(events), events
    except _UNREADABLE as error:
        raise _unreadable("events", error) from None
    except TypeError as error:
        # An extension type, or a key that is neither text nor a number.
        raise Invalid(f"events not accepted: no JSON can say it. got={error}") from None


def peek(data: bytes) -> cdc.Peek:
    """What can be told of a message that could not be read. Never raises."""
    try:
        loose = _any_decoder.decode(data)
    except (*_UNREADABLE, TypeError):
        return cdc.Peek()
    sequence, correlation = loose.get("sequenceNumber"), loose.get("correlationId")
    known = isinstance(sequence, int) and not isinstance(sequence, bool) and 0 <= sequence <= cdc.SEQUENCE_MAX
    return cdc.Peek(int(sequence or 0) if known else 0, correlation[:256] if isinstance(correlation, str) else None)


def decode_server(data: bytes | str) -> cdc.ServerMessage:
    """Read what the server sent, in either packing."""
    if isinstance(data, str) or packing_of(data) is Packing.JSON:
        return cdc.decode_server(data)
    try:
        return _server_decoder.decode(data)
    except _UNREADABLE as error:
        raise _unreadable("message", error) from None


def encode(message: cdc.ClientMessage | cdc.ServerMessage) -> bytes:
    """Write a message of either side in MessagePack."""
    return _encoder.encode(message)


def encode_events(events: list[cdc.CdcEvent] | list[Any]) -> bytes:
    """Write the events of a batch in MessagePack."""
    return _encoder.encode(events)


def _check_finite(value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Invalid(f"events not accepted: no JSON can say it. got={value}")
    elif isinstance(value, dict):
        _check_finite(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            _check_finite(part)


def _unreadable(what: str, error: Exception) -> Invalid:
    match error:
        case RecursionError():
            return Invalid(f"{what} not accepted: nested too deeply")
        case msgspec.ValidationError():
            return Invalid(f"{what} not accepted: {error}")
        case _:
            return Invalid(f"{what} not accepted: malformed MessagePack. got={error}")
