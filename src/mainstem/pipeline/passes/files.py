"""Data files of Iceberg tables: Arrow rows in, Parquet files with Iceberg's field ids out, and their descriptions.

A file is no part of its table before a commit names it. One that no commit took is an orphan, like any other writer's.
"""

import datetime as dt
import decimal
import hashlib
import math
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mainstem.model.errors import Invalid
from mainstem.pipeline.passes.plan import IcebergTarget
from mainstem.pipeline.passes.stores import new_file
from mainstem.pipeline.passes.transforms import apply_transform, partition_json, partition_text
from mainstem.pipeline.passes.values import arrow_type
from mainstem.tables.parquet import ROW_GROUP_BYTES_DEFAULT, Codec, WriterOptions
from mainstem.tables.partitions import shown_transforms
from mainstem.tables.types import ColumnType, decimal_of

# Partitions that the rows of one task may fall into.
PARTITIONS_MAX = 10_000
# Iceberg keeps so much of a text in its bounds, and bounds of so many columns.
_BOUND_LENGTH = 16
_BOUND_COLUMNS_MAX = 100
_ROW_GROUP_ROWS = 122_880
# Of a partition's folder; disks take 255 bytes.
_FOLDER_LENGTH_MAX = 200
# Where a table asks for no level: a batch is read again soon, and higher levels save little.
_ZSTD_LEVEL = 1
# A column of which fewer than one value in this many repeats is written without a dictionary.
_REPEATS_MIN = 2
_SAMPLE_ROWS = 2_048
_EPOCH = dt.date(1970, 1, 1)


class WrittenFile(NamedTuple):
    """A file, as a manifest describes it, and which of the rows it holds."""

    description: dict[str, Any]
    rows: np.ndarray
    bytes: int


def write_files(target: IcebergTarget, rows: pa.Table, store: Mapping[str, str]) -> list[WrittenFile]:
    """Write rows, whose columns are the table's, as one file per partition."""
    return [
        _write(target, rows if numbers is None else rows.take(pa.array(numbers)), values, numbers, store)
        for values, numbers in _by_partition(target, rows)
    ]


def _by_partition(target: IcebergTarget, rows: pa.Table) -> Iterator[tuple[list[Any], np.ndarray | None]]:
    if not rows.num_rows:
        return
    if not target.partition:
        yield [], None
        return
    types = {name: column_type for name, column_type, _ in target.fields}
    codes = np.zeros(rows.num_rows, np.int64)
    dictionaries: list[list[Any]] = []
    for field in target.partition:
        found = apply_transform(field.transform, types[field.source], rows[field.source].combine_chunks())
        codes = codes * len(found.values) + found.codes
        dictionaries.append(found.values)
    distinct, members = np.unique(codes, return_inverse=True)
    if len(distinct) > PARTITIONS_MAX:
        raise Invalid(f"too many partitions at once. expected=at most {PARTITIONS_MAX} got={len(distinct)}")
    order = np.argsort(members, kind="stable")
    starts = np.searchsorted(members[order], np.arange(len(distinct) + 1))
    for number, code in enumerate(distinct.tolist()):
        values: list[Any] = []
        rest = code
        for dictionary in reversed(dictionaries):
            rest, at = divmod(rest, len(dictionary))
            values.insert(0, dictionary[at])
        yield values, order[starts[number] : starts[number + 1]]


def _write(
    target: IcebergTarget, rows: pa.Table, values: Sequence[Any], numbers: np.ndarray | None, store: Mapping[str, str]
) -> WrittenFile:
    types = {name: column_type for name, column_type, _ in target.fields}
    pairs = list(zip(target.partition, values, strict=True))
    folders = [
        _folder(field.name, transform, types[field.source], value)
        for (field, value), transform in zip(pairs, shown_transforms(target.partition), strict=True)
    ]
    location = "/".join((target.location, *folders, f"{uuid.uuid4()}.parquet"))
    schema = pa.schema(
        [
            pa.field(name, _stored_type(column_type), metadata={"PARQUET:field_id": str(field_id)})
            for name, column_type, field_id in target.fields
        ]
    )
    stored = pa.table([rows[name].cast(schema.field(name).type) for name in schema.names], schema=schema)
    with new_file(location, store) as sink:
        with pq.ParquetWriter(sink, schema, **_writer_settings(target.options, stored)) as writer:
            writer.write_table(stored, _row_group_rows(target.options, stored))
        size = sink.tell()
    description = {
        "spec-id": target.spec_id,
        "content": "data",
        "file-path": location,
        "file-format": "parquet",
        "partition": [partition_json(field.transform, types[field.source], value) for field, value in pairs],
        "file-size-in-bytes": size,
        "record-count": stored.num_rows,
        **_statistics(target, stored),
    }
    every = np.arange(rows.num_rows) if numbers is None else numbers
    return WrittenFile(description, every, size)


def _folder(name: str, transform: str, source_type: ColumnType, value: Any) -> str:
    """The folder of a partition: its value is in the manifests, so a name too long for a disk may be another."""
    folder = f"{quote(name, safe='')}={quote(partition_text(transform, source_type, value), safe='')}"
    if len(folder) <= _FOLDER_LENGTH_MAX:
        return folder
    return f"long={hashlib.blake2b(folder.encode(), digest_size=16).hexdigest()}"


