"""The CDC protocol as bytes: messages of both sides, decoded and encoded without any I/O.

A message is one JSON object, in a text or a binary frame, told apart by `type`; `cdc_packing` has other ways to write
it. This module owns the shapes, the names and the ranges; it knows nothing of sockets, of limits on size (admission has
those) or of what a message causes.

A batch is decoded in two steps. The outer message keeps the text of `events` as it came, because that text is what
the log stores; then the events are decoded with their types, so that nothing malformed gets past the door.
"""

from collections import abc
from enum import Enum, StrEnum
from typing import Annotated, Any

import msgspec

from mainstem.model.errors import Invalid

PROTOCOL_VERSION = 1
KEY_LENGTH_MAX = 1024
SOURCE_LENGTH_MAX = 256

SEQUENCE_MAX = (1 << 63) - 1

# A sequence or a time ends up in a signed 64-bit column.
Sequence = Annotated[int, msgspec.Meta(ge=0, le=SEQUENCE_MAX)]
Milliseconds = Annotated[int, msgspec.Meta(ge=-SEQUENCE_MAX, le=SEQUENCE_MAX)]
Source = Annotated[str, msgspec.Meta(min_length=1, max_length=SOURCE_LENGTH_MAX)]
ShardName = Annotated[str, msgspec.Meta(max_length=SOURCE_LENGTH_MAX)]
CorrelationId = Annotated[str, msgspec.Meta(max_length=256)]
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_LENGTH_MAX)] | int


class CdcOperation(Enum):
    """What happened to the row, in the protocol's words; read in any case, written in upper case."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    READ = "READ"

    # Members of their own, so that the usual spellings are one lookup in C; any other case goes through `_missing_`.
    INSERT_LOWER = "insert"
    UPDATE_LOWER = "update"
    DELETE_LOWER = "delete"
    READ_LOWER = "read"

    @classmethod
    def _missing_(cls, value: object) -> "CdcOperation | None":
        text = str(value)
        # Other letters may become these in upper case and not in lower case, or the other way round.
        return cls.__members__.get(text.upper()) if text.isascii() and text.isalpha() else None


class CdcEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """One change of one row."""

    operation: CdcOperation
    table: str
    row_id: Key
    sequence: Sequence | None = None
    timestamp: Milliseconds | None = None
    before: Any = None
    after: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class _Row(msgspec.Struct, frozen=True, gc=False):
    """An object whose fields are checked for their grammar, and not kept."""


class EventHead(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """What the gate has to know of an event. Making values of its rows would take longer than all the rest."""

    operation: CdcOperation
    table: str
    row_id: Key
    sequence: Sequence | None = None
    timestamp: Milliseconds | None = None
    before: msgspec.Raw = msgspec.Raw()
    after: _Row | None = None
    metadata: _Row | None = None


# As far as they were read.
Events = abc.Sequence[EventHead | CdcEvent]


class _Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="type"):
    timestamp: float | int | None = None
    correlation_id: CorrelationId | None = None


class Priority(StrEnum):
    """How much a batch matters to its producer where not everything can be taken. Ours: the seed has no word for it."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one side of a connection can do; what the server answers is what both can."""

    # Messages in MessagePack.
    binary_protocol: bool = False
    # Frames compressed with zstd.
    compression: bool = False
    batching: bool = True
    max_batch_size: Sequence | None = None
    max_message_size: Sequence | None = None


class Connect(_Message, tag="connect", frozen=True, kw_only=True):
    """A producer says who it is and asks where it stands."""

    source_do_id: Source | None = None
    source_shard_name: ShardName | None = None
    last_ack_sequence: Sequence = 0
    # The highest version that the producer speaks; the answer says which one is spoken.
    protocol_version: int = PROTOCOL_VERSION
    capabilities: Capabilities | None = None
    priority: Priority = Priority.NORMAL


class CdcBatch(_Message, tag="cdc_batch", frozen=True, kw_only=True):
    """Changes under one sequence number. `events` is the text of the array, not decoded yet."""

    sequence_number: Sequence
    events: msgspec.Raw
    source_do_id: Source | None = None
    source_shard_name: ShardName | None = None
    first_event_sequence: Sequence | None = None
    last_event_sequence: Sequence | None = None
    size_bytes: Sequence | None = None
    is_retry: bool = False
    retry_count: Sequence = 0
    priority: Priority | None = None


