"""From the payload of a batch to rows, when the log is sealed. Pure: no I/O.

JSON values keep the text that the client sent. What the gate let in can be expanded; should an event still be
unreadable (a gate of another version let it in), it becomes a row with an error, and the rest is sealed all the same.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from mainstem.log.frames import Buffer
from mainstem.log.seal.shapes import KnownNames, Shape, row_error
from mainstem.log.settings import TimesRule
from mainstem.model.batch import BatchHeader, Encoding, split_shard
from mainstem.model.change import Operation
from mainstem.model.errors import Corrupt, Invalid
from mainstem.model.names import DEFAULT_NAMESPACE, TableName, parse_table_name

# Under which a change's metadata says from which shard it came.
SHARD_KEY = "sourceShardName"
# Where events go whose table cannot even be told: as dead letters.
UNREADABLE = TableName(DEFAULT_NAMESPACE, "unreadable")

_NOTHING = msgspec.Raw(b"")
# So many batches in a row that are not of bare events, and it is not tried any more.
_BARE_MISSES_MAX = 8
# With fewer rows a look at their text as Arrow does not pay; and from so many on a shape is learnt.
_ARROW_ROWS_MIN = 64
_FIRST_ROWS = 256
# What record batches of one segment may become beyond what is usual, when they are opened.
OPENING_BYTES_MAX = 512 * 1024 * 1024
# Stands where a delete has no row.
DELETED: Any = object()


class Rows(msgspec.Struct, kw_only=True, gc=False):
    """The rows that one batch has for one table, column by column."""

    table: TableName
    positions: Sequence[int]
    hlcs: Sequence[int]
    ops: list[str]
    keys: list[str]
    # Nothing where they are `unjudged`.
    columns: list[bytes | None]
    # None where no row of the batch has one; so it is with the others that may be None.
    before: list[bytes | None] | None
    # As the client sent them: a number that does not fit its column is the builder's to deal with.
    sequences: list[int | None] | None
    ids: list[str | None] | None
    source_times_ms: list[int | float | None] | None
    metadata: list[bytes | None] | None
    errors: list[str | None] | None
    # The columns where they are still to be judged: `errors` are not known yet then.
    unjudged: pa.StringArray | None = None
    # Keys and columns where both came as Arrow, and are known to fit: `keys` and `columns` are empty then.
    arrow: tuple[pa.StringArray, pa.StringArray] | None = None
    # Of which kind the table is, where that settles how it is stored (`tables/kinds`).
    kind: str = ""


class _BareEvent(msgspec.Struct, rename="camel", gc=False, forbid_unknown_fields=True):
    """What most events are: no row before, no metadata. Whatever has more is read as an `_Event`."""

    table: str
    operation: str
    row_id: str | int
    sequence: int | None = None
    timestamp: int | float | None = None
    after: msgspec.Raw = _NOTHING


class _Event(_BareEvent, rename="camel", gc=False, forbid_unknown_fields=False):
    before: msgspec.Raw = _NOTHING
    metadata: msgspec.Raw = _NOTHING


class _NamedEvent(msgspec.Struct, gc=False):
    """An event of which no more can be read than its table."""

    table: str


class _Operations(dict[str, str]):
    """Operations as clients write them, to ours; each spelling is looked up once."""

    def __missing__(self, text: str) -> str:
        if not text.isascii():
            raise ValueError(f"operation. got={text[:32]!r}")
        lower = text.lower()
        operation = str(Operation.READ if lower == "snapshot" else Operation(lower))
        if len(self) < 64:
            self[text] = operation
        return operation


_events = msgspec.json.Decoder(list[_Event])
_bare_events = msgspec.json.Decoder(list[_BareEvent])
_event = msgspec.json.Decoder(_Event)
_named_event = msgspec.json.Decoder(_NamedEvent)
_raw_events = msgspec.json.Decoder(list[msgspec.Raw])
_values = msgspec.json.Decoder(list[Any])
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_to_json = msgspec.json.Encoder().encode
_operations = _Operations()
_UNREADABLE_ERRORS = (msgspec.DecodeError, RecursionError, ValueError, Invalid)

_table_of = lru_cache(4_096)(parse_table_name)


class Expander:
    """Expands the batches of one segment, and learns the shapes of its tables on the way.

    With `judges_later` the rows of large batches come without a judgement: many together are judged in a fraction of
    the time. The caller then has to pass them to `judge`.
    """

    def __init__(self, *, judges_later: bool = False, times: TimesRule | None = None) -> None:
        self._judges_later = judges_later
        self._times = times or TimesRule()
        self._shapes: dict[TableName, Shape] = {}
        self._bare_misses = 0
        # See `expand_records.OPENED_RATIO`.
        self.opening_bytes_left = OPENING_BYTES_MAX
        self._by_encoding: dict[Encoding, Callable[[BatchHeader, Buffer, str], list[Rows]]] = {
            Encoding.CDC_JSON: self._expand_events,
            Encoding.CDC_JSON_OF_SHARD: self._expand_shard,
            Encoding.CHANGES: self._expand_changes,
            Encoding.DELTAS: self._expand_deltas,
            Encoding.DOCUMENTS: self._expand_documents,
            Encoding.KAFKA_RECORDS: self._expand_records,
            Encoding.ROWS_JSON: self._expand_rows,
            Encoding.ROWS_ARROW: self._expand_rows,
            Encoding.ENVELOPE: self._expand_envelope,
        }

    def shape(self, table: TableName) -> Shape:
        """What is known of a table's rows by now."""
        shape = self._shapes.get(table)
        if shape is None:
            shape = self._shapes[table] = Shape(infers_times=self._times.holds(str(table)))
        return shape

    def expand(self, header: BatchHeader, payload: Buffer, place: str) -> list[Rows]:
        """The rows of one batch, per table. `place` says where it stands, should it not be whole."""
        return self._by_encoding[header.encoding](header, payload, place)

    def _expand_records(self, header: BatchHeader, payload: Buffer, place: str) -> list[Rows]:
        # Loaded where it is needed: most logs have none of these.
        from mainstem.log.seal.expand_records import expand_records

        return expand_records(self, header, payload, place)

    @property
    def takes_arrow(self) -> bool:
        """Whether the caller wants columns rather than rows."""
        return self._judges_later

    def _expand_rows(self, header: BatchHeader, payload: Buffer, place: str) -> list[Rows]:
        # Loaded where it is needed: most logs have none of these.
        from mainstem.log.seal.expand_rows import expand_rows

        return expand_rows(self, header, payload, place)

    def _expand_envelope(self, header: BatchHeader, payload: Buffer, place: str) -> list[Rows]:
        from mainstem.log.seal.expand_envelopes import posted_rows

        return posted_rows(self.shape, header, payload, place)

    def _expand_events(self, header: BatchHeader, payload: Buffer, place: str) -> list[Rows]:
        try:
            events = self._decoded(payload)
            check_count(header, len(events), place)
            return [self._cdc_rows(header, table, indexes, selected) for table, indexes, selected in _by_table(events)]
        except _UNREADABLE_ERRORS:
            return [self._one(header, index, raw) for index, raw in enumerate(_split(header, payload, place))]

    def _expand_shard(self, header: BatchHeader, payload: Buffer, place: str) -> list[Rows]:
        """Events of which the shard is known: it is kept with what they say of themselves."""
        try:
            shard, events = split_shard(payload)
        except ValueError as error:
            raise Corrupt(f"shard cannot be read. got={error}", place=place) from error
        plain = msgspec.structs.replace(header, encoding=Encoding.CDC_JSON)
        told = _to_json({SHARD_KEY: shard})
        found = self.expand(plain, events, place)
        for rows in found:
            owns = rows.metadata
            rows.metadata = [told] * len(rows.positions) if owns is None else [_with_shard(own, told) for own in owns]
        return found

    def _decoded(self, payload: Buffer) -> Sequence[_BareEvent]:
        if self._bare_misses < _BARE_MISSES_MAX:
            try:
                events = _bare_events.decode(payload)
            except msgspec.ValidationError:
                self._bare_misses += 1
            else:
                self._bare_misses = 0
                return events
        return _events.decode(payload)

    def _cdc_rows(
        self,
        header: BatchHeader,
        table: TableName,
        indexes: Sequence[int],
        events: Sequence[_BareEvent],
    ) -> Rows:
        ops = _ops([event.operation for event in events])
        texts = [event.after for event in events]
        deletes = [index for index, op in enumerate(ops) if op == "delete"] if "delete" in ops else []
        for index in deletes:
            texts[index] = _NOTHING
        columns, errors, unjudged = self.judge_json(table, texts, deletes)
        return Rows(
            table=table,
            positions=shifted(indexes, header.first),
            hlcs=shifted(indexes, header.hlc_first),
            ops=ops,
            keys=_texts([event.row_id for event in events]),
            columns=columns,
            before=_optional(events, "before"),
            sequences=[event.sequence for event in events],
            ids=None,
            source_times_ms=[event.timestamp for event in events],
            metadata=_optional(events, "metadata"),
            errors=errors,
            unjudged=unjudged,
        )

    def judge_json(
        self, table: TableName, texts: Sequence[msgspec.Raw | bytes], deletes: Sequence[int]
    ) -> tuple[list[bytes | None], list[str | None] | None, pa.StringArray | None]:
        """Rows, and which of them cannot go into their table, None for none; or the rows as Arrow, to be judged."""
        if self._judges_later and len(texts) >= _ARROW_ROWS_MIN:
            unjudged = _joined(texts, deletes)
            if unjudged is not None:
                return [], None, unjudged
        columns: list[bytes | None] = [bytes(text) for text in texts]
        for index in deletes:
            columns[index] = None
        shape = self.shape(table)
        try:
            return columns, self._judge_texts(shape, columns), None
        except _UNREADABLE_ERRORS:
            # One of them spoils it for all: one by one, then.
            return columns, [self._judge_text(shape, text) for text in columns], None

    def judge(self, table: TableName, columns: pa.StringArray) -> dict[int, str]:
        """Why rows of many batches cannot go into their table, by index. Nulls are deletes, which always can."""
        shape = self.shape(table)
        errors: dict[int, str] = {}
        done = 0
        if shape.is_new:
            # A few rows tell what to expect of the others.
            done = min(_FIRST_ROWS, len(columns))
            errors = self._judge_rows(shape, columns, range(done))
        strange = shape.unknown(columns[done:])
        return errors | self._judge_rows(shape, columns, [done + index for index in strange])

    def _judge_rows(self, shape: Shape, columns: pa.StringArray, indexes: Sequence[int]) -> dict[int, str]:
        if not indexes:
            return {}
        texts = columns.take(pa.array(indexes, pa.int64())).cast(pa.binary()).to_pylist()
        try:
            found = self._judge_texts(shape, texts)
        except _UNREADABLE_ERRORS:
            # One of them spoils it for all: one by one, then.
            found = [self._judge_text(shape, text) for text in texts]
        return {} if found is None else {index: why for index, why in zip(indexes, found, strict=True) if why}

    def _judge_text(self, shape: Shape, text: bytes | None) -> str | None:
        try:
            found = self._judge_texts(shape, [text])
        except _UNREADABLE_ERRORS as error:
            return f"columns cannot be read. got={error}"
        return None if found is None else found[0]

    def _judge_texts(self, shape: Shape, columns: list[bytes | None]) -> list[str | None] | None:
        """Which rows cannot go into their table; None for none. What is missing reads as null."""
        rows_json = b"[" + b",".join([text or b"null" for text in columns if text is not None]) + b"]"
        if len(rows_json) == 2 or shape.knows(rows_json):
            return None
        rows = iter(_values.decode(rows_json))
        return judge_rows(shape, [DELETED if text is None else next(rows) for text in columns])

    def _one(self, header: BatchHeader, index: int, raw: bytes) -> Rows:
        """The slow way, for a batch with an event that cannot be read: that one alone becomes an error."""
        try:
            event = _event.decode(raw)
            return self._cdc_rows(header, _table_of(event.table), [index], [event])
        except _UNREADABLE_ERRORS as error:
            return _unreadable(header, index, raw, error)

    def _expand_changes(self, header: BatchHeader, payload: Buffer, place: str) -> list[Rows]:
        from mainstem.log.seal.expand_changes import expand_changes

        return expand_changes(self, header, payload, place)

    def _expand_documents(self, header: BatchHeader, payload: Buffer, place: str) -> list[Rows]:
        from mainstem.log.seal.expand_changes import expand_documents

        return expand_documents(self, header, payload, place)

    def _expand_deltas(self, header: BatchHeader, payload: Buffer, place: str) -> list[Rows]:
        from mainstem.log.seal.expand_changes import expand_deltas

        return expand_deltas(self, header, payload, place)


