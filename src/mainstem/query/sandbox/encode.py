"""Result batches as JSON, CSV, Arrow and Parquet bytes. Runs in worker threads; knows nothing of HTTP.

How values look in JSON (the guide has the same table):

    whole numbers        a number up to 2^53 - 1 either way, a string beyond
    DECIMAL              a string, with all its digits
    FLOAT, DOUBLE        a number; "NaN", "Infinity" and "-Infinity" as strings
    DATE, TIME           "2026-01-31", "23:59:59.000000"
    TIMESTAMP            "2026-01-31T23:59:59.000000"; with time zone: in UTC, with a Z
    INTERVAL             {"months": 0, "days": 3, "nanoseconds": 0}
    BLOB, BIT            base64
    LIST, STRUCT, MAP    an array, an object, an array of [key, value]
    VARIANT              the value that it holds
    everything else      its text
"""

import base64
import io
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv as pacsv

SAFE_INTEGER_MAX = (1 << 53) - 1
VARIANT = "VARIANT"
# On a field whose text is the JSON of a Variant.
_MARK = {b"mainstem.variant": b"json"}


def with_json_marked(schema: pa.Schema, types: Sequence[str]) -> pa.Schema:
    """The schema of an answer, with a mark on the text that stands for Variants."""
    fields = zip(schema, types, strict=True)
    return pa.schema([pa.field(f.name, pa.string(), f.nullable, _MARK) if kind == VARIANT else f for f, kind in fields])


def json_rows(batch: pa.RecordBatch) -> list[bytes]:
    """Each row as the bytes of a JSON array."""
    if batch.num_columns == 0:
        return []
    values = [
        _decoded_json(column) if field.metadata == _MARK else plain_values(column)
        for column, field in zip(batch.columns, batch.schema, strict=True)
    ]
    return [msgspec.json.encode(row) for row in zip(*values, strict=True)]


def csv_bytes(batch: pa.RecordBatch, *, header: bool) -> bytes:
    """The rows as CSV; strings are quoted, a null is empty."""
    columns = [_csv_column(column) for column in batch.columns]
    sink = pa.BufferOutputStream()
    plain = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
    pacsv.write_csv(plain, sink, pacsv.WriteOptions(include_header=header))
    return bytes(sink.getvalue())


class ArrowPieces:
    """An Arrow stream, piece by piece."""

    def __init__(self, schema: pa.Schema) -> None:
        # An enum is text to its reader; a stream with dictionaries would have to send each of them first.
        self._schema = pa.schema([_decoded(field) for field in schema])
        self._head = len(self._schema.serialize())
        self._started = False

    def batch(self, batch: pa.RecordBatch) -> bytes:
        """The bytes of the next batch, after the schema's the first time."""
        arrays = [column.cast(field.type) for column, field in zip(batch.columns, self._schema, strict=True)]
        return self._piece(pa.RecordBatch.from_arrays(arrays, schema=self._schema), None, last=False)

    def end(self, metadata: dict[str, str]) -> bytes:
        """An empty last batch that carries what is only known at the end, and the end mark."""
        arrays = [pa.array([], field.type) for field in self._schema]
        return self._piece(pa.RecordBatch.from_arrays(arrays, schema=self._schema), metadata, last=True)

    def _piece(self, batch: pa.RecordBatch, metadata: dict[str, str] | None, *, last: bool) -> bytes:
        # A writer of its own puts the schema first and the end mark last: what does not belong is cut off.
        sink = pa.BufferOutputStream()
        writer = pa.ipc.new_stream(sink, self._schema)
        writer.write_batch(batch, custom_metadata=metadata)
        tail = sink.tell()
        writer.close()
        data = bytes(sink.getvalue())
        start = self._head if self._started else 0
        self._started = True
        return data[start:] if last else data[start:tail]