class Heartbeat(_Message, tag="heartbeat", frozen=True, kw_only=True):
    """A producer shows that it is alive; the answer is a status."""

    source_do_id: Source | None = None
    last_ack_sequence: Sequence = 0
    pending_events: Sequence = 0


class FlushRequest(_Message, tag="flush_request", frozen=True, kw_only=True):
    """Everything sent so far shall be in the tables."""

    source_do_id: Source | None = None
    reason: str | None = None


class Disconnect(_Message, tag="disconnect", frozen=True, kw_only=True):
    """The producer is done: answer what is open, then close."""

    source_do_id: Source | None = None
    reason: str | None = None


ClientMessage = Connect | CdcBatch | Heartbeat | FlushRequest | Disconnect


class AckStatus(StrEnum):
    """How far a batch has come. Each means at least durable."""

    OK = "ok"
    BUFFERED = "buffered"
    PERSISTED = "persisted"
    DUPLICATE = "duplicate"
    FALLBACK = "fallback"


class NackReason(StrEnum):
    """Why a message was refused."""

    BUFFER_FULL = "buffer_full"
    RATE_LIMITED = "rate_limited"
    INVALID_SEQUENCE = "invalid_sequence"
    INVALID_FORMAT = "invalid_format"
    INTERNAL_ERROR = "internal_error"
    SHUTTING_DOWN = "shutting_down"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    EVENT_TOO_LARGE = "event_too_large"
    LOAD_SHEDDING = "load_shedding"
    CONNECTION_LIMIT = "connection_limit"
    IP_LIMIT = "ip_limit"


