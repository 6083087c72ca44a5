"""The catalog's door: Iceberg REST over HTTP, at the server's root.

Reads a request, calls the catalog in a worker thread (it blocks on files and on the store), encodes the answer. What an
operation does is in `catalog_operations`, what an error becomes in `catalog_answers`. It is an ASGI application of its
own below `/v1`: half of the time of a load went into the framework's request and response, of which nothing was used.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from urllib.parse import parse_qsl, quote

from litestar import asgi
from litestar.enums import ScopeType
from litestar.handlers import ASGIRouteHandler
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from mainstem.admission import Principal, Role
from mainstem.catalog import Catalog, TableIdent
from mainstem.doors.catalog.answers import Answer, Asked, failure, failure_of, whole
from mainstem.doors.catalog.auth import TOKEN_PATH, refusal, token_answer
from mainstem.doors.catalog.loads import Line, Loads
from mainstem.doors.catalog.operations import DELEGATION, OPERATIONS
from mainstem.doors.catalog.retries import once
from mainstem.doors.catalog.scope import authorize
from mainstem.doors.catalog.tables import declared_columns
from mainstem.doors.http.access import access, principal_of
from mainstem.doors.http.at_hand import AtHand
from mainstem.doors.http.threads import Threads
from mainstem.model import MainstemError, TableName
from mainstem.tables.types import ColumnType
from mainstem.wire import iceberg_rest as wire
from mainstem.wire.iceberg_rest import Operation

__all__ = ["Answer", "Asked", "CatalogDoor", "before", "catalog_router", "respond"]

BODY_BYTES_MAX = 32 * 1024 * 1024
# Commits to one table wait for each other in their threads; the bound keeps them from taking every thread there is.
THREADS_MAX = 24
PREFIX = "/v1/"
_DELEGATION = DELEGATION.encode()
# Others have paths below the prefix too: how the catalog's go on.
_ROOTS = wire.ROOTS | {TOKEN_PATH.partition("/")[0]}

# The server's own configuration is changed at the path at which the catalog's is read, and read below it.
_SERVER_CONFIG = "/v1/config"
# What operators see of one table is below the path at which tables are renamed (`doors.admin.tables`).
_TABLE_PAGES, _RENAME = "/v1/tables/", "/v1/tables/rename"

# What holds while columns of a table get declared types.
Declaring = Callable[[TableName, Mapping[str, ColumnType]], AbstractAsyncContextManager[None]]

_logger = logging.getLogger(__name__)


class CatalogDoor:
    """The catalog as an ASGI application of everything below `/v1` that is its own."""

    def __init__(self, catalog: Catalog, declaring: Declaring = lambda *_: nullcontext()) -> None:
        """`declaring` is around each change of declared types."""
        self._catalog = catalog
        self._declaring = declaring
        self._loads = Loads(catalog)
        self._threads = Threads(THREADS_MAX)

    async def __call__(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        found = self.at_hand(scope) if scope["method"] == "GET" else None
        if found is None:
            answer = await self._answer(scope, receive)
            found = answer if isinstance(answer, AtHand) else whole(answer, is_head=scope["method"] == "HEAD")
        await send({"type": "http.response.start", "status": found.status, "headers": found.headers})
        await send({"type": "http.response.body", "body": found.body, "more_body": False})

    async def _answer(self, scope: HTTPScope, receive: Receive) -> Answer | AtHand:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        body = await _body(headers, receive)
        if body is None:
            return failure(f"Request is larger than {BODY_BYTES_MAX} bytes", "RequestTooLargeException", 413)
        method = str(scope["method"])
        path = scope["raw_path"].decode("ascii", "replace").removeprefix(PREFIX)
        tokens = self._catalog.tokens
        if method == "POST" and path == TOKEN_PATH:
            return token_answer(tokens, headers, body)
        principal = principal_of(scope)
        if not principal.is_authenticated:
            refused = refusal(tokens, headers)
            if refused is not None:
                return refused
        call = wire.route(method, path)
        if call is None:
            return _no_such(path)
        asked = Asked(call, _query(scope["query_string"]), headers, body, principal)
        line = _line(scope)
        if call.operation is Operation.SET_SCHEMA:
            return await self._declare(asked, line)
        return await self._threads.run(lambda: self._respond(asked, line))

    async def _declare(self, asked: Asked, line: Line) -> Answer | AtHand:
        try:
            # First of all: others must not learn what rows are on their way.
            await self._threads.run(lambda: authorize(self._catalog, asked))
            async with self._declaring(asked.ident.table_name, declared_columns(asked.body)):
                return await self._threads.run(lambda: self._respond(asked, line))
        except MainstemError as error:
            return failure_of(error)

    def at_hand(self, scope: HTTPScope) -> AtHand | None:
        """The answer to a load that was asked for before, None where it has to be made."""
        # Where the store answers at once, a thread would take longer than an answer that is at hand.
        if not self._catalog.is_embedded:
            return None
        principal = principal_of(scope)
        if not _sees_all(principal) or (self._catalog.tokens.is_required and not principal.is_authenticated):
            return None
        try:
            return self._loads.find(_line(scope), _header(scope, b"if-none-match"))
        except MainstemError:
            # It will be met again where the answer is made.
            return None

    def _respond(self, asked: Asked, line: Line) -> Answer | AtHand:
        """In a thread: the answer, made anew where it is not at hand."""
        if not _sees_all(asked.principal):
            return respond(self._catalog, asked)
        if asked.call.operation is Operation.LOAD_TABLE and not self._catalog.is_embedded:
            try:
                found = self._loads.find(line, asked.headers.get("if-none-match", "").encode("latin-1"))
            except MainstemError as error:
                return failure_of(error)
            if found is not None:
                return found
        answer = respond(self._catalog, asked)
        self._keep(line, asked, answer)
        return answer

    def _keep(self, line: Line, asked: Asked, answer: Answer) -> None:
        """A create or a commit answers what the next load will answer: keep it."""
        match asked.call.operation:
            case Operation.LOAD_TABLE:
                self._loads.keep(line, asked.ident, answer)
            case Operation.COMMIT_TABLE:
                self._loads.keep(line._replace(query=b""), asked.ident, answer)
            case Operation.CREATE_TABLE if answer.metadata_location is not None:
                name = wire.decode(asked.body, wire.Named).name
                path = line.raw_path.rstrip(b"/") + b"/" + quote(name, safe="").encode()
                self._loads.keep(Line(path, b"", line.delegation), TableIdent(asked.call.namespace, name), answer)
            case _:
                pass


def _sees_all(principal: Principal) -> bool:
    """Answers at hand are for callers who may see and do everything; others' are decided one by one."""
    return principal.is_unbounded and principal.has(Role.WRITER)