class ParquetPieces:
    """A Parquet file, piece by piece: a row group for each batch."""

    def __init__(self, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        # As in an Arrow stream: an enum is text to its reader.
        self._schema = pa.schema([_decoded(field) for field in schema])
        self._sink = _Sink()
        self._writer = pq.ParquetWriter(pa.PythonFile(self._sink, mode="w"), self._schema, compression="zstd")

    def batch(self, batch: pa.RecordBatch) -> bytes:
        """The bytes of the next row group, after the file's first bytes the first time."""
        arrays = [column.cast(field.type) for column, field in zip(batch.columns, self._schema, strict=True)]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        return self._sink.take()

    def end(self, metadata: dict[str, str]) -> bytes:
        """The footer, with what is only known at the end."""
        self._writer.add_key_value_metadata(metadata)
        self._writer.close()
        return self._sink.take()


class _Sink(io.RawIOBase):
    """A file that is only written to, and handed on while it is."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def take(self) -> bytes:
        """What was written since the last time."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


def _decoded_json(column: pa.Array) -> list[Any]:
    return [None if text is None else _plain(_value_of(text)) for text in column.to_pylist()]


def _value_of(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        # NaN and the infinities have no JSON.
        return text


def _decoded(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def plain_values(column: pa.Array) -> list[Any]:
    """The column's values as JSON carries them."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_map(kind):
        return [_pairs(entries) for entries in column.to_pylist()]
    for applies, convert in _CONVERSIONS:
        if applies(kind):
            return convert(column)
    return [_plain(value) for value in column.to_pylist()]


def _pairs(entries: list[tuple[Any, Any]] | None) -> list[Any] | None:
    return None if entries is None else [[_plain(key), _plain(value)] for key, value in entries]


def _texts(column: pa.Array) -> list[Any]:
    return list(column.cast(pa.string()).to_pylist())


def _timestamps(column: pa.Array) -> list[Any]:
    return [text.replace(" ", "T") if text else None for text in _texts(column)]


def _decimals(column: pa.Array) -> list[Any]:
    if column.type.scale == 0 and column.type.precision == 38:
        # DuckDB's HUGEINT, which sums are: a whole number to its reader.
        return [_integer(int(value)) if value is not None else None for value in column.to_pylist()]
    return _texts(column)


def _floats(column: pa.Array) -> list[Any]:
    # Not above: it takes a tenth of a second, which the gateway's start can do without.
    import pyarrow.compute as pc

    values = list(column.to_pylist())
    return [_plain(value) for value in values] if pc.all(pc.is_finite(column)).as_py() is False else values


def _is_simple(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_null(kind)
    )


def _safe_integers(column: pa.Array) -> list[Any]:
    import pyarrow.compute as pc

    bounds = pc.min_max(column).as_py()
    if bounds["min"] is None or (bounds["min"] >= -SAFE_INTEGER_MAX and bounds["max"] <= SAFE_INTEGER_MAX):
        return list(column.to_pylist())
    return [None if value is None else _integer(value) for value in column.to_pylist()]


def _integer(value: int) -> int | str:
    return value if -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX else str(value)


def _plain(value: Any) -> Any:
    """One value, nested or not. Nested timestamps come as datetimes, and take the same form as the others."""
    match value:
        case None | bool() | str():
            plain: Any = value
        case int():
            plain = _integer(value)
        case float():
            plain = value if math.isfinite(value) else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
        case Decimal():
            plain = str(value)
        case bytes():
            plain = base64.b64encode(value).decode()
        case pa.MonthDayNano():
            plain = {"months": value.months, "days": value.days, "nanoseconds": value.nanoseconds}
        case dict():
            plain = {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            plain = [_plain(each) for each in value]
        case _:
            text = value.isoformat(timespec="microseconds") if hasattr(value, "hour") else str(value)
            plain = text.replace("+00:00", "Z")
    return plain


_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[Any]]], ...] = (
    (lambda kind: pa.types.is_int64(kind) or pa.types.is_uint64(kind), _safe_integers),
    (_is_simple, lambda column: list(column.to_pylist())),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_floating, _floats),
    (pa.types.is_timestamp, _timestamps),
    (lambda kind: pa.types.is_date(kind) or pa.types.is_time(kind), _texts),
)


def _csv_column(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column.cast(kind.value_type)
    if _is_simple(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return column
    if pa.types.is_nested(kind) or pa.types.is_interval(kind):
        values = [None if value is None else msgspec.json.encode(value).decode() for value in plain_values(column)]
        return pa.array(values, pa.string())
    return pa.array(plain_values(column), pa.string())