class AckDetails(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """What a producer may want to know to pace itself."""

    events_processed: int
    buffer_utilization: float
    time_until_flush: int | None = None
    persisted_path: str | None = None
    remaining_tokens: int | None = None
    bucket_capacity: int | None = None
    suggested_delay_ms: int | None = None
    circuit_breaker_state: str | None = None


class RateLimit(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Messages of this connection: how many in a second, how many are left of it, when it is over (milliseconds)."""

    limit: int
    remaining: int
    reset_at: int


class _Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="type"):
    # The server's time, in milliseconds since 1970.
    timestamp: int


class Ack(_Answer, tag="ack", frozen=True, kw_only=True, gc=False):
    """A batch is durable, or further."""

    sequence_number: int
    status: AckStatus
    correlation_id: str | None = None
    batch_id: str | None = None
    details: AckDetails | None = None
    rate_limit: RateLimit | None = None
    # Ours, in the answer to a connect: what is spoken from here on, and the lowest sequence above the producer's
    # `lastAckSequence` that is not durable.
    protocol_version: int | None = None
    capabilities: Capabilities | None = None
    resume_from: int | None = None


class Nack(_Answer, tag="nack", frozen=True, kw_only=True, gc=False):
    """A message was refused and changed nothing."""

    sequence_number: int
    reason: NackReason
    error_message: str
    should_retry: bool
    correlation_id: str | None = None
    retry_delay_ms: int | None = None
    max_size: int | None = None
    # Ours, with `invalid_sequence`: the lowest sequence that is free above all that are durable.
    next_sequence: int | None = None


class ServerState(StrEnum):
    """What the server is doing."""

    IDLE = "idle"
    RECEIVING = "receiving"
    FLUSHING = "flushing"
    RECOVERING = "recovering"
    ERROR = "error"


class BufferStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is durable and not in the tables yet."""

    batch_count: int
    event_count: int
    total_size_bytes: int
    utilization: float
    oldest_batch_time: int | None = None
    newest_batch_time: int | None = None


class Status(_Answer, tag="status", frozen=True, kw_only=True):
    """The server's state, as answers to connect, heartbeat and flush_request."""

    state: ServerState
    buffer: BufferStatus
    connected_sources: int
    last_flush_time: int | None = None
    next_flush_time: int | None = None


ServerMessage = Ack | Nack | Status


class Peek(msgspec.Struct, frozen=True, rename="camel"):
    """The little that can be said of a message that was refused, to address the answer."""

    sequence_number: int = 0
    correlation_id: str | None = None


class _LoosePeek(msgspec.Struct, frozen=True, rename="camel"):
    sequence_number: Any = 0
    correlation_id: Any = None


_client_decoder: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(ClientMessage)
_batch_decoder = msgspec.json.Decoder(CdcBatch)
_heads_decoder = msgspec.json.Decoder(list[EventHead])
_raw_events_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_server_decoder: msgspec.json.Decoder[ServerMessage] = msgspec.json.Decoder(ServerMessage)
_peek_decoder = msgspec.json.Decoder(_LoosePeek)
_encoder = msgspec.json.Encoder()

# What `msgspec` raises on input that is not what was asked for. A MemoryError is left alone: that is our trouble.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_client(data: bytes) -> ClientMessage:
    """Read what a producer sent. Raises Invalid with one clear sentence."""
    try:
        return _client_decoder.decode(data)
    except _UNREADABLE as error:
        raise _unreadable("message", error) from None


def decode_events(payload: bytes) -> list[EventHead]:
    """Read the events of a batch. Raises Invalid with one clear sentence.

    What is JSON by its grammar passes, even a number that no table can hold: that row becomes a dead letter.
    """
    try:
        return _heads(payload)
    except _UNREADABLE as error:
        raise _unreadable("events", error) from None


def _heads(payload: bytes) -> list[EventHead]:
    if not payload.isascii():
        # Text that is skipped is not looked at by the decoder.
        payload.decode()
    return _heads_decoder.decode(payload)


def event_sizes(payload: bytes) -> list[int]:
    """The size of each event's text in bytes."""
    try:
        return [len(memoryview(event)) for event in _raw_events_decoder.decode(payload)]
    except _UNREADABLE as error:
        raise _unreadable("events", error) from None


def decode_whole_batch(data: bytes) -> tuple[CdcBatch, bytes, list[EventHead]] | None:
    """Read a batch and its events in one pass over the events' text: the usual case of `decode_client`, made fast.

    The text of `events` is cut out by looking for its ends instead of parsing it. That is right if the rest is a valid
    batch with `[]` in the text's place, and the text on its own is a valid array of events: then, by JSON's grammar,
    the whole is that batch with that array. Whatever does not fit, valid or not, is None and goes the long way.
    """
    name = data.find(b'"events":')
    start = data.find(b"[", name)
    end = data.rfind(b"]") + 1
    if name < 0 or end <= start or data[name + len(b'"events":') : start].strip():
        return None
    payload = data[start:end]
    try:
        message = _batch_decoder.decode(b"".join((data[:start], b"[]", data[end:])))
        if bytes(message.events) != b"[]":
            return None
        return message, payload, _heads(payload)
    except _UNREADABLE:
        return None


def check_event_sequences(message: CdcBatch, events: Events) -> None:
    """Refuse a batch that says of its first or last event what is not so. Events need not have a sequence."""
    first, last = message.first_event_sequence, message.last_event_sequence
    if first is not None and last is not None and first > last:
        raise Invalid(f"firstEventSequence. expected=at most lastEventSequence {last} got={first}")
    for name, told, event in (("firstEventSequence", first, events[:1]), ("lastEventSequence", last, events[-1:])):
        if told is not None and event and event[0].sequence not in (None, told):
            raise Invalid(f"{name}. expected={event[0].sequence}, as the event has it got={told}")


def peek(data: bytes) -> Peek:
    """What can be told of a message that could not be read. Never raises."""
    try:
        loose = _peek_decoder.decode(data)
    except _UNREADABLE:
        return Peek()
    sequence, correlation = loose.sequence_number, loose.correlation_id
    known = type(sequence) is int and 0 <= sequence <= SEQUENCE_MAX
    return Peek(sequence if known else 0, correlation[:256] if isinstance(correlation, str) else None)


def decode_server(data: bytes | str) -> ServerMessage:
    """Read what the server sent."""
    try:
        return _server_decoder.decode(data)
    except _UNREADABLE as error:
        raise _unreadable("message", error) from None


def encode(message: ClientMessage | ServerMessage) -> bytes:
    """Write a message of either side."""
    return _encoder.encode(message)


def encode_events(events: list[CdcEvent] | list[Any]) -> bytes:
    """Write the events of a batch: the payload."""
    return _encoder.encode(events)


def _unreadable(what: str, error: Exception) -> Invalid:
    match error:
        case RecursionError():
            return Invalid(f"{what} not accepted: nested too deeply")
        case UnicodeDecodeError():
            return Invalid(f"{what} not accepted: not UTF-8. got={error.reason} at a string's byte {error.start}")
        case msgspec.ValidationError():
            return Invalid(f"{what} not accepted: {error}")
        case _:
            return Invalid(f"{what} not accepted: malformed JSON. got={error}")
