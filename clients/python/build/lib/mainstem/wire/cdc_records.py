"""CDC records: one change as `_id`, `_seq`, `_op`, `_before`, `_after`, `_ts` and `_source`.

Owns that form, to and from `model.Change`, and its making from the rows of Delta's change data feed. A change of ours
goes there and back without loss: what the form has no field for travels in `_source`.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from mainstem.model.change import Change, Operation, SourceId
from mainstem.model.errors import Invalid
from mainstem.model.hlc import HLC_MAX, Hlc, wall_ms
from mainstem.model.names import DEFAULT_NAMESPACE
from mainstem.model.position import LogPosition

RECORD_BYTES_MAX = 16 * 1024 * 1024
SYSTEM = "mainstem"
_NS_PER_MS = 1_000_000

RecordOp = Literal["c", "u", "d", "r"]
OPERATION_BY_OP: dict[str, Operation] = {
    "c": Operation.INSERT,
    "u": Operation.UPDATE,
    "d": Operation.DELETE,
    "r": Operation.READ,
}
OP_BY_OPERATION: dict[Operation, RecordOp] = {
    Operation.INSERT: "c",
    Operation.UPDATE: "u",
    Operation.DELETE: "d",
    Operation.READ: "r",
}


class CDCRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one entity. `after` holds what was written; it is None for a delete."""

    id: str = msgspec.field(name="_id")
    # The order of records: a consumer that saves the last one it has seen resumes after it.
    seq: int = msgspec.field(name="_seq")
    op: RecordOp = msgspec.field(name="_op")
    before: dict[str, Any] | None = msgspec.field(name="_before", default=None)
    after: dict[str, Any] | None = msgspec.field(name="_after", default=None)
    ts_ns: int = msgspec.field(name="_ts")
    # Where it came from: `system`, `database`, `collection`, and whatever else the system says of itself.
    source: dict[str, Any] = msgspec.field(name="_source")

    def __post_init__(self) -> None:
        if self.op == "d" and self.after is not None:
            raise ValueError("a delete has no _after")
        if self.op != "d" and self.after is None:
            raise ValueError(f"_after is missing. expected=an object for _op {self.op}")


_ENCODER = msgspec.json.Encoder()
# Not strict: JavaScript writes 64-bit numbers as text.
_DECODER = msgspec.json.Decoder(CDCRecord, strict=False)


def encode_record(record: CDCRecord) -> bytes:
    """The record as JSON."""
    return _ENCODER.encode(record)


def decode_record(data: bytes) -> CDCRecord:
    """Read a record from JSON; numbers may be written as text."""
    if len(data) > RECORD_BYTES_MAX:
        raise Invalid(f"record is too large. expected=at most {RECORD_BYTES_MAX} got={len(data)}", reason="too_large")
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"not a CDC record. {error}") from None


def record_of(change: Change) -> CDCRecord:
    """The record of a change. Its order is the log's where the change has a position, else the source's own."""
    if change.position is not None:
        seq: int = change.position
    else:
        seq = change.batch_sequence if change.sequence is None else change.sequence
    details = {
        "system": SYSTEM,
        "database": change.namespace,
        "collection": change.table,
        "source": change.source,
        "batchSequence": change.batch_sequence,
        "sequence": change.sequence,
        "changeId": change.id,
        "hlc": change.hlc,
        "position": change.position,
        "sourceTimeMs": change.source_time_ms,
        "metadata": change.metadata,
    }
    is_delete = change.operation is Operation.DELETE
    if is_delete and change.columns is not None:
        details["columns"] = change.columns
    return CDCRecord(
        id=change.key,
        seq=seq,
        op=OP_BY_OPERATION[change.operation],
        before=change.before,
        after=None if is_delete else change.columns or {},
        ts_ns=_time_ms(change) * _NS_PER_MS,
        source={name: value for name, value in details.items() if value is not None},
    )


def _time_ms(change: Change) -> int:
    if change.source_time_ms is not None:
        return change.source_time_ms
    return 0 if change.hlc is None else wall_ms(change.hlc)


