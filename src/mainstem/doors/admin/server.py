"""The HTTP door for people and machines that run the server: health, status, metrics, flush, the pipeline's reports.

It decodes, calls and encodes. What there is to tell comes from an `Operations`, which the app provides.
"""

from typing import Annotated, Any, Protocol

import msgspec
from litestar import Request, Response, Router, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, QueryParameter

from mainstem.admission import Principal, Role
from mainstem.doors.http.access import access, principal_of
from mainstem.model import MainstemError, parse_table_name
from mainstem.wire.reports import BreakerStatus, MicroBatchStatus, PassStatus, PipelineReport

AnyRequest = Request[Any, Any, Any]

FLUSH_S_DEFAULT = 60.0
FLUSH_S_MAX = 600.0
# The framework adds the charset.
METRICS_TYPE = "text/plain; version=0.0.4"


class Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what goes over HTTP: camelCase names, as the CDC protocol writes them."""


class Health(Wire, frozen=True, kw_only=True):
    """Up is all it says; `/status` says how well."""

    status: str = "ok"


class PeersStatus(Wire, frozen=True, kw_only=True):
    """Of several gateways over one log, the one that leads: it answers, whichever was asked."""

    # Host and process.
    leader: str
    # Where the others pass connections on to; null where they do not.
    address: str | None
    # Connections that they have passed on since its start.
    received: int


class GatewayStatus(Wire, frozen=True, kw_only=True):
    """The process that answers."""

    version: str
    pid: int
    started_ms: int
    uptime_s: float
    rss_bytes: int
    connections: int
    peers: PeersStatus | None = None


class LogStatus(Wire, frozen=True, kw_only=True):
    """The durable log. `durable` and `sealed` are positions, `id` says of which log."""

    id: str
    durable: int
    sealed: int
    segments: int
    segment_bytes: int
    recovered: str | None
    last_error: str | None


class BufferStatus(Wire, frozen=True, kw_only=True):
    """What is durable in the log and not yet in the tables."""

    event_count: int
    total_size_bytes: int
    utilization: float
    oldest_batch_time: int | None
    last_flush_time: int | None
    next_flush_time: int | None


class PipelineStatus(Wire, frozen=True, kw_only=True):
    """The Spark process, as its supervisor sees it and as it reports itself."""

    state: str
    running: bool
    pid: int | None
    restarts: int
    last_exit: str | None
    last_exit_ms: int | None
    last_lines: list[str]
    reported_ms: int | None
    checkpointed: int
    memory: dict[str, int]
    error: str | None
    circuit_breaker: BreakerStatus
    # The newest passes, the last one last; and all since the pipeline's start, added up.
    passes: list[PassStatus]
    totals: dict[str, float]
    # The same by Spark's own progress: the newest micro-batches, and the seconds of all of them by step.
    micro_batches: list[MicroBatchStatus]
    steps: dict[str, float]


class TableStatus(Wire, frozen=True, kw_only=True):
    """One table: the last change logged for it, the last one in it, and what stands in the way."""

    logged: int
    covered: int
    lag_changes: int
    snapshot_id: int | None
    error: str | None


class DeadLetterStatus(Wire, frozen=True, kw_only=True):
    """Changes that did not fit a table, by reason; and how many of them were replayed since."""

    total: int
    replayed: int
    reasons: dict[str, int]


class Status(Wire, frozen=True, kw_only=True):
    """The whole story. `state` is one of idle, receiving, flushing, recovering, error."""

    state: str
    gateway: GatewayStatus
    log: LogStatus
    buffer: BufferStatus
    pipeline: PipelineStatus
    tables: dict[str, TableStatus]
    # Records that consumer groups of the Kafka door have still to read, by group and topic.
    groups: dict[str, dict[str, int]] = {}
    # Changes that did not fit, by table.
    dead_letters: dict[str, DeadLetterStatus] = {}
    last_error: str | None


class FlushedTable(Wire, frozen=True, kw_only=True):
    """Where a table stands after the flush."""

    covered: int
    snapshot_id: int | None
    error: str | None


class Flushed(Wire, frozen=True, kw_only=True):
    """The answer to a flush: `complete` means that every table covers `position`."""

    complete: bool
    position: int
    elapsed_ms: int
    tables: dict[str, FlushedTable]
    # What it waited for in vain, where that is known: a pipeline that does not run.
    waits_for: str | None = None


class Operations(Protocol):
    """What this door needs of the app."""

    def status(self) -> Status:
        """How everything is, now."""

    def metrics(self, principal: Principal) -> bytes:
        """The Prometheus text format, of what the principal may see."""

    async def flush(self, timeout_s: float) -> Flushed:
        """Seal what is durable and wait until the tables cover it, or until the time is over."""

    def report(self, report: PipelineReport) -> None:
        """Take the pipeline's word on how it is."""


