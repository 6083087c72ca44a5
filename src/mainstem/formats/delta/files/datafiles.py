"""Writing data files of a table: Parquet, with the statistics that the log keeps of each."""

import datetime as dt
import decimal
import hashlib
import json
import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mainstem.formats.delta.schema import AT, TableSchema
from mainstem.formats.delta.storage import Storage
from mainstem.formats.delta.values.exact import refused
from mainstem.formats.delta.values.shredding import shreds, write_shredded
from mainstem.model.errors import Invalid

# Delta's writers keep statistics of this many columns unless the table says otherwise.
_INDEXED_COLUMNS = 32
_TEXT_LENGTH_MAX = 32
# Few enough for zone maps to leave out much of a file, and enough for what a group costs by itself.
ROW_GROUP_ROWS = 16_384
# With fewer repeats than this among so many rows, a column has about 50,000 values or more.
_SAMPLE_ROWS = 2_048
_VARIED_SHARE_MIN = 0.98
# Arrow cannot take from every type.
_SAMPLED = (
    pa.types.is_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_string,
    pa.types.is_large_string,
)
# Of a partition's folder; disks take 255.
_FOLDER_BYTES_MAX = 200
# Moments and days that Python, and with it most readers, can show: years 1 to 9999.
_MOMENTS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_DAYS = (-719_162, 2_932_896)
# Partitions that one commit may open files in.
PARTITIONS_MAX = 10_000


def write_files(
    storage: Storage, table: str, schema: TableSchema, rows: pa.Table, now_ms: int, folder: str = ""
) -> list[dict[str, Any]]:
    """Write rows as one durable file per partition; returns what `add` says of each. A commit makes them visible."""
    added: list[dict[str, Any]] = []
    try:
        for values, part in _by_partition(rows, schema.partition_by):
            if part.num_rows:
                added.append(_write(storage, table, schema, part, values, now_ms, folder))
    except BaseException:
        for add in added:
            storage.delete(f"{table}/{unquote(add['path'])}")
        raise
    storage.sync(f"{table}/{unquote(add['path'])}" for add in added)
    return added


def _by_partition(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    if not names:
        yield {}, rows
        return
    # By their places: a comparison with the value would miss NaN, and take 0.0 for -0.0.
    numbered = rows.select(list(names)).append_column(AT, pa.array(np.arange(rows.num_rows)))
    groups = numbered.group_by(list(names)).aggregate([(AT, "list")])
    if groups.num_rows > PARTITIONS_MAX:
        raise Invalid(f"too many partitions at once. expected=at most {PARTITIONS_MAX} got={groups.num_rows}")
    stored = rows.drop_columns(list(names))
    for key, places in zip(groups.select(list(names)).to_pylist(), groups[f"{AT}_list"], strict=True):
        yield key, stored.take(places.values)


def _write(
    storage: Storage,
    table: str,
    schema: TableSchema,
    rows: pa.Table,
    values: Mapping[str, Any],
    now_ms: int,
    folder: str,
) -> dict[str, Any]:
    texts = {schema.fields[name].physical: partition_text(value, name) for name, value in values.items()}
    name = f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
    below = [_folder(column, text) for column, text in texts.items()]
    path = "/".join(part for part in (folder, *below, name) if part)
    physical = [schema.fields[column].physical if column in schema.fields else column for column in rows.column_names]
    for column in rows.column_names:
        _check_moments(column, rows[column].combine_chunks())
    stored = _with_whole_variants(rows, schema).rename_columns(physical).replace_schema_metadata(None)
    variants = [field.physical for field in schema.fields.values() if field.is_variant]
    storage.make_folder(f"{table}/{path}".rpartition("/")[0])
    if shreds(schema):
        write_shredded(storage, f"{table}/{path}", stored, variants)
    else:
        _write_plain(storage, f"{table}/{path}", stored)
    size = storage.files.get_file_info(f"{table}/{path}").size
    return {
        # The log writes paths as URLs do.
        "path": quote(path, safe="/=-_.~"),
        "partitionValues": texts,
        "size": size,
        "modificationTime": now_ms,
        "dataChange": True,
        "stats": json.dumps(_stats(stored)),
    }


def _check_moments(name: str, cells: pa.Array | pa.ChunkedArray) -> None:
    """Refuse moments that could be stored, and not be read again, at any depth."""
    types, kind = pa.types, cells.type
    if types.is_timestamp(kind) or types.is_date32(kind):
        low, high = _DAYS if types.is_date32(kind) else _MOMENTS
        numbers = pc.min_max(cells.cast(pa.int32() if types.is_date32(kind) else pa.int64())).as_py()
        if numbers["min"] is not None and not low <= numbers["min"] <= numbers["max"] <= high:
            raise refused(name, kind, f"expected=a moment in the years 1 to 9999 got={numbers}")
    elif types.is_struct(kind):
        for number in range(kind.num_fields):
            _check_moments(name, pc.struct_field(cells, [number]))
    elif types.is_map(kind):
        for chunk in cells.chunks if isinstance(cells, pa.ChunkedArray) else [cells]:
            _check_moments(name, chunk.keys)
            _check_moments(name, chunk.items)
    elif types.is_list(kind) or types.is_large_list(kind):
        _check_moments(name, pc.list_flatten(cells))


def _write_plain(storage: Storage, path: str, rows: pa.Table) -> None:
    schema = _without_metadata(rows.schema)
    # Arrow is told which columns have a dictionary, and knows the leaves of nested ones by names of its own.
    nested = any(pa.types.is_nested(field.type) for field in schema)
    dictionaries = True if nested else sorted({*schema.names} - varied(rows))
    with (
        storage.files.open_output_stream(path) as sink,
        pq.ParquetWriter(
            sink, schema, compression="zstd", coerce_timestamps="us", store_schema=False, use_dictionary=dictionaries
        ) as writer,
    ):
        writer.write_table(rows.cast(schema), ROW_GROUP_ROWS)


def varied(rows: pa.Table) -> set[str]:
    """The columns whose values hardly ever repeat: a dictionary of them takes time and room and saves neither."""
    names = [field.name for field in rows.schema if any(test(field.type) for test in _SAMPLED)]
    places = np.linspace(0, rows.num_rows - 1, min(rows.num_rows, _SAMPLE_ROWS)).astype(np.int64)
    sample = rows.select(names).take(places)
    return {name for name in names if len(sample[name].unique()) > _VARIED_SHARE_MIN * len(places)}


# In a file the two parts of a Variant are never null, only the whole is.
_STORED_VARIANT = [pa.field("metadata", pa.binary(), False), pa.field("value", pa.binary(), False)]


def _with_whole_variants(rows: pa.Table, schema: TableSchema) -> pa.Table:
    for at, name in enumerate(rows.column_names):
        if name not in schema.fields or not schema.fields[name].is_variant:
            continue
        column = rows[name].combine_chunks()
        parts = [pc.fill_null(pc.struct_field(column, part), b"") for part in ("metadata", "value")]
        stored = pa.StructArray.from_arrays(parts, fields=_STORED_VARIANT, mask=column.is_null())
        rows = rows.set_column(at, pa.field(name, stored.type), stored)
    return rows


def _without_metadata(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in schema])


