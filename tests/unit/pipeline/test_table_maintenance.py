"""Maintenance leaves the same rows in fewer files, keeps the marks, and takes turns with the ingest."""

import json
import os
import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.catalog.files import LocalFiles
from mainstem.catalog.scan.inventory import Inventories
from mainstem.catalog.scan.live_rows import LiveRows
from mainstem.model import UNNAMED
from mainstem.pipeline.session.spark import join_session
from mainstem.pipeline.turns import Turns
from mainstem.pipeline.upkeep.compaction import Compaction, own_lake
from mainstem.pipeline.upkeep.maintenance import Maintenance
from mainstem.pipeline.upkeep.scanfiles import plan_files
from mainstem.query.sandbox.session import extension_file
from mainstem.runtime.clock import SystemClock
from mainstem.tables.maintenance import MaintenanceSettings, Step
from mainstem.tables.settings import TableSettings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

KEYS = 40
# Everything is old enough to go.
NOW = MaintenanceSettings(manifests_max=1, snapshot_age_s=0.001, snapshot_age_min_s=0, orphan_age_s=0, min_files=2)


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


def live_rows(bench: Any, table: str = "orders") -> tuple[int | None, list[int | None]]:
    """What is told of the table's rows: by its manifests alone, and snapshot by snapshot, the oldest first."""
    location = bench.lake.load(bench.name(table)).java.operations().current().metadataFileLocation()
    document = json.loads(Path(location.removeprefix("file:")).read_text())
    snapshots = document["snapshots"]
    current = document["current-snapshot-id"]
    (newest,) = [each for each in snapshots if each["snapshot-id"] == current]
    by_manifests = LiveRows(Inventories(LocalFiles().file_io)).of(document, [newest])[current]
    one_by_one = LiveRows(Inventories(LocalFiles().file_io)).of(document, snapshots)
    return by_manifests, [one_by_one[each["snapshot-id"]] for each in snapshots]


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
    # A compaction changes no row, and is not told as if it did.
    assert live_rows(bench) == (KEYS - 6, [*(KEYS - 1 - number for number in range(6)), KEYS - 6])
    assert results["compact"]["files_read"] >= 6 and results["compact"]["files_written"] == 1
    assert told[0][1]["groups_planned"] == 1 and told[-1][1]["groups"] == 1
    assert bench.values() == before
    assert by_duckdb(bench) == sorted((key, row["n"], row["k"]) for key, row in before.items())
    table = bench.lake.load(bench.name("orders"))
    assert table.marks() == marks
    assert table.java.currentSnapshot().summary().get("mainstem.position") == str(marks.positions[UNNAMED])
    # The ingest goes on, and finds the rows where they are now.
    bench.seal(bench.change("20", {"n": 99, "k": 20}), bench.change("21", None))
    bench.catch_up(settings=TableSettings(format_version=version))
    assert bench.values() == {k: v for k, v in before.items() if k != "21"} | {"20": {"n": 99, "k": 20}}


class _Busy:
    """An ingest that goes on and on: each batch updates the same keys, and so deletes from every file."""

    def __init__(self, bench: Any, turns: Turns) -> None:
        self._bench = bench
        self._turns = turns
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        bench.asked_for = None
        self._carrier = bench.carrier(turns=turns)
        self.batches = 0
        self.failure: BaseException | None = None

    def __enter__(self) -> "_Busy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        join_session(self._bench.spark)
        try:
            while not self._stop.is_set():
                number = 1000 + self.batches
                self._bench.seal(*(self._bench.change(str(key), {"n": number, "k": key}) for key in range(KEYS)))
                self._go()
                self.batches += 1
        except BaseException as error:
            self.failure = error

    def _go(self) -> None:
        """Until the batch is in: a table whose turn it is not is left out for a moment."""
        name, progress = self._bench.name("orders"), self._bench.progress
        while progress.covered(name) < self._bench.position:
            self._carrier.carry(None, (), "busy")
            failure = progress.report({}).tables[str(name)].error if str(name) in progress.report({}).tables else None
            assert failure is None, failure


