"""Sync over plain HTTP, in Protobuf."""

import email.utils
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from mainstem.client.sync.errors import ClockDrift, CursorExpired, Refused, Unreachable
from mainstem.client.sync.transports.pieces import PieceReader
from mainstem.client.sync.transports.transport import FEATURES, TIMEOUT_S, LiveListener, TokenSource, token_of
from mainstem.model.errors import Denied, Invalid, MainstemError, Overloaded
from mainstem.model.hlc import HLC_MAX, Hlc
from mainstem.runtime.clock import Clock, SystemClock
from mainstem.wire.sync import SyncPull, SyncPush, SyncResponse, decode_response, encode_push

CONTENT_TYPE = "application/x-protobuf"
RETRY_AFTER_S_DEFAULT = 1.0
_CONFLICT, _GONE = 409, 410
_DENIALS = frozenset((401, 403))
_REFUSALS = frozenset((400, 413, 422))
_OVERLOADS = frozenset((429, 503))


class _Refusal(msgspec.Struct, rename="camel"):
    reason: str
    error: str = ""
    delta_id: str | None = None
    server_hlc: str | None = None


_refusal = msgspec.json.Decoder(_Refusal)


class HttpTransport:
    """Polls a gateway. `token` is a JWT, or a function that gives one and is asked before each request."""

    def __init__(
        self,
        base_url: str,
        gateway: str,
        *,
        token: TokenSource = None,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/sync/{quote(gateway, safe='')}"
        self._token = token
        self._clock = clock or SystemClock()
        self._client = client or httpx.AsyncClient(timeout=timeout_s)

    async def push(self, push: SyncPush) -> SyncResponse:
        body = encode_push(push)
        return await self._message("POST", "push", content=body, headers={"Content-Type": CONTENT_TYPE})

    async def pull(self, pull: SyncPull) -> SyncResponse:
        query = {
            "since": str(pull.since_hlc),
            "clientId": pull.client_id,
            "limit": str(pull.max_deltas),
            "features": FEATURES,
        }
        return await self._message("GET", "pull", params=query)

    async def checkpoint(self, client_id: str) -> AsyncIterator[SyncResponse] | None:
        request = await self._request("GET", "checkpoint", params={"clientId": client_id, "features": FEATURES})
        response = await _unless_cut_off(self._client.send(request, stream=True))
        if response.status_code == httpx.codes.OK:
            return _pieces(response)
        await _unless_cut_off(response.aread())
        await response.aclose()
        # In the protocol's own words: a proxy's 404 must not make us pull everything from the start.
        if response.status_code == httpx.codes.NOT_FOUND and _body(response) is not None:
            return None
        raise refusal(response, self._clock.now_ms())

    def subscribe(self, listener: LiveListener) -> Callable[[], None] | None:
        """Plain HTTP tells of nothing by itself."""
        return None

    async def close(self) -> None:
        await self._client.aclose()

    async def _message(self, method: str, path: str, **content: Any) -> SyncResponse:
        response = await _unless_cut_off(self._client.send(await self._request(method, path, **content)))
        if response.status_code != httpx.codes.OK:
            raise refusal(response, self._clock.now_ms())
        kind = response.headers.get("Content-Type", "")
        if not kind.startswith(CONTENT_TYPE):
            raise Unreachable(f"the answer is not from a sync server. got={kind or 'no content type'}")
        return decoded(response.content)

    async def _request(self, method: str, path: str, headers: Any = None, **content: Any) -> httpx.Request:
        all_headers = {"Accept": CONTENT_TYPE, **(headers or {})}
        token = await token_of(self._token)
        if token:
            all_headers["Authorization"] = f"Bearer {token}"
        return self._client.build_request(method, f"{self._url}/{path}", headers=all_headers, **content)


async def _pieces(response: httpx.Response) -> AsyncIterator[SyncResponse]:
    reader = PieceReader()
    try:
        # A checkpoint may take long as a whole; only its parts have to come in time.
        async for chunk in response.aiter_bytes():
            for piece in reader.feed(chunk):
                yield decoded(piece)
    except httpx.HTTPError as error:
        raise Unreachable(f"the checkpoint broke off. got={error!r}") from error
    finally:
        await response.aclose()
    reader.finish()


def decoded(data: bytes) -> SyncResponse:
    """A server's message. What cannot be read is no answer, and says nothing of what was asked."""
    try:
        return decode_response(data)
    except Invalid as error:
        raise Unreachable(f"the server's message cannot be read. got={error}") from error


def refusal(response: httpx.Response, now_ms: int) -> MainstemError:
    """What a status means for us. Only an answer in the protocol's own words may put a delta aside: a proxy's or a
    captive portal's 400 says nothing about our data."""
    status = response.status_code
    body = _body(response)
    message = f"{status} {body.error if body else response.reason_phrase}"
    if status in _DENIALS:
        return Denied(message)
    if status in _OVERLOADS:
        return Overloaded(message, retry_after_s=retry_after_s(response.headers.get("Retry-After"), now_ms))
    if body is not None and status == _CONFLICT:
        return ClockDrift(message, server_hlc=server_clock(body.server_hlc))
    if body is not None and status == _GONE:
        return CursorExpired(message)
    if body is not None and status in _REFUSALS:
        return Refused(message, reason=body.reason, delta_id=body.delta_id)
    return Unreachable(message)


def server_clock(text: str | None) -> Hlc | None:
    """The clock that a refusal names; None where it names none that can be one."""
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) > HLC_MAX:
        return None
    return Hlc(int(text))


def retry_after_s(header: str | None, now_ms: int) -> float:
    """Seconds, or a date."""
    with suppress(TypeError, ValueError):
        return max(0.0, float(header or ""))
    with suppress(TypeError, ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(header or "").timestamp() - now_ms / 1000)
    return RETRY_AFTER_S_DEFAULT


def _body(response: httpx.Response) -> _Refusal | None:
    try:
        return _refusal.decode(response.content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


async def _unless_cut_off(awaitable: Any) -> Any:
    try:
        return await awaitable
    except httpx.HTTPError as error:
        raise Unreachable(f"no answer. got={error!r}") from error
