"""Maintenance of Delta tables: the steps that Iceberg tables have, in Delta's words, by the same rules.

    compact     small files of a partition are put together (OPTIMIZE)
    deletes     files of which much is deleted are written anew, without their deletion vectors
    manifests   nothing: the log is checkpointed by whoever commits
    expire      files that no version within the retention needs are removed (VACUUM)
    orphans     and so are files that no version ever had

A state table's lane waits while its files are rewritten: a commit in between would make the rewriting void.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import deltalake
import msgspec

from mainstem.client.delta.errors import delta_errors
from mainstem.client.delta.log import AddFile
from mainstem.client.delta.vacuum import unneeded
from mainstem.client.delta.zones import row_count
from mainstem.model.names import TableName
from mainstem.pipeline.deltatable import DeltaLake, DeltaLakeTable
from mainstem.pipeline.steps import Done, OnProgress, run_steps
from mainstem.pipeline.turns import Turns
from mainstem.tables.maintenance import FileFacts, Group, MaintenanceSettings, Step, for_table, matches, plan_groups


class DeltaMaintenance:
    """Maintains the Delta tables of the pipeline."""

    def __init__(self, lake: DeltaLake, turns: Turns, settings: MaintenanceSettings) -> None:
        self._lake = lake
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
            for filters in _filters(table, [group for group in groups if len(group.files) > 1]):
                with delta_errors(str(table.name)):
                    optimizer = self._opened(table).optimize
                    found = optimizer.compact(partition_filters=filters, target_size=settings.target_file_bytes)
                done["groups"] += 1
                done["files_read"] += int(found["numFilesRemoved"])
                done["files_written"] += int(found["numFilesAdded"])
            table.refresh()
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
                rewritten += table.rewrite(file)
        return {"files_read": rewritten, "files_written": rewritten}

    def _vacuum(self, table: DeltaLakeTable, age_s: float, *, orphans: bool = False, dry_run: bool = False) -> int:
        with self._turn(table):
            found = unneeded(table.log, self._lake.clock.now_ms() - round(age_s * 1000))
            paths = found.orphans if orphans else found.expired
            if not dry_run:
                for path in paths:
                    self._lake.storage.delete(path)
        return len(paths)

    def _opened(self, table: DeltaLakeTable) -> deltalake.DeltaTable:
        return self._lake.table(table.name).delta_rs()


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


def _filters(table: DeltaLakeTable, groups: Sequence[Group]) -> list[list[tuple[str, str, Any]] | None]:
    """What to tell delta-rs of the partitions of some groups: nothing, where the table has none."""
    if not groups:
        return []
    wanted = {group.partition for group in groups}
    values = {file.partition: file.partitionValues for file in table.files if file.partition in wanted}
    if any(None in each.values() for each in values.values()) or "" in wanted:
        # A partition of nulls cannot be named: then all of them are looked at.
        return [None]
    return [[(name, "=", value) for name, value in each.items()] for each in values.values()]
