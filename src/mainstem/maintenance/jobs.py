"""The queue of maintenance jobs: kept in a small database, handed to the pipeline one at a time.

A job that was running when its pipeline died is queued again, a few times: every step can be repeated. Progress lives
in memory; what was asked for and what became of it is at rest. All of it runs on the event loop.
"""

import asyncio
import sqlite3
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from mainstem.model import Conflict, NotFound, Overloaded
from mainstem.runtime.clock import Clock
from mainstem.wire.jobs import ENDED, Job, JobNews, JobState

ATTEMPTS_MAX = 3
QUEUED_MAX = 1_000
ENDED_KEPT_MAX = 500
_RETRY_AFTER_S = 30.0
# A pipeline that has not asked for so long, and has nothing in hand, is not there.
_AWAY_S = 60.0


class Jobs:
    """Every job that is queued or running, and the latest that have ended."""

    def __init__(self, path: Path, clock: Clock, new_id: Callable[[], str] = lambda: uuid.uuid4().hex[:16]) -> None:
        self._clock = clock
        self._new_id = new_id
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None)
        # A job that a power cut takes away is asked for again by the next look at the tables.
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute("CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, document BLOB NOT NULL)")
        rows = self._database.execute("SELECT document FROM jobs ORDER BY rowid")
        jobs = [msgspec.json.decode(document, type=Job) for (document,) in rows]
        self._jobs: OrderedDict[str, Job] = OrderedDict((job.id, job) for job in jobs)
        self._worker: str | None = None
        self._asked_s: float | None = None
        self._closed = False
        self._changed = asyncio.Condition()

    async def close(self) -> None:
        """Answer the requests that wait, and let go of the database."""
        self._closed = True
        async with self._changed:
            self._changed.notify_all()
        self._database.close()

    def all(self) -> list[Job]:
        """The newest first."""
        return list(reversed(self._jobs.values()))

    def get(self, job_id: str) -> Job:
        """One job. Raises NotFound."""
        try:
            return self._jobs[job_id]
        except KeyError:
            raise NotFound(f"job does not exist. got={job_id}") from None

    def pending(self, table: str) -> Job | None:
        """The job of a table that has not ended yet."""
        return next((job for job in self._jobs.values() if job.table == table and job.state not in ENDED), None)

    async def submit(self, job: Job) -> Job:
        """Queue a job. A table that has one in the queue already keeps that one: it would do the same."""
        for same in (each for each in self._jobs.values() if each.table == job.table and each.state not in ENDED):
            # One that runs has begun without whatever the table got since; a load is of its files alone.
            waits = same.state is JobState.QUEUED or job.load is not None
            if job.cause == "auto" or (waits and _asks_no_more(job, same)):
                return same
        if sum(each.state is JobState.QUEUED for each in self._jobs.values()) >= QUEUED_MAX:
            raise Overloaded(f"too many jobs are waiting. expected=at most {QUEUED_MAX}", retry_after_s=_RETRY_AFTER_S)
        job = msgspec.structs.replace(job, id=self._new_id(), created_ms=self._clock.now_ms(), state=JobState.QUEUED)
        await self._put(job)
        return job

    async def take(self, worker: str, wait_s: float) -> Job | None:
        """The next job for a pipeline; None where none came up in time. A new worker means that the last one died."""
        self._asked_s = self._clock.monotonic_s()
        if worker != self._worker:
            self._worker = worker
            await self._requeue()
        try:
            async with asyncio.timeout(wait_s), self._changed:
                while (job := self._next()) is None and not self._closed:
                    await self._changed.wait()
        except TimeoutError:
            return None
        if job is None or self._closed:
            return None
        job = msgspec.structs.replace(
            job,
            state=JobState.RUNNING,
            started_ms=self._clock.now_ms(),
            attempts=job.attempts + 1,
            progress={},
            error=None,
        )
        await self._put(job)
        return job

    async def tell(self, job_id: str, news: JobNews) -> Job:
        """The pipeline told of a job. One that was cancelled meanwhile stays so, with what it came to."""
        job = self.get(job_id)
        if job.state is JobState.QUEUED:
            raise Conflict(f"job is not running. got={job_id}")
        if job.state is JobState.CANCELLED:
            job = msgspec.structs.replace(job, progress=news.progress)
        else:
            ended_ms = self._clock.now_ms() if news.state in ENDED else None
            job = msgspec.structs.replace(
                job, state=news.state, progress=news.progress, error=news.error, finished_ms=ended_ms
            )
        await self._put(job, durable=job.state in ENDED)
        return job

    async def cancel(self, job_id: str) -> Job:
        """End a job that has not ended. A running one stops after the group or step in hand."""
        job = self.get(job_id)
        if job.state in ENDED:
            return job
        job = msgspec.structs.replace(job, state=JobState.CANCELLED, finished_ms=self._clock.now_ms())
        await self._put(job)
        return job

    async def wait(self, job_id: str, timeout_s: float) -> Job:
        """The job once it has ended, or as it is when the time is over, or at once without a pipeline to do it."""
        if not self._is_attended():
            return self.get(job_id)
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                while self.get(job_id).state not in ENDED and not self._closed:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self.get(job_id)

    def _is_attended(self) -> bool:
        if any(job.state is JobState.RUNNING for job in self._jobs.values()):
            return True
        return self._asked_s is not None and self._clock.monotonic_s() - self._asked_s < _AWAY_S

    def _next(self) -> Job | None:
        running = {job.table for job in self._jobs.values() if job.state is JobState.RUNNING}
        queued = (job for job in self._jobs.values() if job.state is JobState.QUEUED and job.table not in running)
        # First what a request waits for, then what was queued by thresholds.
        return min(queued, key=lambda job: (job.cause == "auto", job.created_ms), default=None)

    async def _requeue(self) -> None:
        for job in list(self._jobs.values()):
            if job.state is not JobState.RUNNING:
                continue
            if job.attempts >= ATTEMPTS_MAX:
                error = f"the pipeline died {job.attempts} times during this job"
                ended_ms = self._clock.now_ms()
                again = msgspec.structs.replace(job, state=JobState.FAILED, error=error, finished_ms=ended_ms)
            else:
                again = msgspec.structs.replace(job, state=JobState.QUEUED)
            await self._put(again)

    async def _put(self, job: Job, *, durable: bool = True) -> None:
        self._jobs[job.id] = job
        if durable:
            document = msgspec.json.encode(job)
            self._database.execute(
                "INSERT INTO jobs (id, document) VALUES (?, ?)"
                " ON CONFLICT (id) DO UPDATE SET document = excluded.document",
                (job.id, document),
            )
            self._forget(each for each in self._jobs.values() if each.state in ENDED)
        async with self._changed:
            self._changed.notify_all()

    def _forget(self, ended: Iterable[Job]) -> None:
        for job in list(ended)[:-ENDED_KEPT_MAX]:
            del self._jobs[job.id]
            self._database.execute("DELETE FROM jobs WHERE id = ?", (job.id,))


def _asks_no_more(job: Job, other: Job) -> bool:
    return (
        set(job.steps) <= set(other.steps)
        and (job.partitions, job.settings, job.dry_run) == (other.partitions, other.settings, other.dry_run)
        and (job.force, job.load) == (other.force, other.load)
    )
