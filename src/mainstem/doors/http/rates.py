"""Limits of rate in front of everything that speaks HTTP: counts requests per address, and says how it stands.

Plain ASGI around the application, so that no route can be forgotten and a request too many costs next to nothing.
WebSockets are counted by the CDC door.
"""

import math
from collections import Counter

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from mainstem.admission import RateExceeded, Rates, RateView
from mainstem.doors.http.at_hand import AtHand, FindAtHand, nothing_at_hand
from mainstem.doors.http.bounds import REQUEST_TIMEOUT_S
from mainstem.doors.http.refusals import ErrorBody
from mainstem.runtime.clock import Clock

TOO_MANY = 429
_REFUSALS_FROM = 400


class Limited:
    """An application, with `X-RateLimit-*` on every answer, and 429 with `Retry-After` on what is too much."""

    def __init__(
        self,
        app: ASGIApp,
        rates: Rates,
        clock: Clock,
        find: FindAtHand = nothing_at_hand,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        refused: Counter[int] | None = None,
    ) -> None:
        self._app = app
        self._rates = rates
        self._clock = clock
        self._find = find
        # Read by the protocol: how long it waits for the rest of a request.
        self.request_timeout_s = request_timeout_s
        # Answers that are refusals or failures, by their status.
        self.refused: Counter[int] = Counter() if refused is None else refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count it, and pass it on."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        try:
            view = self._rates.request(_address(scope))
        except RateExceeded as refusal:
            # Not where the limit is asked for an answer at hand: that goes this way then, and would count twice.
            self._rates.refused["requests_per_s"] += 1
            self.refused[TOO_MANY] += 1
            await _refuse(send, refusal, self._clock)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] >= _REFUSALS_FROM:
                    self.refused[message["status"]] += 1
                message["headers"] = [*message.get("headers", ()), *_headers(view, self._clock)]
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def at_hand(self, scope: HTTPScope) -> AtHand | None:
        """The same for an answer that needs no request: what is there counts like any other."""
        found = self._find(scope)
        if found is None:
            return None
        try:
            view = self._rates.request(_address(scope))
        except RateExceeded:
            return None
        return found._replace(headers=(*found.headers, *_headers(view, self._clock)))


def _address(scope: HTTPScope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


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
