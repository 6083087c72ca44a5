"""Sends a checkpoint: piece by piece, each made in a thread, compressed as the client likes."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterator
from enum import StrEnum
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import zstandard

from mainstem.doors.sync.answers import JSON
from mainstem.wire.sync import decode_response, response_to_json
from mainstem.wire.sync.messages import CONTENT_TYPE_PROTOBUF
from mainstem.wire.varint import varint

Send = Callable[[Any], Awaitable[None]]

_GZIP_LEVEL = 1
_GZIP_WINDOW = 31


class Encoding(StrEnum):
    """How a body is compressed."""

    ZSTD = "zstd"
    GZIP = "gzip"
    IDENTITY = "identity"


class Streamed(NamedTuple):
    """An answer in pieces, each a response of the protocol."""

    pieces: Iterator[bytes]
    encoding: Encoding
    as_json: bool
    tag: str


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Plain:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


def encoding_of(accepted: str) -> Encoding:
    """The best encoding that a client takes."""
    names = {part.split(";")[0].strip() for part in accepted.split(",")}
    return next((each for each in (Encoding.ZSTD, Encoding.GZIP) if each in names), Encoding.IDENTITY)


def etag(position: int, view: object) -> str:
    """A checkpoint never changes, apart for each view."""
    return f'"{blake2b(repr((position, view)).encode(), digest_size=12).hexdigest()}"'


async def stream(send: Send, answer: Streamed, headers: tuple[tuple[str, str], ...]) -> None:
    """Send everything. An error on the way leaves the body without its last piece, which the client notices."""
    own = [("Content-Type", JSON if answer.as_json else CONTENT_TYPE_PROTOBUF), ("ETag", answer.tag)]
    own += [("Vary", "Accept, Accept-Encoding, Authorization"), ("Cache-Control", "private, no-cache")]
    if answer.encoding is not Encoding.IDENTITY:
        own.append(("Content-Encoding", answer.encoding))
    encoded = [(name.lower().encode(), value.encode()) for name, value in (*headers, *own)]
    await send({"type": "http.response.start", "status": 200, "headers": encoded})
    compressor = _compressor(answer.encoding)
    while (chunk := await asyncio.to_thread(_next, answer, compressor)) is not None:
        if chunk:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": await asyncio.to_thread(compressor.flush), "more_body": False})


def _next(answer: Streamed, compressor: _Compressor) -> bytes | None:
    piece = next(answer.pieces, None)
    if piece is None:
        return None
    if answer.as_json:
        return compressor.compress(response_to_json(decode_response(piece)) + b"\n")
    return compressor.compress(varint(len(piece)) + piece)


def _compressor(encoding: Encoding) -> _Compressor:
    match encoding:
        case Encoding.ZSTD:
            return zstandard.ZstdCompressor(level=1).compressobj()
        case Encoding.GZIP:
            return zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        case _:
            return _Plain()
