"""The gate before every door that speaks HTTP: no request and no WebSocket gets past it without a principal.

It stands outside of the router, so that also a path that does not exist is not told of. A token comes

    in the header      Authorization: Bearer TOKEN
    in the query       ?access_token=TOKEN (or `token`), for WebSockets only: a browser cannot set their headers
    in a subprotocol   bearer.TOKEN, for WebSockets: a page's way that leaves nothing in logs of URLs
    in a cookie        of the console's, for requests from the console's own origin only
    in the body        of Debezium Server's login only, see `body_login`
"""

from collections import Counter
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import unquote_plus, urlsplit

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from mainstem.admission import ANYONE, Authenticator, Principal, Unauthenticated
from mainstem.doors.http.at_hand import AtHand, FindAtHand, nothing_at_hand
from mainstem.doors.http.body_login import is_login, with_token
from mainstem.doors.http.held_open import CLOSE_POLICY, HeldOpen
from mainstem.doors.http.origins import FOREIGN_HOST, FOREIGN_ORIGIN, Origins
from mainstem.runtime.clock import Clock
from mainstem.wire.sync.frames import BEARER_PREFIX

COOKIE = "mainstem_token"
# Without a token a probe is told that the server is up, and tokens are given out for secrets; nothing else.
HEALTH = "/health"
_TOKEN_ENDPOINT = "/v1/oauth/tokens"

# Somebody else who knows tokens of its own, for some paths: None where this is not one of them.
Fallback = Callable[[str, str], Principal | None]
# What a browser is shown that comes without a token; None for every other path.
SignIn = Callable[[str], bytes | None]


class AuthGate:
    """An ASGI application around another."""

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        clock: Clock,
        *,
        fallback: Fallback = lambda path, token: None,
        gives_tokens: bool = False,
        sign_in: SignIn = lambda path: None,
        sign_in_policy: bytes = b"default-src 'none'",
        origins: Origins | None = None,
        refuses_itself: Callable[[str], bool] = lambda path: False,
        find: FindAtHand = nothing_at_hand,
        refused: Counter[str] | None = None,
    ) -> None:
        self._app = app
        self._find = find
        self._authenticator = authenticator
        self._clock = clock
        self._fallback = fallback
        self._gives_tokens = gives_tokens
        self._sign_in = sign_in
        self._sign_in_policy = sign_in_policy
        self._origins = origins or Origins()
        self._held_open = HeldOpen(self._recheck)
        # Paths whose protocol has refusals of its own: the door finds the error where the principal would be.
        self._refuses_itself = refuses_itself
        # By reason, for the metrics.
        self.refused: Counter[str] = Counter() if refused is None else refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it through with its principal, or say why not."""
        kind: str = scope["type"]
        if kind == "lifespan":
            await self._app(scope, receive, send)
            return
        if kind == "http" and is_login(scope):
            receive = await with_token(scope, receive)
        try:
            principal = self._principal(scope)
        except Unauthenticated as error:
            self.refused[error.reason] += 1
            if self._refuses_itself(scope["path"]) and error.reason not in (FOREIGN_HOST, FOREIGN_ORIGIN):
                scope["auth"] = error
                await self._app(scope, receive, send)
                return
            if kind == "websocket":
                await _refuse_websocket(scope, receive, send, error)
            else:
                await self._refuse_http(scope, send, error)
            return
        scope["auth"] = principal
        scope["user"] = principal.sub
        if kind == "websocket" and principal.is_authenticated:
            await self._serve_socket(principal, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve_socket(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        """A connection ends with the token that opened it."""
        token = _token(scope)
        assert token is not None
        ends_in_s = None if principal.expires_s is None else principal.expires_s - self._clock.now_ms() / 1000
        # By any other first word a client of the sync door puts aside what it pushed last, as refused.
        words = "denied cause={}" if self._refuses_itself(scope["path"]) else "{}"
        held = self._held_open.add(token, scope["path"], ends_in_s, receive, send, words)
        try:
            await self._app(scope, held.receive, send)
        finally:
            self._held_open.remove(held)

    def at_hand(self, scope: HTTPScope) -> AtHand | None:
        """An answer that needs no request, where the caller may have it."""
        try:
            principal = self._principal(scope)
        except Unauthenticated:
            return None
        scope["auth"] = principal
        scope["user"] = principal.sub
        return self._find(scope)

    def _principal(self, scope: Scope) -> Principal:
        self._origins.check_host(scope, asks_for_tokens=self._authenticator.is_on)
        token = _token(scope)
        if token is None:
            is_open = (self._gives_tokens and scope["path"] == _TOKEN_ENDPOINT) or _is_probe(scope)
            if not self._authenticator.is_on:
                self._origins.check_origin(scope)
                return ANYONE
            if is_open or self._is_preflight(scope):
                return ANYONE
            raise Unauthenticated("no token. expected=Authorization: Bearer got=none", "token_missing")
        try:
            return self._authenticator.principal(token)
        except Unauthenticated:
            other = self._fallback(scope["path"], token)
            if other is not None:
                return other
            if not self._authenticator.is_on:
                # This server asks for no token, so a wrong one does no harm.
                self._origins.check_origin(scope)
                return ANYONE
            raise

    def _recheck(self, token: str, path: str) -> None:
        """Raises Unauthenticated for a token that does not open this path any more."""
        try:
            self._authenticator.recheck(token)
        except Unauthenticated:
            if self._fallback(path, token) is None:
                raise

    def _is_preflight(self, scope: Scope) -> bool:
        """A browser's own question whether it may ask, to which it cannot add a token and gets no data."""
        return (
            scope["type"] == ScopeType.HTTP
            and scope["method"] == "OPTIONS"
            and bool(_header(scope, b"access-control-request-method"))
            and self._origins.is_cross_origin(scope["path"])
        )

    async def _refuse_http(self, scope: Scope, send: Send, error: Unauthenticated) -> None:
        page = self._sign_in(scope["path"]) if b"text/html" in _header(scope, b"accept") else None
        kind = b"application/json" if page is None else b"text/html; charset=utf-8"
        body = _body(error) if page is None else page
        headers = [
            (b"content-type", kind),
            (b"content-length", str(len(body)).encode()),
            (b"www-authenticate", _challenge(error)),
            (b"cache-control", b"no-store"),
        ]
        if page is not None:
            headers.append((b"content-security-policy", self._sign_in_policy))
        if self._origins.is_cross_origin(scope["path"]) and error.reason != FOREIGN_HOST:
            # Or the page would not even learn that it needs another token.
            headers.append((b"access-control-allow-origin", b"*"))
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else body  # type: ignore[typeddict-item]
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send, error: Unauthenticated) -> None:
    await receive()
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": CLOSE_POLICY, "reason": error.reason})
        return
    body = _body(error)
    headers = [(b"content-type", b"application/json"), (b"www-authenticate", _challenge(error))]
    start: Any = {"type": "websocket.http.response.start", "status": 401, "headers": headers}
    rest: Any = {"type": "websocket.http.response.body", "body": body, "more_body": False}
    message: Message
    for message in (start, rest):
        await send(message)


