"""Rows of one table as an Arrow stream, and CSV read into one. Column by column: no row is looked at in Python.

A stream is checked whole before it is let in: its types, its names, its keys, and that every buffer is what it says.
Compressed buffers are refused, since a few bytes of them can become any number.

    Arrow                               the table's column
    bool, whole numbers, floats         boolean, long, double
    decimal up to 38 digits             decimal(p, s)
    date, timestamp, with a time zone   date, timestamp, timestamptz (microseconds)
    string, dictionary of strings       string
    binary                              binary
    time                                string: 23:59:59.000000
    list, struct, map                   JSON text
"""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.model.errors import Invalid
from mainstem.wire.rows import Checked
from mainstem.wire.rows_arrow_values import is_binary, is_text, is_view, json_texts

COLUMNS_MAX = 1_000
NAME_CHARS_MAX = 1_024
# What dictionaries and views may become when they are written out.
EXPANDED_BYTES_MAX = 512 * 1024 * 1024
DECIMAL_PRECISION_MAX = 38
_VIEW_INLINE_BYTES = 12
_UNREADABLE = (pa.ArrowException, OSError, ValueError, struct.error, IndexError, OverflowError)
_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2


def _check_nested(table: pa.Table) -> None:
    """Nested values are written as text when the log is sealed: what cannot be is refused here, by its column."""
    for field in table.schema:
        if len(field.name) > NAME_CHARS_MAX:
            raise Invalid(f"a column's name. expected=at most {NAME_CHARS_MAX} characters got={len(field.name)}")
        if pa.types.is_nested(field.type):
            try:
                json_texts(pa.table({field.name: table[field.name]}).combine_chunks().to_batches()[0])
            except Exception as error:
                raise Invalid(f"nested values cannot be written as JSON. column={field.name} got={error}") from error


def check_arrow(body: bytes, key: tuple[str, ...], event_bytes_max: int) -> Checked:
    """An Arrow stream whose rows can be kept. Raises Invalid."""
    try:
        _refuse_compression(body)
        table = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
        table.validate(full=True)
        # Names may be no text at all.
        _ = table.schema.names
    except _UNREADABLE as error:
        raise Invalid(f"the body is no Arrow stream. got={error}") from error
    _check_schema(table.schema, key)
    if table.num_rows == 0:
        raise Invalid("there are no rows. expected=at least 1 got=0", reason="no_rows")
    _check_keys(table, key, first=1)
    try:
        _check_sizes(table, event_bytes_max)
    except ValueError as error:
        raise Invalid(f"the body is no Arrow stream. got={error}") from error
    _check_nested(table)
    if any(is_view(field.type) for field in table.schema):
        return Checked(table.num_rows, stream_of(_without_views(table)))
    return Checked(table.num_rows, body)


def check_csv(body: bytes, key: tuple[str, ...], event_bytes_max: int, *, infers_times: bool = False) -> Checked:
    """CSV with a header: see `wire/rows_csv.py`. Raises Invalid."""
    from mainstem.wire.rows_csv import read_csv

    table = read_csv(body, infers_times=infers_times)
    _check_schema(table.schema, key)
    if table.num_rows == 0:
        raise Invalid("there are no rows. expected=at least 1 got=0", reason="no_rows")
    # The header is line 1.
    _check_keys(table, key, first=2, unit="line")
    _check_sizes(table, event_bytes_max)
    return Checked(table.num_rows, stream_of(table))


def stream_of(table: pa.Table) -> bytes:
    """A table as the bytes of an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=65_536)
    return bytes(sink.getvalue())


def batches_of(body: bytes | memoryview) -> Iterator[pa.RecordBatch]:
    """The batches of a stream that was checked. Raises ValueError where it is none."""
    try:
        # A copy: in a log's file it lies at any address, and Arrow wants its buffers at even ones.
        yield from pa.ipc.open_stream(pa.py_buffer(bytes(body)))
    except pa.ArrowException as error:
        raise ValueError(f"Arrow stream. got={error}") from error


def _refuse_compression(body: bytes) -> None:
    """Look at the messages' heads, before a buffer is made of anything."""
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
        if _is_compressed(memoryview(message.metadata)):
            raise Invalid(
                "the Arrow stream has compressed buffers. expected=none: write it without compression",
                reason="compressed",
            )


def _is_compressed(head: memoryview) -> bool:
    """By the flatbuffer of a message: Message { version, header_type, header }, RecordBatch { length, nodes, buffers,
    compression }, DictionaryBatch { id, data }."""
    root = struct.unpack_from("<I", head, 0)[0]
    kind_at = _field(head, root, 1)
    kind = head[kind_at] if kind_at else 0
    batch_at = _field(head, root, 2)
    if kind not in (_RECORD_BATCH, _DICTIONARY_BATCH) or not batch_at:
        return False
    batch = batch_at + struct.unpack_from("<I", head, batch_at)[0]
    if kind == _DICTIONARY_BATCH:
        data_at = _field(head, batch, 1)
        if not data_at:
            return False
        batch = data_at + struct.unpack_from("<I", head, data_at)[0]
    return bool(_field(head, batch, 3))


