"""The sync protocol's messages as values, and their Protobuf form. Bytes in, values out; no I/O.

A column's value stays the JSON text that its writer sent: it is checked (`checks`), hashed (`identity`) and passed on,
but never written anew. The JSON form of the messages is in `json_form`, the WebSocket's frames in `frames`.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from mainstem.model.errors import Invalid
from mainstem.wire.sync import lakesync_pb2 as pb
from mainstem.wire.varint import varint

CONTENT_TYPE_PROTOBUF = "application/x-protobuf"

_RESPONSE_DELTA_TAG = b"\x0a"
_PUSH_DELTA_TAG = b"\x12"
_PUSH_DELTA = 0x12
_WIRE_TYPE_VARINT, _WIRE_TYPE_FIXED64, _WIRE_TYPE_BYTES = 0, 1, 2
_WIRE_TYPE_GROUP = 3


class Op(IntEnum):
    """What was done to the row. `EVICT` comes from the server alone."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3
    EVICT = 4


class ColumnDelta(msgspec.Struct, frozen=True, gc=False):
    """One column's new value: JSON text in UTF-8."""

    column: str
    value: bytes


class RowDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One write to one row, with only the columns that were written. `op` is a number until it was checked."""

    op: int
    table: str
    row_id: str
    columns: tuple[ColumnDelta, ...] = ()
    hlc: int = 0
    client_id: str = ""
    delta_id: str = ""


class SyncPush(msgspec.Struct, frozen=True, kw_only=True):
    """Writes to make durable, all of them or none."""

    client_id: str = ""
    deltas: Sequence[RowDelta] = ()
    last_seen_hlc: int = 0


class SyncPull(msgspec.Struct, frozen=True, kw_only=True):
    """What arrived after a cursor? `max_deltas` 0 is the server's default."""

    client_id: str = ""
    since_hlc: int = 0
    max_deltas: int = 0


class SyncResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a push or a pull, a broadcast, or a piece of a checkpoint."""

    deltas: Sequence[RowDelta] = ()
    server_hlc: int = 0
    has_more: bool = False
    since_hlc: int = 0


class BadDelta(Invalid):
    """One delta of a push is at fault; `delta_id` says which."""

    def __init__(self, message: str, *, reason: str, delta_id: str) -> None:
        super().__init__(message, reason=reason)
        self.delta_id = delta_id


def decode_push(data: bytes) -> SyncPush:
    """Read a push. Raises Invalid (`invalid_protobuf`)."""
    message = _parse(pb.SyncPush, data)
    return SyncPush(
        client_id=message.client_id,
        deltas=[_delta_of(delta) for delta in message.deltas],
        last_seen_hlc=message.last_seen_hlc,
    )


def split_push(data: bytes) -> list[bytes]:
    """The deltas of a push that was read already, each as its length and its bytes: to be passed on as they are."""
    parts = []
    offset = 0
    while offset < len(data):
        tag, offset = _read_varint(data, offset)
        kind = tag & 7
        if kind == _WIRE_TYPE_BYTES:
            size, start = _read_varint(data, offset)
            if tag == _PUSH_DELTA:
                parts.append(data[offset : start + size])
            offset = start + size
        elif kind == _WIRE_TYPE_VARINT:
            _, offset = _read_varint(data, offset)
        else:
            offset += 8 if kind == _WIRE_TYPE_FIXED64 else 4
    return parts


def join_push(client_id: str, parts: Iterable[bytes]) -> bytes:
    """A push of deltas that are encoded already."""
    head = pb.SyncPush(client_id=client_id).SerializeToString()
    return head + b"".join([_PUSH_DELTA_TAG + part for part in parts])


def response_delta(part: bytes) -> bytes:
    """A delta of a push as it stands in a response."""
    return _RESPONSE_DELTA_TAG + part


def push_part(delta: RowDelta) -> bytes:
    """A delta as `split_push` gives it."""
    return encode_delta(delta)[1:]


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = data[offset]
    if value < 0x80:
        return value, offset + 1
    value &= 0x7F
    shift = 7
    while True:
        offset += 1
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset + 1
        shift += 7


def decode_pull(data: bytes) -> SyncPull:
    """Read a pull. Raises Invalid (`invalid_protobuf`)."""
    message = _parse(pb.SyncPull, data)
    return SyncPull(client_id=message.client_id, since_hlc=message.since_hlc, max_deltas=message.max_deltas)


def decode_response(data: bytes) -> SyncResponse:
    """Read a response. Raises Invalid (`invalid_protobuf`)."""
    message = _parse(pb.SyncResponse, data)
    return SyncResponse(
        deltas=[_delta_of(delta) for delta in message.deltas],
        server_hlc=message.server_hlc,
        has_more=message.has_more,
        since_hlc=message.since_hlc,
    )


def encode_push(push: SyncPush) -> bytes:
    """Write a push."""
    tail = pb.SyncPush(last_seen_hlc=push.last_seen_hlc).SerializeToString()
    return join_push(push.client_id, map(push_part, push.deltas)) + tail


def encode_pull(pull: SyncPull) -> bytes:
    """Write a pull."""
    message = pb.SyncPull(client_id=pull.client_id, since_hlc=pull.since_hlc, max_deltas=pull.max_deltas)
    return message.SerializeToString()


def encode_response(response: SyncResponse) -> bytes:
    """Write a response."""
    return join_response(map(encode_delta, response.deltas), response.server_hlc, response.has_more, response.since_hlc)


def encode_delta(delta: RowDelta) -> bytes:
    """A delta as it stands in a response: encoded once, it can be sent to everyone.

    By hand: building the library's objects takes six times as long, and this is done for every delta that is read back.
    """
    row_id = delta.row_id.encode()
    parts = [_op_field(delta.op), _text_field(0x12, delta.table)]
    if row_id:
        parts += (b"\x1a", varint(len(row_id)), row_id)
    for each in delta.columns:
        head, value = _text_field(0x0A, each.column), each.value
        body = head + b"\x12" + varint(len(value)) + value if value else head
        parts += (b"\x22", varint(len(body)), body)
    if delta.hlc:
        parts += (b"\x29", delta.hlc.to_bytes(8, "little"))
    parts.append(_text_field(0x32, delta.client_id))
    if delta.delta_id:
        parts += (b"\x3a", varint(len(delta.delta_id)), delta.delta_id.encode())
    body = b"".join(parts)
    return _RESPONSE_DELTA_TAG + varint(len(body)) + body


@lru_cache(4_096)
def _text_field(tag: int, text: str) -> bytes:
    """A text that comes again and again: a table, a column, a client."""
    data = text.encode()
    return bytes([tag]) + varint(len(data)) + data if data else b""


@lru_cache(16)
def _op_field(op: int) -> bytes:
    return b"\x08" + varint(op) if op else b""


def join_response(encoded: Iterable[bytes], server_hlc: int, has_more: bool = False, since_hlc: int = 0) -> bytes:
    """A response of deltas that are encoded already."""
    tail = pb.SyncResponse(server_hlc=server_hlc, has_more=has_more, since_hlc=since_hlc)
    return b"".join([*encoded, tail.SerializeToString()])


def split_pieces(body: bytes) -> Iterable[bytes]:
    """The messages of a checkpoint's body. Raises Invalid where it is cut off."""
    offset = 0
    while offset < len(body):
        size = shift = 0
        while True:
            if offset >= len(body) or shift > 28:
                raise Invalid("a checkpoint is cut off inside a length", reason="invalid_protobuf")
            byte = body[offset]
            offset += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        if offset + size > len(body):
            raise Invalid(
                f"a checkpoint is cut off. expected={size} bytes got={len(body) - offset}", reason="invalid_protobuf"
            )
        yield body[offset : offset + size]
        offset += size


def _delta_of(message: pb.RowDelta) -> RowDelta:
    return RowDelta(
        op=message.op,
        table=message.table,
        row_id=message.row_id,
        columns=tuple([ColumnDelta(each.column, each.value) for each in message.columns]),
        hlc=message.hlc,
        client_id=message.client_id,
        delta_id=message.delta_id,
    )


def _parse(kind: type[Any], data: bytes) -> Any:
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise Invalid(f"a message cannot be read. got={error}", reason="invalid_protobuf") from error
    # A field of ours under another wire type is skipped by the library as if it were unknown, and its value lost.
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        _refuse_misread(kind.FromString(data))
    return message


def _refuse_misread(message: Any) -> None:
    known = message.DESCRIPTOR.fields_by_number
    unknown = UnknownFieldSet(message)
    for index in range(len(unknown)):
        field = unknown[index]
        if field.field_number in known or field.wire_type == _WIRE_TYPE_GROUP:
            raise Invalid(
                f"a field has a wrong wire type. field={field.field_number} got={field.wire_type}",
                reason="invalid_protobuf",
            )
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for each in value:
                _refuse_misread(each)