def _by_table(
    events: Sequence[_BareEvent],
) -> Iterable[tuple[TableName, Sequence[int], Sequence[_BareEvent]]]:
    names = [event.table for event in events]
    if names.count(names[0]) == len(names):
        yield _table_of(names[0]), range(len(names)), events
        return
    places: dict[TableName, list[int]] = {}
    for index, name in enumerate(names):
        places.setdefault(_table_of(name), []).append(index)
    for table, indexes in places.items():
        yield table, indexes, [events[index] for index in indexes]


def _joined(texts: Sequence[msgspec.Raw | bytes], missing: Sequence[int]) -> pa.StringArray | None:
    """Texts as Arrow, without a value in Python for each; null where they are missing. None where one is no text."""
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, texts), np.int32, len(texts)), out=offsets[1:])
    valid = None
    if missing:
        present = np.ones(len(texts), bool)
        present[missing] = False
        valid = pa.py_buffer(np.packbits(present, bitorder="little"))
    joined = pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(b"".join(texts)), valid)
    try:
        joined.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return joined


def _ops(texts: list[str]) -> list[str]:
    """Operations in our words. Most batches have but one."""
    if texts.count(texts[0]) == len(texts):
        return [_operations[texts[0]]] * len(texts)
    return [_operations[text] for text in texts]


