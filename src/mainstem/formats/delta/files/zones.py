"""Zone maps: what a file's statistics and partition values say of its rows, and which files cannot match a filter."""

import datetime as dt
import decimal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow.parquet as pq

from mainstem.documents.columns import Kind
from mainstem.documents.filters.arrow import row_group_stats
from mainstem.documents.filters.predicate import YES, AllOf, Always, AnyOf, ColumnStats, Predicate, may_match
from mainstem.formats.delta.log import AddFile
from mainstem.formats.delta.schema import Field, TableSchema
from mainstem.formats.delta.storage import Storage

# Footers of so many files are remembered; a file never changes.
FOOTERS_MAX = 4096


class _Stats(msgspec.Struct, frozen=True):
    numRecords: int | None = None  # noqa: N815 - the protocol's own names
    minValues: dict[str, Any] = {}  # noqa: N815
    maxValues: dict[str, Any] = {}  # noqa: N815
    nullCount: dict[str, Any] = {}  # noqa: N815
    tightBounds: bool = True  # noqa: N815


# Decimals keep their digits; the others are turned back below.
_DECODER = msgspec.json.Decoder(_Stats, float_hook=decimal.Decimal)


@dataclass(frozen=True)
class ScanStatistics:
    """What a query could leave unread. Row groups are counted in the files that were not skipped whole."""

    files: int
    files_skipped: int
    row_groups: int
    row_groups_skipped: int
    bytes: int
    bytes_skipped: int


def columns_in(predicate: Predicate) -> set[str]:
    """The columns that a predicate looks at."""
    match predicate:
        case Always():
            return set()
        case AllOf(children) | AnyOf(children):
            return set().union(*(columns_in(child) for child in children))
        case _:
            return {predicate.column}


def row_count(file: AddFile) -> int | None:
    """How many rows a file holds, deleted ones included; None where its writer did not say."""
    return None if file.stats is None else _DECODER.decode(file.stats).numRecords


def zone_map(file: AddFile, fields: Iterable[Field], schema: TableSchema) -> tuple[dict[str, ColumnStats], int | None]:
    """Bounds of some columns of a file, and its number of rows."""
    stats = _Stats() if file.stats is None else _DECODER.decode(file.stats)
    zones: dict[str, ColumnStats] = {}
    for field in fields:
        if field.name in schema.partition_by:
            value = partition_value(file.partitionValues.get(field.physical), field)
            nulls = stats.numRecords if value is None else 0
            zones[field.name] = ColumnStats(value, value, nulls)
            continue
        nulls = stats.nullCount.get(field.physical)
        zones[field.name] = ColumnStats(
            _bound(stats.minValues.get(field.physical), field),
            _bound(stats.maxValues.get(field.physical), field),
            nulls if isinstance(nulls, int) and _counts_hold(file, stats, nulls) else None,
        )
    return zones, stats.numRecords


def _counts_hold(file: AddFile, stats: _Stats, nulls: int) -> bool:
    # Under a vector the counts are of all rows, the deleted ones too: only none and all mean the same for the rest.
    return file.deletionVector is None or stats.tightBounds or nulls in (0, stats.numRecords)


def _bound(value: Any, field: Field) -> Any:  # noqa: PLR0911 - case by case
    if value is None or isinstance(value, dict | list):
        return None
    try:
        match field.column.kind:
            case Kind.DOUBLE:
                return float(value)
            case Kind.DECIMAL:
                return decimal.Decimal(value)
            case Kind.DATE:
                return dt.date.fromisoformat(value)
            case Kind.TIMESTAMP_TZ:
                return dt.datetime.fromisoformat(value).astimezone(dt.UTC)
            case Kind.TIMESTAMP:
                return dt.datetime.fromisoformat(value).replace(tzinfo=None)
            case Kind.BINARY:
                return None
        return value
    except (ValueError, TypeError, decimal.InvalidOperation):
        # A bound that cannot be read bounds nothing.
        return None


def partition_value(text: str | None, field: Field) -> Any:  # noqa: PLR0911 - case by case
    """A partition's value, which the log keeps as text."""
    if text is None or (text == "" and field.column.kind is not Kind.STRING):
        return None
    match field.column.kind:
        case Kind.BOOLEAN:
            return text.lower() == "true"
        case Kind.INTEGER:
            return int(text)
        case Kind.TIMESTAMP | Kind.TIMESTAMP_TZ:
            moment = dt.datetime.fromisoformat(text)
            if field.column.kind is Kind.TIMESTAMP:
                return moment.replace(tzinfo=None)
            return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)
        case Kind.BINARY:
            return text.encode()
        case Kind.DOUBLE | Kind.DECIMAL | Kind.DATE:
            return _bound(text, field)
    return text


class Footers:
    """The row groups' zone maps of files that were looked at."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[str, list[tuple[Mapping[str, ColumnStats], int]]] = {}

    def groups(self, path: str) -> list[tuple[Mapping[str, ColumnStats], int]]:
        """By physical column name, for each row group of a file."""
        found = self._known.get(path)
        if found is None:
            with self._storage.files.open_input_file(path) as source:
                metadata = pq.ParquetFile(source).metadata
            found = [row_group_stats(metadata, index) for index in range(metadata.num_row_groups)]
            if len(self._known) >= FOOTERS_MAX:
                self._known.pop(next(iter(self._known)))
            self._known[path] = found
        return found


def kept_files(files: Iterable[AddFile], predicate: Predicate, schema: TableSchema) -> list[AddFile]:
    """The files in which a row may match."""
    if predicate == YES:
        return list(files)
    fields = [schema.fields[name] for name in columns_in(predicate) if name in schema.fields]
    return [file for file in files if may_match(predicate, *zone_map(file, fields, schema))]


def kept_groups(
    groups: list[tuple[Mapping[str, ColumnStats], int]], file: AddFile, predicate: Predicate, schema: TableSchema
) -> int:
    """How many row groups of a file may hold a match."""
    fields = [schema.fields[name] for name in columns_in(predicate) if name in schema.fields]
    partitions, _ = zone_map(file, [field for field in fields if field.name in schema.partition_by], schema)
    kept = 0
    for stats, rows in groups:
        zones = {field.name: stats[field.physical] for field in fields if field.physical in stats} | partitions
        kept += may_match(predicate, zones, rows)
    return kept