def change_of(record: CDCRecord, *, source: SourceId | None = None) -> Change:
    """The change of a record. `source` names a producer that did not name itself."""
    details = record.source
    if details.get("system") == SYSTEM:
        return _own_change(record, details)
    table = _text(details, "collection", "table", "topic")
    if table is None:
        raise Invalid(f"record does not say its table. expected=_source.collection got={sorted(details)}")
    name = _text(details, "source", "serverId", "system")
    return Change(
        namespace=_text(details, "database") or DEFAULT_NAMESPACE,
        table=table,
        key=record.id,
        operation=OPERATION_BY_OP[record.op],
        columns=record.after,
        before=record.before,
        source=source or SourceId(name or "cdc"),
        batch_sequence=record.seq,
        sequence=record.seq,
        source_time_ms=record.ts_ns // _NS_PER_MS,
        metadata={"source": details},
    )


def _own_change(record: CDCRecord, details: Mapping[str, Any]) -> Change:
    try:
        hlc, position = details.get("hlc"), details.get("position")
        if hlc is not None and not 0 <= hlc <= HLC_MAX:
            raise Invalid(f"clock out of range. expected=0..{HLC_MAX} got={hlc}", reason="clock_range")
        return Change(
            namespace=details["database"],
            table=details["collection"],
            key=record.id,
            operation=OPERATION_BY_OP[record.op],
            columns=details.get("columns") if record.op == "d" else record.after,
            before=record.before,
            hlc=None if hlc is None else Hlc(hlc),
            source=SourceId(details["source"]),
            batch_sequence=details["batchSequence"],
            sequence=details.get("sequence"),
            id=details.get("changeId"),
            source_time_ms=details.get("sourceTimeMs"),
            metadata=details.get("metadata"),
            position=None if position is None else LogPosition(position),
        )
    except (KeyError, TypeError) as error:
        raise Invalid(f"_source is not what Mainstem writes. expected={error}") from None


def _text(details: Mapping[str, Any], *names: str) -> str | None:
    return next((value for name in names if isinstance(value := details.get(name), str) and value), None)


def records_of_feed(rows: Iterable[Mapping[str, Any]], *, table: str, key: str) -> Iterator[CDCRecord]:
    """Records from the rows of Delta's change data feed, in its order: one version's rows together.

    An update is two rows there, before and after; they meet by the key. Rows of one version without a partner are
    kept: a postimage alone is an update without a before.
    """
    before: dict[str, dict[str, Any]] = {}
    version: Any = None
    for row in rows:
        if row["_commit_version"] != version:
            version, before = row["_commit_version"], {}
        values = {name: value for name, value in row.items() if not name.startswith(_FEED_PREFIXES)}
        if values.get(key) is None:
            raise Invalid(f"a row of the feed has no key. expected={key} got={sorted(values)}")
        identity = str(values[key])
        match row["_change_type"]:
            case "update_preimage":
                before[identity] = values
            case "update_postimage":
                yield _feed_record(row, table, identity, "u", before.pop(identity, None), values)
            case "insert":
                yield _feed_record(row, table, identity, "c", None, values)
            case "delete":
                yield _feed_record(row, table, identity, "d", values, None)
            case other:
                raise Invalid(f"unknown change type. got={other!r}")


_FEED_PREFIXES = ("_change_type", "_commit_version", "_commit_timestamp")


def _feed_record(
    row: Mapping[str, Any],
    table: str,
    identity: str,
    op: RecordOp,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
) -> CDCRecord:
    moment = row.get("_commit_timestamp")
    ts_ns = 0
    if isinstance(moment, datetime):
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        ts_ns = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution) * 1_000
    return CDCRecord(
        id=identity,
        seq=int(row["_commit_version"]),
        op=op,
        before=before,
        after=after,
        ts_ns=ts_ns,
        source={"system": "delta", "collection": table, "version": int(row["_commit_version"])},
    )
