"""The JSON form of the messages: names in camel case, clocks as decimal strings, values as they are."""

import re
from typing import TypeVar

import msgspec

from mainstem.model.errors import Invalid
from mainstem.wire.sync.messages import BadDelta, ColumnDelta, Op, RowDelta, SyncPush, SyncResponse

T = TypeVar("T")

_UINT64_MAX = (1 << 64) - 1
_DECIMAL = re.compile(r"[0-9]{1,20}").fullmatch
_OPS = {op.name: op for op in Op}


class _Column(msgspec.Struct, frozen=True):
    column: str
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Delta(msgspec.Struct, frozen=True, rename="camel"):
    op: str
    table: str
    row_id: str
    client_id: str = ""
    columns: list[_Column] = []
    hlc: str = "0"
    delta_id: str = ""


class _Push(msgspec.Struct, frozen=True, rename="camel"):
    client_id: str
    deltas: list[_Delta] = []
    last_seen_hlc: str = "0"


class _Response(msgspec.Struct, frozen=True, rename="camel"):
    deltas: list[_Delta] = []
    server_hlc: str = "0"
    has_more: bool = False
    since_hlc: str = "0"


_push = msgspec.json.Decoder(_Push)
_response = msgspec.json.Decoder(_Response)
_encode = msgspec.json.Encoder().encode


def push_from_json(data: bytes) -> SyncPush:
    """Read a push. Raises Invalid (`invalid_json`, `invalid_format`, `clock_range`, `invalid_op`, `invalid_value`)."""
    body = _decode(_push, data)
    return SyncPush(
        client_id=body.client_id,
        deltas=[_delta_of(delta) for delta in body.deltas],
        last_seen_hlc=clock(body.last_seen_hlc),
    )


def response_from_json(data: bytes) -> SyncResponse:
    """Read a response."""
    body = _decode(_response, data)
    return SyncResponse(
        deltas=[_delta_of(delta) for delta in body.deltas],
        server_hlc=clock(body.server_hlc),
        has_more=body.has_more,
        since_hlc=clock(body.since_hlc),
    )


def push_to_json(push: SyncPush) -> bytes:
    """Write a push."""
    deltas = [_to_json(delta) for delta in push.deltas]
    return _encode(_Push(client_id=push.client_id, deltas=deltas, last_seen_hlc=str(push.last_seen_hlc)))


def response_to_json(response: SyncResponse) -> bytes:
    """Write a response."""
    return _encode(
        _Response(
            deltas=[_to_json(delta) for delta in response.deltas],
            server_hlc=str(response.server_hlc),
            has_more=response.has_more,
            since_hlc=str(response.since_hlc),
        )
    )


def clock(text: str) -> int:
    """A clock or cursor: an unsigned 64-bit number in decimal. Raises Invalid (`clock_range`)."""
    if not _DECIMAL(text) or (value := int(text)) > _UINT64_MAX:
        raise Invalid(f"a clock must be a decimal string of 64 bits. got={text[:32]!r}", reason="clock_range")
    return value


def _decode(decoder: "msgspec.json.Decoder[T]", data: bytes) -> T:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise Invalid(f"the body is not as expected. got={error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not JSON. got={error}", reason="invalid_json") from error


def _delta_of(delta: _Delta) -> RowDelta:
    op = _OPS.get(delta.op)
    if op is None:
        raise BadDelta(f"an operation is unknown. got={delta.op[:32]!r}", reason="invalid_op", delta_id=delta.delta_id)
    columns = []
    for each in delta.columns:
        if isinstance(each.value, msgspec.UnsetType):
            raise BadDelta("a column has no value", reason="invalid_value", delta_id=delta.delta_id)
        columns.append(ColumnDelta(each.column, bytes(each.value)))
    return RowDelta(
        op=op,
        table=delta.table,
        row_id=delta.row_id,
        columns=tuple(columns),
        hlc=clock(delta.hlc),
        client_id=delta.client_id,
        delta_id=delta.delta_id,
    )


def _to_json(delta: RowDelta) -> _Delta:
    return _Delta(
        op=Op(delta.op).name,
        table=delta.table,
        row_id=delta.row_id,
        client_id=delta.client_id,
        columns=[_Column(each.column, msgspec.Raw(each.value)) for each in delta.columns],
        hlc=str(delta.hlc),
        delta_id=delta.delta_id,
    )
