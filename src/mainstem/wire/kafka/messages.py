"""Requests and answers of every API and version, on kio's generated schemas.

Handlers do not know versions. A request is kio's own value: what a version does not have is missing as an attribute
(`getattr` with a default). An answer is a nested mapping by the schema's field names (`Message`), from which each
version takes what it knows; a field that is left out has the schema's default, or nothing of its kind (0, "", ()).
"""

import io
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from mainstem.model.errors import Invalid
from mainstem.wire.kafka.frames import RequestHead
from mainstem.wire.kafka.newer import API_VERSIONS, request_schema, response_schema

__all__ = (
    "API_VERSIONS",
    "Message",
    "Unreadable",
    "answer_head",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
)

# An answer as handlers write it.
Message = Mapping[str, Any]

_CORRELATION = struct.Struct(">i")


class Unreadable(Invalid):
    """A request whose bytes are not what its API and version say."""


def decode_request(head: RequestHead, frame: bytes) -> Any:
    """The request's body. Raises Unreadable; and KeyError where kio does not know this API in this version."""
    reader, is_flexible = _request_reader(head.api_key, head.version)
    try:
        start = _past_tags(frame, head.body) if is_flexible else head.body
        request, _ = reader(frame, start)
    # kio raises all of these for bytes that end early or make no sense.
    except (SerialError, ValueError, IndexError, struct.error, EOFError, OverflowError, TypeError, KeyError) as error:
        raise Unreadable(f"request cannot be read. api={head.api_key} version={head.version} got={error!r}") from error
    return request


def encode_response(api_key: int, version: int, correlation_id: int, answer: Message) -> bytes:
    """A whole frame: length, head and body."""
    build, write, is_flexible = _response_writer(api_key, version)
    buffer = io.BytesIO()
    buffer.write(b"\0\0\0\0")
    buffer.write(_CORRELATION.pack(correlation_id))
    # The answer to ApiVersions has the old head in every version: its reader does not know ours yet.
    if is_flexible and api_key != API_VERSIONS:
        buffer.write(b"\0")
    write(buffer, build(answer))
    data = buffer.getbuffer()
    _CORRELATION.pack_into(data, 0, len(data) - 4)
    del data
    return buffer.getvalue()


def answer_head(api_key: int, version: int, correlation_id: int) -> bytes:
    """The head of an answer whose body is made elsewhere."""
    _, _, is_flexible = _response_writer(api_key, version)
    return _CORRELATION.pack(correlation_id) + (b"\0" if is_flexible and api_key != API_VERSIONS else b"")


def encode_request(api_key: int, version: int, correlation_id: int, request: Message) -> bytes:
    """A whole frame, for a client of ours."""
    schema = request_schema(api_key, version)
    buffer = io.BytesIO()
    client_id = b"mainstem"
    buffer.write(struct.pack(">ihhih", 0, api_key, version, correlation_id, len(client_id)))
    buffer.write(client_id)
    if schema.__flexible__:
        buffer.write(b"\0")
    entity_writer(schema)(buffer, _builder(schema)(request))
    data = bytearray(buffer.getvalue())
    _CORRELATION.pack_into(data, 0, len(data) - 4)
    return bytes(data)


def decode_response(api_key: int, version: int, frame: bytes) -> Any:
    """The answer to a request of ours, from a frame without its length."""
    schema = response_schema(api_key, version)
    try:
        start = _past_tags(frame, 4) if schema.__flexible__ and api_key != API_VERSIONS else 4
        return entity_reader(schema)(frame, start)[0]
    except (SerialError, ValueError, IndexError, struct.error, EOFError, TypeError) as error:
        raise Unreadable(f"answer cannot be read. api={api_key} version={version} got={error!r}") from error


def _past_tags(frame: bytes, start: int) -> int:
    """Where the body begins behind the tagged fields of a flexible head, of which we know none."""
    count, start = _varint(frame, start)
    for _ in range(count):
        _, start = _varint(frame, start)
        size, start = _varint(frame, start)
        start += size
    return start


def _varint(frame: bytes, start: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, start
        shift += 7
        if shift > 28:
            raise ValueError("a tag's number has more than five bytes")


@lru_cache(512)
def _request_reader(api_key: int, version: int) -> tuple[Callable[[bytes, int], tuple[Any, int]], bool]:
    schema = request_schema(api_key, version)
    return entity_reader(schema), bool(schema.__flexible__)


@lru_cache(512)
def _response_writer(
    api_key: int, version: int
) -> tuple[Callable[[Message], Any], Callable[[io.BytesIO, Any], None], bool]:
    schema = response_schema(api_key, version)
    return _builder(schema), entity_writer(schema), bool(schema.__flexible__)


@lru_cache(4096)
def _builder(schema: Any) -> Callable[[Message], Any]:
    """What makes an entity of a version out of a mapping."""
    hints = get_type_hints(schema)
    makers = [(field.name, *_maker(hints[field.name], field)) for field in fields(schema)]

    def build(answer: Message) -> Any:
        return schema(
            **{
                name: default if (value := answer.get(name, MISSING)) is MISSING else make(value)
                for name, make, default in makers
            }
        )

    return build


def _maker(hint: Any, field: Any) -> tuple[Callable[[Any], Any], Any]:
    """How a field's value is made, and what it is where nothing is said of it."""
    is_optional = get_origin(hint) in (Union, UnionType) and type(None) in get_args(hint)
    if is_optional:
        (hint,) = [each for each in get_args(hint) if each is not type(None)]
    default = field.default if field.default is not MISSING else (None if is_optional else _nothing(hint))
    if get_origin(hint) is tuple:
        item = _value_maker(get_args(hint)[0])
        return (lambda values: None if values is None else tuple([item(value) for value in values])), default
    if not is_optional and isinstance(hint, type) and issubclass(hint, datetime):
        # Where there must be a time, none is a millisecond before 1970.
        return (lambda ms: datetime.fromtimestamp(ms / 1000, UTC)), default
    make = _value_maker(hint)
    return (lambda value: None if value is None else make(value)), default


def _value_maker(hint: Any) -> Callable[[Any], Any]:
    if hasattr(hint, "__flexible__"):
        return _builder(hint)
    if hint is ErrorCode:
        return ErrorCode
    if isinstance(hint, type) and issubclass(hint, timedelta):
        # Handlers say milliseconds, as the protocol does.
        return lambda ms: timedelta(milliseconds=ms)
    if isinstance(hint, type) and issubclass(hint, datetime):
        return lambda ms: None if ms < 0 else datetime.fromtimestamp(ms / 1000, UTC)
    return lambda value: value


def _nothing(hint: Any) -> Any:
    if get_origin(hint) is tuple:
        return ()
    if hint is ErrorCode:
        return ErrorCode.none
    if hint is uuid.UUID or hasattr(hint, "__flexible__"):
        return None
    for kind, nothing in ((bool, False), (str, ""), (bytes, b""), (timedelta, timedelta()), (int, 0), (float, 0.0)):
        if isinstance(hint, type) and issubclass(hint, kind):
            return nothing
    return None