def test_a_busy_table_is_compacted_and_its_ingest_never_fails(bench: Any) -> None:
    fill(bench, 3)
    turns = Turns()
    with _Busy(bench, turns) as busy:
        results = maintenance(bench, turns).run(bench.name("orders"), [Step.COMPACT, Step.EXPIRE])
    assert busy.failure is None
    assert results["compact"]["groups"] >= 1
    # Every batch deletes from every file: only waiting for one's turn makes an end of it.
    assert busy.batches >= results["compact"]["races_lost"]
    last = 999 + busy.batches
    assert bench.values() == {str(key): {"n": last, "k": key} for key in range(KEYS)}
    assert bench.lake.load(bench.name("orders")).marks().positions == {UNNAMED: bench.position}


class _Held(Compaction):
    """Stands still where its files are written and not committed, until it may go on."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.has_written, self.may_commit = threading.Event(), threading.Event()

    def _rewrite(self, *arguments: Any) -> list[Any]:
        written = super()._rewrite(*arguments)
        self.has_written.set()
        assert self.may_commit.wait(120)
        return written


def test_a_flush_does_not_wait_behind_a_compaction(bench: Any) -> None:
    """What comes while a real compaction is half done is in its table before that ends, the same one or another."""
    fill(bench, 3)
    turns, lake, name = Turns(), own_lake(bench.lake), bench.name("orders")
    compaction, table = _Held(lake, turns), lake.load(name)
    assert table is not None
    bench.asked_for = None
    carrier = bench.carrier(turns=turns)
    with ThreadPoolExecutor(1, initializer=join_session, initargs=(lake.spark,)) as threads:
        running = threads.submit(compaction.run, name, table, NOW)
        assert compaction.has_written.wait(120), running.exception(0)
        bench.seal(bench.change("30", {"n": 99, "k": 30}), bench.change("a", {"n": 1}, table="other"))
        carrier.carry(None, (), "flush")
        covered = [bench.progress.covered(each) for each in (name, bench.name("other"))]
        was_running = not running.done()
        compaction.may_commit.set()
        done = running.result(120)
    assert covered == [bench.position] * 2 and was_running
    # A row of its files was deleted meanwhile: it has lost, and is done again, with that row.
    assert done.races_lost == 1 and done.groups == 1
    assert bench.values()["30"] == {"n": 99, "k": 30} and len(bench.values()) == KEYS - 3
    assert counts(bench) == (1, 0)


def test_many_deletes_over_many_files_become_one_file(bench: Any) -> None:
    """Each batch deletes from many before it: what applies to a file outweighs the file."""
    draw = random.Random(2)
    for number in range(12):
        keys = draw.sample(range(KEYS), KEYS // 2)
        bench.seal(*(bench.change(str(key), {"n": number, "k": key}) for key in keys))
        bench.catch_up()
    planned = plan_files(bench.lake.load(bench.name("orders")))
    for path, task in planned.tasks.items():
        # No pair too few: a delete that is dropped too early would bring rows back.
        by_iceberg = {str(delete.location()) for delete in task.deletes()}
        assert by_iceberg <= {location for location, files in planned.applies_to.items() if path in files}
    assert max(facts.delete_files for facts in planned.facts) > 5
    expected = bench.values()
    groups = iter(range(1))
    few = MaintenanceSettings(min_files=2, max_files=4)
    name, compaction = bench.name("orders"), Compaction(own_lake(bench.lake), Turns())
    compaction.run(name, bench.lake.load(name), few, go_on=lambda: next(groups, None) is not None)
    summary = bench.lake.load(name).java.currentSnapshot().summary()
    reckoned = int(summary.get("total-records")) - int(summary.get("total-position-deletes"))
    told, one_by_one = live_rows(bench)
    assert told == one_by_one[-1] == len(expected) != reckoned, "deletes of files that are gone take nothing away"
    done = maintenance(bench).run(bench.name("orders"), [Step.COMPACT])["compact"]
    assert (done["groups"], done["files_written"]) == (1, 1)
    assert counts(bench) == (1, 0)
    assert bench.values() == expected


def test_deletes_that_apply_to_nothing_any_more_go_with_the_next_group(bench: Any) -> None:
    fill(bench, 6)
    few = MaintenanceSettings(min_files=2, max_files=4)
    compaction = Compaction(own_lake(bench.lake), Turns())
    name = bench.name("orders")
    groups = iter(range(1))
    # Cut off after one group of two: the deletes of both stay.
    compaction.run(name, bench.lake.load(name), few, go_on=lambda: next(groups, None) is not None)
    assert counts(bench)[1] > 0
    assert live_rows(bench)[0] == KEYS - 6
    compaction.run(name, bench.lake.load(name), few)
    assert counts(bench) == (1, 0)
    assert bench.values() == {str(key): {"n": 5, "k": key} for key in range(6, KEYS)}


def test_equality_deletes_of_another_engine_are_folded_in(bench: Any) -> None:
    fill(bench, 1)
    table = bench.lake.load(bench.name("orders"))
    _delete_by_equality(bench, table, ["5", "6", "7"])
    assert sorted(set(map(str, range(1, KEYS))) - set(bench.values())) == ["5", "6", "7"]
    left = [(key, values["n"], values["k"]) for key, values in sorted(bench.values().items())]
    assert by_duckdb(bench) == left
    assert live_rows(bench)[0] is None, "only a scan could tell"
    marks = table.marks()
    results = maintenance(bench).run(bench.name("orders"), [Step.COMPACT])
    assert by_duckdb(bench) == left
    assert results["compact"]["delete_files_removed"] == 1
    assert counts(bench) == (1, 0)
    assert sorted(set(map(str, range(1, KEYS))) - set(bench.values())) == ["5", "6", "7"]
    table.refresh()
    assert table.marks() == marks and table.java.currentSnapshot().summary().get("mainstem.position")


def _delete_by_equality(bench: Any, table: Any, keys: list[str]) -> None:
    jvm = bench.lake.jvm
    key_id = int(table.java.schema().findField("_key").fieldId())
    path = f"{table.java.location()}/data/{uuid.uuid4()}.parquet"
    local = path.removeprefix("file:")
    field = pa.field("_key", pa.string(), metadata={"PARQUET:field_id": str(key_id)})
    pq.write_table(pa.table([pa.array(keys)], schema=pa.schema([field])), local)
    ids = bench.spark.sparkContext._gateway.new_array(jvm.int, 1)
    ids[0] = key_id
    delete = (
        jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(table.java.spec())
        .ofEqualityDeletes(ids)
        .withPath(path)
        .withFormat("PARQUET")
        .withFileSizeInBytes(Path(local).stat().st_size)
        .withRecordCount(len(keys))
        .build()
    )
    table.java.newRowDelta().addDeletes(delete).commit()
    table.refresh()


def test_deletes_manifests_snapshots_and_orphans(bench: Any) -> None:
    fill(bench, 5)
    before = bench.values()
    table = bench.lake.load(bench.name("orders"))
    marks = table.marks()
    # Large files by this target: they stay, and their delete files are put together.
    whole = MaintenanceSettings(
        target_file_bytes=1, min_files=2, deleted_share=1.0, manifests_max=1, snapshot_age_s=0.001,
        snapshot_age_min_s=0, orphan_age_s=0,
    )  # fmt: skip
    results = maintenance(bench, settings=whole).run(bench.name("orders"), [Step.DELETES, Step.MANIFESTS, Step.EXPIRE])
    assert results["deletes"]["files_read"] == 4 and results["deletes"]["files_written"] == 1
    assert results["manifests"]["manifests_read"] > results["manifests"]["manifests_written"] > 0
    assert results["expire"]["snapshots"] >= 5
    table.refresh()
    assert len(list(table.java.snapshots())) == 1
    assert table.java.currentSnapshot().summary().get("mainstem.position") == str(marks.positions[UNNAMED])
    assert table.marks() == marks
    assert bench.values() == before
    # A file that nothing has goes; a dry run only counts it.
    location = str(table.java.location()).removeprefix("file:")
    stray = Path(location) / "data" / "stray.parquet"
    stray.write_bytes(b"not a table's")
    # A minute ago: what is of this very millisecond is not old yet.
    os.utime(stray, (stray.stat().st_mtime - 60,) * 2)
    found = maintenance(bench, settings=whole).run(bench.name("orders"), [Step.ORPHANS], dry_run=True)
    assert found["orphans"]["files"] >= 1 and stray.exists()
    removed = maintenance(bench, settings=whole).run(bench.name("orders"), [Step.ORPHANS])
    assert removed["orphans"] == found["orphans"] and not stray.exists()
    assert bench.values() == before
    assert by_duckdb(bench) == sorted((key, row["n"], row["k"]) for key, row in before.items())
    bench.seal(bench.change("20", {"n": 99, "k": 20}))
    bench.catch_up()
    assert bench.values() == before | {"20": {"n": 99, "k": 20}}
