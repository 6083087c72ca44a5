"""Maintenance of Delta tables: what it puts together, folds and removes, and that the rows stay."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from duckdb_extensions import import_extension
from pyspark.sql import SparkSession

from mainstem.client.delta import create_storage
from mainstem.model.names import TableName
from mainstem.model.position import UNNAMED, LogPosition
from mainstem.pipeline.commit.marks import Marks
from mainstem.pipeline.delta.maintenance import DeltaMaintenance
from mainstem.pipeline.delta.partitions import PartitionColumn
from mainstem.pipeline.delta.table import DeltaLake, DeltaLakeTable
from mainstem.pipeline.passes.delta_files import write_delta_files
from mainstem.pipeline.session.spark import join_session
from mainstem.pipeline.turns import Turns
from mainstem.runtime.clock import ManualClock, SystemClock
from mainstem.tables.layout import STATE_COLUMNS
from mainstem.tables.maintenance import MaintenanceSettings, Step
from mainstem.tables.types import STRING

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

NAME = TableName("default", "orders")
FILES = 6


def marked(position: int, hlc_max: int = 0) -> Marks:
    return Marks({UNNAMED: LogPosition(position)}, hlc_max)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> DeltaLake:
    join_session(spark)
    return DeltaLake(create_storage(str(tmp_path)), SystemClock())


def rows(*keys: str, p: str | None = None) -> pa.Table:
    more = {} if p is None else {"p": pa.array([p] * len(keys))}
    return pa.table({**more, "_key": pa.array(keys), "_position": pa.array(range(len(keys)), pa.int64())})


def made(lake: DeltaLake, *, partitioned: bool = False) -> DeltaLakeTable:
    columns = [("p", STRING)] if partitioned else []
    partition = [PartitionColumn("p", STRING, "p")] if partitioned else []
    return lake.create(NAME, [*columns, *STATE_COLUMNS], partition=partition, vectors=True)


def run(lake: DeltaLake, *steps: Step, partitions: tuple[str, ...] = (), **changes: Any) -> dict[str, dict[str, int]]:
    maintenance = DeltaMaintenance(lake, SparkSession.active(), Turns(), MaintenanceSettings())
    table = maintenance.load(NAME)
    assert table is not None
    return maintenance.run(
        table,
        steps,
        changes=changes,
        partitions=partitions,
        dry_run=False,
        on_progress=lambda *_: None,
        go_on=lambda: True,
    )


def keys_now(lake: DeltaLake) -> list[str]:
    """By a reader that is not ours."""
    connection = duckdb.connect()
    import_extension("delta", con=connection)
    connection.load_extension("delta")
    uri = lake.storage.uri(lake.path(NAME))
    return [key for (key,) in connection.execute(f"SELECT _key FROM delta_scan('{uri}') ORDER BY 1").fetchall()]


def append(table: DeltaLakeTable, added: pa.Table, marks: Marks) -> None:
    """As an executor and the driver do it."""
    files = write_delta_files(table.target(), added, {}, SystemClock().now_ms())
    table.commit(marks, [file.description for file in files])


def without(table: DeltaLakeTable, *keys: str) -> None:
    table.lake.table(NAME).delete({"_key": {"$in": list(keys)}})
    table.refresh()


def test_small_files_become_one_and_the_marks_stay(lake: DeltaLake) -> None:
    table = made(lake)
    for n in range(FILES):
        append(table, rows(f"a{n}", f"b{n}"), marked(n + 1, n))
    without(table, "a1", "b2", "a3", "b3")
    expected = sorted({f"{letter}{n}" for letter in "ab" for n in range(FILES)} - {"a1", "b2", "a3", "b3"})
    done = run(lake, Step.COMPACT, Step.DELETES)
    # One file had lost all its rows with the commit itself.
    assert (done["compact"]["files_read"], done["compact"]["files_written"]) == (FILES - 1, 1)
    table.refresh()
    assert (len(table.files), table.marks()) == (1, marked(FILES, FILES - 1))
    assert keys_now(lake) == expected
    assert run(lake, Step.COMPACT) == {"compact": done["compact"] | dict.fromkeys(done["compact"], 0)}


def test_a_file_of_which_much_is_gone_is_written_anew(lake: DeltaLake) -> None:
    table = made(lake)
    append(table, rows(*(f"{n:03}" for n in range(100))), marked(1))
    append(table, rows(*(f"k{n:03}" for n in range(100))), marked(2))
    without(table, *(f"{n:03}" for n in range(50)), "k000")
    assert run(lake, Step.DELETES)["deletes"] == {"files_read": 1, "files_written": 1}
    table.refresh()
    gone = [0 if file.deletionVector is None else file.deletionVector.cardinality for file in table.files]
    assert sorted(gone) == [0, 1]
    assert len(keys_now(lake)) == 149 and table.marks() == marked(2)


def test_only_the_partitions_that_are_named(lake: DeltaLake) -> None:
    table = made(lake, partitioned=True)
    for n in range(FILES):
        for p in ("x", "y z"):
            append(table, rows(f"{p}{n}", p=p), marked(n + 1))
    assert run(lake, Step.COMPACT, partitions=("p=y+z",))["compact"]["files_read"] == FILES
    table.refresh()
    assert sorted(file.partition for file in table.files) == ["p=x"] * FILES + ["p=y+z"]
    assert len(keys_now(lake)) == 2 * FILES


def test_what_no_version_needs_is_removed(lake: DeltaLake, tmp_path: Path) -> None:
    table = made(lake)
    for n in range(FILES):
        append(table, rows(f"a{n}"), marked(n + 1))
    stray = tmp_path / "default" / "orders" / "stray.parquet"
    stray.write_bytes(b"PAR1")
    run(lake, Step.COMPACT)
    # Within the retention everything stays.
    assert run(lake, Step.EXPIRE)["expire"] == {"data_files": 0}
    # What is of this very millisecond is not old yet.
    later = DeltaLake(lake.storage, ManualClock(SystemClock().now_ms() + 60_000))
    assert run(later, Step.EXPIRE, snapshot_age_s=0.001)["expire"] == {"data_files": FILES}
    assert stray.exists()
    assert run(later, Step.ORPHANS, orphan_age_s=0.0)["orphans"] == {"files": 1}
    assert not stray.exists()
    assert keys_now(lake) == [f"a{n}" for n in range(FILES)]
    # A vector that is in use is no orphan.
    without(table, "a0", "a3")
    assert run(later, Step.EXPIRE, Step.ORPHANS, orphan_age_s=0.0, snapshot_age_s=0.001)["orphans"] == {"files": 0}
    assert keys_now(lake) == ["a1", "a2", "a4", "a5"]
