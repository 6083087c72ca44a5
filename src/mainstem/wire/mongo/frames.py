"""MongoDB's messages: bytes to requests and replies to bytes. Sans I/O, and bounded: nothing is taken on trust.

    i32 length | i32 request id | i32 response to | i32 opcode | body

OP_MSG carries everything; OP_QUERY only the first hello of old drivers; OP_COMPRESSED wraps either. A decoder is fed
with bytes as they come and hands over whole requests. What breaks the protocol raises `BadFrame`, after which nothing
more can be read from the connection.
"""

import struct
from typing import Any

import bson
import msgspec
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument
from crc32c import crc32c

from mainstem.model.errors import Invalid
from mainstem.wire.mongo.compression import Compressor, compress, decompress

MESSAGE_BYTES_MAX = 48_000_000
DOCUMENT_BYTES_MAX = 16 * 1024 * 1024
# What a server may add to the largest document: a command around it, or the fields of a reply.
COMMAND_BYTES_MAX = DOCUMENT_BYTES_MAX + 16 * 1024
SEQUENCES_MAX = 16
DEPTH_MAX = 200

OP_REPLY, OP_QUERY, OP_COMPRESSED, OP_MSG = 1, 2004, 2012, 2013
CHECKSUM, MORE_TO_COME, EXHAUST_ALLOWED = 1, 2, 1 << 16
_REQUIRED_BITS = 0xFFFF
_HEADER = struct.Struct("<iiii")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_COMPRESSED = struct.Struct("<iiB")
_REPLY = struct.Struct("<iqii")

# Dates that Python cannot hold stay numbers; nothing is decoded to a value that would be encoded as another type.
OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO)
_UNREAD: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)


class BadFrame(Invalid):
    """The bytes are no message of the protocol: the connection ends."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """One message of a client. `body` is the command; `sequences` are its documents of section 1, as they came."""

    id: int
    body: dict[str, Any]
    sequences: dict[str, list[bytes]] = {}
    more_to_come: bool = False
    exhaust_allowed: bool = False
    # The reply to an OP_QUERY is an OP_REPLY.
    legacy: bool = False
    # By which compressor the client sent it: the reply may be sent the same way.
    compressor: Compressor | None = None
    # The database that an OP_QUERY names.
    database: str | None = None
    # The message's size, unpacked.
    size_bytes: int = 0
    # Why the body cannot be read, though the message is whole: the answer says so, and the connection lives.
    error: Invalid | None = None


class Decoder:
    """The bytes of one connection. Holds at most one message."""

    def __init__(self, message_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._buffer = bytearray()
        # May change from one message to the next.
        self.message_bytes_max = message_bytes_max

    @property
    def waiting_bytes(self) -> int:
        """How much of a message has come that is not whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Request]:
        """Take bytes; return the requests that are whole now."""
        buffer = self._buffer
        buffer += data
        requests: list[Request] = []
        start = 0
        while len(buffer) - start >= _HEADER.size:
            length, request_id, _, opcode = _HEADER.unpack_from(buffer, start)
            if not _HEADER.size <= length <= self.message_bytes_max:
                raise BadFrame(f"message length. expected=16 to {self.message_bytes_max} bytes got={length}")
            if len(buffer) - start < length:
                break
            message = bytes(memoryview(buffer)[start : start + length])
            try:
                requests.append(_request(message, request_id, opcode, self.message_bytes_max))
            except BadFrame:
                raise
            except Invalid as error:
                requests.append(Request(request_id, {}, legacy=opcode == OP_QUERY, error=error))
            start += length
        if start:
            del buffer[:start]
        return requests


def _request(message: bytes, request_id: int, opcode: int, bytes_max: int) -> Request:
    if opcode == OP_MSG:
        return _of_msg(message, _HEADER.size, request_id, None)
    if opcode == OP_QUERY:
        return _of_query(message, _HEADER.size, request_id)
    if opcode == OP_COMPRESSED:
        return _of_compressed(message, request_id, bytes_max)
    raise BadFrame(f"opcode. expected={OP_MSG}, {OP_COMPRESSED} or {OP_QUERY} got={opcode}")


def _of_compressed(message: bytes, request_id: int, bytes_max: int) -> Request:
    if len(message) < _HEADER.size + _COMPRESSED.size:
        raise BadFrame("compressed message is too short")
    opcode, size, number = _COMPRESSED.unpack_from(message, _HEADER.size)
    if not 0 <= size <= bytes_max - _HEADER.size:
        raise BadFrame(f"uncompressed size. expected=at most {bytes_max} bytes got={size}")
    try:
        compressor = Compressor(number)
        body = decompress(compressor, message[_HEADER.size + _COMPRESSED.size :], size)
    except ValueError as error:
        raise BadFrame(f"compressed message cannot be read. got={error}") from error
    if opcode == OP_MSG:
        return _of_msg(body, 0, request_id, compressor)
    if opcode == OP_QUERY:
        return _of_query(body, 0, request_id)
    raise BadFrame(f"opcode in a compressed message. expected={OP_MSG} got={opcode}")


