"""The sealed segments as the driver sees them: the folder's files in log order, and what their footers say.

A footer tells which tables a segment has, which positions and clocks, and which JSON types were seen in each column.
With it schemas and paths are decided on the driver without a Spark job. Files are read here for their footers only;
the rows are for the executors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from mainstem.formats.segments import TableFooter, is_segment_name, read_footer
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.pipeline.passes.stores import list_files, open_file


@dataclass(frozen=True, slots=True)
class Segment:
    """One sealed file."""

    # A path on this machine, or a location on S3.
    location: str
    first: LogPosition
    last: LogPosition
    size_bytes: int
    tables: Mapping[TableName, TableFooter]
    # The next one was about to be made as well.
    more: bool = False

    @property
    def name(self) -> str:
        """The file's name, which says which positions are in it."""
        return self.location.rpartition("/")[2]


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
        return [segment.location for segment in self.segments]


class SegmentFolder:
    """Lists the sealed segments of a folder, here or on S3; footers are read once per file."""

    def __init__(self, location: str | Path, store: Mapping[str, str] = MappingProxyType({})) -> None:
        self._location = str(location).rstrip("/")
        self._store = store
        self._known: dict[str, Segment] = {}
        self._kinds: dict[TableName, str] = {}

    def kind_of(self, table: TableName) -> str:
        """Of which kind a table is, by the segments seen so far (`tables/kinds`)."""
        return self._kinds.get(table, "")

    def list(self) -> tuple[Segment, ...]:
        """Every segment that is there, in log order. Files that are being written do not have a segment's name.

        Raises OSError where the place cannot be reached.
        """
        found: dict[str, Segment] = {}
        for name, size_bytes in sorted(list_files(self._location, self._store).items()):
            if is_segment_name(name):
                known = self._known.get(name)
                if known is None:
                    known = self._read(name, size_bytes)
                if known is not None:
                    found[name] = known
                    self._kinds |= {table: part.kind for table, part in known.tables.items() if part.kind}
        self._known = found
        return tuple(sorted(found.values(), key=lambda segment: segment.first))

    def _read(self, name: str, size_bytes: int) -> Segment | None:
        location = f"{self._location}/{name}"
        try:
            with open_file(location, self._store) as file:
                footer = read_footer(file, name, location)
        except FileNotFoundError:
            # Retention took it between the listing and now, which it does only once every table covers it.
            return None
        return Segment(location, footer.first, footer.last, size_bytes, footer.by_table, footer.more)


def tables_of(segments: Iterable[Segment]) -> dict[TableName, LogPosition]:
    """Every table in the segments, with the last position that it has there."""
    last: dict[TableName, LogPosition] = {}
    for segment in segments:
        for table, footer in segment.tables.items():
            last[table] = LogPosition(max(footer.last, last.get(table, NOWHERE)))
    return last


def slice_for(table: TableName, segments: Iterable[Segment], covered: LogPosition, rows_max: int) -> TableSlice | None:
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
    """Whether clocks are known to grow with positions over the whole slice: the last row of a key is its latest."""
    clock = -1
    for segment in run.segments:
        footer = segment.tables[run.table]
        if not footer.ordered or footer.hlc_min is None or footer.hlc_max is None or footer.hlc_min <= clock:
            return False
        clock = footer.hlc_max
    return True
