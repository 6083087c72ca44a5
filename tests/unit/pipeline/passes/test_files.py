"""Data files as other readers see them: values, field ids, bounds, partitions; and files that were cut off."""

import datetime as dt
import decimal
import json
import math
import struct
import uuid
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes

from mainstem.model.errors import Invalid
from mainstem.pipeline.passes import files
from mainstem.pipeline.passes.files import write_files
from mainstem.pipeline.passes.plan import IcebergTarget, PartitionField
from mainstem.pipeline.passes.stores import new_file, remove_file
from mainstem.pipeline.passes.values import arrow_type
from mainstem.tables.parquet import writer_options
from mainstem.tables.types import ColumnType

NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456)
ROWS: dict[str, list[Any]] = {
    "boolean": [True, False, None],
    "int": [-(2**31), 2**31 - 1, None],
    "long": [-(2**63), 2**63 - 1, None],
    "float": [-0.5, 1.5, None],
    "double": [-1e300, 1e300, None],
    "decimal(9,2)": [decimal.Decimal("-1.50"), decimal.Decimal("9999999.99"), None],
    "decimal(38,10)": [decimal.Decimal("-1.5000000000"), decimal.Decimal("123456789" * 3 + ".0123456789"), None],
    "date": [dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
    "timestamp": [dt.datetime(1969, 1, 1), NOON, None],
    "timestamptz": [dt.datetime(1969, 1, 1, tzinfo=dt.UTC), NOON.replace(tzinfo=dt.UTC), None],
    "string": ["", "ü😀", None],
    "binary": [b"", b"\x00\xff", None],
    "uuid": [uuid.UUID(int=1).bytes, uuid.UUID(int=2**127).bytes, None],
}


def target(folder: Path, types: list[str], *partition: PartitionField) -> IcebergTarget:
    fields = tuple((f"c{number}", ColumnType(kind), number + 11) for number, kind in enumerate(types))
    return IcebergTarget(str(folder), fields, 3, partition, writer_options({}))


def table(columns: dict[str, list[Any]]) -> pa.Table:
    return pa.table(
        {
            f"c{number}": pa.array(values, arrow_type(ColumnType(kind)))
            for number, (kind, values) in enumerate(columns.items())
        }
    )


def test_every_type_reads_back_by_arrow_and_duckdb(tmp_path: Path) -> None:
    (written,) = write_files(target(tmp_path, list(ROWS)), table(ROWS), {})
    path = written.description["file-path"]
    assert (written.description["record-count"], written.description["spec-id"]) == (3, 3)
    assert written.description["file-size-in-bytes"] == written.bytes == Path(path).stat().st_size
    by_arrow = pq.read_table(path)
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        by_duckdb = duck.execute(f"SELECT * FROM '{path}'").fetchall()
    for number, (kind, values) in enumerate(ROWS.items()):
        read = [_plain(value) for value in by_arrow[f"c{number}"].to_pylist()]
        assert read == [_plain(value) for value in values], kind
        found = [row[number] for row in by_duckdb]
        if kind == "uuid":
            assert found == [None if value is None else uuid.UUID(bytes=value) for value in values]
        else:
            assert found == values, kind
    schema = pq.ParquetFile(path).schema_arrow
    assert [int(schema.field(name).metadata[b"PARQUET:field_id"]) for name in schema.names] == [
        number + 11 for number in range(len(ROWS))
    ]
    stored = pq.ParquetFile(path).schema
    uuid_column = stored.column(list(ROWS).index("uuid"))
    assert (uuid_column.physical_type, uuid_column.length) == ("FIXED_LEN_BYTE_ARRAY", 16)
    assert json.loads(uuid_column.logical_type.to_json())["Type"] == "UUID"
    # As Iceberg's specification wants decimals of so many digits.
    assert stored.column(list(ROWS).index("decimal(9,2)")).physical_type == "INT32"
    assert b"DuckDB" not in Path(path).read_bytes()


def _plain(value: Any) -> Any:
    return value.bytes if isinstance(value, uuid.UUID) else value


def _bounds(written: Any, side: str) -> dict[int, bytes]:
    bounds = written.description[side]
    return {key: bytes.fromhex(value) for key, value in zip(bounds["keys"], bounds["values"], strict=True)}


def test_bounds_are_those_of_the_values_as_pyiceberg_reads_them(tmp_path: Path) -> None:
    from pyiceberg.types import NestedField

    (written,) = write_files(target(tmp_path, list(ROWS)), table(ROWS), {})
    lower, upper = _bounds(written, "lower-bounds"), _bounds(written, "upper-bounds")
    for number, (kind, values) in enumerate(ROWS.items()):
        name = kind.replace(",", ", ")
        iceberg: Any = NestedField.model_validate({"id": 1, "name": "c", "type": name, "required": False}).field_type
        known = sorted(value for value in values if value is not None)
        expected: tuple[Any, ...] = (known[0], known[-1])
        if kind == "uuid":
            expected = uuid.UUID(bytes=known[0]), uuid.UUID(bytes=known[-1])
        if kind in ("date", "timestamp", "timestamptz"):
            expected = tuple(_number(value) for value in expected)
        found = from_bytes(iceberg, lower[number + 11]), from_bytes(iceberg, upper[number + 11])
        assert tuple(map(_comparable, found)) == tuple(map(_comparable, expected)), kind
    counts = written.description["null-value-counts"]
    assert counts["values"] == [1] * len(ROWS)


def _comparable(value: Any) -> Any:
    return value.bytes if isinstance(value, uuid.UUID) else value


def _number(value: Any) -> int:
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=None) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    return int((value - dt.date(1970, 1, 1)).days)


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=5))
def test_bounds_of_long_texts_hold_them_all(texts: list[str]) -> None:
    low, high = files._bounds(pa.chunked_array([pa.array(texts)]), ColumnType("string")) or (b"", None)
    assert low.decode() and len(low.decode()) <= 16
    for text in texts:
        assert low <= text.encode()
        assert high is None or text.encode() <= high
    assert high is None or len(high.decode()) <= 16


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=5))
def test_bounds_of_long_binaries_hold_them_all(values: list[bytes]) -> None:
    found = files._bounds(pa.chunked_array([pa.array(values, pa.binary())]), ColumnType("binary"))
    assert found is not None
    low, high = found
    assert all(low <= value for value in values)
    assert high is None or (all(value <= high for value in values) and len(high) <= 16)