def _field(head: memoryview, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table lies; 0 where it is not there."""
    vtable = table - struct.unpack_from("<i", head, table)[0]
    size = struct.unpack_from("<H", head, vtable)[0]
    slot = 4 + 2 * number
    offset: int = struct.unpack_from("<H", head, vtable + slot)[0] if slot + 2 <= size else 0
    return table + offset if offset else 0


# Checks


def _check_schema(schema: pa.Schema, key: tuple[str, ...]) -> None:
    names = schema.names
    if len(names) > COLUMNS_MAX:
        raise Invalid(f"too many columns. expected=at most {COLUMNS_MAX} got={len(names)}")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise Invalid(f"a column stands twice. got={twice[:5]}")
    if missing := [name for name in key if name not in names]:
        raise Invalid(f"the key columns are not there. expected={missing} got={names[:20]}", reason="no_key")
    for field in schema:
        if not _is_known(field.type):
            raise Invalid(
                f"a column's type cannot be kept. column={field.name!r} expected=a number, text, binary, decimal of at "
                f"most {DECIMAL_PRECISION_MAX} digits, date, time, timestamp, list, struct or map got={field.type}",
                reason="unknown_type",
            )
        if field.name in key and pa.types.is_nested(field.type):
            raise Invalid(f"a key column is nested. column={field.name!r} got={field.type}", reason="no_key")


def _is_known(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        return is_text(kind.value_type) and not is_view(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_known_within(kind.value_type)
    if types.is_struct(kind):
        return all(_is_known_within(kind.field(number).type) for number in range(kind.num_fields))
    if types.is_map(kind):
        return _is_known_within(kind.key_type) and _is_known_within(kind.item_type)
    if types.is_decimal(kind):
        return bool(kind.precision <= DECIMAL_PRECISION_MAX and 0 <= kind.scale <= kind.precision)
    return bool(
        is_text(kind)
        or is_binary(kind)
        or types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_date(kind)
        or types.is_time(kind)
        or types.is_timestamp(kind)
        or types.is_null(kind)
    )


def _is_known_within(kind: pa.DataType) -> bool:
    """Dictionaries and views deep inside could become any size."""
    return _is_known(kind) and not pa.types.is_dictionary(kind) and not is_view(kind)


def _check_keys(table: pa.Table, key: tuple[str, ...], *, first: int, unit: str = "row") -> None:
    import pyarrow.compute as pc

    for name in key:
        column = table.column(name)
        if column.null_count:
            number = pc.index(column.is_null(), True).as_py() + first
            raise Invalid(
                f"{unit} {number} lacks its key. expected=a value in column {name!r} got=null", reason="no_key"
            )
        if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column.cast(pa.float64()))).as_py():
            raise Invalid(f"a key is no number. column={name!r} got=NaN or infinite", reason="no_key")


def _check_sizes(table: pa.Table, event_bytes_max: int) -> None:
    """Rows that are larger than a change may be; and what would grow beyond all bounds when it is written out."""
    widths = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        place = 0
        for chunk in column.chunks:
            sizes = _lengths(chunk)
            if sizes is not None:
                widths[place : place + len(chunk)] += sizes
            place += len(chunk)
    if widths.sum() > EXPANDED_BYTES_MAX:
        raise Invalid(
            f"the rows are too large. expected=at most {EXPANDED_BYTES_MAX} bytes got={widths.sum()}",
            reason="payload_too_large",
        )
    if len(widths) and widths.max() > event_bytes_max:
        number = int(widths.argmax()) + 1
        raise Invalid(
            f"row {number} is too large. expected=at most {event_bytes_max} bytes got={widths.max()}",
            reason="event_too_large",
        )


def _lengths(chunk: pa.Array) -> Any:
    """The bytes of each text or binary of an array; None for what has a fixed size, or is nested."""
    import pyarrow.compute as pc

    kind = chunk.type
    if pa.types.is_dictionary(kind):
        sizes = pc.binary_length(chunk.dictionary).take(chunk.indices)
    elif is_view(kind):
        return _view_lengths(chunk)
    elif is_text(kind) or (is_binary(kind) and not pa.types.is_fixed_size_binary(kind)):
        sizes = pc.binary_length(chunk)
    else:
        return None
    return sizes.fill_null(0).to_numpy(zero_copy_only=False)


def _view_lengths(chunk: pa.Array) -> Any:
    """Views are sixteen bytes each: a length, four bytes of the text, a buffer's number and an offset in it; or, up to
    twelve bytes, the text itself. Arrow's own check passes over those of nulls, which a cast reads all the same."""
    _, views, *buffers = chunk.buffers()
    parts = np.frombuffer(views, np.int32, count=(chunk.offset + len(chunk)) * 4).reshape(-1, 4)[chunk.offset :]
    lengths = parts[:, 0].astype(np.int64)
    long = parts[lengths > _VIEW_INLINE_BYTES]
    sizes = np.array([0 if each is None else each.size for each in buffers] or [0], np.int64)
    numbers, offsets = long[:, 2], long[:, 3].astype(np.int64)
    is_there = (numbers >= 0) & (numbers < len(buffers)) & (offsets >= 0)
    fits = is_there & (offsets + long[:, 0] <= sizes[np.where(is_there, numbers, 0)])
    if (lengths < 0).any() or not fits.all():
        raise Invalid("the Arrow stream has views of what is not there")
    return lengths


def _without_views(table: pa.Table) -> pa.Table:
    """Views as plain texts and binaries: what is stored is what every reader has."""
    fields = [
        pa.field(field.name, pa.string() if pa.types.is_string_view(field.type) else pa.binary())
        if is_view(field.type)
        else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))
