"""Delete files: places in, files out; read back with Arrow, as bytes, and by three engines in a real table."""

import json
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from mainstem.pipeline.commit.deletes import write_deletes
from mainstem.pipeline.commit.keyindex import DataFile, KeyIndex, Places


def index_of(*files: DataFile) -> KeyIndex:
    index = KeyIndex()
    for file in files:
        index.number_of(file)
    return index


def places(*pairs: tuple[int, int]) -> Places:
    files, rows = zip(*pairs, strict=True) if pairs else ((), ())
    return Places(np.array(files, np.int32), np.array(rows, np.int32))


def test_nothing_gone_nothing_written(tmp_path: Path) -> None:
    for version in (2, 3):
        found = write_deletes(index_of(), places(), location=str(tmp_path), version=version, codec="zstd", store={})
        assert (found.added, found.replaced, found.paths) == ([], [], [])
    assert list(tmp_path.iterdir()) == []


def test_position_deletes_are_sorted_one_file_per_partition(tmp_path: Path) -> None:
    index = index_of(DataFile("z", 0, '["a"]'), DataFile("b", 0, '["a"]'), DataFile("c", 1, "[]"))
    gone = places((0, 7), (2, 1), (1, 5), (0, 3), (1, 0))
    found = write_deletes(index, gone, location=str(tmp_path), version=2, codec="gzip", store={})
    assert sorted(found.paths) == ["b", "c", "z"] and not found.replaced and not found.vectors
    described = {json.dumps(each["partition"]): each for each in map(json.loads, found.added)}
    assert described.keys() == {'["a"]', "[]"}
    first = described['["a"]']
    assert (first["content"], first["spec-id"], first["record-count"]) == ("position-deletes", 0, 4)
    path = first["file-path"]
    assert first["file-size-in-bytes"] == Path(path).stat().st_size
    # By path and position, as Iceberg's specification wants.
    rows = pq.read_table(path).to_pydict()
    assert list(zip(map(str, rows["file_path"]), rows["pos"], strict=True)) == [("b", 0), ("b", 5), ("z", 3), ("z", 7)]
    schema = pq.ParquetFile(path).schema_arrow
    assert [int(schema.field(number).metadata[b"PARQUET:field_id"]) for number in (0, 1)] == [2147483546, 2147483545]
    assert pq.read_metadata(path).row_group(0).column(0).compression == "GZIP"
    # The bounds are whole paths: a reader sees by them which files are meant.
    bounds = [bytes.fromhex(first[side]["values"][0]).decode() for side in ("lower-bounds", "upper-bounds")]
    assert bounds == ["b", "z"]


def test_a_vector_holds_what_was_gone_before_and_replaces_it(tmp_path: Path) -> None:
    index = index_of(DataFile("a"), DataFile("b"))
    first = write_deletes(
        index, places((0, 1), (0, 99), (1, 2)), location=str(tmp_path), version=3, codec="zstd", store={}
    )
    # A Puffin file per vector: DuckDB misreads one that holds several.
    assert len({json.loads(each)["file-path"] for each in first.added}) == 2
    for number, (vector, _) in first.vectors.items():
        index.files[number].vector = vector
    # As after a restart: the rows of the vector are read from its file.
    second = write_deletes(index, places((0, 5), (0, 1)), location=str(tmp_path), version=3, codec="zstd", store={})
    assert second.replaced == [first.vectors[0][0]] and second.paths == ["a"]
    (described,) = map(json.loads, second.added)
    assert (described["record-count"], described["referenced-data-file"]) == (3, "a")
    assert sorted(read_vector(described)) == [1, 5, 99]
    # And as the committer remembers it.
    assert sorted(second.vectors[0][1]) == [1, 5, 99]


def read_vector(described: dict[str, Any]) -> BitMap64:
    """By Iceberg's specification, and nothing of ours."""
    content = Path(described["file-path"]).read_bytes()
    assert content[:4] == content[-4:] == b"PFA1" and len(content) == described["file-size-in-bytes"]
    (footer_length,) = struct.unpack("<i", content[-12:-8])
    footer = content[-12 - footer_length : -12]
    assert content[-16 - footer_length : -12 - footer_length] == b"PFA1"
    (blob,) = json.loads(footer)["blobs"]
    assert blob["type"] == "deletion-vector-v1"
    assert (blob["offset"], blob["length"]) == (described["content-offset"], described["content-size-in-bytes"])
    data = content[blob["offset"] : blob["offset"] + blob["length"]]
    (length,) = struct.unpack(">I", data[:4])
    body = data[4:-4]
    assert length == len(body) and body[:4] == b"\xd1\xd3\x39\x64"
    assert struct.unpack(">I", data[-4:])[0] == zlib.crc32(body)
    found = BitMap64.deserialize(body[4:])
    assert blob["properties"] == {
        "referenced-data-file": described["referenced-data-file"], "cardinality": str(len(found)),
    }  # fmt: skip
    return found


@pytest.mark.parametrize("version", [2, 3])
def test_random_places_over_many_files(tmp_path: Path, version: int) -> None:
    draw = random.Random(version)
    index = index_of(*(DataFile(f"f{number:02d}", 0, json.dumps([number % 3])) for number in range(20)))
    chosen = {(draw.randrange(20), draw.randrange(10**6)) for _ in range(5_000)}
    found = write_deletes(index, places(*chosen), location=str(tmp_path), version=version, codec="zstd", store={})
    read: set[tuple[str, int]] = set()
    for described in map(json.loads, found.added):
        if version == 3:
            read |= {(described["referenced-data-file"], row) for row in read_vector(described)}
        else:
            rows = pq.read_table(described["file-path"]).to_pydict()
            read |= set(zip(map(str, rows["file_path"]), rows["pos"], strict=True))
    assert read == {(f"f{file:02d}", row) for file, row in chosen}
    assert len(found.added) == (20 if version == 3 else 3)
