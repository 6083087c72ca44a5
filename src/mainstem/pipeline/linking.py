"""A sealed segment as a data file of a history, without a copy: one more name for the same bytes on the same disk.

A segment has a history's columns under the history's field ids, and Iceberg reads by those. Where a segment holds one
table alone, all of it past what the history covers and none of it refused, its rows are the rows to be appended. The
log may drop its own name for the file whenever it likes, and so may the table: the bytes stay for the other.
"""

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.pipeline.driver_sql import local_path
from mainstem.pipeline.quickcatalog import QuickTable
from mainstem.pipeline.quickcommit import new_data_location
from mainstem.pipeline.segments import Segment
from mainstem.tables.layout import HISTORY_COLUMNS, HLC, POSITION

# Smaller ones are worth copying: the rows of several then share a file.
LINKED_ROWS_MIN = 50_000
_LONG = struct.Struct("<q")
_COLUMNS = [name for name, _ in HISTORY_COLUMNS]


def link_segment(history: QuickTable, name: TableName, segment: Segment, after: LogPosition) -> DataFile | None:
    """Give a segment a second name among the history's files; None where its rows have to be copied."""
    footer = segment.tables.get(name)
    if footer is None or len(segment.tables) > 1 or footer.errors or footer.count < LINKED_ROWS_MIN:
        return None
    if footer.first <= after or footer.hlc_min is None or footer.hlc_max is None:
        return None
    ids = history.field_ids()
    if list(ids) != _COLUMNS or not _has_ids(segment.path, ids):
        return None
    location = new_data_location(history)
    target = Path(local_path(location) or "")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(segment.path, target)
    except OSError:
        # Another disk, or one that knows no links.
        return None
    bounds = {ids[POSITION]: (footer.first, footer.last), ids[HLC]: (footer.hlc_min, footer.hlc_max)}
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=footer.count,
        file_size_in_bytes=segment.size_bytes,
        lower_bounds={field_id: _LONG.pack(low) for field_id, (low, _) in bounds.items()},
        upper_bounds={field_id: _LONG.pack(high) for field_id, (_, high) in bounds.items()},
        spec_id=history.metadata["default-spec-id"],
    )


def _has_ids(path: Path, ids: Mapping[str, int]) -> bool:
    """Whether a segment's columns have a history's ids; older segments have none."""
    schema = pq.read_schema(path)
    for name, field_id in ids.items():
        index = schema.get_field_index(name.removeprefix("_"))
        metadata = schema.field(index).metadata if index >= 0 else None
        if not metadata or metadata.get(b"PARQUET:field_id") != str(field_id).encode():
            return False
    return True
