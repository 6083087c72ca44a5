"""How a partition is written: `dt=2026-01-15/bucket=3`, as Iceberg's own libraries name the folders. Pure."""

import datetime as dt
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

_EPOCH = dt.date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a partition spec, with the type of the column it is made from."""

    name: str
    transform: str
    source: str
    source_type: str


def partition_path(fields: Sequence[PartitionField], values: Sequence[Any]) -> str:
    """The name of one partition; empty for a table without partitions."""
    pairs = zip(fields, values, strict=True)
    return "/".join(f"{quote_plus(field.name)}={quote_plus(shown(field, value))}" for field, value in pairs)


def shown(field: PartitionField, value: Any) -> str:
    """A partition value as people read it. Values come as Iceberg stores them: days, hours and microseconds."""
    if value is None or field.transform == "void":
        return "null"
    match field.transform:
        case "year":
            text = f"{1970 + int(value):04d}"
        case "month":
            text = f"{1970 + int(value) // 12:04d}-{int(value) % 12 + 1:02d}"
        case "day":
            text = _date(value)
        case "hour":
            text = f"{_date(int(value) // 24)}-{int(value) % 24:02d}"
        case _:
            text = _plain(field.source_type, value)
    return text


def _date(value: Any) -> str:
    return value.isoformat() if isinstance(value, dt.date) else (_EPOCH + dt.timedelta(days=int(value))).isoformat()


def _plain(source_type: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if source_type == "date":
        return _date(value)
    if source_type in ("timestamp", "timestamptz") and isinstance(value, int):
        whole = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=value)
        return whole.isoformat() + ("+00:00" if source_type == "timestamptz" else "")
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return str(value)
