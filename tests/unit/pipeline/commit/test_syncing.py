"""What the JVM writes lasts before a commit names it: every sync is noted, and what was synced when a commit came."""

from pathlib import Path
from typing import Any

import pytest

from mainstem.pipeline.commit.iceberg import IcebergCommits
from mainstem.pipeline.commit.lake import LakeTable
from mainstem.pipeline.passes.stores import local_path
from mainstem.pipeline.turns import Turns
from mainstem.pipeline.upkeep.maintenance import Maintenance
from mainstem.runtime import durable
from mainstem.tables.maintenance import MaintenanceSettings, Step
from tests.unit.pipeline.conftest import BOTH_CATALOGS, Bench

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Notes:
    """Which paths were synced by now, and which of them before the last commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: set[Path] = set()
        self.before_commit: set[Path] = set()
        sync = durable.sync

        def noted(path: Any) -> None:
            sync(path)
            self.synced.add(Path(path))

        monkeypatch.setattr(durable, "sync", noted)
        for owner, name in ((LakeTable, "commit_staged"), (IcebergCommits, "_commit_together")):
            monkeypatch.setattr(owner, name, self._around(getattr(owner, name)))

    def _around(self, commit: Any) -> Any:
        def committed(*arguments: Any) -> Any:
            self.before_commit = set(self.synced)
            return commit(*arguments)

        return committed


def brought_by_head(table: LakeTable) -> tuple[set[Path], set[Path]]:
    """The metadata files and the data files that a table's newest snapshot added."""
    table.refresh()
    head, io = table.java.currentSnapshot(), table.java.io()
    manifests = [each for each in head.allManifests(io) if int(each.snapshotId()) == int(head.snapshotId())]
    assert manifests
    places = [str(head.manifestListLocation()), *(str(each.path()) for each in manifests)]
    files = [str(each.location()) for each in head.addedDataFiles(io)]
    return _paths(places), _paths(files)


def _paths(locations: list[str]) -> set[Path]:
    paths = [local_path(location) for location in locations]
    assert None not in paths
    return {path for path in paths if path is not None}


def loaded(bench: Bench, name: Any) -> LakeTable:
    table = bench.lake.load(name)
    assert table is not None
    return table


@BOTH_CATALOGS
def test_manifests_last_before_a_commit_names_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes(monkeypatch)
    for number in range(2):
        # The second time old rows go: a manifest of deletes is among them.
        bench.seal(*(bench.change(f"k{key}", {"n": number}) for key in range(20)))
        bench.catch_up()
    for name in (bench.name("orders"), bench.name("orders").history):
        table = loaded(bench, name)
        metadata, _ = brought_by_head(table)
        deletes = table.java.currentSnapshot().addedDeleteFiles(table.java.io())
        metadata |= _paths([str(each.location()) for each in deletes])
        assert metadata <= notes.before_commit
        assert {path.parent for path in metadata} <= notes.before_commit


def test_files_of_a_compaction_last_before_it_is_committed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        bench.seal(*(bench.change(f"k{number}-{key}", {"n": number}) for key in range(20)))
        bench.catch_up()
    notes = Notes(monkeypatch)
    maintenance = Maintenance(bench.lake, Turns(), MaintenanceSettings(min_files=2), bench.clock)
    done = maintenance.run(bench.name("orders"), [Step.COMPACT])
    assert done[Step.COMPACT]["files_read"] == 4
    metadata, files = brought_by_head(loaded(bench, bench.name("orders")))
    assert files and metadata | files <= notes.before_commit
    assert {path.parent for path in metadata | files} <= notes.before_commit
    # And what Iceberg's own action commits, right after.
    maintenance.run(bench.name("orders"), [Step.MANIFESTS], changes={"manifests_max": 0})
    metadata, _ = brought_by_head(loaded(bench, bench.name("orders")))
    assert metadata <= notes.synced
    assert len(bench.values()) == 80
