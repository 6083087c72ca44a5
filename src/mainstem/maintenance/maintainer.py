"""Decides which tables are maintained and when, and queues it. The pipeline does it.

Every table is looked at each `interval_s`; one that has gathered `new_files_max` files, or many more snapshots than
it may keep, does not wait for that. What there is to gain is read from the manifests, by the rule that the pipeline
itself works by.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.catalog import Catalog, TableIdent
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.scan.inventory import Inventory
from mainstem.formats.iceberg.snapshots import current_snapshot_id
from mainstem.maintenance.answers import (
    Candidate,
    CandidateGroup,
    Candidates,
    CompactionMetrics,
    RunAnswer,
    RunBody,
    Sees,
    TableFailure,
    TableRuns,
)
from mainstem.maintenance.each_table import look_at_each, named
from mainstem.maintenance.jobs import Jobs
from mainstem.maintenance.loads import Loads, load_places
from mainstem.model import Conflict, MainstemError, NotFound, TableName
from mainstem.query.ports import LoadedTable
from mainstem.runtime.clock import Clock
from mainstem.tables.maintenance import (
    MaintenanceSettings,
    Step,
    count_of,
    expire_before_ms,
    for_table,
    plan_groups,
)
from mainstem.wire.jobs import ENDED, Job, JobNews, JobState

if TYPE_CHECKING:
    from mainstem.query.delta import DeltaVersion

logger = logging.getLogger(__name__)

_AUTO_STEPS = (Step.COMPACT, Step.DELETES, Step.MANIFESTS, Step.EXPIRE)


class Maintainer:
    """Behind `/v1/compaction`."""

    def __init__(
        self,
        catalog: Catalog,
        settings: MaintenanceSettings,
        folder: Path,
        clock: Clock,
        in_delta: Callable[[TableName], LoadedTable | None] = lambda _: None,
    ) -> None:
        """`in_delta` loads a table of ours that is kept in Delta; None for every other. `folder` lies in the
        data folder."""
        self._catalog = catalog
        self._in_delta = in_delta
        self._settings = settings
        self._clock = clock
        self._jobs = Jobs(folder / "jobs.db", clock)
        self._data = folder.parent
        self._started_ms = clock.now_ms()
        # How many files a table had when it was last looked at, and when that was.
        self._looked: dict[TableName, tuple[int, int]] = {}

    def retune(self, settings: MaintenanceSettings) -> None:
        """Other thresholds, from the next look on."""
        self._settings = settings

    def loads(self, load_from: Sequence[str]) -> Loads:
        """Loads of files wait in the same queue. `load_from` is where files may be loaded from, besides our own."""
        return Loads(self._jobs, load_places(load_from, self._data))

    async def close(self) -> None:
        """Let go of the queue."""
        await self._jobs.close()

    async def run_timer(self) -> None:
        """Look at the tables by the thresholds, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.check_s)
            if not self._settings.auto:
                continue
            try:
                await self.auto(_everything, dry_run=False, only_due=True)
            # The task's edge: the next look comes soon, and the doors stay open meanwhile.
            except (OSError, MainstemError) as error:
                logger.error("tables could not be looked at for maintenance: %s", error)

    # What the door asks

    async def candidates(self, sees: Sees, namespace: str | None, table: str | None) -> Candidates:
        """Tables with something to gain."""
        names = await self._names(sees, namespace, table)
        found, failures = await self._look_at(names, self._settings, is_one=table is not None)
        found.sort(key=lambda each: each.files_after - each.data_files - each.delete_files)
        thresholds = msgspec.to_builtins(self._settings)
        return Candidates(candidates=found, thresholds=thresholds, failures=failures)

    async def run(self, sees: Sees, asked: RunBody) -> RunAnswer:
        """Queue a job per table, or say what it would do."""
        namespace = asked.namespace if isinstance(asked.namespace, str) else ".".join(asked.namespace)
        changes = _changes(asked)
        settings = msgspec.structs.replace(self._settings, **changes)
        names = await self._names(sees, namespace, asked.table)
        plan, failures = await self._look_at(names, settings, asked.partitions, is_one=asked.table is not None)
        steps = tuple(asked.steps)
        if Step.REBUILD in steps and asked.table is None:
            # The body is well formed: it is what it asks of all tables at once that cannot be.
            raise Conflict("a rebuild is asked for by the name of one table. expected=table")
        if asked.dry_run:
            # Only a list of all files tells orphans, and only the pipeline can make one.
            steps = tuple(step for step in steps if step is Step.ORPHANS)
        jobs = []
        for candidate in plan if steps else ():
            job = Job(
                id="",
                table=f"{candidate.namespace}.{candidate.table}",
                steps=tuple(map(str, steps)),
                partitions=asked.partitions,
                settings=changes,
                dry_run=asked.dry_run,
                force=asked.force,
            )
            jobs.append(await self._jobs.submit(job))
        if asked.wait_s:
            deadline_s = self._clock.monotonic_s() + asked.wait_s
            jobs = [await self._jobs.wait(job.id, max(0.0, deadline_s - self._clock.monotonic_s())) for job in jobs]
        return RunAnswer(dry_run=asked.dry_run, jobs=jobs, plan=plan, failures=failures)

    async def auto(self, sees: Sees, *, dry_run: bool, only_due: bool = False) -> RunAnswer:
        """Queue a job for every table that has something to gain by the thresholds."""
        plan, jobs = [], []

        async def look(name: TableName) -> Candidate | None:
            if only_due and not await asyncio.to_thread(self._is_due, name):
                return None
            return await self._candidate(name, self._settings)

        names = [name for name in await asyncio.to_thread(self._ours) if sees(name)]
        looked_at, failures = await look_at_each(names, look)
        for name, candidate in looked_at:
            orphans = self._orphans_are_due(name)
            if candidate is None or not (_is_worth_it(candidate) or orphans):
                continue
            plan.append(candidate)
            if not dry_run:
                steps = (*_AUTO_STEPS, Step.ORPHANS) if orphans else _AUTO_STEPS
                job = Job(id="", table=str(name), steps=tuple(map(str, steps)), settings=self._tuned(), cause="auto")
                jobs.append(await self._jobs.submit(job))
        return RunAnswer(dry_run=dry_run, jobs=jobs, plan=plan, failures=failures)

    def metrics(self, sees: Sees) -> CompactionMetrics:
        """Totals over the jobs that are remembered."""
        jobs = self.jobs(sees)
        states = {str(state): sum(job.state is state for job in jobs) for state in JobState}
        totals: dict[str, dict[str, int]] = {}
        tables: dict[str, list[Job]] = {}
        for job in jobs:
            tables.setdefault(job.table, []).append(job)
            if not job.dry_run:
                _add(totals, job.progress)
        return CompactionMetrics(
            auto=self._settings.auto,
            interval_s=self._settings.interval_s,
            jobs=states,
            totals=totals,
            tables={name: _runs(each) for name, each in sorted(tables.items())},
        )

    def jobs(self, sees: Sees) -> list[Job]:
        """The newest first."""
        return [job for job in self._jobs.all() if sees(_name_of(job))]

    def job(self, sees: Sees, job_id: str) -> Job:
        """One of them."""
        job = self._jobs.get(job_id)
        if not sees(_name_of(job)):
            raise NotFound(f"job does not exist. got={job_id}")
        return job

    async def cancel(self, sees: Sees, job_id: str) -> Job:
        """End one."""
        return await self._jobs.cancel(self.job(sees, job_id).id)

    async def take(self, worker: str, wait_s: float) -> Job | None:
        """The pipeline asks for work."""
        return await self._jobs.take(worker, wait_s)

    async def tell(self, job_id: str, news: JobNews) -> Job:
        """The pipeline tells of its work."""
        return await self._jobs.tell(job_id, news)

    # What there is

    async def _names(self, sees: Sees, namespace: str | None, table: str | None) -> list[TableName]:
        if table is not None:
            name = TableName(namespace or "default", table)
            if not sees(name):
                raise NotFound(f"table does not exist. got={name}")
            return [name]
        tables = await asyncio.to_thread(self._catalog.tables)
        names = (each.table for each in tables if namespace in (None, each.table.namespace))
        return sorted(name for name in names if sees(name))

    async def _look_at(
        self,
        names: list[TableName],
        settings: MaintenanceSettings,
        partitions: tuple[str, ...] = (),
        *,
        is_one: bool,
    ) -> tuple[list[Candidate], list[TableFailure]]:
        """The tables that are worth it, and those that could not be looked at. One that is asked for must be."""
        if is_one:
            try:
                candidates = [await self._candidate(name, settings, partitions) for name in names]
            # The edge of the table.
            except Exception as error:
                raise named(error, names[0]) from error
            return [candidate for candidate in candidates if candidate is not None], []
        found, failures = await look_at_each(names, lambda name: self._candidate(name, settings, partitions))
        return [each for _, each in found if each is not None and _is_worth_it(each)], failures

    async def _candidate(
        self, name: TableName, settings: MaintenanceSettings, partitions: tuple[str, ...] = ()
    ) -> Candidate | None:
        return await asyncio.to_thread(self._look, name, settings, partitions)

    def _look(self, name: TableName, settings: MaintenanceSettings, partitions: tuple[str, ...]) -> Candidate | None:
        document, inventory = self._taken(name)
        if inventory is None:
            return None
        settings = for_table(settings, document["properties"])
        self._looked[name] = (len(inventory.files) + inventory.delete_files, self._clock.now_ms())
        return _candidate(name, document, inventory, settings, partitions, self._clock.now_ms())

    def _document(self, name: TableName) -> "tuple[Document, DeltaVersion | None]":
        """What the table's metadata says, and where it is kept in Delta, that version of it."""
        found = self._in_delta(name)
        if found is not None:
            return dict(found.metadata), found.delta
        return self._catalog.load_table(TableIdent(name.levels, name.table)).stored.document, None

    def _taken(self, name: TableName) -> tuple[Document, Inventory | None]:
        document, in_delta = self._document(name)
        if in_delta is not None:
            from mainstem.maintenance.delta_inventory import inventory_of

            return document, inventory_of(in_delta)
        has_data = current_snapshot_id(document) is not None
        return document, self._catalog.inventories.take(document) if has_data else None

    def _tuned(self) -> dict[str, Any]:
        """What may have changed since the pipeline was started with it."""
        settings = self._settings
        return {"min_files": settings.min_files, "max_files": settings.max_files}

    def _is_due(self, name: TableName) -> bool:
        """By what the newest snapshot says of itself: no manifest is read for it."""
        if self._jobs.pending(str(name)) is not None:
            return False
        try:
            document, _ = self._document(name)
        except NotFound:
            return False
        snapshot_id = current_snapshot_id(document)
        if snapshot_id is None:
            return False
        files_then, looked_ms = self._looked.get(name, (0, self._last_run_ms(name)))
        if self._clock.now_ms() - looked_ms >= self._settings.interval_s * 1000:
            return True
        if len(document["snapshots"]) > 1.2 * self._settings.snapshots_max:
            return True
        return _files_of(document, snapshot_id) - files_then >= self._settings.new_files_max

    def _ours(self) -> list[TableName]:
        """Other engines' tables are theirs to maintain, unless somebody asks."""
        tables = self._catalog.tables()
        return sorted(each.table for each in tables if each.marks or self._is_delta(each.table))

    def _is_delta(self, name: TableName) -> bool:
        try:
            return self._in_delta(name) is not None
        except NotFound:
            return False
        # The edge of one table: what is wrong with it is told where it is looked at.
        except Exception:
            return True

    def _last_run_ms(self, name: TableName) -> int:
        ended = [job.finished_ms or 0 for job in self._jobs.all() if job.table == str(name) and job.state in ENDED]
        return max(ended, default=self._started_ms)

    def _orphans_are_due(self, name: TableName) -> bool:
        times = [
            job.created_ms
            for job in self._jobs.all()
            if job.table == str(name) and Step.ORPHANS in job.steps and not job.dry_run
        ]
        since_ms = max(times, default=self._started_ms)
        return self._clock.now_ms() - since_ms >= self._settings.orphan_interval_s * 1000


