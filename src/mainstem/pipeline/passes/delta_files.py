"""Data files of Delta tables: the client library's own writer, run on the executors."""

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa

from mainstem.formats.delta.files.datafiles import write_files
from mainstem.formats.delta.log import Metadata
from mainstem.formats.delta.schema import schema_of
from mainstem.formats.delta.storage import storage_by_properties
from mainstem.formats.delta.values.exact import fitted
from mainstem.pipeline.passes.files import WrittenFile
from mainstem.pipeline.passes.plan import DeltaTarget
from mainstem.pipeline.passes.transforms import apply_transform, delta_value
from mainstem.tables.partitions import shown_transforms


def write_delta_files(target: DeltaTarget, rows: pa.Table, store: Mapping[str, str], now_ms: int) -> list[WrittenFile]:
    """Write rows as files of a Delta table, one per partition. Their descriptions are `add` actions."""
    if not rows.num_rows:
        return []
    schema = schema_of(msgspec.convert(target.metadata, Metadata))
    storage = storage_by_properties(target.url, store)
    whole = fitted(_with_uuids_as_text(with_derived(rows, target), target), schema)
    written = []
    for numbers in _by_partition(whole, schema.partition_by):
        (add,) = write_files(storage, target.path, schema, whole.take(pa.array(numbers)), now_ms)
        written.append(WrittenFile(add, numbers, add["size"]))
    return written


def with_derived(rows: pa.Table, target: DeltaTarget) -> pa.Table:
    """The rows with the columns that stand for partition transforms."""
    for field, transform in zip(target.derived, shown_transforms(target.derived), strict=True):
        source_type = target.types[field.source]
        found = apply_transform(field.transform, source_type, rows[field.source].combine_chunks())
        values = pa.array([delta_value(transform, source_type, value) for value in found.values])
        rows = rows.append_column(field.name, values.take(pa.array(found.codes)))
    return rows


def _with_uuids_as_text(rows: pa.Table, target: DeltaTarget) -> pa.Table:
    """Delta has no type for a UUID. Rows that were read from the table have texts already."""
    for name, column_type in target.types.items():
        if column_type == "uuid" and name in rows.column_names and pa.types.is_fixed_size_binary(rows[name].type):
            texts = [None if value is None else str(UUID(bytes=value)) for value in rows[name].to_pylist()]
            rows = rows.set_column(rows.column_names.index(name), name, pa.array(texts, pa.string()))
    return rows


def _by_partition(rows: pa.Table, names: Sequence[str]) -> Iterator[np.ndarray]:
    """The numbers of the rows that share a file."""
    codes = np.zeros(len(rows), np.int64)
    for name in names:
        encoded = rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
        codes = codes * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy()
    _, members = np.unique(codes, return_inverse=True)
    order = np.argsort(members, kind="stable")
    edges = np.flatnonzero(np.diff(members[order])) + 1
    yield from np.split(order, edges)
