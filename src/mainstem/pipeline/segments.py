"""The sealed segments as the driver sees them: the folder's files in log order, and what their footers say.

A footer tells which tables a segment has, which positions and clocks, and which JSON types were seen in each column.
With it schemas and paths are decided on the driver without a Spark job. Files are read here for their footers only
(and, where a footer does not tell, for the clocks of one table); the rows are Spark's business.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq

from mainstem.model.errors import Corrupt
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition

FOOTER_KEY = b"mainstem"
FOOTER_VERSION = 1
_FILE_NAME = re.compile(r"(\d{20})-(\d{20})\.parquet")


class TableFooter(msgspec.Struct, frozen=True):
    """What a footer says of one table's rows."""

    first: int
    last: int
    count: int
    hlc_min: int | None = None
    hlc_max: int | None = None
    errors: int = 0
    deletes: int = 0
    columns: dict[str, list[str]] = {}
    always: list[str] = []
    # Whether clocks strictly grow with positions. None: the writer does not tell.
    ordered: bool | None = None


class Footer(msgspec.Struct, frozen=True):
    """What a segment's footer says."""

    version: int
    first: int
    last: int
    tables: dict[str, TableFooter]
    more: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """One sealed file."""

    path: Path
    first: LogPosition
    last: LogPosition
    size_bytes: int
    tables: Mapping[TableName, TableFooter]
    # The next one was about to be made as well.
    more: bool = False


@dataclass(frozen=True, slots=True)
class TableSlice:
    """What one table finds in a run of segments: the input of one pass over it."""

    table: TableName
    segments: tuple[Segment, ...]
    # The positions it covers once this slice is in.
    last: LogPosition
    count: int
    errors: int
    deletes: int
    hlc_min: int
    hlc_max: int
    # JSON types seen per column, and the columns that every row that is not a delete has.
    columns: Mapping[str, frozenset[str]]
    always: frozenset[str]
    # The table's first position in these segments. It may already be covered, after a crash.
    first: LogPosition

    def past(self, covered: LogPosition) -> LogPosition | None:
        """The position to filter by, or None where every row is past what is covered."""
        return covered if covered >= self.first else None

    @property
    def paths(self) -> list[str]:
        """The files, as Spark wants them."""
        return [str(segment.path) for segment in self.segments]


class SegmentFolder:
    """Lists the sealed segments; footers are read once per file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Segment] = {}

    def list(self) -> tuple[Segment, ...]:
        """Every segment that is there, in log order. Files that are being written do not have a segment's name."""
        found: dict[str, Segment] = {}
        names = sorted(path.name for path in self._folder.iterdir()) if self._folder.is_dir() else []
        for name in names:
            if match := _FILE_NAME.fullmatch(name):
                known = self._known.get(name)
                if known is None:
                    known = _read_footer(self._folder / name, int(match[1]), int(match[2]))
                if known is not None:
                    found[name] = known
        self._known = found
        return tuple(sorted(found.values(), key=lambda segment: segment.first))


def _read_footer(path: Path, first: int, last: int) -> Segment | None:
    try:
        metadata = pq.read_metadata(path)
        size_bytes = path.stat().st_size
    except FileNotFoundError:
        # Retention took it between the listing and now, which it does only once every table covers it.
        return None
    raw = (metadata.metadata or {}).get(FOOTER_KEY)
    if raw is None:
        raise Corrupt("segment without a footer of ours", place=str(path))
    footer = msgspec.json.decode(raw, type=Footer)
    if footer.version != FOOTER_VERSION or (footer.first, footer.last) != (first, last):
        raise Corrupt(
            f"segment's footer does not match. expected=version {FOOTER_VERSION} {first}-{last} "
            f"got=version {footer.version} {footer.first}-{footer.last}",
            place=str(path),
        )
    tables = {_table_name(text): table for text, table in footer.tables.items()}
    return Segment(path, LogPosition(first), LogPosition(last), size_bytes, tables, footer.more)


def _table_name(text: str) -> TableName:
    namespace, _, table = text.rpartition(".")
    return TableName(namespace, table)


def tables_of(segments: Iterable[Segment]) -> dict[TableName, LogPosition]:
    """Every table in the segments, with the last position that it has there."""
    last: dict[TableName, LogPosition] = {}
    for segment in segments:
        for table, footer in segment.tables.items():
            last[table] = LogPosition(max(footer.last, last.get(table, NOWHERE)))
    return last


def slice_for(
    table: TableName, segments: Iterable[Segment], covered: LogPosition, rows_max: int
) -> TableSlice | None:
    """The next run of segments for a table past its covered position: at least one, at most about `rows_max` rows."""
    taken: list[Segment] = []
    rows = 0
    for segment in segments:
        footer = segment.tables.get(table)
        if footer is None or footer.last <= covered:
            continue
        if taken and rows + footer.count > rows_max:
            break
        taken.append(segment)
        rows += footer.count
    if not taken:
        return None
    footers = [segment.tables[table] for segment in taken]
    seen: dict[str, set[str]] = {}
    for footer in footers:
        for column, json_types in footer.columns.items():
            seen.setdefault(column, set()).update(json_types)
    # A segment with nothing but deletes or errors has no row that could lack a column.
    with_upserts = [set(footer.always) for footer in footers if footer.count > footer.errors + footer.deletes]
    clocks_min = [footer.hlc_min for footer in footers if footer.hlc_min is not None]
    clocks_max = [footer.hlc_max for footer in footers if footer.hlc_max is not None]
    return TableSlice(
        table=table,
        segments=tuple(taken),
        last=taken[-1].last,
        count=rows,
        errors=sum(footer.errors for footer in footers),
        deletes=sum(footer.deletes for footer in footers),
        hlc_min=min(clocks_min, default=0),
        hlc_max=max(clocks_max, default=0),
        columns={column: frozenset(json_types) for column, json_types in seen.items()},
        always=frozenset(set.intersection(*with_upserts)) if with_upserts else frozenset(seen),
        first=LogPosition(min(footer.first for footer in footers)),
    )


def clocks_are_ordered(run: TableSlice) -> bool:
    """Whether clocks strictly grow with positions over the whole slice: then the last row of a key is its latest."""
    clock = -1
    for segment in run.segments:
        footer = segment.tables[run.table]
        if footer.ordered is False:
            return False
        if footer.ordered is None or footer.hlc_min is None or footer.hlc_max is None:
            clocks = _clocks(segment, run.table)
            if len(clocks) == 0:
                continue
            if int(clocks[0]) <= clock or not bool(np.all(clocks[1:] > clocks[:-1])):
                return False
            clock = int(clocks[-1])
        elif footer.hlc_min <= clock:
            return False
        else:
            clock = footer.hlc_max
    return True


def _clocks(segment: Segment, table: TableName) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    rows = pq.read_table(
        segment.path,
        columns=["position", "hlc"],
        filters=[("namespace", "=", table.namespace), ("table", "=", table.table)],
        partitioning=None,
    )
    positions = rows["position"].to_numpy()
    clocks: np.ndarray[tuple[int], np.dtype[np.int64]] = rows["hlc"].to_numpy()
    return clocks[np.argsort(positions, kind="stable")]
