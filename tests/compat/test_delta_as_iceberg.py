"""An append-only Delta table, read by Iceberg engines through our catalog, without a second copy of its rows."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstem.client import connect_duckdb
from mainstem.client.delta import DeltaTable, create_storage
from mainstem.formats.delta.iceberg import IcebergMirror
from mainstem.model.errors import Invalid
from tests.compat.catalog_server import Server


@pytest.fixture
def catalog_url(tmp_path: Path) -> Iterator[str]:
    with Server(tmp_path / "catalog", str(tmp_path / "warehouse")) as server:
        yield server.url


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}


def test_every_commit_is_seen_by_iceberg_engines(tmp_path: Path, catalog_url: str) -> None:
    from pyiceberg.catalog import load_catalog

    table = DeltaTable(create_storage(str(tmp_path / "delta")), "shop/events")
    table.write([{"_id": "1", "n": 1}, {"_id": "2", "n": 2}])
    mirror = IcebergMirror(table, catalog_url, "shop.events")
    table.after_commit(mirror.refresh)
    table.write([{"_id": "3", "n": 3}])
    table.write([{"_id": "4", "n": 4, "late": "x"}])
    catalog = load_catalog("judge", type="rest", uri=catalog_url, warehouse="lake")

    def seen() -> list[dict[str, Any]]:
        rows = catalog.load_table("shop.events").scan().to_arrow().to_pylist()
        return sorted(rows, key=lambda row: str(row["_id"]))

    expected = [{"_id": str(n), "n": n, "late": "x" if n == 4 else None} for n in range(1, 5)]
    assert seen() == expected
    told = connect_duckdb(catalog_url).execute("SELECT _id, n, late FROM lake.shop.events ORDER BY _id").fetchall()
    assert told == [tuple(row[name] for name in ("_id", "n", "late")) for row in expected]
    snapshots = len(catalog.load_table("shop.events").snapshots())
    assert mirror.refresh() == table.version
    assert len(catalog.load_table("shop.events").snapshots()) == snapshots
    # Files that are put together are still the same rows.
    table.optimize()
    mirror.refresh()
    assert seen() == expected
    assert len(list(catalog.load_table("shop.events").scan().plan_files())) == 1
    # No data file but Delta's own.
    located = {Path(task.file.file_path) for task in catalog.load_table("shop.events").scan().plan_files()}
    assert located <= files_in(tmp_path / "delta")


def test_a_change_of_type_that_iceberg_does_not_know_is_refused_by_name(tmp_path: Path, catalog_url: str) -> None:
    table = DeltaTable(create_storage(str(tmp_path / "delta")), "shop/wide")
    table.write([{"_id": "1", "n": 1}], evolution="widen")
    mirror = IcebergMirror(table, catalog_url, "shop.wide")
    mirror.refresh()
    table.write([{"_id": "2", "n": "x"}])
    with pytest.raises(Invalid, match="make the mirror anew"):
        mirror.refresh()


def test_partitions_are_iceberg_s_too(tmp_path: Path, catalog_url: str) -> None:
    from pyiceberg.catalog import load_catalog

    table = DeltaTable(create_storage(str(tmp_path / "delta")), "shop/parts")
    rows = [
        {"_id": str(n), "p": ["a b", "é/=%", None][n % 3], "day": dt.date(2024, 1, 1 + n % 2), "k": n % 2, "n": n}
        for n in range(12)
    ]
    table.write(rows[:6], partition_by=["p", "day", "k"])
    IcebergMirror(table, catalog_url, "shop.parts").refresh()
    table.write(rows[6:])
    IcebergMirror(table, catalog_url, "shop.parts").refresh()
    columns = ["_id", "p", "day", "k", "n"]
    expected = sorted(tuple(row[name] for name in columns) for row in rows)
    loaded = load_catalog("judge", type="rest", uri=catalog_url, warehouse="lake").load_table("shop.parts")
    assert [field.name for field in loaded.spec().fields] == ["p", "day", "k"]
    found = loaded.scan().to_arrow().select(columns).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == expected
    # Partitions that cannot match are not opened.
    assert len(list(loaded.scan(row_filter="k == 1").plan_files())) == len(list(loaded.scan().plan_files())) / 2
    sql = "SELECT _id, p, day, k, n FROM lake.shop.parts ORDER BY _id"
    assert sorted(connect_duckdb(catalog_url).execute(sql).fetchall()) == expected


def test_what_iceberg_cannot_say_is_refused(tmp_path: Path, catalog_url: str) -> None:
    table = DeltaTable(create_storage(str(tmp_path)), "t")
    table.write([{"_id": str(n)} for n in range(9)], properties={"delta.enableDeletionVectors": "true"})
    table.delete({"_id": "3"})
    with pytest.raises(Invalid, match="deletion vectors"):
        IcebergMirror(table, catalog_url, "shop.gone").refresh()
