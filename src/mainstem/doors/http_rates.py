"""Limits of rate in front of everything that speaks HTTP: counts requests per address, and says how it stands.

Plain ASGI around the application, so that no route can be forgotten and a request too many costs next to nothing.
WebSockets are counted by the CDC door.
"""

import math

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from mainstem.admission import RateExceeded, Rates, RateView
from mainstem.doors.refusals import ErrorBody
from mainstem.runtime.clock import Clock

TOO_MANY = 429


def limited(app: ASGIApp, rates: Rates, clock: Clock) -> ASGIApp:
    """The application, with `X-RateLimit-*` on every answer, and 429 with `Retry-After` on what is too much."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        client = scope.get("client")
        try:
            view = rates.request(client[0] if client else "")
        except RateExceeded as refusal:
            await _refuse(send, refusal, clock)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_headers(view, clock)]
            await send(message)

        await app(scope, receive, send_with_headers)

    return serve


def _headers(view: RateView, clock: Clock) -> list[tuple[bytes, bytes]]:
    reset = math.ceil(clock.now_ms() / 1000 + view.reset_s)
    return [
        (b"x-ratelimit-limit", b"%d" % view.limit),
        (b"x-ratelimit-remaining", b"%d" % view.remaining),
        (b"x-ratelimit-reset", b"%d" % reset),
    ]


async def _refuse(send: Send, refusal: RateExceeded, clock: Clock) -> None:
    told = ErrorBody(message=str(refusal), type="Overloaded", code=TOO_MANY, reason=refusal.reason)
    body = msgspec.json.encode(
        # The sync protocol has its reason at the top, the other doors within the error.
        {"status_code": TOO_MANY, "detail": told.message, "reason": told.reason, "error": told}
    )
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"%d" % max(1, math.ceil(refusal.retry_after_s))),
        *_headers(refusal.view, clock),
    ]
    await send({"type": "http.response.start", "status": TOO_MANY, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