def _line(scope: HTTPScope) -> Line:
    return Line(scope["raw_path"], scope["query_string"], _header(scope, _DELEGATION))


def _header(scope: HTTPScope, name: bytes) -> bytes:
    for key, value in scope["headers"]:
        if key == name:
            return value
    return b""


def catalog_router(door: CatalogDoor) -> ASGIRouteHandler:
    """The routes below `/v1`, to be mounted at the root of an application that has others as well."""

    # Who may do what is decided by the operation and the names in it: see `catalog_scope`.
    @asgi("/v1", is_mount=True, copy_scope=False, opt=access(Role.CLIENT))
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP:
            await door(scope, receive, send)

    return serve


def before(app: ASGIApp, door: CatalogDoor) -> ASGIApp:
    """An application whose catalog is reached without the framework, which takes several times as long as a load."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and _is_ours(scope["path"], scope["method"]):
            await door(scope, receive, send)
        else:
            await app(scope, receive, send)

    return serve


def _is_ours(path: str, method: str) -> bool:
    if not path.startswith(PREFIX):
        return False
    if path.startswith(_SERVER_CONFIG):
        return path == _SERVER_CONFIG and method != "PATCH"
    if path.startswith(_TABLE_PAGES):
        return path == _RENAME
    end = path.find("/", len(PREFIX))
    return path[len(PREFIX) : end if end >= 0 else None] in _ROOTS


def _no_such(path: str) -> Answer:
    methods = ["POST"] if path == TOKEN_PATH else wire.methods(path)
    if not methods:
        return failure("No such endpoint", "NotFoundException", 404)
    answer = failure(f"No such method here: expected {', '.join(methods)}", "MethodNotAllowedException", 405)
    return answer._replace(headers={"Allow": ", ".join(methods)})


async def _body(headers: Mapping[str, str], receive: Receive) -> bytes | None:
    """The whole body; None if it is too large."""
    if "content-length" not in headers and "transfer-encoding" not in headers:
        return b""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            # The client went away and waits for no answer.
            return b"".join(parts)
        part = message.get("body", b"")
        size += len(part)
        if size > BODY_BYTES_MAX:
            return None
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _query(raw: bytes) -> Mapping[str, str]:
    return dict(parse_qsl(raw.decode("ascii", "replace"), keep_blank_values=True)) if raw else {}


def respond(catalog: Catalog, asked: Asked) -> Answer:
    """Answer one request, whatever becomes of it."""
    try:
        authorize(catalog, asked)
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
