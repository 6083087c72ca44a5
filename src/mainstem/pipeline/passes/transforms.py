"""Iceberg's partition transforms over Arrow columns, and how partition values are written."""

import datetime as dt
from base64 import b64encode
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa

from mainstem.tables.partitions import HOUR_OF_DAY, PartitionField, shown
from mainstem.tables.types import ColumnType, decimal_of

_EPOCH = dt.date(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_TIMES = frozenset(("timestamp", "timestamptz"))


class Partitioned(NamedTuple):
    """The partition value of every row: a code per row, and the value of each code."""

    codes: np.ndarray
    values: list[Any]


def apply_transform(transform: str, source_type: ColumnType, column: pa.Array) -> Partitioned:
    """Partition values as Iceberg keeps them: days since 1970, hours since then, a bucket's number, a text's start."""
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    encoded = storage.dictionary_encode()
    take = _function(transform, source_type)
    distinct = [take(_stored(value, source_type)) for value in encoded.dictionary.to_pylist()]
    # Values that fall into one partition share its code. A null is a partition too.
    number_of: dict[Any, int] = {None: 0}
    codes_of = np.array([number_of.setdefault(value, len(number_of)) for value in distinct], np.int64)
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    if encoded.null_count:
        indices = np.where(np.isnan(indices), -1, indices).astype(np.int64)
    codes = np.append(codes_of, 0)[indices]
    return Partitioned(codes, list(number_of))


def partition_json(transform: str, source_type: ColumnType, value: Any) -> Any:
    """A partition value in the JSON of Iceberg's metadata."""
    if value is None:
        return None
    if transform == "day" or (transform == "identity" and source_type == "date"):
        return (_EPOCH + dt.timedelta(days=value)).isoformat()
    if transform in ("year", "month", "hour") or transform.startswith("bucket"):
        return int(value)
    if source_type in _TIMES:
        moment = dt.datetime(1970, 1, 1) + value * _MICROSECOND
        return moment.isoformat(timespec="microseconds") + ("+00:00" if source_type == "timestamptz" else "")
    if isinstance(value, bytes):
        return str(UUID(bytes=value)) if source_type == "uuid" else value.hex().upper()
    return str(value) if decimal_of(source_type) else value


def delta_value(transform: str, source_type: ColumnType, value: Any) -> Any:
    """A partition value as a column of a Delta table keeps it: days as dates, years as numbers."""
    if value is None:
        return None
    if transform == "day" or source_type == "date":
        return _EPOCH + dt.timedelta(days=value) if transform in ("day", "identity") else _shown(transform, value)
    if transform == "identity" and source_type in _TIMES:
        moment = dt.datetime(1970, 1, 1) + value * _MICROSECOND
        return moment.replace(tzinfo=dt.UTC) if source_type == "timestamptz" else moment
    return _shown(transform, value)


def _shown(transform: str, value: Any) -> Any:
    if transform == "year":
        return 1970 + int(value)
    if transform in ("month", "hour", HOUR_OF_DAY):
        return shown(PartitionField("", transform, "", ""), value)
    return value


def partition_text(transform: str, source_type: ColumnType, value: Any) -> str:
    """A partition value as folders are named."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return shown(PartitionField("", transform.partition("[")[0], "", source_type), value)


def _stored(value: Any, source_type: ColumnType) -> Any:
    """A value as Iceberg's transforms take it: numbers for dates and times."""
    if value is None:
        return None
    if source_type == "date":
        return (value - _EPOCH).days
    if source_type in _TIMES:
        return (value.replace(tzinfo=None) - dt.datetime(1970, 1, 1)) // _MICROSECOND
    return value


def _function(transform: str, source_type: ColumnType) -> Callable[[Any], Any]:
    # Imported where a table is partitioned: pyiceberg takes its time.
    from pyiceberg.transforms import parse_transform
    from pyiceberg.types import NestedField

    size = decimal_of(source_type)
    if transform == "identity":
        return lambda value: value
    name = f"decimal({size[0]}, {size[1]})" if size else str(source_type)
    iceberg_type = NestedField.model_validate({"id": 1, "name": "source", "type": name, "required": False}).field_type
    take: Callable[[Any], Any] = parse_transform(transform).transform(iceberg_type)
    return take