def _optional(events: Sequence[_BareEvent], name: str) -> list[bytes | None] | None:
    """A part of the events that few have."""
    if not isinstance(events[0], _Event):
        return None
    raws = [getattr(event, name) for event in events]
    return [None if raw is _NOTHING else _json_or_none(raw) for raw in raws]


def judge_rows(shape: Shape, rows: list[Any]) -> list[str | None] | None:
    """Which rows cannot go into their table; None for none. The shape learns of those that can."""
    known: KnownNames = {}
    errors = [None if row is DELETED else row_error(row, known) for row in rows]
    shape.learn([row for row, error in zip(rows, errors, strict=True) if error is None and row is not DELETED])
    return errors if any(errors) else None


def shifted(indexes: Sequence[int], first: int) -> Sequence[int]:
    """Places in a batch as positions, or as clocks."""
    if isinstance(indexes, range):
        return range(first, first + len(indexes))
    return [first + index for index in indexes]


def _texts(keys: list[str | int]) -> list[str]:
    return keys if set(map(type, keys)) == {str} else [str(key) for key in keys]  # type: ignore[return-value]


def _json_or_none(raw: msgspec.Raw) -> bytes | None:
    text = bytes(raw)
    return None if text == b"null" else text


def check_count(header: BatchHeader, got: int, place: str) -> None:
    """Raise Corrupt where a batch has not as many changes as its header says."""
    if got != header.count:
        raise Corrupt(f"changes in a batch. expected={header.count} got={got}", place=place)


