"""Jobs of maintenance, as the gateway hands them to the pipeline and as the pipeline tells of them. JSON both ways."""

from enum import StrEnum
from typing import Any

import msgspec

# The one step of a job that has a `load`.
LOAD_STEP = "load"


class JobState(StrEnum):
    """Where a job is. A job whose pipeline died is queued again; the steps can be repeated."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})


class LoadOrder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Files that Spark puts into a table without the log: a first load."""

    # A file, or a folder with all that is in it, where the executors can read it.
    place: str
    # The key columns. Not given: those that the table is declared with.
    key: tuple[str, ...] = ()


class Job(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Some steps of maintenance for one table."""

    id: str
    # In full: namespace.table, of the state, the history or the dead letters.
    table: str
    steps: tuple[str, ...]
    partitions: tuple[str, ...] = ()
    # Settings of maintenance that this job changes for itself.
    settings: dict[str, Any] = {}
    dry_run: bool = False
    # Rebuild a state although its history does not know all of its keys.
    force: bool = False
    # The files, where the one step is `load`.
    load: LoadOrder | None = None
    # "auto" or "request".
    cause: str = "request"
    state: JobState = JobState.QUEUED
    attempts: int = 0
    created_ms: int = 0
    started_ms: int | None = None
    finished_ms: int | None = None
    # By step, what has been done so far; what was done, once it has ended.
    progress: dict[str, dict[str, int]] = {}
    error: str | None = None


class JobNews(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the pipeline tells of a job."""

    state: JobState
    progress: dict[str, dict[str, int]] = {}
    error: str | None = None


class JobOrder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the gateway answers: whether to go on."""

    go_on: bool = True