def _of_msg(message: bytes, start: int, request_id: int, compressor: Compressor | None) -> Request:
    end = len(message)
    if end - start < 5:
        raise BadFrame("message is too short")
    (flags,) = _U32.unpack_from(message, start)
    if unknown := flags & _REQUIRED_BITS & ~(CHECKSUM | MORE_TO_COME):
        raise BadFrame(f"unknown flag bits. got={unknown:#x}")
    if flags & CHECKSUM:
        end -= 4
        # The checksum is of the whole message with its header, so it is only there uncompressed.
        if compressor is None and _U32.unpack_from(message, end)[0] != crc32c(memoryview(message)[:end]):
            raise BadFrame("checksum does not match the message")
    body: dict[str, Any] | None = None
    sequences: dict[str, list[bytes]] = {}
    place = start + 4
    while place < end:
        kind = message[place]
        place += 1
        if kind == 0:
            if body is not None:
                raise BadFrame("message has two bodies")
            size = _size(message, place, end)
            body = decode_document(message[place : place + size])
        elif kind == 1:
            size = _section_size(message, place, end)
            name, documents = _sequence(message, place, place + size)
            if name in sequences or len(sequences) >= SEQUENCES_MAX:
                raise BadFrame(f"document sequences. expected=each once, at most {SEQUENCES_MAX} got={name!r}")
            sequences[name] = documents
        else:
            raise BadFrame(f"section kind. expected=0 or 1 got={kind}")
        place += size
    if body is None:
        raise BadFrame("message has no body")
    return Request(
        request_id,
        body,
        sequences,
        bool(flags & MORE_TO_COME),
        bool(flags & EXHAUST_ALLOWED),
        compressor=compressor,
        size_bytes=len(message),
    )


def _of_query(message: bytes, start: int, request_id: int) -> Request:
    end = message.find(b"\x00", start + 4)
    if end < 0 or end + 9 > len(message):
        raise BadFrame("query is too short")
    name = message[start + 4 : end].decode("utf-8", "replace")
    place = end + 9
    size = _size(message, place, len(message))
    return Request(
        request_id, decode_document(message[place : place + size]), legacy=True, database=name.partition(".")[0]
    )


def _sequence(message: bytes, start: int, end: int) -> tuple[str, list[bytes]]:
    close = message.find(b"\x00", start + 4, end)
    if close < 0:
        raise BadFrame("document sequence has no name")
    documents = []
    place = close + 1
    while place < end:
        size = _size(message, place, end)
        documents.append(message[place : place + size])
        place += size
    return message[start + 4 : close].decode("utf-8", "replace"), documents


def _section_size(message: bytes, place: int, end: int) -> int:
    if place + 4 > end:
        raise BadFrame("section is cut off")
    size: int = _I32.unpack_from(message, place)[0]
    if size < 5 or place + size > end:
        raise BadFrame(f"section size. expected=5 to {end - place} bytes got={size}")
    return size


def _size(message: bytes, place: int, end: int) -> int:
    size = _section_size(message, place, end)
    if size > COMMAND_BYTES_MAX:
        raise BadFrame(f"document size. expected=at most {COMMAND_BYTES_MAX} bytes got={size}")
    return size


def decode_document(data: bytes) -> dict[str, Any]:
    """A document as Python has it. Raises Invalid for what is none, or is nested too deep."""
    check_depth(data)
    try:
        return bson.decode(data, OPTIONS)
    # TypeError: `{$ref: 5}` is no reference, and bson takes it for one.
    except (InvalidBSON, RecursionError, UnicodeDecodeError, OverflowError, ValueError, TypeError) as error:
        raise Invalid(f"not BSON. reason={error}"[:300], reason="invalid_bson") from error


