"""Debezium's envelope, in and out.

Reads the three forms in which it travels: the envelope (before, after, op, ts_ms, source), the same inside
`{"schema", "payload"}`, and the flattened row that the "unwrap" transformation leaves, with its marks (`__op`,
`__deleted`, …). A message with a key and no value is a tombstone: it says that compaction may forget the key, and
changes nothing. Where a schema comes with it, values become what it says they are (`wire/debezium_types`); without one
they stay as the connector wrote them (days, microseconds, base64). CloudEvents are read too (`wire/debezium_cloud`).
"""

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from mainstem.model.change import Change, Operation, SourceId
from mainstem.model.errors import Invalid
from mainstem.model.hlc import HLC_MAX, Hlc
from mainstem.model.keys import key_text
from mainstem.model.names import DEFAULT_NAMESPACE
from mainstem.model.position import LogPosition
from mainstem.wire.cdc_records import OP_BY_OPERATION, OPERATION_BY_OP, RECORD_BYTES_MAX
from mainstem.wire.debezium_cloud import envelope_of, is_cloud_event
from mainstem.wire.debezium_types import JSON_TEXT, row_schema, typed_row

CONNECTOR = "mainstem"
VERSION = "1"
# What PostgreSQL's connector writes for a large value that an update did not touch: as a text, as bytes in each of its
# encodings, and as the only element of an array; in an array of numbers, as the codes of its letters.
UNAVAILABLE = "__debezium_unavailable_value"
_UNAVAILABLE_BYTES = UNAVAILABLE.encode()
_UNAVAILABLE_TEXTS = frozenset((UNAVAILABLE, b64encode(_UNAVAILABLE_BYTES).decode(), _UNAVAILABLE_BYTES.hex()))
_UNAVAILABLE_UUID = str(UUID(bytes=hashlib.md5(_UNAVAILABLE_BYTES, usedforsecurity=False).digest(), version=3))
_UNAVAILABLE_CODES = list(_UNAVAILABLE_BYTES)
_MARK = "__"


class Form(StrEnum):
    """How an envelope is written."""

    ENVELOPE = "envelope"
    SCHEMA = "schema"
    FLAT = "flat"


class Message(NamedTuple):
    """A key and a value, as they stand in a topic. No value: a tombstone."""

    key: bytes
    value: bytes | None


class Tombstone(NamedTuple):
    """The key of a row that is gone."""

    key: str


class Event(NamedTuple):
    """A change, and the types of those of its columns for which JSON has none."""

    change: Change
    types: Mapping[str, str]


def decode_message(
    value: bytes | None,
    key: bytes | None = None,
    *,
    topic: str | None = None,
    key_columns: tuple[str, ...] = (),
    sequence: int = 0,
    source: SourceId | None = None,
) -> Change | Tombstone:
    """Read a message. `sequence` is its own order (a topic's offset); `key_columns` is for topics without keys."""
    read = decode_event(value, key, topic=topic, key_columns=key_columns, sequence=sequence, source=source)
    return read.change if isinstance(read, Event) else read


def decode_event(
    value: bytes | None,
    key: bytes | None = None,
    *,
    topic: str | None = None,
    key_columns: tuple[str, ...] = (),
    sequence: int = 0,
    source: SourceId | None = None,
) -> Event | Tombstone:
    """As `decode_message`, with the types that the message's schema tells."""
    identity = None if key is None else _typed_key(_json(key, text=True))
    body, schema = (None, None) if value is None else unwrapped(_json(value))
    if body is None:
        if identity is None:
            raise Invalid("a message without a value needs a key")
        return Tombstone(_key_text(identity, ()))
    if not isinstance(body, dict):
        raise Invalid(f"an envelope is an object. got={type(body).__name__}")
    if isinstance(schema, Mapping):
        body = _with_json(dict(body), schema)
    parts = _of_envelope(body) if is_envelope(body) else _of_flat(body)
    types: dict[str, str] = {}
    rows = row_schema(schema)
    if rows is not None:
        parts, types = _typed(parts, rows)
    namespace, table = table_of(parts.source, topic)
    row = parts.after if parts.after is not None else parts.before
    return Event(_change(parts, namespace, table, _key_text(identity, key_columns, row), sequence, source), types)