def partition_text(value: Any, column: str = "") -> str | None:
    """A partition's value as the log keeps it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        plain = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
        return plain.isoformat(sep=" ", timespec="microseconds")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return _partition_bytes(value, column)
    return str(value)


def _partition_bytes(value: bytes, column: str) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    if not text:
        # The log keeps texts, and takes an empty one for a null.
        raise refused(column, "binary", f"a partition's bytes are text. expected=UTF-8 got={value!r:.80}")
    return text


def _folder(column: str, text: str | None) -> str:
    """The folder of a partition: readers take its value from the log, so a name too long for a disk may be another."""
    name = f"{column}={_escaped(text)}"
    if len(name.encode()) <= _FOLDER_BYTES_MAX:
        return name
    return f"long={hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"


def _escaped(text: str | None) -> str:
    # As Hive and Spark name such folders.
    return "__HIVE_DEFAULT_PARTITION__" if text is None or text == "" else quote(text, safe=" -_.~")


def _stats(rows: pa.Table) -> dict[str, Any]:
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in rows.column_names[:_INDEXED_COLUMNS]:
        column = rows[name]
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        bounds = _bounds(column)
        if bounds is not None:
            low[name], high[name] = bounds
    return {"numRecords": rows.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any] | None:  # noqa: PLR0911 - case by case
    types = pa.types
    kind = column.type
    if types.is_boolean(kind) or types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return None
    found = pc.min_max(column).as_py()
    low, high = found["min"], found["max"]
    if low is None:
        return None
    if isinstance(low, float):
        # Engines hold NaN for the largest number, Arrow leaves it out of the bounds: then they would be wrong.
        if pc.any(pc.is_nan(column)).as_py() or not (math.isfinite(low) and math.isfinite(high)):
            return None
        return low, high
    if isinstance(low, str):
        return low[:_TEXT_LENGTH_MAX], _above(high)
    if isinstance(low, dt.datetime):
        return _moment(low, up=False), _moment(high, up=True)
    if isinstance(low, dt.date):
        return low.isoformat(), high.isoformat()
    if isinstance(low, decimal.Decimal):
        # JSON's numbers pass through doubles in many readers; a little room keeps the bounds true.
        return math.nextafter(float(low), -math.inf), math.nextafter(float(high), math.inf)
    return low, high


def _above(text: str) -> str:
    return text if len(text) <= _TEXT_LENGTH_MAX else text[:_TEXT_LENGTH_MAX] + "\U0010ffff"


def _moment(value: dt.datetime, *, up: bool) -> str:
    if up and value.microsecond % 1000 and value.year < dt.MAXYEAR:
        value += dt.timedelta(milliseconds=1)
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return f"{text}Z" if value.tzinfo is not None else text
