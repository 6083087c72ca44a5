"""Streams of rows are written while they are read: in bounded memory, in one commit, and all of them or none."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mainstem.client.delta import DeltaTable, Storage, create_storage
from mainstem.formats.delta import appending
from mainstem.model.errors import Invalid

Row = dict[str, Any]
SCHEMA = pa.schema([("_id", pa.int64()), ("text", pa.string()), ("p", pa.int64())])


@pytest.fixture
def storage() -> Storage:
    return create_storage("memory://")


def batches(count: int, rows: int = 1_000) -> Iterator[pa.RecordBatch]:
    for at in range(count):
        ids = range(at * rows, (at + 1) * rows)
        yield pa.record_batch([pa.array(ids), [f"text {n}" for n in ids], [n % 2 for n in ids]], schema=SCHEMA)


def documents(count: int) -> Iterator[Row]:
    for n in range(count):
        yield {"_id": n, "text": f"text {n}", "p": n % 2}


STREAMS: dict[str, Callable[[], Any]] = {
    "reader": lambda: pa.RecordBatchReader.from_batches(SCHEMA, batches(20)),
    "batches": lambda: batches(20),
    "tables": lambda: (pa.Table.from_batches([batch]) for batch in batches(20)),
    "documents": lambda: documents(20_000),
    "mixed": lambda: itertools.chain(batches(10), (row for row in documents(20_000) if row["_id"] >= 10_000)),
}


@pytest.mark.parametrize("partition_by", [(), ("p",)], ids=["whole", "partitioned"])
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_all_of_its_rows(storage: Storage, name: str, partition_by: tuple[str, ...]) -> None:
    table = DeltaTable(storage, "t")
    assert table.write(STREAMS[name](), partition_by=partition_by) == 0
    assert table.write(STREAMS[name](), transaction=("app", 1)) == 1
    assert table.write(STREAMS[name](), transaction=("app", 1)) == 1
    assert table.write(STREAMS[name](), mode="overwrite") == 2
    for version, times in ((0, 1), (1, 2), (2, 1)):
        found = table.snapshot(version).query_arrow(sort={"_id": 1})
        assert found["_id"].to_pylist() == [n for n in range(20_000) for _ in range(times)]
    assert table.query({"_id": 19_999}) == [{"_id": 19_999, "text": "text 19999", "p": 1}]


def test_rows_in_lists(storage: Storage) -> None:
    table = DeltaTable(storage, "t")
    table.write([row] for row in documents(100))
    assert len(table.query()) == 100


def test_a_column_may_come_late_in_a_stream(storage: Storage) -> None:
    table = DeltaTable(storage, "t")
    late = ({"_id": n} if n < 40_000 else {"_id": n, "late": "x"} for n in range(40_010))
    assert table.write(late) == 0
    assert len(table.query({"late": "x"})) == 10
    assert table.query_arrow().num_rows == 40_010


@pytest.mark.parametrize("bad", [{"_id": 2.5}, {"_id": 1, "v": object()}, "no row", {"_id": 1, "_ID": 2}], ids=str)
def test_a_stream_that_is_refused_half_way_leaves_nothing(storage: Storage, bad: Any) -> None:
    table = DeltaTable(storage, "t")

    def rows() -> Iterator[Any]:
        yield from batches(80, 16_384)
        yield bad

    for _ in range(2):
        before = table.version if table.exists() else None
        with pytest.raises(Invalid):
            table.write(rows())
        assert (table.version if table.exists() else None) == before
        files = list(Path(table.uri).glob("*.parquet"))
        assert len(files) == (0 if before is None else 1)
        if before is None:
            table.write([{"_id": 1, "text": "x"}])


def test_a_stream_that_fails_by_itself_leaves_nothing(storage: Storage) -> None:
    table = DeltaTable(storage, "t")

    def rows() -> Iterator[Row]:
        yield from documents(20_000)
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="source is gone"):
        table.write(rows())
    assert not table.exists()
    assert not list(Path(table.uri).glob("*.parquet"))


def test_streams_without_rows(storage: Storage) -> None:
    table = DeltaTable(storage, "t")
    with pytest.raises(Invalid, match="no field"):
        table.write(iter(()))
    assert table.write(pa.RecordBatchReader.from_batches(SCHEMA, [])) == 0
    assert table.schema.names == SCHEMA.names
    assert table.write(pa.RecordBatchReader.from_batches(SCHEMA, []), transaction=("app", 1)) == 1
    assert table.snapshot().transactions == {"app": 1}
    assert table.write(iter(()), transaction=("app", 2)) == 2
    assert table.query() == []


def test_an_upsert_takes_a_stream_too(storage: Storage) -> None:
    table = DeltaTable(storage, "t")
    for name in ("reader", "documents", "mixed"):
        table.upsert(STREAMS[name](), delete=iter([{"_id": 5}]) if name == "reader" else None)
    assert table.query_arrow().num_rows == 20_000


def test_a_stream_becomes_files_of_a_bounded_size(storage: Storage) -> None:
    table = DeltaTable(storage, "t")
    (batch,) = batches(1, 40_000)
    table.write(iter([batch] * 100))
    counts = [json.loads(file.stats or "")["numRecords"] for file in table.state().files.values()]
    assert sum(counts) == 4_000_000
    held = [count / 40_000 * batch.nbytes for count in counts]
    assert appending.PENDING_BYTES_MAX <= max(held) < appending.PENDING_BYTES_MAX + batch.nbytes


MEASURE = """
import json, resource, sys
import numpy as np, pyarrow as pa, pyarrow.compute as pc
from mainstem.client.delta import DeltaTable, create_storage

kind, folder, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])

def batches():
    for start in range(0, rows, 50_000):
        ids = np.arange(start, start + 50_000)
        text = pc.utf8_lpad(pa.array(ids).cast(pa.string()), 32, "0")
        yield pa.record_batch({"_id": pa.array(ids), "x": pa.array(ids * 0.5), "text": text})

def documents():
    for n in range(rows):
        yield {"_id": n, "x": n * 0.5, "text": f"{n:032d}"}

def data():
    if kind == "documents":
        return documents()
    if kind == "generator":
        return batches()
    return pa.RecordBatchReader.from_batches(next(batches()).schema, batches())

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
warm = DeltaTable(create_storage(folder), "warm")
warm.write(next(batches()))
before = peak()
table = DeltaTable(create_storage(folder), "t")
table.write(data())
written = sum(json.loads(file.stats)["numRecords"] for file in table.state().files.values())
print(json.dumps({"grown": peak() - before, "rows": written}))
"""


@pytest.mark.parametrize(("kind", "rows"), [("reader", 8_000_000), ("generator", 8_000_000), ("documents", 600_000)])
def test_memory_does_not_grow_with_the_stream(tmp_path: Path, kind: str, rows: int) -> None:
    """8 million rows are 420 MB in Arrow, 600,000 documents nearly as much in Python: a part is held at a time."""
    command = [sys.executable, "-c", MEASURE, kind, str(tmp_path), str(rows)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)
    assert told["rows"] == rows
    assert told["grown"] < 3 * appending.PENDING_BYTES_MAX, told