def is_visible(name: str, principal: Principal) -> bool:
    """Whether a table, by its full name, exists for the principal."""
    if principal.is_unbounded:
        return True
    try:
        return principal.may_read(parse_table_name(name))
    except MainstemError:
        return False


def visible(status: Status, principal: Principal) -> Status:
    """The status as the principal may see it: its own tables, and nothing that may name others."""
    if principal.is_unbounded:
        return status
    tables = {name: table for name, table in status.tables.items() if is_visible(name, principal)}
    broken = [f"{name}: {table.error}" for name, table in tables.items() if table.error]
    return msgspec.structs.replace(
        status,
        tables=tables,
        groups={},
        dead_letters={name: told for name, told in status.dead_letters.items() if is_visible(name, principal)},
        last_error=broken[0] if broken else None,
        log=msgspec.structs.replace(status.log, last_error=None, recovered=None),
        pipeline=msgspec.structs.replace(
            status.pipeline,
            error=None,
            last_lines=[],
            circuit_breaker=msgspec.structs.replace(status.pipeline.circuit_breaker, error=None),
            passes=[],
            totals={},
            micro_batches=[],
            steps={},
        ),
    )


def operations_router(operations: Operations) -> Router:
    """The routes, bound to one app."""

    @get("/health", summary="Whether the server is up", opt=access(Role.CLIENT))
    async def health() -> Health:
        return Health()

    @get("/status", summary="Gateway, log, buffer, pipeline, lag per table, last error", opt=access(Role.READER))
    async def status(request: AnyRequest) -> Status:
        return visible(operations.status(), principal_of(request.scope))

    @get(
        "/metrics",
        summary="Metrics for Prometheus",
        media_type=METRICS_TYPE,
        responses={200: ResponseSpec(data_container=str, media_type=METRICS_TYPE, generate_examples=False)},
        opt=access(Role.READER),
    )
    async def metrics(request: AnyRequest) -> Response[bytes]:
        return Response(operations.metrics(principal_of(request.scope)), media_type=METRICS_TYPE)

    @post(
        "/flush",
        status_code=200,
        summary="Carry everything accepted so far into the tables",
        opt=access(Role.WRITER),
    )
    async def flush(
        request: AnyRequest,
        timeout_s: Annotated[float, QueryParameter(name="timeoutS", gt=0, le=FLUSH_S_MAX)] = FLUSH_S_DEFAULT,
    ) -> Response[Flushed]:
        answer = await operations.flush(timeout_s)
        principal = principal_of(request.scope)
        seen = {name: table for name, table in answer.tables.items() if is_visible(name, principal)}
        answer = msgspec.structs.replace(answer, tables=seen)
        if answer.complete:
            return Response(answer)
        # Nothing is lost: the changes are durable, and the tables will cover them later.
        return Response(answer, status_code=504, headers={"Retry-After": "5"})

    @post("/v1/pipeline/report", status_code=204, include_in_schema=False)
    async def report(data: JSONBody[PipelineReport]) -> None:
        operations.report(data)

    return Router(path="/", route_handlers=[health, status, metrics, flush, report])
