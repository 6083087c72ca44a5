"""Where the pipeline asks for queries to run, and brings the rows. Only the pipeline comes here.

GET  /v1/pipeline/queries            the next query; 204 where none comes up in time
GET  /v1/pipeline/queries/ID         whether somebody still waits for it
POST /v1/pipeline/queries/ID         its rows, frame by frame, as they are made
POST /v1/pipeline/queries/ID/failed  why there are none
"""

from typing import Annotated, Any, Protocol

import pyarrow as pa
from litestar import Request, Response, Router, get, post
from litestar.params import FromPath, JSONBody, QueryParameter

from mainstem.model import Invalid, MainstemError
from mainstem.wire.jobs import JobOrder
from mainstem.wire.queries import END, FRAME_BYTES_MAX, QueryFailed, QueryOrder, unframe

AnyRequest = Request[Any, Any, Any]
POLL_S_MAX = 30.0
_LENGTH_BYTES = len(END)


class Asking(Protocol):
    """What this door needs of the app."""

    async def take(self, wait_s: float) -> QueryOrder | None:
        """The next query that waits."""

    def is_wanted(self, query_id: str) -> bool:
        """Whether somebody still waits for it."""

    async def bring(self, query_id: str, batch: pa.RecordBatch | None) -> bool:
        """The next rows, or None for the end. Waits until there is room for more; False: the client has left."""

    async def fail(self, query_id: str, failed: QueryFailed) -> None:
        """There are none."""


def spark_queries_router(app: Asking) -> Router:
    """The routes, bound to one app."""

    @get("/", include_in_schema=False)
    async def take(
        wait_s: Annotated[float, QueryParameter(name="waitS", ge=0, le=POLL_S_MAX)] = POLL_S_MAX,
    ) -> Response[QueryOrder | None]:
        found = await app.take(wait_s)
        return Response(found) if found is not None else Response(None, status_code=204)

    @get("/{query_id:str}", include_in_schema=False)
    async def is_wanted(query_id: FromPath[str]) -> JobOrder:
        return JobOrder(go_on=app.is_wanted(query_id))

    @post("/{query_id:str}", status_code=200, include_in_schema=False, request_max_body_size=None)
    async def bring(query_id: FromPath[str], request: AnyRequest) -> JobOrder:
        return JobOrder(go_on=await _take_in(app, query_id, request))

    @post("/{query_id:str}/failed", status_code=200, include_in_schema=False)
    async def fail(query_id: FromPath[str], data: JSONBody[QueryFailed]) -> JobOrder:
        await app.fail(query_id, data)
        return JobOrder(go_on=False)

    return Router(
        path="/v1/pipeline/queries",
        route_handlers=[take, is_wanted, bring, fail],
        exception_handlers={MainstemError: _refused},
    )


async def _take_in(app: Asking, query_id: str, request: AnyRequest) -> bool:
    """Cut the body into frames as it comes. An end without the last frame is a failure, not an end."""
    held = bytearray()
    async for piece in request.stream():
        held += piece
        while len(held) >= _LENGTH_BYTES:
            length = int.from_bytes(held[:_LENGTH_BYTES], "big")
            if length > FRAME_BYTES_MAX:
                raise Invalid(f"frame is too large. expected=at most {FRAME_BYTES_MAX} got={length}")
            if length == 0:
                return await app.bring(query_id, None)
            if len(held) < _LENGTH_BYTES + length:
                break
            batch = unframe(bytes(held[_LENGTH_BYTES : _LENGTH_BYTES + length]))
            del held[: _LENGTH_BYTES + length]
            if not await app.bring(query_id, batch):
                return False
    await app.fail(query_id, QueryFailed(message="the rows were cut off"))
    return False


def _refused(request: AnyRequest, error: MainstemError) -> Response[dict[str, str]]:
    del request
    return Response({"message": str(error)}, status_code=400)
