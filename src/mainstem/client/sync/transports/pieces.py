"""A checkpoint's body, piece by piece as it comes: each is a length as a Protobuf varint, and a message."""

from collections.abc import Iterator

from mainstem.client.sync.errors import Unreachable

PIECE_BYTES_MAX = 16 * 1024 * 1024
_LENGTH_BYTES_MAX = 4


class PieceReader:
    """Sans I/O: bytes in, messages out. Holds at most one piece and what came with its end."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The messages that are whole now. Raises Unreachable where the bytes are no checkpoint."""
        self._buffer += chunk
        start = 0
        while (found := self._length(start)) is not None:
            size, body = found
            if len(self._buffer) < body + size:
                break
            yield bytes(self._buffer[body : body + size])
            start = body + size
        del self._buffer[:start]

    def finish(self) -> None:
        """The body ended. Raises Unreachable where it ended inside a piece."""
        if self._buffer:
            raise Unreachable(f"the checkpoint is cut off. got={len(self._buffer)} bytes of a piece")

    def _length(self, start: int) -> tuple[int, int] | None:
        """The length that stands here and where its message begins; None where it is not whole."""
        size = 0
        for count, byte in enumerate(self._buffer[start : start + _LENGTH_BYTES_MAX]):
            size |= (byte & 0x7F) << (7 * count)
            if not byte & 0x80:
                if size > PIECE_BYTES_MAX:
                    break
                return size, start + count + 1
        else:
            if len(self._buffer) - start < _LENGTH_BYTES_MAX:
                return None
        raise Unreachable(f"a piece is too large. expected=at most {PIECE_BYTES_MAX} bytes")
