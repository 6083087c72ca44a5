"""What is asked of maintenance, and what it answers: the values that `/v1/compaction` takes and gives."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from mainstem.model import TableName
from mainstem.tables.maintenance import Step
from mainstem.wire.jobs import Job

WAIT_S_MAX = 600.0
TARGET_BYTES_MAX = 1 << 40
AGE_S_MAX = 1e10

# Whether a table exists for the caller.
Sees = Callable[[TableName], bool]


class Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what goes over HTTP."""


class TableFailure(Wire, frozen=True, kw_only=True):
    """A table that could not be looked at, and why. The others were."""

    table: str
    error: str


class CandidateGroup(Wire, frozen=True, kw_only=True):
    """Files of one partition that would become one or a few."""

    partition: str
    files: int
    bytes: int
    rows: int
    delete_files: int


class Candidate(Wire, frozen=True, kw_only=True):
    """A table and what compaction would do to it now."""

    namespace: str
    table: str
    snapshot_id: str | None
    data_files: int
    small_files: int
    delete_files: int
    bytes: int
    manifests: int
    snapshots: int
    snapshots_to_expire: int
    groups: list[CandidateGroup]
    files_after: int


class Candidates(Wire, frozen=True, kw_only=True):
    """Every table that has something to gain, the one with the most first, and the thresholds that decide."""

    candidates: list[Candidate]
    thresholds: dict[str, Any]
    failures: list[TableFailure]


class RunBody(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to maintain. Without a table: every table that is a candidate. Without steps: all but the orphans."""

    namespace: str | tuple[str, ...] = "default"
    table: str | None = None
    partitions: tuple[str, ...] = ()
    steps: tuple[Step, ...] = (Step.COMPACT, Step.DELETES, Step.MANIFESTS, Step.EXPIRE)
    dry_run: bool = False
    # Of the step `rebuild`: go on although the history does not know all keys of the state.
    force: bool = False
    # Wait so long for the end of the jobs.
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=WAIT_S_MAX)] = 0.0
    # Two files are worth it where somebody asks; the timer wants more.
    min_files: Annotated[int, msgspec.Meta(ge=2, le=1_000_000)] = 2
    max_files: Annotated[int, msgspec.Meta(ge=2, le=1_000_000)] | None = None
    target_file_size_bytes: Annotated[int, msgspec.Meta(gt=0, le=TARGET_BYTES_MAX)] | None = None
    snapshot_age_s: Annotated[float, msgspec.Meta(ge=0, le=AGE_S_MAX)] | None = None
    orphan_age_s: Annotated[float, msgspec.Meta(ge=0, le=AGE_S_MAX)] | None = None


class AutoBody(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Look at every table now. With `dryRun`, only say for which of them a job would be queued."""

    dry_run: bool = False


class RunAnswer(Wire, frozen=True, kw_only=True):
    """The jobs that do it, or what they would do."""

    dry_run: bool
    jobs: list[Job]
    plan: list[Candidate]
    failures: list[TableFailure]


class TableRuns(Wire, frozen=True, kw_only=True):
    """What maintenance did to one table."""

    runs: int
    failures: int
    last_finished_ms: int | None
    last_error: str | None
    totals: dict[str, dict[str, int]]


class CompactionMetrics(Wire, frozen=True, kw_only=True):
    """Totals of the jobs that are remembered, by step and number; and by table."""

    auto: bool
    interval_s: float
    jobs: dict[str, int]
    totals: dict[str, dict[str, int]]
    tables: dict[str, TableRuns]
