"""The door of maintenance: what would be gained, jobs, their progress, and the pipeline that does them.

    GET  /v1/compaction/candidates   tables that maintenance would gain something from, and what
    POST /v1/compaction/run          maintain a table now; with `dryRun`, say what would be done
    POST /v1/compaction/auto         look at every table by the thresholds, as the timer does
    GET  /v1/compaction/metrics      totals, and the last run of every table
    GET  /v1/compaction/jobs[/ID]    jobs and their progress; DELETE cancels one

It decodes, calls and encodes. What there is to do comes from a `Maintaining`, which the app provides. An admin of some
tables acts on those: the others, and their jobs, do not exist for it. The pipeline's own routes are for admins of all.
"""

from typing import Annotated, Any, Protocol

from litestar import Request, Response, Router, delete, get, post
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from mainstem.admission import Role
from mainstem.doors.http.access import access, principal_of
from mainstem.doors.http.refusals import ErrorAnswer, failed, refused
from mainstem.maintenance.answers import AutoBody, Candidates, CompactionMetrics, RunAnswer, RunBody, Sees
from mainstem.model import MainstemError
from mainstem.wire.jobs import Job, JobNews, JobOrder, JobState

POLL_S_MAX = 30.0
BODY_BYTES_MAX = 256 * 1024

AnyRequest = Request[Any, Any, Any]


class Maintaining(Protocol):
    """What this door needs of the app."""

    async def candidates(self, sees: Sees, namespace: str | None, table: str | None) -> Candidates:
        """Tables with something to gain."""

    async def run(self, sees: Sees, asked: RunBody) -> RunAnswer:
        """Queue jobs, or say what they would do."""

    async def auto(self, sees: Sees, *, dry_run: bool) -> RunAnswer:
        """What the timer does."""

    def metrics(self, sees: Sees) -> CompactionMetrics:
        """What was done."""

    def jobs(self, sees: Sees) -> list[Job]:
        """The newest first."""

    def job(self, sees: Sees, job_id: str) -> Job:
        """One of them."""

    async def cancel(self, sees: Sees, job_id: str) -> Job:
        """End one."""

    async def take(self, worker: str, wait_s: float) -> Job | None:
        """The pipeline asks for work."""

    async def tell(self, job_id: str, news: JobNews) -> Job:
        """The pipeline tells of its work."""


_ERRORS = {
    code: ResponseSpec(data_container=ErrorAnswer, description=text, generate_examples=False)
    for code, text in (
        (400, "The request is wrong"),
        (404, "The table or the job does not exist"),
        (409, "The table changed while it was looked at: ask again"),
        (503, "Too many jobs are waiting: ask again after Retry-After"),
    )
}


_PUBLIC: dict[str, Any] = {"opt": access(Role.ADMIN), "tags": ["compaction"]}


def compaction_router(app: Maintaining) -> Router:
    """The routes below `/v1/compaction`, and the pipeline's own."""

    @get("/v1/compaction/candidates", responses=_ERRORS, summary="What compaction would gain", **_PUBLIC)
    async def candidates(
        request: AnyRequest, namespace: FromQuery[str | None] = None, table: FromQuery[str | None] = None
    ) -> Candidates:
        return await app.candidates(_sees(request), namespace, table)

    @post(
        "/v1/compaction/run",
        status_code=200,
        request_max_body_size=BODY_BYTES_MAX,
        responses=_ERRORS,
        summary="Maintain a table now",
        **_PUBLIC,
    )
    async def run(request: AnyRequest, data: JSONBody[RunBody]) -> RunAnswer:
        return await app.run(_sees(request), data)

    @post("/v1/compaction/auto", status_code=200, responses=_ERRORS, summary="Look at every table", **_PUBLIC)
    async def auto(request: AnyRequest, data: JSONBody[AutoBody | None] = None) -> RunAnswer:
        return await app.auto(_sees(request), dry_run=data is not None and data.dry_run)

    @get("/v1/compaction/metrics", summary="What maintenance did", **_PUBLIC)
    async def metrics(request: AnyRequest) -> CompactionMetrics:
        return app.metrics(_sees(request))

    @get("/v1/compaction/jobs", summary="Jobs and their progress", **_PUBLIC)
    async def jobs(request: AnyRequest) -> list[Job]:
        return app.jobs(_sees(request))

    @get("/v1/compaction/jobs/{job_id:str}", responses=_ERRORS, summary="One job", **_PUBLIC)
    async def job(request: AnyRequest, job_id: FromPath[str]) -> Job:
        return app.job(_sees(request), job_id)

    @delete("/v1/compaction/jobs/{job_id:str}", status_code=200, responses=_ERRORS, summary="Cancel a job", **_PUBLIC)
    async def cancel(request: AnyRequest, job_id: FromPath[str]) -> Job:
        return await app.cancel(_sees(request), job_id)

    @get("/v1/pipeline/jobs", include_in_schema=False)
    async def take(
        worker: FromQuery[str],
        wait_s: Annotated[float, QueryParameter(name="waitS", ge=0, le=POLL_S_MAX)] = POLL_S_MAX,
    ) -> Response[Job | None]:
        found = await app.take(worker, wait_s)
        return Response(found) if found is not None else Response(None, status_code=204)

    @post("/v1/pipeline/jobs/{job_id:str}", status_code=200, include_in_schema=False)
    async def tell(job_id: FromPath[str], data: JSONBody[JobNews]) -> JobOrder:
        return JobOrder(go_on=(await app.tell(job_id, data)).state is not JobState.CANCELLED)

    return Router(
        path="/",
        route_handlers=[candidates, run, auto, metrics, jobs, job, cancel, take, tell],
        exception_handlers={MainstemError: failed, HTTPException: refused},
    )


def _sees(request: AnyRequest) -> Sees:
    return principal_of(request.scope).may_read
