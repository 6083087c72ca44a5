"""Row groups that are read whole give the rows that the filter matches, whatever the column's type."""

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.client.delta import DeltaTable, create_storage
from mainstem.documents import matches
from mainstem.formats.delta.files.groups import chosen_groups, repeated_text
from mainstem.model.errors import Corrupt

COUNT = 3_000
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def row(n: int) -> dict[str, Any]:
    return {
        "_id": n,
        "n": None if n % 11 == 0 else n,
        "d": math.nan if n % 13 == 0 else n / 4,
        "m": Decimal(n) / 8,
        "t": START + dt.timedelta(seconds=n, microseconds=n),
        "day": dt.date(2026, 1, 1) + dt.timedelta(days=n // 100),
        "s": f"{n:05d}",
        "flag": n % 2 == 0,
        "city": None if n % 17 == 0 else f"city {n % 5}",
    }


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    made = DeltaTable(create_storage(str(tmp_path_factory.mktemp("groups"))), "t")
    for start in range(0, COUNT, 1_000):
        made.write([row(n) for n in range(start, start + 1_000)])
    return made


FILTERS: tuple[dict[str, Any], ...] = (
    {"_id": {"$gte": 500, "$lt": 2_700}},
    {"n": {"$gte": 500, "$lt": 2_700}},
    {"n": {"$gt": 499.5}},
    {"d": {"$lte": 600}},
    {"m": {"$gt": 100, "$lt": Decimal("300.25")}},
    {"t": {"$gte": START + dt.timedelta(seconds=500, microseconds=500)}},
    {"day": {"$gte": dt.datetime(2026, 1, 10, tzinfo=dt.UTC)}},
    {"$and": [{"n": {"$gte": 100}}, {"d": {"$gte": 50.0}}, {"_id": {"$lt": 2_950}}]},
)
OTHER_WAYS: tuple[dict[str, Any], ...] = ({"_id": 7}, {"s": {"$gte": "00500"}}, {"flag": True}, {"n": {"$gte": "a"}})


@pytest.mark.parametrize("filter", FILTERS, ids=str)
def test_ranges_are_read_by_groups(table: DeltaTable, filter: dict[str, Any]) -> None:
    found = table.find(filter)
    paths = [f"t/{file.path}" for file in found.files]
    assert chosen_groups(table._engine.footers, paths, found._predicate, found.schema)
    check(table, filter)


def test_text_that_repeats_is_read_as_a_dictionary(table: DeltaTable) -> None:
    (path, *_) = table.snapshot().file_uris()
    group = pq.ParquetFile(path).metadata.row_group(0)
    assert repeated_text(group, table.schema) == ["city"]


@pytest.mark.parametrize("filter", OTHER_WAYS, ids=str)
def test_and_what_statistics_do_not_measure_otherwise(table: DeltaTable, filter: dict[str, Any]) -> None:
    check(table, filter)


def check(table: DeltaTable, filter: dict[str, Any]) -> None:
    expected = sorted(document["_id"] for document in table.query() if matches(filter, document))
    whole = table.query_arrow(filter)
    assert sorted(whole["_id"].to_pylist()) == expected
    assert whole.schema.equals(table.schema, check_metadata=False)
    cities = dict(zip(whole["_id"].to_pylist(), whole["city"].to_pylist(), strict=True))
    assert cities == {n: row(n)["city"] for n in expected}
    # Without the filter's own column in the answer, and in another order.
    narrow = table.query_arrow(filter, projection=["s", "_id"])
    assert narrow.schema.names == ["_id", "s"]
    assert sorted(narrow["s"].to_pylist()) == [f"{n:05d}" for n in expected]


def test_deleted_rows_and_rows_of_older_files_count(tmp_path: Path) -> None:
    table = DeltaTable(create_storage(str(tmp_path)), "t")
    table.write([{"_id": n} for n in range(1_000)], properties={"delta.enableDeletionVectors": "true"})
    table.write([{"_id": n, "later": str(n)} for n in range(1_000, 2_000)])
    wanted = {"_id": {"$gte": 10, "$lt": 1_990}}
    assert table.query_arrow(wanted).num_rows == 1_980
    table.delete({"_id": {"$mod": [2, 0]}})
    assert table.query_arrow(wanted).num_rows == 990


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    table = DeltaTable(create_storage(str(tmp_path)), "t")
    table.write(pa.table({"_id": range(1_000)}))
    wanted = {"_id": {"$gte": 10}}
    assert table.query_arrow(wanted).num_rows == 990
    (path,) = (Path(uri) for uri in table.snapshot().file_uris())
    assert pq.ParquetFile(path).metadata.num_rows == 1_000
    path.unlink()
    with pytest.raises(Corrupt, match=path.name):
        DeltaTable(create_storage(str(tmp_path)), "t").query_arrow(wanted)
