"""The door of loads without the log: files that the server can reach, straight into a table by Spark.

    POST /v1/loads                 load files into a table; the answer is the job
    GET  /v1/compaction/jobs/ID    how far it is

It decodes, calls and encodes. Loads are for admins of every namespace: the folders that files are loaded from are not
divided among namespaces, so an admin of one could load the files of another.
"""

from typing import Any, Protocol

from litestar import Request, Router, post
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody

from mainstem.admission import Role
from mainstem.doors.http.access import access, principal_of
from mainstem.doors.http.refusals import ErrorAnswer, failed, refused
from mainstem.maintenance.answers import Sees
from mainstem.maintenance.loads import LoadBody
from mainstem.model import MainstemError
from mainstem.wire.jobs import Job

BODY_BYTES_MAX = 64 * 1024

AnyRequest = Request[Any, Any, Any]


class Loads(Protocol):
    """What this door needs of the app."""

    async def submit(self, may_write: Sees, asked: LoadBody) -> Job:
        """Queue a load."""


_ERRORS = {
    code: ResponseSpec(data_container=ErrorAnswer, description=text, generate_examples=False)
    for code, text in (
        (400, "The request is wrong"),
        (403, "The table is not yours to write, or files are not loaded from there"),
        (503, "Too many jobs are waiting: ask again after Retry-After"),
    )
}


def loads_router(app: Loads) -> Router:
    """The routes below `/v1/loads`."""

    @post(
        "/",
        status_code=200,
        request_max_body_size=BODY_BYTES_MAX,
        responses=_ERRORS,
        summary="Load files into a table without the log",
        opt=access(Role.ADMIN, overall=True),
        tags=["ingest"],
    )
    async def load(request: AnyRequest, data: JSONBody[LoadBody]) -> Job:
        return await app.submit(principal_of(request.scope).may_write, data)

    return Router(
        path="/v1/loads",
        route_handlers=[load],
        exception_handlers={MainstemError: failed, HTTPException: refused},
    )
