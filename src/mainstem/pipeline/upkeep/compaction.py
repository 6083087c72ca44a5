"""Rewriting data files with Spark, group by group: small files become large ones, deletes are folded in.

Spark reads a group's files with everything that deletes take from them and writes the rest through Iceberg's own
writer, as Iceberg's compaction does; the commit is ours. So it can take its turn with the ingest, repeat the marks of
the snapshot before it, and drop the delete files that nothing needs any more, all in one snapshot.

A group whose files got new deletes meanwhile has lost: it is planned anew. After a few losses the table's lane waits
for one group, so that a busy table is compacted too.
"""

import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from mainstem.model.errors import Conflict
from mainstem.model.names import TableName
from mainstem.pipeline.commit.lake import Lake, LakeTable
from mainstem.pipeline.passes.stores import make_durable
from mainstem.pipeline.session.spark import own_session
from mainstem.pipeline.turns import Turns
from mainstem.pipeline.upkeep.scanfiles import Planned, plan_files
from mainstem.tables.maintenance import Group, MaintenanceSettings, plan_groups
from mainstem.tables.places import is_inside

log = logging.getLogger(__name__)

# Races that a group may lose before the table's lane waits for it.
LOSSES_MAX = 2
# A table that grows while it is compacted is not compacted for ever.
ROUNDS_MAX = 50


@dataclass(slots=True)
class Compacted:
    """What a run has done so far."""

    groups: int = 0
    groups_planned: int = 0
    files_read: int = 0
    files_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    delete_files_removed: int = 0
    races_lost: int = 0


def own_lake(lake: Lake) -> Lake:
    """The same tables in a session of their own.

    A table that the lanes share would change under a rewrite: its schema between reading and writing, say. And the
    lanes' session stages its writes, and plans them adaptively.
    """
    spark = own_session(lake.spark)
    own = Lake(spark, lake.catalog)
    spark.conf.unset("spark.wap.id")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    return own


