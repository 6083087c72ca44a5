"""A sealed segment as a data file of a history, without a copy: one more name for the same bytes on the same disk.

A segment has a history's columns under the history's field ids, and Iceberg reads by those. Where a segment holds one
table alone, all of it past what the history covers and none of it refused, its rows are the rows to be appended. The
log may drop its own name for the file, and so may the table: the bytes stay for the other.
"""

import json
import os
import struct
import uuid
from pathlib import Path

import pyarrow.parquet as pq

from mainstem.model.position import LogPosition
from mainstem.pipeline.passes.plan import IcebergTarget
from mainstem.pipeline.passes.stores import local_path
from mainstem.pipeline.source.segments import Segment, TableSlice
from mainstem.runtime import durable
from mainstem.tables.layout import HISTORY_COLUMNS, HLC, POSITION

# Where the segments of a pass have fewer rows on average they are copied: the rows of several then share a file.
LINKED_ROWS_MIN = 25_000
_LONG = struct.Struct("<q")
_COLUMNS = [name for name, _ in HISTORY_COLUMNS]


def link_segments(target: IcebergTarget, run: TableSlice, after: LogPosition) -> list[tuple[Segment, str]]:
    """Give segments a second name among the history's files; returns those, each with its file's description."""
    folder = local_path(target.location)
    if folder is None or target.partition or [name for name, _, _ in target.fields] != _COLUMNS:
        return []
    if run.count < LINKED_ROWS_MIN * len(run.segments):
        return []
    ids = {name: field_id for name, _, field_id in target.fields}
    linked = []
    for segment in run.segments:
        footer = segment.tables[run.table]
        if len(segment.tables) > 1 or footer.errors or footer.first <= after:
            continue
        path = local_path(segment.location)
        if path is None or footer.hlc_min is None or footer.hlc_max is None or not _has_ids(path, ids):
            continue
        name = f"{uuid.uuid4()}.parquet"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, folder / name)
        except OSError:
            # Another disk, or one that knows no links: the executors copy the rows.
            continue
        bounds = {ids[POSITION]: (footer.first, footer.last), ids[HLC]: (footer.hlc_min, footer.hlc_max)}
        description = {
            "spec-id": target.spec_id,
            "content": "data",
            "file-path": f"{target.location}/{name}",
            "file-format": "parquet",
            "partition": [],
            "file-size-in-bytes": segment.size_bytes,
            "record-count": footer.count,
            "lower-bounds": _bounds({field_id: low for field_id, (low, _) in bounds.items()}),
            "upper-bounds": _bounds({field_id: high for field_id, (_, high) in bounds.items()}),
        }
        linked.append((segment, json.dumps(description)))
    if linked:
        durable.sync(folder)
    return linked


def _bounds(values: dict[int, int]) -> dict[str, list[object]]:
    return {"keys": list(values), "values": [_LONG.pack(value).hex().upper() for value in values.values()]}


def _has_ids(path: Path, ids: dict[str, int]) -> bool:
    """Whether a segment's columns have a history's ids; older segments have none."""
    schema = pq.read_schema(path)
    for name, field_id in ids.items():
        index = schema.get_field_index(name.removeprefix("_"))
        metadata = schema.field(index).metadata if index >= 0 else None
        if not metadata or metadata.get(b"PARQUET:field_id") != str(field_id).encode():
            return False
    return True