def _everything(_: TableName) -> bool:
    return True


def _name_of(job: Job) -> TableName:
    namespace, _, table = job.table.rpartition(".")
    return TableName(namespace, table)


def _files_of(document: Document, snapshot_id: int) -> int:
    snapshot = next(each for each in document["snapshots"] if each["snapshot-id"] == snapshot_id)
    summary = snapshot.get("summary") or {}
    return sum(count_of(summary, name) for name in ("total-data-files", "total-delete-files"))


def _changes(asked: RunBody) -> dict[str, Any]:
    changes: dict[str, Any] = {"min_files": asked.min_files}
    if asked.max_files is not None:
        changes["max_files"] = asked.max_files
    if asked.target_file_size_bytes is not None:
        changes["target_file_bytes"] = asked.target_file_size_bytes
    if asked.snapshot_age_s is not None:
        # An age that was named is kept to.
        changes |= {"snapshot_age_s": max(asked.snapshot_age_s, 0.001), "snapshot_age_min_s": 0.0}
    if asked.orphan_age_s is not None:
        changes["orphan_age_s"] = asked.orphan_age_s
    return changes


def _candidate(
    name: TableName,
    document: Document,
    inventory: Inventory,
    settings: MaintenanceSettings,
    partitions: tuple[str, ...],
    now_ms: int,
) -> Candidate:
    groups = plan_groups(
        inventory.files, settings, deleted_by_partition=inventory.deleted_by_partition, partitions=partitions
    )
    times_ms = [snapshot["timestamp-ms"] for snapshot in document["snapshots"]]
    before_ms = expire_before_ms(times_ms, now_ms, settings)
    read = sum(len(group.files) for group in groups)
    written = sum(max(1, round(group.size_bytes / settings.target_file_bytes)) for group in groups)
    return Candidate(
        namespace=name.namespace,
        table=name.table,
        snapshot_id=str(inventory.snapshot_id),
        data_files=len(inventory.files),
        small_files=sum(file.size_bytes < 0.75 * settings.target_file_bytes for file in inventory.files),
        delete_files=inventory.delete_files,
        bytes=sum(file.size_bytes for file in inventory.files),
        manifests=inventory.manifests,
        snapshots=len(times_ms),
        snapshots_to_expire=0 if before_ms is None else sum(time_ms < before_ms for time_ms in times_ms),
        groups=[
            CandidateGroup(
                partition=group.partition,
                files=len(group.files),
                bytes=group.size_bytes,
                rows=group.rows,
                delete_files=max((file.delete_files for file in group.files), default=0),
            )
            for group in groups
        ],
        files_after=len(inventory.files) - read + written,
    )


def _is_worth_it(candidate: Candidate) -> bool:
    return bool(candidate.groups or candidate.snapshots_to_expire)


def _add(totals: dict[str, dict[str, int]], progress: dict[str, dict[str, int]]) -> None:
    for step, numbers in progress.items():
        sums = totals.setdefault(step, {})
        for name, value in numbers.items():
            sums[name] = sums.get(name, 0) + value


def _runs(jobs: list[Job]) -> TableRuns:
    totals: dict[str, dict[str, int]] = {}
    ended = [job for job in jobs if job.state in ENDED and not job.dry_run]
    for job in ended:
        _add(totals, job.progress)
    return TableRuns(
        runs=len(ended),
        failures=sum(job.state is JobState.FAILED for job in ended),
        last_finished_ms=max((job.finished_ms or 0 for job in ended), default=None),
        last_error=next((job.error for job in ended if job.error), None),
        totals=totals,
    )
