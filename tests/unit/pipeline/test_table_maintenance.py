"""Maintenance leaves the same rows in fewer files, keeps the marks, and takes turns with the ingest."""

from typing import Any

import duckdb
import pytest

from mainstem.pipeline.maintenance import Maintenance
from mainstem.pipeline.turns import Turns
from mainstem.query.sandbox import extension_file
from mainstem.runtime.clock import SystemClock
from mainstem.tables.maintenance import MaintenanceSettings, Step
from mainstem.tables.settings import TableSettings

pytestmark = pytest.mark.spark

KEYS = 40
# Everything is old enough to go.
NOW = MaintenanceSettings(
    manifests_max=1, snapshot_age_s=0.001, snapshot_age_min_s=0, orphan_age_s=0, min_files=2
)


def maintenance(bench: Any, turns: Turns | None = None, settings: MaintenanceSettings = NOW) -> Maintenance:
    return Maintenance(bench.lake, turns or Turns(), settings, SystemClock())


def fill(bench: Any, batches: int, settings: TableSettings | None = None) -> None:
    """Batches that each update a part of the keys and delete one."""
    for number in range(batches):
        changes = [bench.change(str(key), {"n": number, "k": key}) for key in range(number, KEYS)]
        bench.seal(*changes, bench.change(str(number), None))
        bench.catch_up(**({"settings": settings} if settings else {}))


def by_duckdb(bench: Any, table: str = "orders") -> list[tuple[Any, ...]]:
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        connection.execute(f"LOAD '{extension_file(name)}'")
    location = bench.lake.load(bench.name(table)).java.operations().current().metadataFileLocation()
    return connection.execute(
        f"SELECT _key, n, k FROM iceberg_scan('{location.removeprefix('file:')}') ORDER BY _key"
    ).fetchall()


def counts(bench: Any, table: str = "orders") -> tuple[int, int]:
    """Data files and delete files of the current snapshot."""
    summary = bench.lake.load(bench.name(table)).java.currentSnapshot().summary()
    return int(summary.get("total-data-files") or 0), int(summary.get("total-delete-files") or 0)


@pytest.mark.parametrize("version", [2, 3])
def test_small_files_become_one_with_the_same_rows_and_marks(bench: Any, version: int) -> None:
    fill(bench, 6, TableSettings(format_version=version))
    before, marks = bench.values(), bench.lake.load(bench.name("orders")).marks()
    assert len(before) == KEYS - 6
    assert counts(bench)[0] >= 6 and counts(bench)[1] >= 5
    told: list[tuple[Step, dict[str, int]]] = []
    maintaining = maintenance(bench)
    results = maintaining.run(
        bench.name("orders"), [Step.COMPACT], on_progress=lambda step, done: told.append((step, dict(done)))
    )
    assert counts(bench) == (1, 0)
    assert results["compact"]["files_read"] >= 6 and results["compact"]["files_written"] == 1
    assert told[0][1]["groups_planned"] == 1 and told[-1][1]["groups"] == 1
    assert bench.values() == before
    assert by_duckdb(bench) == sorted((key, row["n"], row["k"]) for key, row in before.items())
    table = bench.lake.load(bench.name("orders"))
    assert table.marks() == marks
    assert table.java.currentSnapshot().summary().get("mainstem.position") == str(marks.position)
    # The ingest goes on, and finds the rows where they are now.
    bench.seal(bench.change("20", {"n": 99, "k": 20}), bench.change("21", None))
    bench.catch_up(settings=TableSettings(format_version=version))
    assert bench.values() == {k: v for k, v in before.items() if k != "21"} | {"20": {"n": 99, "k": 20}}