def _split(header: BatchHeader, payload: Buffer, place: str) -> list[bytes]:
    try:
        raws = [bytes(raw) for raw in _raw_events.decode(payload)]
    except (msgspec.DecodeError, RecursionError) as error:
        raise Corrupt(f"events cannot be told apart. got={error}", place=place) from error
    check_count(header, len(raws), place)
    return raws


def _with_shard(own: bytes | None, told: bytes) -> bytes:
    """A change's own metadata, and its shard, unless it says that itself."""
    if own is None:
        return told
    try:
        fields = _object.decode(own)
    except _UNREADABLE_ERRORS:
        return own
    if SHARD_KEY in fields:
        return own
    # As text: a value that was read and written again need not look the same.
    return told if not fields else told[:-1] + b"," + own.lstrip().removeprefix(b"{")


def _table_in(raw: bytes) -> TableName:
    """The table of an event that cannot be read otherwise: the gate let its writer write there, and nowhere else."""
    try:
        return _table_of(_named_event.decode(raw).table)
    except _UNREADABLE_ERRORS:
        return UNREADABLE


def _unreadable(header: BatchHeader, index: int, raw: bytes, error: Exception) -> Rows:
    position = header.first + index
    return Rows(
        table=_table_in(raw),
        positions=[position],
        hlcs=[header.hlc_first + index],
        ops=[str(Operation.INSERT)],
        keys=[str(position)],
        # The event as it came.
        columns=[raw.decode("utf-8", "replace").encode()],
        before=None,
        sequences=None,
        ids=None,
        source_times_ms=None,
        metadata=None,
        errors=[f"event cannot be read. got={error}"],
    )
