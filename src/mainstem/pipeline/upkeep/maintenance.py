"""Everything that keeps a table quick and small, step by step: see `Step` for the order.

Each step commits on its own and leaves a right table behind, so it may be cut off anywhere. Steps that are short take
the table's turn for their commit; none of them makes an ingest commit fail.

Nothing is deleted because metadata names it, unless it lies below the table's own location.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from mainstem.model.errors import Conflict, NotFound
from mainstem.model.names import TableName
from mainstem.pipeline.commit.lake import Lake, LakeTable, is_conflict
from mainstem.pipeline.commit.syncing import sync_head
from mainstem.pipeline.delta.maintenance import DeltaMaintenance
from mainstem.pipeline.turns import Turns
from mainstem.pipeline.upkeep.compaction import Compacted, Compaction, own_lake
from mainstem.pipeline.upkeep.rebuild import Rebuild
from mainstem.pipeline.upkeep.steps import Done, OnProgress, run_steps
from mainstem.runtime.clock import Clock
from mainstem.tables.maintenance import MaintenanceSettings, Step, expire_before_ms, for_table
from mainstem.tables.places import folder_place_of, is_inside

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 3
# Between paths that go from the JVM and back in one string, which is much quicker than one by one.
_BETWEEN = "\0"


class Maintenance:
    """Maintains the tables of one lake."""

    def __init__(
        self,
        lake: Lake,
        turns: Turns,
        settings: MaintenanceSettings,
        clock: Clock,
        delta: DeltaMaintenance | None = None,
        store: Mapping[str, str] | None = None,
    ) -> None:
        """`store` is how executors reach the tables' files."""
        self._lake = own_lake(lake)
        self._turns = turns
        self._settings = settings
        self._clock = clock
        self._delta = delta
        self._compaction = Compaction(self._lake, turns)
        self._rebuild = Rebuild(self._lake, turns, clock, store or {})

    @property
    def spark(self) -> SparkSession:
        """The session that it works in, to be made that of the calling thread."""
        return self._lake.spark

    def run(
        self,
        table: TableName,
        steps: Sequence[Step],
        *,
        changes: Mapping[str, Any] | None = None,
        partitions: Sequence[str] = (),
        dry_run: bool = False,
        force: bool = False,
        on_progress: OnProgress = lambda _, __: None,
        go_on: Callable[[], bool] = lambda: True,
    ) -> dict[str, Done]:
        """Do the steps to one physical table. `changes` are settings of this run alone."""
        in_delta = None if self._delta is None else self._delta.load(table)
        if self._delta is not None and in_delta is not None:
            return self._delta.run(
                in_delta,
                steps,
                changes=changes or {},
                partitions=partitions,
                dry_run=dry_run,
                on_progress=on_progress,
                go_on=go_on,
            )
        found = self._lake.load(table)
        if found is None:
            raise NotFound(f"table does not exist. got={table}")
        settings = msgspec.structs.replace(for_table(self._settings, _properties(found)), **(changes or {}))
        lane = table.logical
        work: dict[Step, Callable[[], Done]] = {
            Step.COMPACT: lambda: _numbers(
                self._compaction.run(
                    lane,
                    found,
                    settings,
                    partitions=partitions,
                    on_progress=lambda done: on_progress(Step.COMPACT, _numbers(done)),
                    go_on=go_on,
                )
            ),
            Step.DELETES: lambda: self._in_turn(lane, found, lambda: self._rewrite_deletes(found, settings)),
            Step.MANIFESTS: lambda: self._in_turn(lane, found, lambda: self._rewrite_manifests(found, settings)),
            Step.EXPIRE: lambda: self._expire(lane, found, settings),
            Step.ORPHANS: lambda: self._remove_orphans(found, settings, dry_run=dry_run),
            Step.REBUILD: lambda: self._rebuild.run(table, force=force),
        }
        return run_steps(steps, work, on_progress, go_on)

    def _in_turn(self, lane: TableName, table: LakeTable, work: Callable[[], Done]) -> Done:
        """Hold the lane for one short step. Somebody else may still commit: then it is done again."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            with self._turns.of(lane):
                table.refresh()
                try:
                    return work()
                except Py4JJavaError as error:
                    if not is_conflict(error):
                        raise
                    if attempt == ATTEMPTS_MAX:
                        raise Conflict(f"maintenance lost a race {attempt} times. table={table.name}") from error
        raise AssertionError("the loop returns or raises")

    def _actions(self) -> Any:
        return self._lake.jvm.org.apache.iceberg.spark.actions.SparkActions.get(self.spark._jsparkSession)

    def _rewrite_deletes(self, table: LakeTable, settings: MaintenanceSettings) -> Done:
        """Put the position deletes of each partition into one file, without those of rows that are gone."""
        before = _summary_count(table, "total-delete-files")
        if table.snapshot_id is None or before < settings.min_files or _format_version(table) > 2:
            return {"files_read": 0, "files_written": 0}
        action = self._actions().rewritePositionDeletes(table.java)
        action = action.option("min-input-files", str(settings.min_files))
        for name, value in _marks(table).items():
            action = action.snapshotProperty(name, value)
        result = action.execute()
        table.refresh()
        sync_head(table.java)
        return {
            "files_read": int(result.rewrittenDeleteFilesCount()),
            "files_written": int(result.addedDeleteFilesCount()),
        }

    def _rewrite_manifests(self, table: LakeTable, settings: MaintenanceSettings) -> Done:
        snapshot = table.java.currentSnapshot()
        if snapshot is None or len(snapshot.allManifests(table.java.io())) <= settings.manifests_max:
            return {"manifests_read": 0, "manifests_written": 0}
        action = self._actions().rewriteManifests(table.java)
        for name, value in _marks(table).items():
            action = action.snapshotProperty(name, value)
        result = action.execute()
        table.refresh()
        sync_head(table.java)
        return {
            "manifests_read": len(list(result.rewrittenManifests())),
            "manifests_written": len(list(result.addedManifests())),
        }

    def _expire(self, lane: TableName, table: LakeTable, settings: MaintenanceSettings) -> Done:
        """Forget old snapshots, and remove the files that only they had. The head of main always stays.

        The lane need not wait: what it writes meanwhile is in no snapshot that goes.
        """
        nothing = {"snapshots": 0, "data_files": 0, "delete_files": 0, "metadata_files": 0, "files_beyond": 0}
        table.refresh()
        location = folder_place_of(str(table.java.location()))
        before = {int(snapshot.snapshotId()): int(snapshot.timestampMillis()) for snapshot in table.java.snapshots()}
        before_ms = expire_before_ms(list(before.values()), self._clock.now_ms(), settings)
        if before_ms is None:
            return nothing
        self._in_turn(lane, table, lambda: _mark_head(table))
        action = self._actions().expireSnapshots(table.java).expireOlderThan(before_ms).retainLast(1)
        # Iceberg names what only the old snapshots had; which of it goes is decided here.
        named = self._lake.jvm.java.util.stream.Stream.builder()
        result = action.deleteWith(named).execute()
        beyond = self._delete_named(table, named, location)
        table.refresh()
        deletes = int(result.deletedPositionDeleteFilesCount()) + int(result.deletedEqualityDeleteFilesCount())
        return {
            "snapshots": len(before.keys() - {int(each.snapshotId()) for each in table.java.snapshots()}),
            "data_files": int(result.deletedDataFilesCount()),
            "delete_files": deletes,
            "metadata_files": int(result.deletedManifestsCount()) + int(result.deletedManifestListsCount()),
            # Among the above, and still there.
            "files_beyond": beyond,
        }

    def _delete_named(self, table: LakeTable, named: Any, location: str) -> int:
        """Delete those of the named files that lie below the table's location. Returns how many do not, and stay."""
        jvm = self._lake.jvm
        text = str(named.build().collect(jvm.java.util.stream.Collectors.joining(_BETWEEN)))
        paths = [path for path in text.split(_BETWEEN) if path]
        own = [path for path in paths if is_inside(path, location)]
        if own:
            files = jvm.java.util.regex.Pattern.compile(_BETWEEN).splitAsStream(_BETWEEN.join(own)).toList()
            jvm.org.apache.iceberg.CatalogUtil.deleteFiles(table.java.io(), files, "expired", True)
        if len(own) < len(paths):
            log.warning(
                "metadata names %d files beyond the table: they stay",
                len(paths) - len(own),
                extra={"table": str(table.name)},
            )
        return len(paths) - len(own)

    def _remove_orphans(self, table: LakeTable, settings: MaintenanceSettings, *, dry_run: bool) -> Done:
        """Remove files that no snapshot has: of crashes, lost races, and of staged appends whose files moved on."""
        older_than_ms = self._clock.now_ms() - round(settings.orphan_age_s * 1000)
        location = str(table.java.location()).rstrip("/")
        folder_place_of(location)
        found = 0
        # Not the whole folder: tables of a nested namespace may live below it.
        for folder in ("data", "metadata"):
            action = self._actions().deleteOrphanFiles(table.java).olderThan(older_than_ms)
            action = action.location(f"{location}/{folder}")
            if not location.startswith(("/", "file:")):
                action = action.usePrefixListing(True)
            if dry_run:
                # Takes the names and does nothing with them.
                action = action.deleteWith(self._lake.jvm.java.util.stream.Stream.builder())
            found += len(list(action.execute().orphanFileLocations()))
        return {"files": found}


def _numbers(done: Compacted) -> Done:
    return {name: int(getattr(done, name)) for name in Compacted.__dataclass_fields__}


def _properties(table: LakeTable) -> dict[str, str]:
    return {str(name): str(value) for name, value in dict(table.java.properties()).items()}


def _marks(table: LakeTable) -> dict[str, str]:
    marks = table.marks()
    return marks.summary() if marks.positions else {}


def _mark_head(table: LakeTable) -> Done:
    """Where somebody else's commit is at the head, the marks are behind it: bring them there before those go."""
    summary = table.java.currentSnapshot().summary()
    if any(summary.get(name) != value for name, value in _marks(table).items()):
        table.mark(table.marks())
        table.refresh()
    return {}


def _summary_count(table: LakeTable, name: str) -> int:
    snapshot = table.java.currentSnapshot()
    return 0 if snapshot is None else int(snapshot.summary().get(name) or 0)


def _format_version(table: LakeTable) -> int:
    return int(table.lake.jvm.org.apache.iceberg.TableUtil.formatVersion(table.java))