@given(st.lists(st.floats() | st.none(), min_size=1, max_size=6))
def test_bounds_of_doubles_hold_them_all(values: list[float | None]) -> None:
    found = files._bounds(pa.chunked_array([pa.array(values, pa.float64())]), ColumnType("double"))
    known = [value for value in values if value is not None]
    if found is None:
        assert not known or any(map(math.isnan, known))
        return
    low, high = struct.unpack("<d", found[0])[0], struct.unpack("<d", found[1] or b"")[0]
    # A NaN is in no bounds, by Iceberg's specification; all other values are.
    assert all(low <= value <= high for value in known if not math.isnan(value))
    # Zero has two signs, and readers may order them.
    if 0.0 in known and low == 0.0:
        assert math.copysign(1, low) <= min(math.copysign(1, value) for value in known if value == 0.0)


def test_one_file_per_partition_with_its_rows(tmp_path: Path) -> None:
    partition = (PartitionField("day", "c0", "day"), PartitionField("c1 b/c", "c1", "truncate[1]"))
    times = [dt.datetime(2024, 1, day, tzinfo=dt.UTC) for day in (1, 2, 1, 1)]
    rows = table({"timestamptz": [*times, None], "string": ["ab", "ab", "ac", "/x", None]})
    written = write_files(target(tmp_path, ["timestamptz", "string"], *partition), rows, {})
    found = {}
    for file in written:
        path = Path(file.description["file-path"])
        stored = pq.ParquetFile(path).read().to_pylist()
        assert stored == rows.take(pa.array(file.rows)).to_pylist()
        found[tuple(file.description["partition"])] = (path.parent.relative_to(tmp_path).as_posix(), file.rows.tolist())
    assert found == {
        ("2024-01-01", "a"): ("day=2024-01-01/c1%20b%2Fc=a", [0, 2]),
        ("2024-01-02", "a"): ("day=2024-01-02/c1%20b%2Fc=a", [1]),
        ("2024-01-01", "/"): ("day=2024-01-01/c1%20b%2Fc=%2F", [3]),
        (None, None): ("day=null/c1%20b%2Fc=null", [4]),
    }


def test_too_many_partitions_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PARTITIONS_MAX", 3)
    rows = table({"long": [1, 2, 3, 4]})
    with pytest.raises(Invalid, match="expected=at most 3 got=4"):
        write_files(target(tmp_path, ["long"], PartitionField("n", "c0", "identity")), rows, {})


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    assert write_files(target(tmp_path, ["long"]), table({"long": []}), {}) == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_not_finished_is_not_there(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "file"
    with pytest.raises(RuntimeError), new_file(str(place), {}) as sink:
        sink.write(b"half")
        raise RuntimeError
    assert not place.exists()
    remove_file(str(place), {})
    with new_file(f"file://{place}", {}) as sink:
        sink.write(b"whole")
    assert place.read_bytes() == b"whole"
    remove_file(str(place), {})
    assert not place.exists()


def test_places_that_are_neither_local_nor_s3_are_refused() -> None:
    with pytest.raises(Invalid, match="expected=a local folder or s3"), new_file("gs://bucket/file", {}):
        pass