def _stored_type(column_type: ColumnType) -> pa.DataType:
    return pa.uuid() if column_type == "uuid" else arrow_type(column_type)


def _writer_settings(options: WriterOptions, rows: pa.Table) -> dict[str, Any]:
    level = options.level or (_ZSTD_LEVEL if options.codec is Codec.ZSTD else None)
    settings: dict[str, Any] = {
        "compression": str(options.codec),
        "compression_level": level if options.codec in (Codec.ZSTD, Codec.GZIP) else None,
        "store_schema": False,
        "store_decimal_as_integer": True,
        "coerce_timestamps": "us",
    }
    if not any(pa.types.is_nested(field.type) for field in rows.schema):
        settings["use_dictionary"] = [name for name in rows.column_names if _repeats(rows[name])]
    return {name: value for name, value in settings.items() if value is not None}


def _row_group_rows(options: WriterOptions, rows: pa.Table) -> int:
    """How many rows a row group gets. A size in bytes is kept to by the rows' average."""
    if options.row_group_rows is not None:
        return options.row_group_rows
    if options.row_group_bytes == ROW_GROUP_BYTES_DEFAULT:
        return _ROW_GROUP_ROWS
    return max(1, options.row_group_bytes * int(rows.num_rows) // max(1, int(rows.nbytes)))


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether a dictionary of the values is worth its time, by a sample of them."""
    sample = column.slice(0, _SAMPLE_ROWS)
    storage = sample.cast(pa.binary(16)) if isinstance(column.type, pa.UuidType) else sample
    return int(pc.count_distinct(storage).as_py()) * _REPEATS_MIN <= len(sample)


def _statistics(target: IcebergTarget, rows: pa.Table) -> dict[str, Any]:
    fields = target.fields[:_BOUND_COLUMNS_MAX]
    ids = [field_id for _, _, field_id in fields]
    lower, upper = dict[int, str](), dict[int, str]()
    for name, column_type, field_id in fields:
        bounds = _bounds(rows[name], column_type)
        if bounds is not None:
            low, high = bounds
            lower[field_id] = low.hex().upper()
            if high is not None:
                upper[field_id] = high.hex().upper()
    return {
        "value-counts": {"keys": ids, "values": [rows.num_rows] * len(ids)},
        "null-value-counts": {"keys": ids, "values": [rows[name].null_count for name, _, _ in fields]},
        "lower-bounds": {"keys": list(lower), "values": list(lower.values())},
        "upper-bounds": {"keys": list(upper), "values": list(upper.values())},
    }


def _bounds(column: pa.ChunkedArray, column_type: ColumnType) -> tuple[bytes, bytes | None] | None:
    """The least and the greatest value as a manifest writes them; the second is None where no short one is greater."""
    if column_type == "variant" or column.null_count == len(column):
        return None
    if column_type == "uuid":
        column = column.cast(pa.binary(16))
    found = pc.min_max(column)
    low, high = found["min"].as_py(), found["max"].as_py()
    if column_type in ("float", "double") and (math.isnan(low) or math.isnan(high)):
        return None
    if column_type == "string":
        return low[:_BOUND_LENGTH].encode(), _text_above(high)
    if column_type == "binary":
        return low[:_BOUND_LENGTH], _bytes_above(high)
    encode = _encoder(column_type)
    return encode(low), encode(high)


def _text_above(text: str) -> bytes | None:
    if len(text) <= _BOUND_LENGTH:
        return text.encode()
    kept = list(text[:_BOUND_LENGTH])
    while kept:
        # The code points of surrogates are no characters.
        after = ord(kept[-1]) + 1
        after = 0xE000 if 0xD800 <= after <= 0xDFFF else after
        if after <= 0x10FFFF:
            return "".join((*kept[:-1], chr(after))).encode()
        kept.pop()
    return None


def _bytes_above(data: bytes) -> bytes | None:
    if len(data) <= _BOUND_LENGTH:
        return data
    kept = data[:_BOUND_LENGTH].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _encoder(column_type: ColumnType) -> Any:
    if decimal_of(column_type):
        return _decimal_bytes
    return {
        "boolean": lambda value: b"\x01" if value else b"\x00",
        "int": struct.Struct("<i").pack,
        "long": struct.Struct("<q").pack,
        "float": struct.Struct("<f").pack,
        "double": struct.Struct("<d").pack,
        "date": lambda value: struct.pack("<i", (value - _EPOCH).days),
        "timestamp": _moment_bytes,
        "timestamptz": _moment_bytes,
        "uuid": bytes,
    }[column_type]


def _moment_bytes(value: dt.datetime) -> bytes:
    since = value.replace(tzinfo=None) - dt.datetime(1970, 1, 1)
    return struct.pack("<q", since // dt.timedelta(microseconds=1))


def _decimal_bytes(value: decimal.Decimal) -> bytes:
    unscaled = int(value.scaleb(-int(value.as_tuple().exponent), decimal.Context(prec=60)))
    return unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)
