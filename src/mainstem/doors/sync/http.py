"""The sync door over HTTP: push, pull, checkpoint, and what an admin sets. Reads, calls, encodes; decides nothing."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

import msgspec

from mainstem.doors.sync.access import Caller, caller_of
from mainstem.doors.sync.answers import JSON, Answer, refusal
from mainstem.doors.sync.stream import Send, Streamed, encoding_of, etag, stream
from mainstem.feeds.schemas import TableSchema
from mainstem.feeds.service import SyncService, Viewer
from mainstem.model.errors import Invalid, MainstemError, NotFound
from mainstem.model.names import parse_table_name
from mainstem.wire.sync import (
    clock,
    decode_push,
    decode_response,
    join_response,
    push_from_json,
    response_to_json,
    split_push,
    table_name,
)
from mainstem.wire.sync.checks import PUSH_BYTES_MAX
from mainstem.wire.sync.messages import CONTENT_TYPE_PROTOBUF

Receive = Callable[[], Awaitable[Any]]

FLUSH_S_MAX = 60.0
# Where the pipeline asks what to make.
ORDERS_PATH = "/v1/pipeline/checkpoints"
CORS = (
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Allow-Headers", "Authorization, Content-Type"),
    ("Access-Control-Allow-Methods", "GET, POST, OPTIONS"),
    ("Access-Control-Expose-Headers", "Retry-After, ETag"),
    ("Access-Control-Max-Age", "600"),
)

_logger = logging.getLogger(__name__)


class Flusher(Protocol):
    """Carries what is durable into the tables."""

    async def flush(self, timeout_s: float, /) -> Any:
        """Seal, and wait for the tables."""


class Asked(msgspec.Struct, frozen=True):
    """A request, taken apart."""

    method: str
    area: str
    action: str
    gateway: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    caller: Caller


class SyncHttp:
    """The routes below `/sync` and `/admin`, as an ASGI application."""

    def __init__(
        self, service: SyncService, flusher: Flusher, is_cross_origin: Callable[[str], bool] = lambda path: False
    ) -> None:
        """`is_cross_origin`: the paths whose answers pages of other origins may read."""
        self._service = service
        self._is_cross_origin = is_cross_origin
        self._flusher = flusher

    async def serve(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request, whatever becomes of it."""
        cors = CORS if self._is_cross_origin(scope["path"]) else ()
        if scope["method"] == "OPTIONS":
            await _send(send, Answer(204), cors)
            return
        try:
            if scope["path"] == ORDERS_PATH:
                # The orders name every gateway.
                caller_of(scope).check_unbounded()
                answer: Answer | Streamed = Answer(200, msgspec.json.encode(await self._service.checkpoints.orders()))
            else:
                answer = await self._answer(asked_of(scope), receive)
        except MainstemError as error:
            answer = refusal(error)
        # The request's edge: the client is told that it was our fault, and tries again.
        except Exception:
            _logger.exception("a sync request failed", extra={"path": scope["path"]})
            answer = refusal(MainstemError("the server failed on this request"))
        if isinstance(answer, Streamed):
            await stream(send, answer, cors)
        else:
            await _send(send, answer, cors)

    async def _answer(self, asked: Asked, receive: Receive) -> Answer | Streamed:
        match (asked.area, asked.method, asked.action):
            case ("sync", "POST", "push"):
                asked.caller.check_gateway(asked.gateway)
                return await self._push(asked, await _body(receive))
            case ("sync", "GET", "pull"):
                asked.caller.check_gateway(asked.gateway)
                return await self._pull(asked)
            case ("sync", "GET", "checkpoint"):
                asked.caller.check_gateway(asked.gateway)
                return await self._checkpoint(asked)
            case ("admin", _, _):
                asked.caller.check_admin()
                asked.caller.check_gateway(asked.gateway)
                return await self._admin(asked, receive)
        raise NotFound(f"no such route. got={asked.method} {asked.action}")

    async def _push(self, asked: Asked, body: bytes) -> Answer:
        is_json = asked.headers.get("content-type", CONTENT_TYPE_PROTOBUF).startswith(JSON)
        push = push_from_json(body) if is_json else decode_push(body)
        asked.caller.check_push(push, asked.gateway)
        parts = None if is_json else split_push(body)
        arrival = await self._service.push(asked.gateway, push, parts)
        return _response(asked, [], self._service.cursors.encode(arrival), has_more=False, since=0)

    async def _pull(self, asked: Asked) -> Answer:
        since = clock(asked.query.get("since", "0"))
        limit = asked.query.get("limit", "0")
        if not limit.isascii() or not limit.isdigit():
            raise Invalid(f"limit must be a number. got={limit[:32]!r}")
        cursors = self._service.cursors
        reply = await self._service.pull(asked.gateway, viewer_of(asked), cursors.decode(since), int(limit[:9]))
        return _response(asked, reply.encoded, cursors.encode(reply.cursor), has_more=reply.has_more, since=since)

    async def _checkpoint(self, asked: Asked) -> Answer | Streamed:
        viewer = viewer_of(asked)
        found = await self._service.checkpoint(asked.gateway, viewer)
        if found is None:
            return Answer(404, b'{"error":"there is no checkpoint yet: pull from 0","reason":"no_checkpoint"}')
        checkpoint, pieces = found
        tag = etag(self._service.cursors.encode(checkpoint.position), self._service.view_key(asked.gateway, viewer))
        if asked.headers.get("if-none-match") == tag:
            return Answer(304, headers=(("ETag", tag),))
        encoding = encoding_of(asked.headers.get("accept-encoding", ""))
        return Streamed(pieces, encoding, as_json=JSON in asked.headers.get("accept", ""), tag=tag)

    async def _admin(self, asked: Asked, receive: Receive) -> Answer:
        match (asked.method, asked.action):
            case ("POST", "flush"):
                flushed = await self._flusher.flush(FLUSH_S_MAX)
                return Answer(200 if flushed.complete else 504, msgspec.json.encode(seen_flush(flushed, asked.caller)))
            case ("POST", "checkpoint"):
                asked.caller.check_every_table()
                flushed = await self._flusher.flush(FLUSH_S_MAX)
                made = await self._service.checkpoints.reach(asked.gateway, flushed.position, FLUSH_S_MAX)
                return Answer(200, msgspec.json.encode({"position": str(made.position), "rows": made.rows}))
            case ("POST", "schema"):
                schema = _decoded(await _body(receive), TableSchema)
                asked.caller.check_table(asked.gateway, schema.table)
                await self._service.declare(asked.gateway, schema)
                return Answer(204)
            case ("GET", "schema"):
                scope, found = asked.caller.scope(asked.gateway), self._service.schemas.of(asked.gateway).values()
                shown = [each for each in found if scope is None or scope.sees(each.table)]
                return Answer(200, msgspec.json.encode(shown))
            case (_, "rules"):
                asked.caller.check_every_table()
                return await self._rules(asked, receive)
        raise NotFound(f"no such route. got={asked.method} {asked.action}")

    async def _rules(self, asked: Asked, receive: Receive) -> Answer:
        match asked.method:
            case "GET":
                return Answer(200, msgspec.json.encode(await self._service.rules(asked.gateway)))
            case "POST":
                position = await self._service.set_rules(asked.gateway, _decoded(await _body(receive), Any))
                return Answer(200, msgspec.json.encode({"position": str(position)}))
        raise NotFound(f"no such route. got={asked.method} {asked.action}")


