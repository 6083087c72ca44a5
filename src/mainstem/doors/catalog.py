"""The catalog's door: Iceberg REST over HTTP, at the server's root.

Reads a request, calls the catalog in a worker thread (it blocks on files and on the store), encodes the answer. What an
operation does is in `catalog_operations`, what an error becomes in `catalog_answers`.
"""

import logging
from typing import Any

import anyio
from anyio import to_thread
from litestar import Request, Response, Router, route

from mainstem.catalog import Catalog
from mainstem.doors.catalog_answers import Answer, Asked, failure, failure_of
from mainstem.doors.catalog_auth import TOKEN_PATH, refusal, token_answer
from mainstem.doors.catalog_operations import OPERATIONS
from mainstem.doors.catalog_retries import once
from mainstem.model import MainstemError
from mainstem.wire import iceberg_rest as wire

__all__ = ["Answer", "Asked", "catalog_router", "respond"]

BODY_BYTES_MAX = 32 * 1024 * 1024
# Commits to one table wait for each other in their threads; the bound keeps them from taking every thread there is.
THREADS_MAX = 24

_logger = logging.getLogger(__name__)


def catalog_router(catalog: Catalog) -> Router:
    """The routes below `/v1`, to be mounted at the root."""
    threads = anyio.CapacityLimiter(THREADS_MAX)

    @route(
        "/{path:path}",
        http_method=["GET", "POST", "HEAD", "DELETE"],
        request_max_body_size=BODY_BYTES_MAX,
        include_in_schema=False,
        status_code=200,
    )
    async def serve(request: Request[Any, Any, Any]) -> Response[bytes]:
        path = request.scope.get("raw_path", b"").decode("ascii", "replace").removeprefix("/v1/")
        answer = await _answer(request, path)
        return Response(
            answer.body,
            status_code=answer.status,
            media_type="application/json",
            headers=dict(answer.headers) if answer.headers else None,
        )

    async def _answer(request: Request[Any, Any, Any], path: str) -> Answer:
        if request.method == "POST" and path == TOKEN_PATH:
            return token_answer(catalog.tokens, request.headers, await request.body())
        refused = refusal(catalog.tokens, request.headers)
        if refused is not None:
            return refused
        call = wire.route(request.method, path)
        if call is None:
            return failure("No such endpoint", "NotFoundException", 404)
        asked = Asked(call, request.query_params, request.headers, await request.body())
        return await to_thread.run_sync(respond, catalog, asked, limiter=threads)

    return Router(path="/v1", route_handlers=[serve])


def respond(catalog: Catalog, asked: Asked) -> Answer:
    """Answer one request, whatever becomes of it."""
    try:
        return once(catalog, asked, lambda: _run(catalog, asked))
    except MainstemError as error:
        return failure_of(error)
    except Exception as error:
        return _unexpected(asked, error)


def _run(catalog: Catalog, asked: Asked) -> Answer:
    try:
        return OPERATIONS[asked.call.operation](catalog, asked)
    except MainstemError as error:
        return failure_of(error)
    except Exception as error:
        return _unexpected(asked, error)


def _unexpected(asked: Asked, error: Exception) -> Answer:
    _logger.exception("catalog request failed", extra={"operation": asked.call.operation.value})
    # Clients that commit read a 500 as "unknown whether it happened", which is all that is known here.
    return failure(f"{type(error).__name__}: {error}", "InternalServerError", 500)
