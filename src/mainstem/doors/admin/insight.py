"""What an operator looks at besides the status: room to grow, memory, what was written, what went wrong, the tables.

    GET /v1/scaling/status   how much of each bound is in use, and what to do about the fullest
    GET /v1/memory-stats     memory of each process, and of what the gateway keeps at hand
    GET /v1/write-stats      files, rows and bytes per table: now, and written in the last hour
    GET /v1/overview         every table with its schema and latest snapshots, for the console
    GET /v1/errors           the latest warnings and errors

Everything is bounded, and a bounded caller sees its own tables only.
"""

from typing import Annotated, Any, Protocol

from litestar import Request, Router, get
from litestar.exceptions import HTTPException
from litestar.params import QueryParameter

from mainstem.admission import Principal, Role
from mainstem.doors.admin.server import Wire
from mainstem.doors.http.access import access, principal_of
from mainstem.doors.http.refusals import failed, refused
from mainstem.maintenance.answers import TableFailure
from mainstem.model import MainstemError

AnyRequest = Request[Any, Any, Any]

TABLES_MAX = 1_000
TABLES_DEFAULT = 200


class Bound(Wire, frozen=True, kw_only=True):
    """Something that is not endless. `utilization` is 0 to 1."""

    name: str
    used: int
    limit: int
    utilization: float


class Scaling(Wire, frozen=True, kw_only=True):
    """Where the server stands. `state` is ok, busy (a bound above 0.7) or full (a bound above 0.95)."""

    state: str
    gateways: int
    pipelines: int
    cores: int
    load_average: float | None
    bounds: list[Bound]
    lag_changes: int
    advice: list[str]


class Memory(Wire, frozen=True, kw_only=True):
    """Bytes, by process and by what they are for. What is not known is left out."""

    gateway: dict[str, int]
    pipeline: dict[str, int]
    machine: dict[str, int]


class TableWrites(Wire, frozen=True, kw_only=True):
    """One table: what it holds now, and what was committed in the last hour."""

    table: str
    format: str
    snapshots: int
    data_files: int
    delete_files: int
    # Without those that are deleted. None: it has equality deletes, and only a scan would tell.
    rows: int | None
    bytes: int
    average_file_bytes: int
    last_commit_ms: int | None
    commits_hour: int
    files_added_hour: int
    rows_added_hour: int
    bytes_added_hour: int


class Writes(Wire, frozen=True, kw_only=True):
    """What the pipeline and the sealer have written. `truncated`: there are more tables than were asked for.

    Segments hold the changes of all tables: they are counted for callers without bounds.
    """

    tables: list[TableWrites]
    truncated: bool
    segments: int | None
    segment_bytes: int | None
    rows: int
    bytes: int
    data_files: int
    failures: list[TableFailure]


class Column(Wire, frozen=True, kw_only=True):
    """A column of the current schema."""

    name: str
    type: str
    required: bool


class SnapshotView(Wire, frozen=True, kw_only=True):
    """A snapshot, or a version of a Delta table. Its id is text: it has 63 bits, which JSON numbers do not carry."""

    snapshot_id: str
    at_ms: int
    operation: str
    # Without those that are deleted. None where only a scan would tell: a table with equality deletes, or a version of
    # Delta's before whole files were removed.
    rows: int | None
    data_files: int
    delete_files: int
    bytes: int
    position: int | None


class TableView(Wire, frozen=True, kw_only=True):
    """A table, as the console shows it."""

    table: str
    # iceberg or delta, and the version that a reader has to know.
    format: str
    format_version: int
    location: str
    columns: list[Column]
    partitioning: list[str]
    schemas: int
    # What readers see: the latest, unless the table was put back.
    current: SnapshotView | None
    # The latest first.
    snapshots: list[SnapshotView]
    snapshot_count: int
    lag_changes: int | None
    error: str | None


class Tables(Wire, frozen=True, kw_only=True):
    """The tables, by name."""

    tables: list[TableView]
    truncated: bool
    failures: list[TableFailure]


class LoggedError(Wire, frozen=True, kw_only=True):
    """Something that went wrong, as it was logged."""

    at_ms: int
    level: str
    logger: str
    message: str


class Errors(Wire, frozen=True, kw_only=True):
    """The latest first. `total` counts since the start."""

    errors: list[LoggedError]
    total: int


class Insight(Protocol):
    """What this door needs of the app."""

    def scaling(self) -> Scaling:
        """How much of each bound is in use."""

    def memory(self) -> Memory:
        """Memory, by process."""

    async def writes(self, principal: Principal, limit: int) -> Writes:
        """What was written, of the tables that the principal may see."""

    async def tables(self, principal: Principal, limit: int) -> Tables:
        """The tables that the principal may see."""

    def errors(self) -> Errors:
        """What went wrong lately."""


Limit = Annotated[int, QueryParameter(name="limit", ge=1, le=TABLES_MAX)]


def insight_router(insight: Insight) -> Router:
    """The routes."""

    @get("/v1/scaling/status", summary="How much of each bound is in use", opt=access(Role.READER))
    async def scaling() -> Scaling:
        return insight.scaling()

    @get("/v1/memory-stats", summary="Memory, by process", opt=access(Role.READER))
    async def memory() -> Memory:
        return insight.memory()

    @get("/v1/write-stats", summary="Files, rows and bytes written, by table", opt=access(Role.READER))
    async def writes(request: AnyRequest, limit: Limit = TABLES_DEFAULT) -> Writes:
        return await insight.writes(principal_of(request.scope), limit)

    @get("/v1/overview", summary="Tables with schema and latest snapshots", opt=access(Role.READER))
    async def tables(request: AnyRequest, limit: Limit = TABLES_DEFAULT) -> Tables:
        return await insight.tables(principal_of(request.scope), limit)

    # Whatever was logged may name any table: for an admin of everything.
    @get("/v1/errors", summary="The latest warnings and errors")
    async def errors() -> Errors:
        return insight.errors()

    return Router(
        path="/",
        route_handlers=[scaling, memory, writes, tables, errors],
        tags=["operation"],
        exception_handlers={MainstemError: failed, HTTPException: refused},
    )