def asked_of(scope: Any) -> Asked:
    """Take a request apart. Raises NotFound or Invalid."""
    path = scope.get("raw_path") or scope["path"].encode()
    parts = path.decode("ascii", "replace").split("?")[0].removeprefix("/v1").strip("/").split("/")
    if len(parts) != 3:
        raise NotFound("no such route")
    area, gateway, action = parts if parts[0] == "sync" else (parts[0], parts[2], parts[1])
    gateway = unquote(gateway, errors="replace")
    # The gateway's name is a namespace of the lake.
    table_name(gateway, "any")
    return Asked(
        scope.get("method", "GET"),
        area,
        action,
        gateway,
        dict(parse_qsl(scope["query_string"].decode("ascii", "replace"), keep_blank_values=True)),
        {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
        caller_of(scope),
    )


def viewer_of(asked: Asked) -> Viewer:
    """Who reads. A token's name goes before what the client says."""
    client = asked.caller.client or asked.query.get("clientId", "")
    features = asked.query.get("features", "").split(",")
    scope = asked.caller.scope(asked.gateway)
    return Viewer(client, asked.caller.claims_of(client), "evict" in features, scope)


def seen_flush(flushed: Any, caller: Caller) -> Any:
    """What was flushed, as far as it is the caller's to know."""
    if caller.is_unbounded:
        return flushed
    tables = {name: each for name, each in flushed.tables.items() if caller.sees(parse_table_name(name))}
    return msgspec.structs.replace(flushed, tables=tables)


def _response(asked: Asked, encoded: list[bytes], cursor: int, *, has_more: bool, since: int) -> Answer:
    data = join_response(encoded, cursor, has_more, since)
    if CONTENT_TYPE_PROTOBUF in asked.headers.get("accept", ""):
        return Answer(200, data, CONTENT_TYPE_PROTOBUF)
    return Answer(200, response_to_json(decode_response(data)))


def _decoded(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"the body is not as expected. got={error}") from error


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Invalid("the request was cut off")
        part = message.get("body", b"")
        size += len(part)
        if size > PUSH_BYTES_MAX:
            raise Invalid(f"a body is too large. expected=at most {PUSH_BYTES_MAX} bytes", reason="too_large")
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _send(send: Send, answer: Answer, cors: tuple[tuple[str, str], ...]) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in (*cors, *answer.headers)]
    if answer.body:
        headers.append((b"content-type", answer.media_type.encode()))
    if answer.status not in (204, 304):
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})
