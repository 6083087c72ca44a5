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

import math
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from mainstem.model.errors import Invalid
from mainstem.wire.rows import Checked

COLUMNS_MAX = 1_000
NAME_CHARS_MAX = 1_024
# What dictionaries and views may become when they are written out.
EXPANDED_BYTES_MAX = 512 * 1024 * 1024
DECIMAL_PRECISION_MAX = 38
_NESTED_ROWS = 4_096
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
    if any(_is_view(field.type) for field in table.schema):
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


def column_types(batch: pa.RecordBatch) -> dict[str, set[str]]:
    """What each column's values are, in the words of a segment's footer: JSON types, or the type that the column should
    have where JSON has none."""
    return {field.name: _types(field.type, column) for field, column in zip(batch.schema, batch.columns, strict=True)}


def json_texts(batch: pa.RecordBatch) -> pa.StringArray:
    """Each row as a JSON object."""
    import pyarrow.compute as pc

    parts: list[Any] = []
    for number, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
        lead = b"{" if number == 0 else b","
        parts.append(lead.decode() + msgspec.json.encode(name).decode() + ":")
        parts.append(_json_values(column))
    if not parts:
        return pa.array(["{}"] * batch.num_rows, pa.string())
    return pc.binary_join_element_wise(*parts, "}", "")


def key_texts(batch: pa.RecordBatch, key: tuple[str, ...]) -> pa.StringArray:
    """Each row's key, by the rule of `model.keys`."""
    if len(key) > 1:
        return json_texts(batch.select(sorted(key)))
    column = _plain(batch.column(key[0]))
    if pa.types.is_string(column.type):
        return column
    texts = _json_values(column)
    if _is_quoted(column.type):
        import pyarrow.compute as pc

        return pc.utf8_slice_codeunits(texts, 1, -1)
    return texts


def not_finite(batch: pa.RecordBatch) -> dict[int, str]:
    """The rows with a number that JSON cannot hold, and which column it is."""
    import pyarrow.compute as pc

    found: dict[int, str] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not pa.types.is_floating(column.type):
            continue
        bad = pc.invert(pc.is_finite(column.cast(pa.float64())))
        for index in pc.indices_nonzero(bad.fill_null(False)).to_pylist():
            found.setdefault(index, f"column {name!r} is not a number that JSON can hold. got={column[index].as_py()}")
    return found


# Reading


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
        return _is_text(kind.value_type) and not _is_view(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_known_within(kind.value_type)
    if types.is_struct(kind):
        return all(_is_known_within(kind.field(number).type) for number in range(kind.num_fields))
    if types.is_map(kind):
        return _is_known_within(kind.key_type) and _is_known_within(kind.item_type)
    if types.is_decimal(kind):
        return bool(kind.precision <= DECIMAL_PRECISION_MAX and 0 <= kind.scale <= kind.precision)
    return bool(
        _is_text(kind)
        or _is_binary(kind)
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
    return _is_known(kind) and not pa.types.is_dictionary(kind) and not _is_view(kind)


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
    elif _is_view(kind):
        return _view_lengths(chunk)
    elif _is_text(kind) or (_is_binary(kind) and not pa.types.is_fixed_size_binary(kind)):
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
        if _is_view(field.type)
        else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


# Values


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _is_quoted(kind: pa.DataType) -> bool:
    """Whether JSON has such a value as a string without anything to escape."""
    types = pa.types
    return bool(types.is_temporal(kind) or types.is_decimal(kind) or _is_binary(kind))


def _plain(column: pa.Array) -> pa.Array:
    """Texts as plain strings, instants in UTC."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if _is_text(kind):
        return column if pa.types.is_string(kind) else column.cast(pa.string())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", None if kind.tz is None else "UTC"), safe=False)
    if pa.types.is_date64(kind):
        return column.cast(pa.date32(), safe=False)
    return column


def _types(kind: pa.DataType, column: pa.Array) -> set[str]:
    types = pa.types
    found = {"null"} if column.null_count else set()
    if types.is_boolean(kind):
        found.add("bool")
    elif types.is_integer(kind):
        found |= _integer_types(column)
    elif types.is_floating(kind):
        found.add("double")
    elif types.is_decimal(kind):
        found.add(f"decimal({kind.precision},{kind.scale})")
    elif types.is_date(kind):
        found.add("date")
    elif types.is_timestamp(kind):
        found.add("timestamp" if kind.tz is None else "timestamptz")
    elif _is_binary(kind):
        found.add("binary")
    elif types.is_struct(kind):
        found.add("object")
    elif types.is_nested(kind) and not types.is_dictionary(kind):
        found.add("array")
    elif not types.is_null(kind):
        found.add("string")
    return found


def _integer_types(column: pa.Array) -> set[str]:
    import pyarrow.compute as pc

    bounds = pc.min_max(column).as_py()
    if bounds["min"] is None:
        return {"int"}
    found = set()
    for value in bounds.values():
        safe = -(1 << 53) <= value <= 1 << 53
        found.add("int" if safe else "long" if value < 1 << 63 else "big")
    return found


def _json_values(column: pa.Array) -> pa.StringArray:
    """Each value as JSON text; a null as null."""
    import pyarrow.compute as pc

    column = _plain(column)
    kind = column.type
    if pa.types.is_null(kind):
        return pa.array(["null"] * len(column), pa.string())
    if pa.types.is_string(kind):
        texts = _quoted(_escaped(column))
    elif pa.types.is_nested(kind):
        texts = _nested(column)
    elif _is_binary(kind):
        values = column.cast(pa.binary()).to_pylist()
        texts = pa.array([None if value is None else _base64(value) for value in values], pa.string())
    elif _is_quoted(kind):
        texts = _quoted(column.cast(pa.string()))
    elif pa.types.is_floating(kind):
        numbers = column.cast(pa.float64())
        # What JSON cannot hold is null here; `not_finite` tells which rows these are.
        finite = pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float64()))
        texts = finite.cast(pa.string())
    else:
        texts = column.cast(pa.string())
    return texts.fill_null("null") if texts.null_count else texts


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise('"', texts, '"', "")


def _escaped(texts: pa.StringArray) -> pa.StringArray:
    import pyarrow.compute as pc

    if not pc.any(pc.match_substring_regex(texts, r'["\\\x00-\x1f]')).as_py():
        return texts
    if pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
        encode = msgspec.json.encode
        return pa.array(
            [None if text is None else encode(text).decode()[1:-1] for text in texts.to_pylist()], pa.string()
        )
    return pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')


def _nested(column: pa.Array) -> pa.StringArray:
    """Value by value: nested values are few, and Arrow has no JSON."""
    texts: list[str | None] = []
    for start in range(0, len(column), _NESTED_ROWS):
        for value in column.slice(start, _NESTED_ROWS).to_pylist():
            texts.append(None if value is None else msgspec.json.encode(_json_value(value), order=None).decode())
    return pa.array(texts, pa.string())


def _json_value(value: Any) -> Any:
    match value:
        case dict():
            return {str(name): _json_value(each) for name, each in value.items()}
        case list() | tuple():
            return [_json_value(each) for each in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def _base64(value: bytes) -> str:
    import binascii

    return '"' + binascii.b2a_base64(value, newline=False).decode() + '"'