def _challenge(error: Unauthenticated) -> bytes:
    return b"Bearer" if error.reason == "token_missing" else b'Bearer error="invalid_token"'


def _body(error: Unauthenticated) -> bytes:
    # The shape of Iceberg's errors, which every other door of ours uses too.
    told = {"message": str(error), "type": "NotAuthorizedException", "code": 401, "reason": error.reason}
    return msgspec.json.encode({"error": told})


def _is_probe(scope: Scope) -> bool:
    return scope["type"] == ScopeType.HTTP and scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD")


def _token(scope: Scope) -> str | None:
    scheme, _, token = _header(scope, b"authorization").decode("latin-1").partition(" ")
    # Debezium Server writes `Bearer: TOKEN`.
    if scheme.lower() in ("bearer", "bearer:") and token.strip():
        return token.strip()
    if scope["type"] == "websocket":  # type: ignore[comparison-overlap]
        # By the very letters of the name: another spelling (`toke%6E=`) would not be hidden in the server's log.
        pairs = [pair.partition("=") for pair in scope["query_string"].decode("latin-1").split("&")]
        for name in ("access_token", "token"):
            for given, _, value in pairs:
                if given == name and value:
                    return unquote_plus(value)
        offered: Any = scope.get("subprotocols") or []
        for name in offered:
            if name.startswith(BEARER_PREFIX):
                return str(name.removeprefix(BEARER_PREFIX))
    return _cookie(scope)


def _cookie(scope: Scope) -> str | None:
    text = _header(scope, b"cookie").decode("latin-1")
    if COOKIE not in text or not _is_own_origin(scope):
        return None
    try:
        found = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return None
    return found.value if found is not None and found.value else None


def _is_own_origin(scope: Scope) -> bool:
    """Browsers send cookies along with requests that other pages make; those name where they come from."""
    origin = _header(scope, b"origin").decode("latin-1")
    if origin:
        return urlsplit(origin).netloc == _header(scope, b"host").decode("latin-1")
    return _header(scope, b"sec-fetch-site") in (b"", b"same-origin", b"none")


def _header(scope: Scope, name: bytes) -> bytes:
    # A loop, because this is asked several times of each request.
    for key, value in scope["headers"]:
        if key == name:
            return value
    return b""
