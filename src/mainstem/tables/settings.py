"""What a user can say of one table. Frozen, and checked when it is built."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self

from mainstem.model.errors import Invalid
from mainstem.tables.types import VARIANT, ColumnType, Nested, parse_type

FORMAT_VERSIONS = (2, 3)


class Format(StrEnum):
    """Which table format a table is kept in."""

    ICEBERG = "iceberg"
    DELTA = "delta"


_TRANSFORM = re.compile(
    r"(?P<unary>identity|year|month|day|hour)\((?P<column>[^,()]+)\)"
    r"|(?P<sized>bucket|truncate)\(\s*(?P<size>\d+)\s*,\s*(?P<of>[^,()]+)\)"
)


@dataclass(frozen=True, slots=True)
class Transform:
    """One field of a partition spec."""

    name: str
    column: str
    size: int | None = None


def parse_transform(text: str) -> Transform:
    """Read `bucket(16, id)`, `truncate(4, name)`, `day(_time)`, `identity(country)` or just `country`."""
    match = _TRANSFORM.fullmatch(text.strip())
    if match is None:
        if not text.strip() or any(mark in text for mark in "(),"):
            raise Invalid(f"unknown partition transform. expected=bucket(n, column), day(column), … got={text!r}")
        return Transform("identity", text.strip())
    if match["unary"]:
        return Transform(match["unary"], match["column"].strip())
    if int(match["size"]) < 1:
        raise Invalid(f"partition transform needs a size. expected=at least 1 got={text!r}")
    return Transform(match["sized"], match["of"].strip(), int(match["size"]))


@dataclass(frozen=True, slots=True)
class TableSettings:
    """How one table is stored. The defaults are what every reader gets right.

    Without a history, deletes are forgotten once applied: a late change that is older than a delete of an earlier
    batch then brings its columns back.
    """

    state: bool = True
    history: bool = True
    nested: Nested = Nested.JSON
    format: Format = Format.ICEBERG
    # Iceberg's.
    format_version: int = 2
    # Declared types by column; every other column is inferred.
    columns: Mapping[str, ColumnType] = field(default_factory=lambda: MappingProxyType({}))
    partition: tuple[Transform, ...] = ()

    def __post_init__(self) -> None:
        if not (self.state or self.history):
            raise Invalid("a table needs a state or a history. expected=at least one got=none")
        if self.format_version not in FORMAT_VERSIONS:
            raise Invalid(f"format version. expected=one of {FORMAT_VERSIONS} got={self.format_version}")
        uses_variant = self.nested is Nested.VARIANT or VARIANT in self.columns.values()
        if self.format is Format.DELTA:
            derived = [transform.name for transform in self.partition if transform.name != "identity"]
            if derived:
                raise Invalid(f"Delta partitions by columns as they are. expected=identity got={derived}")
        elif uses_variant and self.format_version < 3:
            raise Invalid(f"variant columns need a newer format. expected=format version 3 got={self.format_version}")

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read the settings as a configuration file has them."""
        known = {"state", "history", "nested", "format", "format_version", "columns", "partition"}
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
        if "partition" in values:
            values["partition"] = tuple(parse_transform(text) for text in values["partition"])
        return cls(**values)


DEFAULT_SETTINGS = TableSettings()
