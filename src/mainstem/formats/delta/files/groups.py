"""Whole row groups of data files, read by Arrow and cut to the rows that match.

DuckDB is the better reader where few rows of a group match: it decodes the filter's columns, and of the others only
what is left. Where most of a group matches there is nothing to spare, and Arrow decodes its columns with less ado and
cuts a range out of them without a copy. Statistics say which it is: they only ever choose the way, not the answer.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import acero

from mainstem.documents.filters.arrow import to_arrow
from mainstem.documents.filters.predicate import AllOf, ColumnStats, Predicate, Relates, Relation, may_match
from mainstem.formats.delta.files.zones import Footers, columns_in
from mainstem.formats.delta.schema import TableSchema
from mainstem.formats.delta.storage import Storage

# Below this share of matching rows DuckDB is faster.
SHARE_MIN = 0.25
# Groups are in memory whole; more than this many rows go through DuckDB, which has its own bounds.
ROWS_MAX = 2_000_000
# Each of Arrow's threads has memory of its own, which the kernel clears anew after every pause: for less than this that
# takes longer than a second thread saves.
THREADED_ROWS_MIN = 65_536
_RELATIONS = {
    Relation.EQ: operator.eq,
    Relation.NE: operator.ne,
    Relation.LT: operator.lt,
    Relation.LTE: operator.le,
    Relation.GT: operator.gt,
    Relation.GTE: operator.ge,
}


def chosen_groups(
    footers: Footers, paths: Sequence[str], predicate: Predicate, schema: TableSchema
) -> dict[str, list[int]] | None:
    """By file, the row groups to read whole. None where that would not pay."""
    fields = [schema.fields[name] for name in columns_in(predicate)]
    chosen: dict[str, list[int]] = {}
    total, matching = 0, 0.0
    for path in paths:
        for index, (stats, rows) in enumerate(footers.groups(path)):
            zones = {field.name: stats[field.physical] for field in fields if field.physical in stats}
            if may_match(predicate, zones, rows):
                chosen.setdefault(path, []).append(index)
                total += rows
                matching += rows * _share(predicate, zones)
        if total > ROWS_MAX:
            return None
    return chosen if matching >= SHARE_MIN * total else None


def read_groups(
    storage: Storage, chosen: dict[str, list[int]], predicate: Predicate, names: Sequence[str], schema: pa.Schema
) -> pa.Table:
    """The matching rows of these groups, with these columns. The predicate is exact."""
    tested = columns_in(predicate)
    wanted = [*dict.fromkeys([*names, *sorted(tested)])]
    parts = []
    for path, groups in chosen.items():
        with storage.open_data(path) as source:
            metadata = pq.read_metadata(source)
            repeated = repeated_text(metadata.row_group(groups[0]), schema)
            file = pq.ParquetFile(
                source,
                metadata=metadata,
                read_dictionary=[name for name in repeated if name not in tested],
                # What lies far away is asked for in few large pieces.
                pre_buffer=not isinstance(source, pa.MemoryMappedFile),
            )
            count = sum(metadata.row_group(index).num_rows for index in groups)
            rows = file.read_row_groups(groups, wanted, use_threads=count >= THREADED_ROWS_MIN)
            parts.append(_cut(rows, predicate).select(list(names)).cast(schema))
    return pa.concat_tables(parts) if parts else schema.empty_table()


def repeated_text(group: pq.RowGroupMetaData, schema: pa.Schema) -> list[str]:
    """The text columns that a file holds as a dictionary: Arrow is faster if each text is turned into one only once.

    A text that is written out takes at least four bytes, for its length.
    """
    chunks = [group.column(place) for place in range(group.num_columns)]
    small = {chunk.path_in_schema for chunk in chunks if chunk.total_uncompressed_size < 4 * group.num_rows}
    return [field.name for field in schema if pa.types.is_string(field.type) and field.name in small]


def _cut(rows: pa.Table, predicate: Predicate) -> pa.Table:
    kept = _kept(rows, predicate)
    count = _count(kept)
    if count in (0, rows.num_rows):
        return rows.slice(0, count)
    first = pc.index(kept, True).as_py()
    # A range of sorted rows needs no copy.
    return rows.slice(first, count) if _count(kept.slice(first, count)) == count else rows.filter(kept)


def _count(kept: pa.ChunkedArray) -> int:
    return pc.sum(kept).as_py() or 0


def _kept(rows: pa.Table, predicate: Predicate) -> pa.ChunkedArray:
    tested = rows.select(sorted(columns_in(predicate)))
    kept = to_arrow(predicate, tested.schema, exact=True)
    plan = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(tested)),
        acero.Declaration("project", acero.ProjectNodeOptions([kept], ["kept"])),
    ]
    # On one thread the rows stay in their order.
    return acero.Declaration.from_sequence(plan).to_table(use_threads=False)["kept"]


def _share(predicate: Predicate, zones: Mapping[str, ColumnStats]) -> float:
    """About how many of the rows match, as if values were spread evenly; 0 where the statistics do not tell."""
    match predicate:
        case AllOf(children):
            # Exact for the two ends of a range, and too low for columns that do not depend on each other.
            return max(0.0, 1 - sum(1 - _share(child, zones) for child in children))
        case Relates(column, relation, value):
            return _share_in_bounds(relation, value, zones.get(column))
    return 0.0


def _share_in_bounds(relation: Relation, value: Any, zone: ColumnStats | None) -> float:
    if zone is None or zone.minimum is None or zone.maximum is None:
        return 0.0
    try:
        width = zone.maximum - zone.minimum
        if not width:
            return float(_RELATIONS[relation](zone.minimum, value))
        below = min(1.0, max(0.0, float((value - zone.minimum) / width)))
    except TypeError:
        # Text and the like: there is an order, but no distance.
        return 0.0
    match relation:
        case Relation.LT | Relation.LTE:
            return below
        case Relation.GT | Relation.GTE:
            return 1 - below
    return 0.0
