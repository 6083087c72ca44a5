"""The query door: SQL over HTTP. Reads a request, calls the query package, encodes the answer; decides nothing.

    POST /v1/query         run a statement; JSON, an Arrow stream, CSV or Parquet back
    POST /v1/query/plan    what it would read: files, partitions, row groups, bytes
    POST /v1/query/route   which engine it would run on, and why

A client that goes away cancels its query.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from litestar import Request, Response, Router, post
from litestar.background_tasks import BackgroundTask
from litestar.datastructures import ResponseHeader
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody
from litestar.response import Stream

from mainstem.admission import Role
from mainstem.doors.http.access import access, principal_of
from mainstem.doors.http.refusals import ErrorAnswer, failed, refused
from mainstem.model import MainstemError
from mainstem.query.binding import Freshness
from mainstem.query.dispatch import Dispatcher, RunningElsewhere
from mainstem.query.engine import ROWS_DEFAULT, TIMEOUT_MS_DEFAULT, Column, QueryRequest, Running, Stats
from mainstem.query.plan import Plan, Planner, PlanRequest, TableRef
from mainstem.query.ports import Readable, everything
from mainstem.query.route import EngineName, Route
from mainstem.query.route import Router as EngineRouter
from mainstem.query.sandbox.encode import ArrowPieces, ParquetPieces, csv_bytes, json_rows

T = TypeVar("T")
AnyRequest = Request[Any, Any, Any]

BODY_BYTES_MAX = 1024 * 1024
# A JSON answer is built whole, so that it is either right or an error; Arrow and CSV are streamed beyond this.
JSON_BYTES_MAX = 64 * 1024 * 1024
BUFFER_BYTES_MAX = 4 * 1024 * 1024
ARROW_TYPE = "application/vnd.apache.arrow.stream"
PARQUET_TYPE = "application/vnd.apache.parquet"
CLIENT_GONE = 499


class Format(StrEnum):
    """How the rows come back."""

    JSON = "json"
    ARROW = "arrow"
    CSV = "csv"
    PARQUET = "parquet"


class QueryBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A query as it is posted: a statement, or a table with columns and a condition, as `/plan` takes them.

    `format` left out: by the Accept header.
    """

    sql: str | None = None
    table: TableRef | None = None
    columns: tuple[str, ...] = ("*",)
    where: str | None = None
    format: Format | None = None
    limit: int = ROWS_DEFAULT
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    freshness: Freshness = Freshness.SNAPSHOT
    # `duckdb` or `spark`; left out: by the plan.
    engine: EngineName | None = None


class QueryAnswer(msgspec.Struct, frozen=True):
    """The answer in JSON. `rows` are arrays in the order of `columns`."""

    columns: tuple[Column, ...]
    rows: list[list[Any]]
    truncated: bool
    stats: Stats


# What the caller may read, taken from its request; the app puts the gate's answer here.
Scope = Callable[[AnyRequest], Readable]


def unbounded(request: AnyRequest) -> Readable:
    """The scope where there is no authentication."""
    del request
    return everything


def scope_of_principal(request: AnyRequest) -> Readable:
    """What the request's token lets it read."""
    return principal_of(request.scope).may_read


_ERRORS = {
    code: ResponseSpec(data_container=ErrorAnswer, description=text, generate_examples=False)
    for code, text in (
        (400, "The request or the statement is wrong"),
        (403, "The statement would do more than read"),
        (404, "A table does not exist"),
        (409, "The snapshot was expired while it was read: ask again"),
        (503, "Too many queries: ask again after Retry-After"),
        (504, "The query took longer than its time limit"),
    )
}


_TRUNCATED = ResponseHeader(
    name="X-Mainstem-Truncated", description="true, false or unknown", documentation_only=True, required=False
)


def query_router(dispatcher: Dispatcher, planner: Planner, router: EngineRouter, *, scope: Scope = unbounded) -> Router:
    """The routes below `/v1/query`, to be mounted at the root."""

    @post(
        "/",
        status_code=200,
        request_max_body_size=BODY_BYTES_MAX,
        responses={200: ResponseSpec(data_container=QueryAnswer, generate_examples=False), **_ERRORS},
        response_headers=[_TRUNCATED],
        summary="Run a query",
        tags=["query"],
    )
    async def query(request: AnyRequest, data: JSONBody[QueryBody]) -> Response[Any]:
        asked = QueryRequest(
            sql=PlanRequest(sql=data.sql, table=data.table, columns=data.columns, where=data.where).statement(),
            limit=data.limit,
            timeout_ms=data.timeout_ms,
            freshness=data.freshness,
            engine=data.engine,
        )
        chosen = data.format or format_of(request.headers.get("accept", ""))
        readable = scope(request)
        if chosen is Format.JSON:
            return await while_connected(request, _json_answer(dispatcher, asked, readable))
        return await while_connected(request, _streamed_answer(dispatcher, asked, readable, chosen))

    @post("/plan", status_code=200, responses=_ERRORS, summary="What a query would read", tags=["query"])
    async def plan(request: AnyRequest, data: JSONBody[PlanRequest]) -> Plan:
        return await planner.plan(data, scope(request))

    @post("/route", status_code=200, responses=_ERRORS, summary="Where a query would run", tags=["query"])
    async def route(request: AnyRequest, data: JSONBody[PlanRequest]) -> Route:
        return await router.route(data, scope(request))

    return Router(
        path="/v1/query",
        opt=access(Role.READER),
        route_handlers=[query, plan, route],
        exception_handlers={MainstemError: failed, HTTPException: refused},
    )


