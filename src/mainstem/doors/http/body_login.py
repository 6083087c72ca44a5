"""The token of a client that can say it in a body only: Debezium Server asks a login of ours before it posts.

Its `http` sink sends a name and a password once, takes what it is answered for its token, and sends that with every
event. The password is the token. Here it becomes the header that every other client sends, before the gate looks.
"""

from collections.abc import Sequence

import msgspec
from litestar.types import HTTPReceiveMessage, Receive, Scope

# Where the sink asks, below the address that it is told.
PATHS = frozenset({"/v1/debezium/auth/authenticate", "/v1/debezium/auth/refreshToken"})
BODY_BYTES_MAX = 64 * 1024
_AUTHORIZATION = b"authorization"


class _Login(msgspec.Struct, frozen=True):
    password: str | None = None
    jwt_refresh_token: str | None = None


_decode = msgspec.json.Decoder(_Login).decode


def is_login(scope: Scope) -> bool:
    """Whether a request may have its token in its body."""
    return scope["path"] in PATHS and not any(name == _AUTHORIZATION for name, _ in scope["headers"])


async def with_token(scope: Scope, receive: Receive) -> Receive:
    """Give the request the header that says what its body says; what reads the body after this reads it again."""
    messages: list[HTTPReceiveMessage] = []
    body = b""
    while len(body) <= BODY_BYTES_MAX:
        message = await receive()
        messages.append(message)  # type: ignore[arg-type]
        if message["type"] != "http.request":
            break
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if token := _token(body):
        scope["headers"] = [*scope["headers"], (_AUTHORIZATION, b"Bearer " + token)]
    return _again(messages, receive)


def _token(body: bytes) -> bytes | None:
    if len(body) > BODY_BYTES_MAX:
        return None
    try:
        login = _decode(body)
        token = (login.password or login.jwt_refresh_token or "").strip()
        return token.encode("latin-1") or None
    except (msgspec.DecodeError, UnicodeError):
        return None


def _again(messages: Sequence[HTTPReceiveMessage], receive: Receive) -> Receive:
    waiting = list(messages)

    async def read() -> HTTPReceiveMessage:
        return waiting.pop(0) if waiting else await receive()  # type: ignore[return-value]

    return read
