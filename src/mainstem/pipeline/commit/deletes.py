"""Delete files of Iceberg tables: where rows are gone, as position deletes (version 2) or deletion vectors (version 3).

Only places are written here, never rows. A vector stands in a Puffin file of its own: DuckDB 1.5.5 misreads a table of
which one Puffin file holds several.
"""

import json
import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from mainstem.formats.delta.files import vectors
from mainstem.pipeline.commit.keyindex import DataFile, KeyIndex, Places, by_file
from mainstem.pipeline.passes.stores import new_file, read_file

# Of the two columns of a position delete file, by Iceberg's specification.
_PATH_ID, _POS_ID = 2147483546, 2147483545
_DELETE_SCHEMA = pa.schema(
    [
        pa.field(
            "file_path",
            pa.dictionary(pa.int32(), pa.string()),
            nullable=False,
            metadata={"PARQUET:field_id": str(_PATH_ID)},
        ),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(_POS_ID)}),
    ]
)
_PUFFIN_MAGIC = b"PFA1"
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"


@dataclass(frozen=True, slots=True)
class Deletes:
    """Delete files that were written, and those that they replace; as manifests describe them, in JSON."""

    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    # Of version 3: the vector that each file has once this is committed.
    vectors: dict[int, tuple[str, BitMap64]] = field(default_factory=dict)
    # The data files that lose rows.
    paths: list[str] = field(default_factory=list)


def write_deletes(
    index: KeyIndex, places: Places, *, location: str, version: int, codec: str, store: Mapping[str, str]
) -> Deletes:
    """Write down that the rows at some places are gone. `location` is the folder of the table's data."""
    if not len(places.files):
        return Deletes()
    rows = by_file(places)
    paths = [index.files[number].path for number in rows]
    if version > 2:
        return _vectors(index, rows, paths, location, store)
    groups: dict[tuple[int, str], list[int]] = {}
    for number in rows:
        file = index.files[number]
        groups.setdefault((file.spec_id, file.partition), []).append(number)
    added = []
    for (spec_id, partition), numbers in groups.items():
        chosen = sorted(((index.files[number].path, rows[number]) for number in numbers), key=lambda pair: pair[0])
        added.append(_position_deletes(chosen, spec_id, partition, location, codec, store))
    return Deletes(added=added, paths=paths)


def _position_deletes(
    chosen: Sequence[tuple[str, np.ndarray]],
    spec_id: int,
    partition: str,
    folder: str,
    codec: str,
    store: Mapping[str, str],
) -> str:
    """One file with the places of all rows that one partition loses."""
    counts = [len(rows) for _, rows in chosen]
    paths = pa.DictionaryArray.from_arrays(
        pa.array(np.repeat(np.arange(len(chosen), dtype=np.int32), counts)), pa.array([path for path, _ in chosen])
    )
    table = pa.table([paths, pa.array(np.concatenate([rows for _, rows in chosen]))], schema=_DELETE_SCHEMA)
    location = f"{folder}/{uuid.uuid4()}-deletes.parquet"
    with new_file(location, store) as sink:
        # Positions never repeat within a file's: to look for that would double the time.
        with pq.ParquetWriter(
            sink, _DELETE_SCHEMA, compression=codec, use_dictionary=["file_path"], store_schema=False
        ) as writer:
            writer.write_table(table)
        size = sink.tell()
    bounds = {"keys": [_PATH_ID], "values": [chosen[0][0].encode().hex().upper()]}
    highest = {"keys": [_PATH_ID], "values": [chosen[-1][0].encode().hex().upper()]}
    description: dict[str, Any] = {
        "spec-id": spec_id,
        "content": "position-deletes",
        "file-path": location,
        "file-format": "parquet",
        "partition": json.loads(partition),
        "file-size-in-bytes": size,
        "record-count": len(table),
        # The whole path: a cut one would not tell a reader that the deletes are of one file.
        "lower-bounds": bounds,
        "upper-bounds": highest,
    }
    return json.dumps(description)


def _vectors(
    index: KeyIndex, rows: Mapping[int, np.ndarray], paths: list[str], folder: str, store: Mapping[str, str]
) -> Deletes:
    """A vector per data file. One that the file has already is replaced by one that holds its rows too."""
    found = Deletes(paths=paths)
    for number, positions in rows.items():
        file = index.files[number]
        gone = vectors.bitmap_of(positions)
        if file.vector is not None:
            gone |= _deleted(file, store)
            found.replaced.append(file.vector)
        description = _write_vector(file, gone, folder, store)
        found.added.append(description)
        found.vectors[number] = (description, gone)
    return found


def _deleted(file: DataFile, store: Mapping[str, str]) -> BitMap64:
    """The rows of a file that are gone already."""
    if file.deleted is None:
        described = json.loads(file.vector or "{}")
        start, length = int(described["content-offset"]), int(described["content-size-in-bytes"])
        blob = read_file(described["file-path"], store, start, length)
        file.deleted = BitMap64.deserialize(blob[8:-4])
    return BitMap64(file.deleted)


def _write_vector(file: DataFile, gone: BitMap64, folder: str, store: Mapping[str, str]) -> str:
    data = _VECTOR_MAGIC + bytes(gone.serialize())
    blob = struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    footer = json.dumps(
        {
            "blobs": [
                {
                    "type": "deletion-vector-v1",
                    # The row's position has a reserved id; snapshot and sequence number are inherited.
                    "fields": [2147483645],
                    "snapshot-id": -1,
                    "sequence-number": -1,
                    "offset": len(_PUFFIN_MAGIC),
                    "length": len(blob),
                    "properties": {"referenced-data-file": file.path, "cardinality": str(len(gone))},
                }
            ],
            "properties": {"created-by": "mainstem"},
        },
        separators=(",", ":"),
    ).encode()
    tail = footer + struct.pack("<i", len(footer)) + bytes(4) + _PUFFIN_MAGIC
    content = _PUFFIN_MAGIC + blob + _PUFFIN_MAGIC + tail
    location = f"{folder}/{uuid.uuid4()}-deletes.puffin"
    with new_file(location, store) as sink:
        sink.write(content)
    return json.dumps(
        {
            "spec-id": file.spec_id,
            "content": "position-deletes",
            "file-path": location,
            "file-format": "puffin",
            "partition": json.loads(file.partition),
            "file-size-in-bytes": len(content),
            "record-count": len(gone),
            "referenced-data-file": file.path,
            "content-offset": len(_PUFFIN_MAGIC),
            "content-size-in-bytes": len(blob),
        }
    )