def is_envelope(body: Mapping[str, Any]) -> bool:
    """Whether this is a whole envelope, and not a row that the "unwrap" transformation left."""
    return "op" in body and ("before" in body or "after" in body)


def unwrapped(value: Any) -> tuple[Any, Any]:
    """What a message says, and the schema of that: out of `{"schema", "payload"}`, out of a CloudEvent, or both."""
    schema = None
    if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
        schema, value = value["schema"], value["payload"]
    if is_cloud_event(value):
        fields = schema.get("fields") if isinstance(schema, dict) else None
        inner = next((each for each in fields or () if isinstance(each, dict) and each.get("field") == "data"), None)
        body, own = unwrapped(value["data"])
        return envelope_of(value, body), own or inner
    return value, schema


def _typed(parts: "_Parts", schema: Mapping[str, Any]) -> "tuple[_Parts, dict[str, str]]":
    types: dict[str, str] = {}
    sides: dict[str, dict[str, Any] | None] = {"before": parts.before, "after": parts.after}
    for side, row in sides.items():
        if row is not None:
            values, found = typed_row(row, schema)
            sides[side] = values
            types |= {name: kind for name, kind in found.items() if name in row}
    return parts._replace(before=sides["before"], after=sides["after"]), types


def _with_json(row: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that the schema calls JSON text, as the values that they are; in structs within the row too."""
    fields = schema.get("fields")
    for field in fields if isinstance(fields, list) else ():
        name = field.get("field") if isinstance(field, dict) else None
        if not isinstance(name, str):
            raise Invalid(f"a schema's field is an object with a name. got={field!r:.100}")
        value = row.get(name)
        if field.get("name") == JSON_TEXT and isinstance(value, str):
            row[name] = _value_of(value)
        elif field.get("type") == "struct" and isinstance(value, dict):
            row[name] = _with_json(dict(value), field)
    return row


def _value_of(text: str) -> Any:
    """The value of JSON text; the text itself where a number in it has more digits than would be kept, or no place."""
    try:
        return _exact_json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return text


def _exact(digits: str) -> float:
    number = float(digits)
    if Decimal(digits) != Decimal(repr(number)):
        raise ValueError(f"more digits than a double keeps. got={digits[:40]}")
    return number


def _typed_key(value: Any) -> Any:
    body, schema = unwrapped(value)
    if isinstance(body, dict) and isinstance(schema, Mapping):
        return typed_row(body, schema)[0]
    return body


class _Parts(NamedTuple):
    op: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    source: dict[str, Any]
    ts_ms: int | None
    metadata: dict[str, Any]


def _of_envelope(body: dict[str, Any]) -> _Parts:
    origin = body.get("source")
    details = origin if isinstance(origin, dict) else {}
    ts_ms = details.get("ts_ms", body.get("ts_ms"))
    metadata = {"source": details} if details else {}
    if body.get("transaction") is not None:
        metadata["transaction"] = body["transaction"]
    return _Parts(str(body["op"]), _row(body, "before"), _row(body, "after"), details, _whole(ts_ms, "ts_ms"), metadata)


def _of_flat(body: dict[str, Any]) -> _Parts:
    marks = {name[len(_MARK) :]: value for name, value in body.items() if name.startswith(_MARK)}
    row = {name: value for name, value in body.items() if not (name.startswith(_MARK) or _is_unavailable(value))}
    deleted = str(marks.get("deleted", "false")).lower() == "true"
    op = "d" if deleted else str(marks.get("op") or "u")
    # "__source_ts_ms" is source.ts_ms of the envelope, and so on.
    details = {name.removeprefix("source_"): value for name, value in marks.items() if name not in ("deleted", "op")}
    ts_ms = _whole(details.get("ts_ms"), "ts_ms")
    metadata = {"source": details} if details else {}
    return _Parts(op, (row or None) if op == "d" else None, None if op == "d" else row, details, ts_ms, metadata)


def _row(body: Mapping[str, Any], side: str) -> dict[str, Any] | None:
    value = body.get(side)
    if isinstance(value, str):
        # MongoDB's connector writes the document as text.
        value = _json(value.encode())
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Invalid(f"{side} is an object or null. got={type(value).__name__}")
    return {name: item for name, item in value.items() if not _is_unavailable(item)}


def _is_unavailable(value: Any) -> bool:
    """Whether the source did not send this value: the row keeps the one that it has."""
    match value:
        case str():
            return value in _UNAVAILABLE_TEXTS or value == f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}'
        case [str() as only]:
            return only in _UNAVAILABLE_TEXTS or only == _UNAVAILABLE_UUID
        case list():
            return value == _UNAVAILABLE_CODES
        case dict():
            return value == {UNAVAILABLE: UNAVAILABLE}
    return False


def _whole(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(f"{name} is a whole number. got={value!r}")
    return value


def table_of(details: Mapping[str, Any], topic: str | None) -> tuple[str, str]:
    """The table: what the source says, else what the topic is called (server.schema.table)."""
    table = details.get("table") or details.get("collection")
    if isinstance(table, str) and table:
        namespace = details.get("schema") or details.get("db")
        return (namespace if isinstance(namespace, str) and namespace else DEFAULT_NAMESPACE), table
    if not topic:
        raise Invalid("an envelope does not say its table. expected=source.table or a topic")
    parts = topic.split(".")
    return (parts[-2] if len(parts) > 2 else DEFAULT_NAMESPACE), parts[-1]


def _change(parts: _Parts, namespace: str, table: str, key: str, sequence: int, source: SourceId | None) -> Change:
    if parts.op not in OPERATION_BY_OP:
        raise Invalid(f"not a row's operation. expected=c, u, d or r got={parts.op!r}", reason="unknown_operation")
    operation = OPERATION_BY_OP[parts.op]
    if operation is not Operation.DELETE and parts.after is None:
        raise Invalid(f"after is missing. expected=an object for op {parts.op}")
    details = parts.source
    own = details.get("connector") == CONNECTOR
    hlc, position = (details.get("hlc"), details.get("position")) if own else (None, None)
    if not all(item is None or (isinstance(item, int) and 0 <= item <= HLC_MAX) for item in (hlc, position)):
        raise Invalid(f"source.hlc and source.position are clocks of 63 bits. got={hlc!r}, {position!r}")
    name = details.get("name")
    return Change(
        namespace=namespace,
        table=table,
        key=key,
        operation=operation,
        columns=None if operation is Operation.DELETE else parts.after,
        before=parts.before,
        hlc=None if hlc is None else Hlc(hlc),
        source=source or SourceId(name if isinstance(name, str) and name else "debezium"),
        batch_sequence=_own(details, "batch_sequence", own, sequence),
        sequence=_own(details, "change_sequence", own, sequence) if not own or "change_sequence" in details else None,
        id=details.get("change_id") if own and isinstance(details.get("change_id"), str) else None,
        source_time_ms=parts.ts_ms,
        metadata=details.get("metadata") if own else parts.metadata or None,
        position=None if position is None else LogPosition(position),
    )


def _own(details: Mapping[str, Any], name: str, own: bool, otherwise: int) -> int:
    value = details.get(name) if own else None
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _key_text(identity: Any, columns: tuple[str, ...], row: Mapping[str, Any] | None = None) -> str:
    """One text per row: the key's only value as it is, several as a JSON object in the order of their names."""
    if identity is None and columns and row is not None:
        missing = [name for name in columns if row.get(name) is None]
        if missing:
            raise Invalid(f"a row lacks its key. expected={missing}", reason="no_key")
        identity = {name: row[name] for name in columns}
    if identity is None or identity == {}:
        raise Invalid("a message has no key. expected=a key, or key columns", reason="no_key")
    return key_text(identity)


def _json(data: bytes, *, text: bool = False) -> Any:
    if len(data) > RECORD_BYTES_MAX:
        raise Invalid(f"message is too large. expected=at most {RECORD_BYTES_MAX} got={len(data)}", reason="too_large")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if text:
            # Keys are often written as plain text.
            return _plain(data)
        raise Invalid(f"not JSON. {error}") from None


def _plain(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"a key is JSON or text. {error}") from None


_exact_json = msgspec.json.Decoder(float_hook=_exact)


def encode_change(
    change: Change, *, now_ms: int, form: Form = Form.ENVELOPE, key_column: str = "id", tombstones: bool = True
) -> list[Message]:
    """The messages of a change: one, and after a delete the tombstone that lets a compacted topic forget the key."""
    key = {key_column: change.key}
    envelope: Any = {
        "before": change.before,
        "after": None if change.operation is Operation.DELETE else change.columns or {},
        "source": _source(change, now_ms),
        "op": OP_BY_OPERATION[change.operation],
        "ts_ms": now_ms,
        "transaction": None,
    }
    match form:
        case Form.FLAT:
            envelope = _flattened(change, envelope)
        case Form.SCHEMA:
            envelope = {"schema": _envelope_schema(change, envelope), "payload": _texted(envelope)}
            key = {"schema": _schema(key, "Key"), "payload": key}  # type: ignore[dict-item]
    encoded_key = msgspec.json.encode(key)
    messages = [Message(encoded_key, msgspec.json.encode(envelope))]
    if change.operation is Operation.DELETE and tombstones:
        messages.append(Message(encoded_key, None))
    return messages


def _source(change: Change, now_ms: int) -> dict[str, Any]:
    details = {
        "version": VERSION,
        "connector": CONNECTOR,
        "name": change.source,
        "ts_ms": now_ms if change.source_time_ms is None else change.source_time_ms,
        "snapshot": "true" if change.operation is Operation.READ else "false",
        "db": change.namespace,
        "table": change.table,
        "batch_sequence": change.batch_sequence,
        "change_sequence": change.sequence,
        "change_id": change.id,
        "hlc": change.hlc,
        "position": change.position,
        "metadata": change.metadata,
    }
    return {name: value for name, value in details.items() if value is not None}


def _flattened(change: Change, envelope: Mapping[str, Any]) -> dict[str, Any]:
    is_delete = change.operation is Operation.DELETE
    row = (change.before if is_delete else change.columns) or {}
    marks = {f"{_MARK}source_{name}": value for name, value in envelope["source"].items()}
    return {**row, f"{_MARK}deleted": "true" if is_delete else "false", f"{_MARK}op": envelope["op"], **marks}


def _texted(envelope: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values as JSON text, for a schema has one type per field: where one side is nested, both are text."""
    rows = [envelope[side] for side in ("before", "after") if envelope[side] is not None]
    nested = {name for row in rows for name, value in row.items() if isinstance(value, dict | list)}
    texted = dict(envelope)
    for side, names in (("before", nested), ("after", nested), ("source", {"metadata"})):
        if envelope[side] is not None:
            texted[side] = {
                name: msgspec.json.encode(value).decode() if name in names and value is not None else value
                for name, value in envelope[side].items()
            }
    return texted


def _envelope_schema(change: Change, envelope: Mapping[str, Any]) -> dict[str, Any]:
    row = dict(change.before or {})
    for name, value in (change.columns or {}).items():
        # The type of a field is that of the side that says most.
        if row.get(name) is None or isinstance(value, dict | list):
            row[name] = value
    title = f"{change.namespace}.{change.table}"
    side = _schema(row, f"{title}.Value", optional=True)
    return {
        "type": "struct",
        "name": f"{title}.Envelope",
        "optional": False,
        "fields": [
            {**side, "field": "before"},
            {**side, "field": "after"},
            {**_schema(envelope["source"], "io.debezium.connector.mainstem.Source"), "field": "source"},
            {"type": "string", "optional": False, "field": "op"},
            {"type": "int64", "optional": True, "field": "ts_ms"},
            {"type": "string", "optional": True, "field": "transaction"},
        ],
    }


def _schema(row: Mapping[str, Any], name: str, *, optional: bool = False) -> dict[str, Any]:
    fields = [{**_type_of(value), "optional": True, "field": field} for field, value in row.items()]
    return {"type": "struct", "name": name, "optional": optional, "fields": fields}


def _type_of(value: Any) -> dict[str, str]:
    match value:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "int64"}
        case float():
            return {"type": "double"}
        case dict() | list():
            return {"type": "string", "name": JSON_TEXT}
        case _:
            return {"type": "string"}