class Compaction:
    """Compacts tables of a lake of its own."""

    def __init__(self, lake: Lake, turns: Turns) -> None:
        self._lake = lake
        self._turns = turns

    def run(
        self,
        name: TableName,
        table: LakeTable,
        settings: MaintenanceSettings,
        *,
        partitions: Sequence[str] = (),
        on_progress: Callable[[Compacted], None] = lambda _: None,
        go_on: Callable[[], bool] = lambda: True,
    ) -> Compacted:
        """Rewrite everything that is worth it. `name` is the logical table that the lane writes."""
        done = Compacted()
        losses = 0
        for _ in range(ROUNDS_MAX):
            # After too many losses the lane waits for one group, from its planning to its commit.
            held = losses >= LOSSES_MAX
            with self._turns.of(name) if held else nullcontext():
                planned, groups = self._plan(table, settings, partitions)
                done.groups_planned = done.groups + len(groups)
                on_progress(done)
                for group in groups[:1] if held else groups:
                    if not go_on():
                        return done
                    if not self._try(name, table, planned, group, done, held=held):
                        losses += 1
                        break
                    losses = 0
                    on_progress(done)
                else:
                    if not held or len(groups) <= 1:
                        return done
        return done

    def _try(
        self, name: TableName, table: LakeTable, planned: Planned, group: Group, done: Compacted, *, held: bool
    ) -> bool:
        """Rewrite one group. False: somebody deleted from its files meanwhile, and all is as before."""
        written = self._rewrite(table, planned, group)
        try:
            with nullcontext() if held else self._turns.of(name):
                self._commit(table, planned, group, written, done)
        except Conflict as error:
            done.races_lost += 1
            _remove(table, written)
            log.info("compaction lost a race: %s", error, extra={"table": str(table.name)})
            return False
        return True

    def _plan(
        self, table: LakeTable, settings: MaintenanceSettings, partitions: Sequence[str]
    ) -> tuple[Planned, list[Group]]:
        planned = plan_files(table)
        planned.target_bytes = settings.target_file_bytes
        groups = plan_groups(
            planned.facts,
            settings,
            deleted_by_partition=planned.deleted_by_partition,
            partitions=partitions,
        )
        return planned, groups

    def _rewrite(self, table: LakeTable, planned: Planned, group: Group) -> list[Any]:
        """Write the group's rows anew; returns the new files, which nothing refers to yet."""
        jvm = self._lake.jvm
        set_id = str(uuid.uuid4())
        spark = self._lake.classes
        tasks = jvm.java.util.ArrayList()
        for file in group.files:
            tasks.add(planned.tasks[file.path])
        spark.table_cache.add(set_id, table.java)
        spark.task_sets.stageTasks(table.java, set_id, tasks)
        spec_id = int(table.java.spec().specId())
        same_spec = all(int(planned.tasks[file.path].file().specId()) == spec_id for file in group.files)
        try:
            rows = (
                self._lake.spark.read.format("iceberg")
                .option("split-size", str(_split_bytes(planned, group)))
                .option("file-open-cost", "0")
                .load(set_id)
            )
            (
                rows.write.format("iceberg")
                .option("target-file-size-bytes", str(planned.target_bytes))
                # Files of an older partition spec are spread over the partitions of the present one.
                .option("distribution-mode", "none" if same_spec else "hash")
                .option("output-spec-id", str(spec_id))
                .mode("append")
                .save(set_id)
            )
            written = list(spark.written_files.fetchNewFiles(table.java, set_id))
            make_durable(str(file.location()) for file in written)
            return written
        finally:
            spark.table_cache.remove(set_id)
            spark.task_sets.removeTasks(table.java, set_id)
            spark.written_files.clearRewrite(table.java, set_id)

    def _commit(
        self, table: LakeTable, planned: Planned, group: Group, written: Sequence[Any], done: Compacted
    ) -> None:
        """Replace the old files by the new ones, if no commit has deleted from them since they were read."""
        table.refresh()
        planned.gone |= {file.path for file in group.files}
        dangling = [path for path, files in planned.applies_to.items() if files <= planned.gone]
        table.begin()
        rewrite = table.transaction.newRewrite().validateFromSnapshot(planned.snapshot_id)
        for file in group.files:
            rewrite.deleteFile(planned.tasks[file.path].file())
        for path in dangling:
            rewrite.deleteFile(planned.deletes[path])
            del planned.applies_to[path]
        for new in written:
            rewrite.addFile(new)
        repeat_marks(table, rewrite)
        table.stage(rewrite)
        table.commit_staged()
        table.refresh()
        done.groups += 1
        done.files_read += len(group.files)
        done.bytes_read += group.size_bytes
        done.files_written += len(written)
        done.bytes_written += sum(int(new.fileSizeInBytes()) for new in written)
        done.delete_files_removed += len(dangling)


def repeat_marks(table: LakeTable, update: Any) -> None:
    """Let a commit of maintenance say what the table covers, as the snapshot before it does.

    The head of main then always says so, and expiring what is behind it loses nothing. If an ingest commit comes in
    between after all, the marks would go backwards, and the catalog refuses: that is a lost race like any other.
    """
    marks = table.marks()
    if marks.positions:
        for key, value in marks.summary().items():
            update.set(key, value)


def _split_bytes(planned: Planned, group: Group) -> int:
    """So that each task writes one file of about the target's size, and none a rest that is small again.

    Iceberg weighs a file with all the deletes that apply to it: where there are many, they weigh more than the rows.
    """
    files = max(1, round(group.size_bytes / planned.target_bytes))
    weight = sum(int(planned.tasks[file.path].sizeBytes()) for file in group.files)
    return max(1, -(-weight // files)) + 1024


def _remove(table: LakeTable, files: Sequence[Any]) -> None:
    # Nothing refers to them. Should one stay, it is an orphan, and goes as such.
    own = str(table.java.location())
    for file in files:
        if not is_inside(str(file.location()), own):
            continue
        try:
            table.java.io().deleteFile(file.location())
        except Exception:
            log.warning("a file of a lost rewrite stays", extra={"file": str(file.location())})
