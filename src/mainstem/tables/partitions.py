"""Partition specs: what is wanted, what a table can have of it now, and how a partition is written. Pure."""

import datetime as dt
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import quote_plus

from mainstem.tables.layout import STATE_COLUMNS, stored_name
from mainstem.tables.settings import Transform
from mainstem.tables.types import ColumnType, decimal_of

# A table property: the fields that were asked for over HTTP, as JSON texts. Some may wait for their columns.
PARTITION_PROPERTY = "mainstem.partition"
# Not a transform of Iceberg's: how an hour is shown where the field before it is its day.
HOUR_OF_DAY = "hour of day"

_TIMES = frozenset({"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
_WHOLE = frozenset({"int", "long", "string", "binary"})
_SUFFIXES = {"bucket": "_bucket_", "truncate": "_trunc_", "identity": ""}
_OWN_COLUMNS = frozenset(name for name, _ in STATE_COLUMNS)
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
    pairs = zip(fields, shown_transforms(fields), values, strict=True)
    return "/".join(
        f"{quote_plus(field.name)}={quote_plus(shown(replace(field, transform=transform), value))}"
        for field, transform, value in pairs
    )


class SourcedField(Protocol):
    """A partition field, as the catalog, the query planner and the executors each keep it."""

    @property
    def source(self) -> str:
        """The column it is made from."""

    @property
    def transform(self) -> str:
        """How."""


def shown_transforms(fields: Sequence[SourcedField]) -> list[str]:
    """The transforms by which values are shown: an hour below its own day is shown without that day."""
    days: set[str] = set()
    found = []
    for field in fields:
        found.append(HOUR_OF_DAY if field.transform == "hour" and field.source in days else field.transform)
        if field.transform == "day":
            days.add(field.source)
    return found


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
        case _ if field.transform == HOUR_OF_DAY:
            text = f"{int(value) % 24:02d}"
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


@dataclass(frozen=True, slots=True)
class Waiting:
    """A partition field that a table cannot have yet, and why."""

    transform: Transform
    reason: str


def source_of(transform: Transform) -> str:
    """The column of a state table that a transform is made from: one of Mainstem's own, or a row's."""
    return transform.column if transform.column in _OWN_COLUMNS else stored_name(transform.column)


def field_name(transform: Transform) -> str:
    """The name of the partition field: the user's, or the one that Iceberg gives to fields that come later.

    It has the size in it: one table must not have two fields of one name, not even in specs of different times.
    """
    size = "" if transform.size is None else str(transform.size)
    return transform.alias or source_of(transform) + _SUFFIXES.get(transform.name, f"_{transform.name}") + size


def iceberg_transform(transform: Transform) -> str:
    """The transform as Iceberg's metadata writes it."""
    return transform.name if transform.size is None else f"{transform.name}[{transform.size}]"


# Of a field that a table has or had: its name, its column and its transform.
KnownField = tuple[str, str, str]


def applicable(
    wanted: Sequence[Transform],
    types: Mapping[str, ColumnType],
    undecided: frozenset[str] = frozenset(),
    known: Collection[KnownField] = (),
) -> tuple[tuple[Transform, ...], tuple[Waiting, ...]]:
    """What a table with these columns can be partitioned by now, and what has to wait.

    `undecided` are columns that held only nulls so far: their type is yet to come. `known` are the fields of all the
    table's specs: readers that see them side by side stumble over one name for two of them.
    """
    named = {name: (source, transform) for name, source, transform in known}
    now: list[Transform] = []
    waiting: list[Waiting] = []
    for transform in wanted:
        source = source_of(transform)
        meaning = (source, iceberg_transform(transform))
        if source not in types or source in undecided:
            waiting.append(Waiting(transform, f"the table has no values in the column {source} yet"))
        elif not takes(transform.name, types[source]):
            waiting.append(Waiting(transform, f"{transform.name} cannot be taken of {types[source]}"))
        elif field_name(transform) in types and not (transform.name == "identity" and transform.alias is None):
            waiting.append(Waiting(transform, f"the table has a column of the name {field_name(transform)}"))
        elif named.get(field_name(transform), meaning) != meaning:
            waiting.append(Waiting(transform, f"{field_name(transform)} was the name of another field: give one more"))
        else:
            now.append(transform)
    return tuple(now), tuple(waiting)


def takes(transform: str, column_type: ColumnType | None) -> bool:
    """Whether a transform can be taken of a column; None stands for a type that does not change."""
    if column_type is None:
        return True
    is_decimal = decimal_of(column_type) is not None
    match transform:
        case "hour":
            return column_type in _TIMES
        case "year" | "month" | "day":
            return column_type in _TIMES or column_type == "date"
        case "truncate":
            return column_type in _WHOLE or is_decimal
        case "bucket":
            return column_type in _WHOLE | _TIMES | {"date", "uuid", "time"} or is_decimal
        case _:
            return column_type != "variant"
