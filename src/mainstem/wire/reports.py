"""What the pipeline tells the gateway of itself, on change and every two seconds. JSON over HTTP.

The status (`GET /status`) shows breaker and passes as they are here.
"""

import msgspec

from mainstem.model.position import NOWHERE, LogPosition


class TableReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One table. `error` is why its last attempt failed, `since_ms` when the first of those attempts did."""

    covered: LogPosition = NOWHERE
    error: str | None = None
    since_ms: int | None = None
    attempts: int = 0


class BreakerStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The breaker around the commits to the tables: `state` is closed, open or half-open. `openings` counts since the
    start of the process."""

    state: str = "closed"
    failures: int = 0
    opened_ms: int | None = None
    openings: int = 0
    error: str | None = None


class PassStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One pass of Spark's: what its executors read and wrote, and the seconds it took.

    `batch` is the number of the micro-batch, which may take several passes, or `start` or `catch-up` where tables that
    were left behind are brought on. `rows_read` counts each change once, however often the pass looks at it.
    """

    # Of all since the process has started.
    number: int = 0
    batch: str
    tables: int = 0
    rows_read: int = 0
    rows_written: int = 0
    files: int = 0
    job_s: float = 0.0
    commit_s: float = 0.0


class MicroBatchStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A micro-batch by Spark's own progress: the rows of its source, and seconds by Spark's names for its steps.

    A row counts as often as it was read: a pass over several large tables, or one that merges, reads it more than once.
    """

    batch: str
    rows_in: int = 0
    steps: dict[str, float] = {}


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How the pipeline is."""

    state: str
    batch_id: int | None = None
    checkpointed_position: LogPosition = NOWHERE
    tables: dict[str, TableReport] = {}
    memory: dict[str, int] = {}
    error: str | None = None
    breaker: BreakerStatus = BreakerStatus()
    # The newest passes, the last one last; and all since the start, added up.
    passes: list[PassStatus] = []
    totals: dict[str, float] = {}
    # The same by Spark's own progress: the newest micro-batches, and the seconds of all of them by step.
    micro_batches: list[MicroBatchStatus] = []
    steps: dict[str, float] = {}
