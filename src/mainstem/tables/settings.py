"""What a user can say of one table. Frozen, and checked when it is built."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self

from mainstem.model.errors import Invalid
from mainstem.tables.parquet import ParquetSettings, parse_parquet
from mainstem.tables.types import VARIANT, ColumnType, Nested, parse_type

FORMAT_VERSIONS = (2, 3)
PARTITION_FIELDS_MAX = 16
_TIMES = ("year", "month", "day", "hour")
_TRANSFORM = re.compile(
    r"(?:(?P<unary>identity|year|month|day|hour)\((?P<column>[^,()]+)\)"
    r"|(?P<sized>bucket|truncate)\(\s*(?P<size>\d{1,9})\s*,\s*(?P<of>[^,()]+)\)"
    r"|(?P<plain>[^,()]+?))"
    r"(?:\s+as\s+(?P<alias>[A-Za-z_][A-Za-z0-9_]*))?",
    # ASCII: a dotless i would match the i of identity, and is none.
    re.IGNORECASE | re.ASCII,
)


class Format(StrEnum):
    """Which table format a table is kept in."""

    ICEBERG = "iceberg"
    DELTA = "delta"


@dataclass(frozen=True, slots=True)
class Transform:
    """One field of a partition spec. `alias` is the field's own name; without it, Iceberg's usual one."""

    name: str
    column: str
    size: int | None = None
    alias: str | None = None

    def __str__(self) -> str:
        size = "" if self.size is None else f"{self.size}, "
        return f"{self.name}({size}{self.column})" + (f" as {self.alias}" if self.alias else "")


def parse_transform(text: str) -> Transform:
    """Read `bucket(16, id)`, `truncate(4, name)`, `day(_time) as dt`, `identity(country)` or just `country`."""
    match = _TRANSFORM.fullmatch(text.strip())
    if match is None:
        raise Invalid(f"unknown partition transform. expected=bucket(n, column), day(column), … got={text!r}")
    alias = match["alias"]
    if match["plain"]:
        return Transform("identity", match["plain"].strip(), alias=alias)
    if match["unary"]:
        return Transform(match["unary"].lower(), match["column"].strip(), alias=alias)
    if int(match["size"]) < 1:
        raise Invalid(f"partition transform needs a size. expected=at least 1 got={text!r}")
    return Transform(match["sized"].lower(), match["of"].strip(), int(match["size"]), alias)


def parse_partition(texts: Sequence[str]) -> tuple[Transform, ...]:
    """Read the fields of a partition spec, in order."""
    if len(texts) > PARTITION_FIELDS_MAX:
        raise Invalid(f"too many partition fields. expected=at most {PARTITION_FIELDS_MAX} got={len(texts)}")
    transforms = tuple(parse_transform(text) for text in texts)
    if len({(each.name, each.column, each.size) for each in transforms}) < len(transforms):
        raise Invalid(f"a partition field stands twice. got={[str(each) for each in transforms]}")
    times: dict[str, list[str]] = {}
    for each in transforms:
        if each.name in _TIMES:
            times.setdefault(each.column, []).append(each.name)
    # A day's folder with a folder for each of its hours is how many people lay out events: dt=2024-01-15/hr=14.
    if any(len(names) > 1 and names != ["day", "hour"] for names in times.values()):
        raise Invalid(
            "one of year, month, day, hour is enough per column, or day and then hour. "
            f"got={[str(each) for each in transforms]}"
        )
    return transforms


@dataclass(frozen=True, slots=True)
class TableSettings:
    """How one table is stored. The defaults are what every reader gets right.

    Without a history, deletes are forgotten once applied: a late change that is older than a delete of an earlier
    batch then brings its columns back.
    """

    # Whether there is a table with the current row of each key.
    state: bool = True
    # Whether there is a table with every change.
    history: bool = True
    # Every change is a row of its own, in the order of the log: no key is looked up, and nothing is replaced.
    append: bool = False
    # How objects and arrays are kept: json (text), variant or struct.
    nested: Nested = Nested.JSON
    # iceberg or delta.
    format: Format = Format.ICEBERG
    # Iceberg's.
    format_version: int = 2
    # The columns by which rows are known that come without a key: over HTTP, and from Debezium Server.
    key: tuple[str, ...] = ()
    # Whether JSON texts that are ISO times with a zone become timestamptz columns. None: as [log] infer_times has it.
    infer_times: bool | None = None
    # Declared types by column; every other column is inferred.
    columns: Mapping[str, ColumnType] = field(default_factory=lambda: MappingProxyType({}))
    # Of the state. None: as it was given over HTTP, or not at all.
    partition: tuple[Transform, ...] | None = None
    # Of the history.
    history_partition: tuple[Transform, ...] | None = None
    # How its files are written, where that differs from [parquet].
    parquet: ParquetSettings = field(default_factory=ParquetSettings)

    def __post_init__(self) -> None:
        if not (self.state or self.history):
            raise Invalid("a table needs a state or a history. expected=at least one got=none")
        if self.append and (not self.state or self.format is not Format.DELTA):
            raise Invalid('an append-only table is a state in Delta. expected=state = true, format = "delta"')
        if self.format_version not in FORMAT_VERSIONS:
            raise Invalid(f"format version. expected=one of {FORMAT_VERSIONS} got={self.format_version}")
        uses_variant = self.nested is Nested.VARIANT or VARIANT in self.columns.values()
        if self.format is Format.DELTA:
            # Its partitions are fixed when the table is made, before the first row is seen.
            columns = [transform.column for transform in self.partition or () if not transform.column.startswith("_")]
            if unknown := sorted(set(columns) - self.columns.keys()):
                raise Invalid(f"Delta partitions by columns of a declared type. expected=[columns] with {unknown}")
        elif uses_variant and self.format_version < 3:
            raise Invalid(f"variant columns need a newer format. expected=format version 3 got={self.format_version}")

    @classmethod
    def from_document(cls, document: Mapping[str, Any], parquet: ParquetSettings | None = None) -> Self:
        """Read the settings as a configuration file has them; `parquet` is what holds for every table."""
        known = {field.name for field in fields(cls)}
        if unknown := set(document) - known:
            raise Invalid(f"unknown table setting. expected={sorted(known)} got={sorted(unknown)}")
        values: dict[str, Any] = dict(document)
        if "nested" in values:
            if values["nested"] not in list(Nested):
                raise Invalid(f"nested. expected={[str(nested) for nested in Nested]} got={values['nested']!r}")
            values["nested"] = Nested(values["nested"])
        if "format" in values:
            if values["format"] not in list(Format):
                raise Invalid(f"format. expected={[str(each) for each in Format]} got={values['format']!r}")
            values["format"] = Format(values["format"])
        if "columns" in values:
            declared = {name: parse_type(text) for name, text in values["columns"].items()}
            values["columns"] = MappingProxyType(declared)
        if not isinstance(values.get("infer_times"), bool | None):
            raise Invalid(f"infer_times. expected=true or false got={values['infer_times']!r}")
        if "key" in values:
            names = [values["key"]] if isinstance(values["key"], str) else values["key"]
            if not isinstance(names, Sequence) or not all(isinstance(each, str) and each for each in names):
                raise Invalid(f"key. expected=the names of columns got={values['key']!r}")
            values["key"] = tuple(names)
        for name in ("partition", "history_partition"):
            if name in values:
                values[name] = parse_partition(values[name])
        values["parquet"] = parse_parquet(values.get("parquet", {}), parquet or ParquetSettings())
        return cls(**values)


DEFAULT_SETTINGS = TableSettings()
