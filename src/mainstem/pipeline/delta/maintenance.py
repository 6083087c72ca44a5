"""Maintenance of Delta tables: the steps that Iceberg tables have, in Delta's words, by the same rules.

    compact     small files of a partition are put together (OPTIMIZE)
    deletes     files of which much is deleted are written anew, without their deletion vectors
    manifests   nothing: each commit checkpoints the log when it is due
    expire      files that no version within the retention needs are removed (VACUUM)
    orphans     and so are files that no version ever had

A state table's lane waits while its files are rewritten: a commit in between would make the rewriting void.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from mainstem.formats.delta.files.vacuum import unneeded
from mainstem.formats.delta.files.zones import row_count
from mainstem.formats.delta.log import AddFile
from mainstem.model.errors import Invalid
from mainstem.model.names import TableName
from mainstem.pipeline.delta.table import DeltaLake, DeltaLakeTable
from mainstem.pipeline.delta.writer import rewrite_files
from mainstem.pipeline.turns import Turns
from mainstem.pipeline.upkeep.steps import Done, OnProgress, run_steps
from mainstem.tables.maintenance import FileFacts, Group, MaintenanceSettings, Step, for_table, matches, plan_groups


class DeltaMaintenance:
    """Maintains the Delta tables of the pipeline."""

    def __init__(self, lake: DeltaLake, spark: SparkSession, turns: Turns, settings: MaintenanceSettings) -> None:
        self._lake = lake
        self._rewrite = partial(rewrite_files, spark, lake.clock)
        self._turns = turns
        self._settings = settings

    def load(self, table: TableName) -> DeltaLakeTable | None:
        """One of its tables, None where it has none of that name."""
        return self._lake.load(table)

    def run(
        self,
        table: DeltaLakeTable,
        steps: Sequence[Step],
        *,
        changes: Mapping[str, Any],
        partitions: Sequence[str],
        dry_run: bool,
        on_progress: OnProgress,
        go_on: Callable[[], bool],
    ) -> dict[str, Done]:
        """Do the steps to one physical table. `changes` are settings of this run alone."""
        settings = msgspec.structs.replace(for_table(self._settings, table.properties), **changes)
        work: dict[Step, Callable[[], Done]] = {
            Step.COMPACT: lambda: self._compact(table, settings, partitions),
            Step.DELETES: lambda: self._fold(table, settings, partitions, go_on),
            Step.MANIFESTS: lambda: {"manifests_read": 0, "manifests_written": 0},
            Step.EXPIRE: lambda: {"data_files": self._vacuum(table, settings.snapshot_age_s)},
            Step.ORPHANS: lambda: {"files": self._vacuum(table, settings.orphan_age_s, orphans=True, dry_run=dry_run)},
        }
        if Step.REBUILD in steps:
            raise Invalid(f"only the state of an Iceberg table can be rebuilt. table={table.name} got=delta")
        return run_steps(steps, work, on_progress, go_on)

    def _turn(self, table: DeltaLakeTable) -> AbstractContextManager[object]:
        # Rows are only ever added to a history, which no rewriting minds.
        return self._turns.of(table.name) if table.name == table.name.logical else nullcontext()

    def _compact(self, table: DeltaLakeTable, settings: MaintenanceSettings, partitions: Sequence[str]) -> Done:
        done = dict.fromkeys(("groups", "groups_planned", "files_read", "files_written"), 0)
        with self._turn(table):
            table.refresh()
            groups = _groups(table, settings, partitions)
            done["groups_planned"] = len(groups)
            # What is already whole is not touched; a group of one file is the next step's.
            for group in [group for group in groups if len(group.files) > 1]:
                paths = {file.path for file in group.files}
                read, written = table.rewrite([[file for file in table.files if file.path in paths]], self._rewrite)
                done["groups"] += 1
                done["files_read"] += read
                done["files_written"] += written
        return done

    def _fold(
        self, table: DeltaLakeTable, settings: MaintenanceSettings, partitions: Sequence[str], go_on: Callable[[], bool]
    ) -> Done:
        """One file at a time, so that its rows are all that is held in memory."""
        rewritten = 0
        for file in [file for file in table.files if matches(file.partition, partitions)]:
            deleted = 0 if file.deletionVector is None else file.deletionVector.cardinality
            if not deleted or deleted < settings.deleted_share * (row_count(file) or 0) or not go_on():
                continue
            with self._turn(table):
                table.refresh()
                rewritten += table.rewrite([[file]], self._rewrite)[0]
        return {"files_read": rewritten, "files_written": rewritten}

    def _vacuum(self, table: DeltaLakeTable, age_s: float, *, orphans: bool = False, dry_run: bool = False) -> int:
        with self._turn(table):
            found = unneeded(table.log, self._lake.clock.now_ms() - round(age_s * 1000))
            # Both are out of a listing of the table's folder; the log alone would not do, it may name any path.
            below = f"{table.log.table}/"
            paths = [path for path in (found.orphans if orphans else found.expired) if path.startswith(below)]
            if not dry_run:
                for path in paths:
                    self._lake.storage.delete(path)
        return len(paths)


def facts_of(file: AddFile) -> FileFacts:
    """What the rules want to know of a file."""
    deleted = 0 if file.deletionVector is None else file.deletionVector.cardinality
    return FileFacts(
        path=file.path,
        partition=file.partition,
        size_bytes=file.size,
        rows=row_count(file) or 0,
        deleted_rows=deleted,
        delete_files=int(deleted > 0),
    )


def _groups(table: DeltaLakeTable, settings: MaintenanceSettings, partitions: Sequence[str]) -> list[Group]:
    return plan_groups(map(facts_of, table.files), settings, partitions=partitions)
