"""How Parquet files are written, as the user says it, as table properties carry it, and as a writer reads it there.

The properties are Iceberg's own, so that every writer keeps to them: Spark, the driver, and other engines.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from mainstem.model.errors import Invalid

MIB = 1 << 20
CODEC_PROPERTY = "write.parquet.compression-codec"
LEVEL_PROPERTY = "write.parquet.compression-level"
ROW_GROUP_BYTES_PROPERTY = "write.parquet.row-group-size-bytes"
TARGET_PROPERTY = "write.target-file-size-bytes"
_CHECK_PROPERTIES = (
    "write.parquet.row-group-check-min-record-count",
    "write.parquet.row-group-check-max-record-count",
)
# Those that follow the configuration; a table may have others, which are left alone.
MANAGED_PROPERTIES = (CODEC_PROPERTY, LEVEL_PROPERTY, ROW_GROUP_BYTES_PROPERTY, TARGET_PROPERTY, *_CHECK_PROPERTIES)
# Iceberg's own defaults, where a table says nothing.
ROW_GROUP_BYTES_DEFAULT = 128 * MIB
TARGET_BYTES_DEFAULT = 512 * MIB

NotNegative = Annotated[int, msgspec.Meta(ge=0)]


class Codec(StrEnum):
    """What pages are compressed with."""

    NONE = "none"
    SNAPPY = "snappy"
    GZIP = "gzip"
    ZSTD = "zstd"


class ParquetSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one table, or of all that do not say otherwise. 0 leaves it to Iceberg's defaults."""

    # none, snappy, gzip or zstd.
    compression: Codec = Codec.ZSTD
    # The level of gzip or zstd.
    compression_level: Annotated[int, msgspec.Meta(ge=0, le=22)] = 0
    # Row groups are cut by size, or by rows where that is given.
    row_group_bytes: NotNegative = 0
    # Rows of a row group; 0 leaves it to the size.
    row_group_rows: NotNegative = 0
    # The size at which a writer begins another file.
    target_file_bytes: NotNegative = 0

    def properties(self) -> dict[str, str]:
        """As table properties."""
        codec = "uncompressed" if self.compression is Codec.NONE else str(self.compression)
        found = {CODEC_PROPERTY: codec}
        if self.compression_level and self.compression in (Codec.GZIP, Codec.ZSTD):
            found[LEVEL_PROPERTY] = str(self.compression_level)
        if self.row_group_bytes:
            found[ROW_GROUP_BYTES_PROPERTY] = str(self.row_group_bytes)
        if self.row_group_rows:
            # Iceberg's writer cuts by size alone, and looks at the size after so many rows: at every look it is over.
            found[ROW_GROUP_BYTES_PROPERTY] = "1"
            found |= dict.fromkeys(_CHECK_PROPERTIES, str(self.row_group_rows))
        if self.target_file_bytes:
            found[TARGET_PROPERTY] = str(self.target_file_bytes)
        return found


class WriterOptions(msgspec.Struct, frozen=True):
    """What a table's properties ask of a writer that is not Iceberg's own."""

    codec: Codec
    level: int | None
    row_group_bytes: int
    row_group_rows: int | None
    target_bytes: int


def writer_options(properties: Mapping[str, str]) -> WriterOptions:
    """Read the properties. A value that makes no sense is replaced by the default."""
    codec = str(properties.get(CODEC_PROPERTY, Codec.ZSTD)).lower()
    size = _number(properties.get(ROW_GROUP_BYTES_PROPERTY), ROW_GROUP_BYTES_DEFAULT)
    checks = {properties.get(name) for name in _CHECK_PROPERTIES}
    rows = _number(checks.pop(), 0) if size == 1 and len(checks) == 1 else 0
    return WriterOptions(
        codec=Codec.NONE if codec == "uncompressed" else Codec(codec) if codec in list(Codec) else Codec.ZSTD,
        level=_number(properties.get(LEVEL_PROPERTY), 0) or None,
        row_group_bytes=ROW_GROUP_BYTES_DEFAULT if rows else size,
        row_group_rows=rows or None,
        target_bytes=_number(properties.get(TARGET_PROPERTY), TARGET_BYTES_DEFAULT),
    )


def parse_parquet(document: Any, defaults: ParquetSettings) -> ParquetSettings:
    """Read the settings as a configuration file has them, on top of those that hold for every table."""
    if not isinstance(document, Mapping):
        raise Invalid(f"parquet settings. expected=a table of settings got={type(document).__name__}")
    try:
        return msgspec.convert({**msgspec.to_builtins(defaults), **document}, ParquetSettings)
    except msgspec.ValidationError as error:
        raise Invalid(f"parquet settings. {error}") from error


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() and int(text) > 0 else default
