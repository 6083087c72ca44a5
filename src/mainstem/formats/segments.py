"""Segments: the sealed, immutable Parquet files of the log. This module owns their schema, footer, names and reading.

The log writes them (`log/seal/segments`); the pipeline, feeds and queries read them. Rows are grouped by table
(namespace, then table) and ordered by position within; every row group belongs to one table. The footer says what a
reader needs to plan without reading rows.

The columns have the Iceberg field ids of a history table's: a segment with one table alone, and without errors, can
become a data file of its history as it is. `time` and `source_time` are there for that.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.model.errors import Corrupt
from mainstem.model.names import TableName
from mainstem.model.position import UNNAMED, LogId, LogPosition

VERSION = 1
FOOTER_KEY = b"mainstem"
TIME = pa.timestamp("us", "UTC")

_NAME = re.compile(r"(\d{20})-(\d{20})\.parquet")
# Field ids from here on are no history's.
_OTHER_ID = 1_001


def _field(name: str, kind: pa.DataType, field_id: int, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"PARQUET:field_id": str(field_id)})


SCHEMA = pa.schema(
    [
        _field("position", pa.int64(), 1, nullable=False),
        _field("hlc", pa.int64(), 2, nullable=False),
        _field("namespace", pa.string(), _OTHER_ID, nullable=False),
        _field("table", pa.string(), _OTHER_ID + 1, nullable=False),
        _field("op", pa.string(), 3, nullable=False),
        _field("key", pa.string(), 4, nullable=False),
        _field("columns", pa.string(), 5),
        _field("before", pa.string(), 6),
        _field("source", pa.string(), 7, nullable=False),
        _field("batch_sequence", pa.int64(), 8, nullable=False),
        _field("sequence", pa.int64(), 9),
        _field("id", pa.string(), 10),
        _field("source_time_ms", pa.int64(), _OTHER_ID + 2),
        _field("arrival_ms", pa.int64(), _OTHER_ID + 3, nullable=False),
        _field("metadata", pa.string(), 13),
        _field("error", pa.string(), _OTHER_ID + 4),
        _field("time", TIME, 11, nullable=False),
        _field("source_time", TIME, 12),
        _field("log", pa.string(), 14),
    ]
)


class TableFooter(msgspec.Struct, frozen=True, kw_only=True):
    """What a footer says of one table's rows. What has a default is not in every segment that was ever written."""

    first: LogPosition
    last: LogPosition
    count: int
    errors: int = 0
    hlc_min: int | None = None
    hlc_max: int | None = None
    deletes: int = 0
    # The JSON types seen per column, and the columns that every row with columns has; rows without error only.
    columns: dict[str, list[str]] = {}
    always: list[str] = []
    # Whether clocks strictly grow with positions. Older segments do not tell.
    ordered: bool | None = None
    # Of which kind the table is, where that settles how it is stored (`tables/kinds`).
    kind: str = ""


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """The key-value metadata of a segment."""

    version: int
    first: LogPosition
    last: LogPosition
    arrival_min_ms: int = 0
    arrival_max_ms: int = 0
    # The highest clock that the log issued for the batches in here.
    hlc_last: int = 0
    tables: dict[str, TableFooter]
    # Whether the next segment was about to be made as well: a reader may want to take both at once.
    more: bool = False
    # The log that issued the positions: one and the same for all of them. Older segments have none.
    log: LogId = UNNAMED

    @property
    def by_table(self) -> dict[TableName, TableFooter]:
        """What it says of each table."""
        return {_table_name(text): part for text, part in self.tables.items()}


def segment_name(first: LogPosition, last: LogPosition) -> str:
    """The file's name says which positions are in it."""
    return f"{first:020d}-{last:020d}.parquet"


def is_segment_name(name: str) -> bool:
    """Whether a file's name is a segment's. Files that are being written have other names."""
    return _NAME.fullmatch(name) is not None


def last_of_name(name: str) -> LogPosition:
    """The last position in a segment, by its name."""
    match = _NAME.fullmatch(name)
    assert match is not None
    return LogPosition(int(match[2]))


def read_footer(source: Any, name: str, place: str) -> Footer:
    """Read a segment's footer and check it against the file's name. `source` is a path or an open file.

    Raises FileNotFoundError where it is gone, and Corrupt where it is no segment of ours or has another's name.
    """
    try:
        metadata = pq.read_metadata(source).metadata or {}
        footer = msgspec.json.decode(metadata[FOOTER_KEY], type=Footer)
    except (pa.ArrowException, KeyError, msgspec.MsgspecError) as error:
        raise Corrupt(f"segment footer cannot be read. got={error}", place=place) from error
    if footer.version != VERSION:
        raise Corrupt(f"segment version. expected={VERSION} got={footer.version}", place=place)
    if name != (expected := segment_name(footer.first, footer.last)):
        raise Corrupt(f"segment name. expected={expected} got={name}", place=place)
    return footer


def read_rows(
    path: str,
    columns: Sequence[str],
    *,
    namespace: str | None = None,
    table: str | None = None,
    after: int | None = None,
    through: int | None = None,
    with_errors: bool = False,
) -> pa.Table:
    """The rows of a segment, of one namespace or table if that is said, at positions after < p <= through.

    Rows that the sealer marked as errors go to the dead letters; they are left out unless asked for. Raises
    FileNotFoundError where the segment is gone.
    """
    # Not above: it takes a tenth of a second, which the gateway's start can do without.
    import pyarrow.compute as pc

    tests = [pc.field("namespace") == namespace] if namespace is not None else []
    tests += [pc.field("table") == table] if table is not None else []
    tests += [pc.field("error").is_null()] if not with_errors else []
    tests += [pc.field("position") > after] if after is not None else []
    tests += [pc.field("position") <= through] if through is not None else []
    wanted = None
    for test in tests:
        wanted = test if wanted is None else wanted & test
    with pa.OSFile(path) as source:
        return pq.read_table(source, columns=list(columns), filters=wanted)


def _table_name(text: str) -> TableName:
    namespace, _, table = text.rpartition(".")
    return TableName(namespace, table)
