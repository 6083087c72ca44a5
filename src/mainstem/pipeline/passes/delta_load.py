"""Rows of a load, which Spark has typed, as files of a Delta table: run on the executors."""

from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.formats.delta.log import Metadata
from mainstem.formats.delta.schema import schema_of
from mainstem.pipeline.passes.delta_files import with_derived, write_delta_files
from mainstem.pipeline.passes.plan import DeltaTarget

# What a task holds in memory before it writes a file.
CHUNK_BYTES = 128 << 20
CHUNK_ROWS = 1_000_000
# An `add` action as JSON, and the columns with whole numbers that a double does not keep.
WRITTEN = pa.schema([("file", pa.string()), ("far", pa.list_(pa.string()))])
_EXACT_MAX = 1 << 53
_Batches = Iterator[pa.RecordBatch]


def derived_schema(target: DeltaTarget, schema: pa.Schema) -> pa.Schema:
    """The rows' columns, and those that only partitions have."""
    known = schema_of(msgspec.convert(target.metadata, Metadata)).fields
    for field in target.derived:
        schema = schema.append(pa.field(field.name, known[field.name].type))
    return schema


def derive_task(target: DeltaTarget, batches: _Batches) -> _Batches:
    """Add the columns that only partitions have, so that Spark can bring the rows of each together."""
    for batch in batches:
        rows = with_derived(pa.Table.from_batches([batch]), target)
        yield from rows.cast(derived_schema(target, batch.schema)).combine_chunks().to_batches()


def write_task(target: DeltaTarget, store: Mapping[str, str], now_ms: int, batches: _Batches) -> _Batches:
    """Write rows as files, one per partition and chunk, and tell of each."""
    for rows in _chunks(batches):
        for written in write_delta_files(target, rows, store, now_ms):
            part = rows.take(pa.array(written.rows))
            far = [name for name in part.column_names if _is_far(part[name])]
            text = msgspec.json.encode(written.description).decode()
            yield pa.record_batch([pa.array([text]), pa.array([far], pa.list_(pa.string()))], schema=WRITTEN)


def _chunks(batches: _Batches) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.num_rows for each in held) >= CHUNK_ROWS or sum(each.nbytes for each in held) >= CHUNK_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _is_far(values: pa.ChunkedArray) -> bool:
    if not (pa.types.is_int64(values.type) or pa.types.is_float64(values.type)):
        return False
    bounds = pc.min_max(values).as_py()
    return bounds["min"] is not None and max(abs(bounds["min"]), abs(bounds["max"])) > _EXACT_MAX
