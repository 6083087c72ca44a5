"""A table that somebody else made has the name that changes go to: they become dead letters, and hold nothing back."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mainstem.client import connect_duckdb
from mainstem.client.delta import create_storage
from mainstem.formats.delta.iceberg import IcebergMirror
from mainstem.pipeline.delta.table import DeltaLake
from mainstem.runtime.clock import SystemClock
from mainstem.tables.settings import Format, TableSettings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SERVED = pytest.mark.parametrize("bench", ["served"], indirect=True)
IN_DELTA = TableSettings.from_document({"format": "delta"})


def letters(bench: Any, table: str = "orders") -> list[tuple[str, str]]:
    return [(row["_key"], row["_reason"]) for row in bench.rows(f"{table}_dead_letters")]


@SERVED
def test_a_mirror_of_a_delta_table_under_the_name(bench: Any, catalog_url: str, tmp_path: Path) -> None:
    lake = DeltaLake(create_storage(str(tmp_path / "delta")), SystemClock())
    events = lake.table(bench.name("events"))
    events.create(pa.schema([("id", pa.int64())]))
    events.write([{"id": 1}])
    IcebergMirror(events, catalog_url, f"{bench.namespace}.orders").refresh()
    bench.seal(bench.change("1", {"n": 1}), bench.change("a", {"n": 1}, table="other"))
    assert bench.catch_up() == 2, "nothing waits for it"
    ((key, reason),) = letters(bench)
    assert key == "1" and "orders" in reason and "lacks=['_hlc', '_key', '_position', '_source']" in reason
    # A pipeline that starts anew does not write them again; nor is the mirror touched.
    bench.seal(bench.change("2", {"n": 2}))
    assert bench.catch_up() == 3
    assert [key for key, _ in letters(bench)] == ["1", "2"]
    with connect_duckdb(catalog_url) as duck:
        assert duck.execute(f"SELECT * FROM lake.{bench.namespace}.orders").fetchall() == [(1,)]
    assert bench.lake.load(bench.name("orders").history) is None
    # Once the name is free, changes go to a table of ours.
    bench.spark.sql(f"DROP TABLE {bench.lake.identifier(bench.name('orders'))}")
    bench.seal(bench.change("3", {"n": 3}))
    bench.catch_up()
    assert bench.values()["3"] == {"n": 3} and len(letters(bench)) == 2


@SERVED
def test_a_view_has_the_name(bench: Any) -> None:
    bench.seal(bench.change("x", {"n": 1}, table="other"))
    bench.catch_up("other")
    bench.spark.sql(
        f"CREATE VIEW {bench.lake.identifier(bench.name('orders'))} AS SELECT * FROM "
        f"{bench.lake.identifier(bench.name('other'))}"
    )
    bench.seal(bench.change("1", {"n": 1}))
    assert bench.catch_up() == 2
    ((key, reason),) = letters(bench)
    assert key == "1" and "View with same name" in reason


def test_a_delta_table_of_somebody_else(bench: Any, tmp_path: Path) -> None:
    bench.delta = DeltaLake(create_storage(str(tmp_path / "delta")), SystemClock(), application="test-app")
    theirs = bench.delta.table(bench.name("orders"))
    theirs.create(pa.schema([("id", pa.int64())]))
    theirs.write([{"id": 1}])
    bench.seal(bench.change("1", {"n": 1}), bench.change("2", None))
    assert IN_DELTA.format is Format.DELTA
    for _ in range(2):
        assert bench.catch_up(settings=IN_DELTA) == 2
    found = bench.delta.table(bench.name("orders").dead_letters).query(projection=["_key", "_reason"])
    assert sorted(row["_key"] for row in found) == ["1", "2"]
    assert all("not Mainstem's" in row["_reason"] for row in found)
    assert theirs.query() == [{"id": 1}]
