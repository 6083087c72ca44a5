"""Where Debezium Server's `http` sink asks for its token (`debezium.sink.http.authentication.type=jwt`).

    POST /v1/debezium/auth/authenticate    {"username": "token", "password": TOKEN}
    POST /v1/debezium/auth/refreshToken    {"jwt_refresh_token": TOKEN}

It has been looked at by the gate already: the sink is given back what it came with, and told when that ends.
"""

from typing import Any

import msgspec
from litestar import Request, Router, post
from litestar.exceptions import HTTPException

from mainstem.admission import Role
from mainstem.doors.http.access import access, principal_of
from mainstem.doors.http.refusals import refused
from mainstem.doors.ingest.door import answered
from mainstem.model import Invalid, MainstemError
from mainstem.runtime.clock import Clock

# Of a server that asks for no token, and takes any.
_WITHOUT_END_MS = 24 * 3600 * 1000

AnyRequest = Request[Any, Any, Any]


class Given(msgspec.Struct, frozen=True):
    """By the names that the sink knows, and no other. Times in milliseconds."""

    jwt: str
    jwt_refresh_token: str
    expires_in: int
    refresh_token_expires_in: int


def debezium_login_router(clock: Clock) -> Router:
    """The routes below `/v1/debezium/auth`."""

    def given(request: AnyRequest) -> Given:
        _, _, token = request.headers.get("authorization", "").partition(" ")
        if not token:
            raise Invalid('expected={"username": "token", "password": TOKEN} got=no password')
        expires_s = principal_of(request.scope).expires_s
        left_ms = _WITHOUT_END_MS if expires_s is None else max(0, round(expires_s * 1000) - clock.now_ms())
        return Given(token, token, left_ms, left_ms)

    @post("/authenticate", status_code=200, include_in_schema=False)
    async def authenticate(request: AnyRequest) -> Given:
        return given(request)

    @post("/refreshToken", status_code=200, include_in_schema=False)
    async def refresh(request: AnyRequest) -> Given:
        return given(request)

    return Router(
        path="/v1/debezium/auth",
        opt=access(Role.WRITER),
        route_handlers=[authenticate, refresh],
        exception_handlers={MainstemError: answered, HTTPException: refused},
    )
