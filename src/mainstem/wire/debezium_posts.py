"""Events of Debezium's as its server posts them, without their keys: what each is, and by what it is known.

What a batch keeps (`Encoding.ENVELOPE`): u32 length of the head | head, JSON: namespace and key columns | the event.
"""

import struct
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from mainstem.model.errors import Invalid
from mainstem.model.names import TableName
from mainstem.wire.debezium import Event, Tombstone, decode_event, is_envelope, table_of, unwrapped

_LENGTH = struct.Struct("<I")
# Of a change's source: these differ between two sendings of one change, or say nothing of its place.
_NOT_POSITION = frozenset(["ts_ms", "ts_us", "ts_ns", "version", "sequence", "xmin", "snapshot"])
# At least one of these says where in its database's log a change stands.
_POSITIONS = frozenset(
    ["lsn", "pos", "scn", "commit_scn", "change_lsn", "commit_lsn", "ord", "resume_token", "offset", "gtid", "position"]
)
_events = msgspec.json.Decoder(list[msgspec.Raw])


class Kind(StrEnum):
    """What an event means for tables."""

    ROW = "row"
    TRUNCATE = "truncate"
    # Heartbeats, marks of transactions, changes of the schema, messages of the log: no row changes.
    NOTHING = "nothing"


class PostHead(msgspec.Struct, frozen=True):
    """What the request says of the event."""

    # Instead of the source's schema or database.
    namespace: str = ""
    key: tuple[str, ...] = ()
    # A truncate whose deletes are in the log before it: it has no row of its own, and is kept to be known again.
    is_truncate: bool = False


class Post(NamedTuple):
    """An event, as far as the door needs it."""

    kind: Kind
    table: TableName | None
    # The connector's name; and by what the event is known, None where it does not say its place.
    connector: str
    identity: str | None
    # What the event says of its source.
    source: Mapping[str, Any]


def pack(head: PostHead, event: bytes) -> bytes:
    """The payload of a batch."""
    encoded = msgspec.json.encode(head)
    return _LENGTH.pack(len(encoded)) + encoded + event


def unpack(payload: bytes | memoryview) -> tuple[PostHead, bytes]:
    """Head and event. Raises ValueError where this is no such payload."""
    view = memoryview(payload)
    if len(view) < _LENGTH.size:
        raise ValueError("an event's payload is cut off")
    (size,) = _LENGTH.unpack_from(view)
    head = msgspec.json.decode(view[_LENGTH.size : _LENGTH.size + size], type=PostHead)
    return head, bytes(view[_LENGTH.size + size :])


def split_events(body: bytes) -> list[bytes]:
    """The events of a body: one, or an array of them."""
    text = body.strip()
    if text[:1] != b"[":
        return [text]
    try:
        return [bytes(raw) for raw in _events.decode(text)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not JSON. got={error}") from None


def look(event: bytes, namespace: str = "") -> Post:
    """What an event is, before its key is known. Raises Invalid."""
    body, _ = unwrapped(_decoded(event))
    if not isinstance(body, dict):
        raise Invalid(f"an event is an object. got={type(body).__name__}")
    # A row that was unwrapped may have columns named `source`, `op` or `after`: only an envelope's say what it is.
    origin = body.get("source") if is_envelope(body) else None
    details: dict[str, Any] = origin if isinstance(origin, dict) else _marks(body)
    connector = str(details.get("name") or "unnamed")
    if _says_nothing(body):
        return Post(Kind.NOTHING, None, connector, None, details)
    own, table = table_of(details, None)
    name = TableName(namespace or own, table)
    kind = Kind.TRUNCATE if is_envelope(body) and body["op"] == "t" else Kind.ROW
    return Post(kind, name, connector, _identity(details, body), details)


def read(event: bytes, head: PostHead) -> Event:
    """The change of an event that is one. Raises Invalid."""
    found = decode_event(event, key_columns=head.key)
    if isinstance(found, Tombstone):
        raise Invalid("an event without a value says nothing here")
    if head.namespace:
        return Event(msgspec.structs.replace(found.change, namespace=head.namespace), found.types)
    return found


def _decoded(event: bytes) -> Any:
    try:
        return msgspec.json.decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the event is not JSON. got={error}") from None


def _marks(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a row says of its source that the "unwrap" transformation left (`add.fields`)."""
    marks = {name[2:]: value for name, value in body.items() if name.startswith("__")}
    return {name.removeprefix("source_"): value for name, value in marks.items()}


def _says_nothing(body: Mapping[str, Any]) -> bool:
    if is_envelope(body) or any(name.startswith("__") for name in body):
        return False
    is_heartbeat = body.keys() <= {"ts_ms", "ts_us", "ts_ns", "serverName"}
    is_transaction = "status" in body and "id" in body and ("event_count" in body or "ts_ms" in body)
    is_schema = "ddl" in body or "tableChanges" in body
    return is_heartbeat or is_transaction or is_schema or body.get("op") == "m" or "message" in body


def _identity(details: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
    """The same for every sending of one change, and for no other: its place in the source's log, and what it says.

    Several rows of one statement share a place in PostgreSQL's log, so that the place alone does not do.
    """
    place = {name: value for name, value in details.items() if name not in _NOT_POSITION and value is not None}
    if not _POSITIONS & place.keys():
        return None
    is_side = ("before", "after", "op") if is_envelope(body) else body.keys()
    sides = {name: value for name, value in body.items() if name in is_side}
    return msgspec.json.encode([place, sides], order="deterministic").decode()