def encode_document(document: Any) -> bytes:
    """The document as BSON. Raises Invalid for what BSON cannot hold."""
    try:
        return bson.encode(document, codec_options=OPTIONS)
    except (bson.errors.InvalidDocument, OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise Invalid(f"cannot be written as BSON. reason={error}"[:300], reason="invalid_bson") from error


def unread_document(data: bytes) -> RawBSONDocument:
    """A document that is decoded where somebody looks into it, to the values that `decode_document` gives."""
    return RawBSONDocument(data, _UNREAD)


# How many bytes a value takes, by its type; the others say their size themselves.
_FIXED = {0x01: 8, 0x06: 0, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16, 0x7F: 0, 0xFF: 0}


# A tag, an empty name's end, a length and the container's end.
_LEVEL_BYTES_MIN = 7


def check_depth(data: bytes, depth_max: int = DEPTH_MAX) -> None:  # noqa: PLR0912 - a closed union
    """Refuse by name what is nested deeper than the bound, before anything recursive looks at it.

    A document nested so deep has at least so many container tags; most have fewer and need no walk.
    """
    if (
        len(data) < depth_max * _LEVEL_BYTES_MIN
        or data.count(b"\x03") + data.count(b"\x04") + data.count(b"\x0f") < depth_max
    ):
        return
    ends: list[int] = []
    place, end = 4, len(data) - 1
    try:
        while True:
            if place >= end or data[place] == 0:
                if not ends:
                    return
                place, end = end + 1, ends.pop()
                continue
            kind = data[place]
            place = data.index(b"\x00", place + 1) + 1
            if kind in (0x03, 0x04):
                size = _I32.unpack_from(data, place)[0]
                if size < 5 or place + size > end:
                    return
                ends.append(end)
                if len(ends) >= depth_max:
                    raise Invalid(
                        f"document is nested too deep. expected=less than {depth_max} levels", reason="too_deep"
                    )
                end = place + size - 1
                place += 4
            elif kind in _FIXED:
                place += _FIXED[kind]
            elif kind in (0x02, 0x0D, 0x0E):
                place += 4 + _I32.unpack_from(data, place)[0]
            elif kind == 0x05:
                place += 5 + _I32.unpack_from(data, place)[0]
            elif kind == 0x0B:
                place = data.index(b"\x00", data.index(b"\x00", place) + 1) + 1
            elif kind == 0x0C:
                place += 4 + _I32.unpack_from(data, place)[0] + 12
            elif kind == 0x0F:
                place += _I32.unpack_from(data, place)[0]
            else:
                return
    except (ValueError, struct.error, IndexError):
        # Not BSON at all: the decoder says so.
        return


def reply(request: Request, body: bytes, reply_id: int, *, more_to_come: bool = False) -> bytes:
    """A reply as bytes, in the way that the request came."""
    if request.legacy:
        head = _REPLY.pack(8, 0, 0, 1)
        return _HEADER.pack(_HEADER.size + len(head) + len(body), reply_id, request.id, OP_REPLY) + head + body
    payload = _U32.pack(MORE_TO_COME if more_to_come else 0) + b"\x00" + body
    if request.compressor is None:
        return _HEADER.pack(_HEADER.size + len(payload), reply_id, request.id, OP_MSG) + payload
    packed = compress(request.compressor, payload)
    head = _COMPRESSED.pack(OP_MSG, len(payload), request.compressor)
    return _HEADER.pack(_HEADER.size + len(head) + len(packed), reply_id, request.id, OP_COMPRESSED) + head + packed


def cursor_reply(name: str, documents: list[bytes], cursor_id: int, namespace: str, tail: bytes) -> bytes:
    """`{cursor: {<name>: [...], id, ns}, ...}` of documents that are BSON already. `tail` is what follows, as the
    fields of a document."""
    listed = [b"\x03%d\x00%b" % (index, document) for index, document in enumerate(documents)]
    batch = b"".join(listed)
    space = namespace.encode()
    cursor = b"\x04%b\x00%b%b\x00\x12id\x00%b\x02ns\x00%b%b\x00" % (
        name.encode(),
        _I32.pack(len(batch) + 5),
        batch,
        struct.pack("<q", cursor_id),
        _I32.pack(len(space) + 1),
        space,
    )
    inner = b"\x03cursor\x00%b%b\x00" % (_I32.pack(len(cursor) + 5), cursor)
    return _I32.pack(len(inner) + len(tail) + 5) + inner + tail + b"\x00"


def id_document(document: bytes, identity: Any) -> bytes:
    """`{_id: …}` of a document whose id comes first: cut out of it, where the type says how long the id is."""
    size = _FIXED.get(document[4])
    if size is None and document[4] == 0x02:
        size = 4 + _I32.unpack_from(document, 9)[0]
    if size is None or document[5:9] != b"_id\x00":
        return encode_document({"_id": identity})
    return _I32.pack(size + 10) + document[4 : 9 + size] + b"\x00"


def fields_of(document: dict[str, Any]) -> bytes:
    """The fields of a document, without its length and its end."""
    return encode_document(document)[4:-1]
