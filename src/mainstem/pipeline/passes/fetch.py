"""Rows by their positions, out of segments: for large passes, of which few changes outlast the others.

Runs on the executors. Spark has found the last position of each key on two narrow columns; here the rows at those
positions are read, and no other row of the wide columns is decoded into more than Arrow's own buffers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.model.errors import Corrupt
from mainstem.pipeline.passes.stores import open_file

_POSITION = "position"
# What a state needs of a change.
_COLUMNS = [_POSITION, "hlc", "op", "key", "columns", "source"]
# Texts that are the same in many rows: those of the wanted ones alone are spelt out.
_REPEATED = ["op", "source"]
# Rows of two tables may share a position: a record of a topic, and what its envelope says of another table.
_TABLE = ("namespace", "table")
_BATCH_ROWS = 65_536


def whole_rows(rows: pa.Table, locations: Sequence[str], store: Mapping[str, str]) -> pa.Table:
    """Rows of one table that have nothing but their positions, and what they stand for, with what segments say of them.

    They come in the order of the segments.
    """
    positions = rows[_POSITION].to_numpy()
    order = np.argsort(positions)
    wanted = positions[order]
    table = tuple(rows[name][0].as_py() for name in _TABLE) if len(rows) else ("", "")
    parts = [part for location in locations for part in _parts(location, table, wanted, store)]
    found = pa.Table.from_batches(parts) if parts else pa.table({_POSITION: pa.array([], pa.int64())})
    # Each of them, and none twice: the places of what was found among the wanted ones are a permutation.
    places = np.searchsorted(wanted, found[_POSITION].to_numpy())
    is_found = np.zeros(len(wanted), bool)
    is_found[places] = True
    if not is_found.all() or len(places) != len(wanted):
        raise Corrupt(f"rows of segments are missing. expected={len(wanted)} got={len(places)}", place=locations[0])
    known = {name: found[name].cast(pa.string()) if name in _REPEATED else found[name] for name in _COLUMNS}
    known["stands_for"] = rows["stands_for"].take(pa.array(order[places]))
    # Only what is known to fit is read like this.
    known["error"] = pa.nulls(len(found), pa.string())
    # What else they have is the same for all of them.
    return pa.table({name: rows[name] for name in rows.schema.names} | known)


def _parts(
    location: str, table: tuple[str, ...], wanted: npt.NDArray[np.int64], store: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """What one segment has of a table's wanted positions. Row groups that have none of them are not read."""
    with open_file(location, store) as source:
        file = pq.ParquetFile(source, read_dictionary=_REPEATED)
        bounded = [file.schema_arrow.get_field_index(name) for name in (_POSITION, *_TABLE)]
        described = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
        bounds = ([group.column(index).statistics for index in bounded] for group in described)
        groups = [number for number, (at, *names) in enumerate(bounds) if _may_hold(at, names, wanted, table)]
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=_COLUMNS, use_threads=False):
            positions = batch[_POSITION].to_numpy()
            places = np.minimum(np.searchsorted(wanted, positions), len(wanted) - 1)
            yield batch.filter(pa.array(wanted[places] == positions))


def _may_hold(at: Any, names: Sequence[Any], wanted: npt.NDArray[np.int64], table: tuple[str, ...]) -> bool:
    """By the bounds that every segment has of its row groups, each of which is of one table (`formats/segments`)."""
    is_of_table = tuple(name.min for name in names) == table
    return is_of_table and bool(np.searchsorted(wanted, at.min) < np.searchsorted(wanted, at.max, "right"))