def format_of(accept: str) -> Format:
    """The format that an Accept header asks for; JSON unless it names another first."""
    for part in accept.split(","):
        match part.split(";")[0].strip().lower():
            case "application/vnd.apache.arrow.stream":
                return Format.ARROW
            case "application/vnd.apache.parquet":
                return Format.PARQUET
            case "text/csv":
                return Format.CSV
            case "application/json":
                return Format.JSON
    return Format.JSON


async def while_connected(request: AnyRequest, work: Coroutine[Any, Any, Response[Any]]) -> Response[Any]:
    """Do the work as long as somebody waits for it."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_outcome(work))
        watcher = group.create_task(_disconnected(request))
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        watcher.cancel()
        if not task.done():
            task.cancel()
    if task.cancelled():
        return Response(b"", status_code=CLIENT_GONE)
    outcome = task.result()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _outcome(work: Coroutine[Any, Any, T]) -> T | Exception:
    # As a value: a task group would wrap it.
    try:
        return await work
    except Exception as error:
        return error


async def _disconnected(request: AnyRequest) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


async def _json_answer(dispatcher: Dispatcher, asked: QueryRequest, readable: Readable) -> Response[Any]:
    async with dispatcher.open(asked, readable) as running:
        rows: list[bytes] = []
        size = 0
        truncated = False
        async for batch in running.batches():
            for row in await asyncio.to_thread(json_rows, batch):
                size += len(row) + 1
                if size > JSON_BYTES_MAX:
                    truncated = True
                    break
                rows.append(row)
            if truncated:
                break
        head = {"columns": running.columns, "truncated": truncated or running.truncated, "stats": running.stats()}
    body = await asyncio.to_thread(_json_body, head, rows)
    return Response(body, media_type="application/json", headers=_headers(bool(head["truncated"])))


def _json_body(head: dict[str, Any], rows: list[bytes]) -> bytes:
    encoded = msgspec.json.encode(head)
    return encoded[:-1] + b',"rows":[' + b",".join(rows) + b"]}"


async def _streamed_answer(
    dispatcher: Dispatcher, asked: QueryRequest, readable: Readable, chosen: Format
) -> Response[Any]:
    stack = AsyncExitStack()
    try:
        running = await stack.enter_async_context(dispatcher.open(asked, readable))
        encoded, media_type = _STREAMED[chosen]
        pieces = encoded(running)
        # A small result is whole before its headers leave: an error is then still an error.
        first: list[bytes] = []
        size = 0
        ended = True
        async for piece in pieces:
            first.append(piece)
            size += len(piece)
            if size > BUFFER_BYTES_MAX:
                ended = False
                break
        if ended:
            await stack.aclose()
            return Response(b"".join(first), media_type=media_type, headers=_headers(running.truncated))
    except BaseException:
        await stack.aclose()
        raise
    return Stream(
        _continued(first, pieces, stack),
        media_type=media_type,
        headers=_headers(None),
        # Also where the client left before the first byte, and the stream was never begun.
        background=BackgroundTask(stack.aclose),
    )


async def _continued(first: list[bytes], rest: AsyncIterator[bytes], stack: AsyncExitStack) -> AsyncIterator[bytes]:
    try:
        for piece in first:
            yield piece
        async for piece in rest:
            yield piece
    finally:
        await stack.aclose()


async def _arrow(running: Running | RunningElsewhere) -> AsyncIterator[bytes]:
    pieces = ArrowPieces(running.schema)
    async for batch in running.batches():
        yield await asyncio.to_thread(pieces.batch, batch)
    stats = msgspec.json.encode(running.stats()).decode()
    yield pieces.end({"mainstem.truncated": str(running.truncated).lower(), "mainstem.stats": stats})


async def _csv(running: Running | RunningElsewhere) -> AsyncIterator[bytes]:
    header = True
    async for batch in running.batches():
        yield await asyncio.to_thread(csv_bytes, batch, header=header)
        header = False
    if header:
        arrays = [pa.array([], field.type) for field in running.schema]
        empty = pa.RecordBatch.from_arrays(arrays, schema=running.schema)
        yield csv_bytes(empty, header=True)


async def _parquet(running: Running | RunningElsewhere) -> AsyncIterator[bytes]:
    pieces = ParquetPieces(running.schema)
    async for batch in running.batches():
        yield await asyncio.to_thread(pieces.batch, batch)
    yield pieces.end({"mainstem.truncated": str(running.truncated).lower()})


_STREAMED: dict[Format, tuple[Callable[[Running | RunningElsewhere], AsyncIterator[bytes]], str]] = {
    Format.ARROW: (_arrow, ARROW_TYPE),
    Format.CSV: (_csv, "text/csv; charset=utf-8"),
    Format.PARQUET: (_parquet, PARQUET_TYPE),
}


def _headers(truncated: bool | None) -> dict[str, str]:
    return {"X-Mainstem-Truncated": "unknown" if truncated is None else str(truncated).lower()}
