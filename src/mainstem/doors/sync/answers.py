"""What an error becomes for a client of the sync protocol: a status and a body over HTTP, a close over a WebSocket."""

from typing import NamedTuple

import msgspec

from mainstem.admission import TooLarge, Unauthenticated
from mainstem.model.errors import Conflict, Denied, Invalid, MainstemError, NotFound, Overloaded
from mainstem.wire.sync import BadDelta, ClockDrift
from mainstem.wire.sync.frames import CLOSE_REASON_BYTES_MAX, Close

JSON = "application/json"

_STATUSES = {"clock_drift": 409, "cursor_expired": 410, "too_large": 413, "schema_mismatch": 422}


class _Refusal(msgspec.Struct, rename="camel", omit_defaults=True):
    error: str
    reason: str
    delta_id: str = ""
    server_hlc: str = ""


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes = b""
    media_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


def refusal(error: MainstemError) -> Answer:
    """The answer to a request that was refused."""
    told = _Refusal(str(error), _reason(error))
    headers: tuple[tuple[str, str], ...] = ()
    match error:
        case Unauthenticated():
            status, headers = 401, (("WWW-Authenticate", "Bearer"),)
        case Denied():
            status = 403
        case NotFound():
            status = 404
        case Overloaded():
            status = 429 if error.reason == "rate_limited" else 503
            headers = (("Retry-After", f"{max(1, round(error.retry_after_s))}"),)
        case Conflict():
            status, headers = 503, (("Retry-After", "1"),)
        case Invalid():
            status = _STATUSES.get(told.reason, 400)
        case _:
            status = 500
    if isinstance(error, BadDelta):
        told.delta_id = error.delta_id
    if isinstance(error, ClockDrift):
        told.server_hlc = str(error.server_hlc)
    return Answer(status, msgspec.json.encode(told), headers=headers)


def close_of(error: MainstemError) -> tuple[Close, str]:
    """The close code, and the reason in words that a client can read."""
    reason = _reason(error)
    code = Close.REFUSED
    match error:
        case Overloaded():
            code, reason = Close.OVERLOADED, f"overloaded retry_after_s={max(1, round(error.retry_after_s))}"
        case Conflict():
            code, reason = Close.OVERLOADED, "overloaded retry_after_s=1"
        case ClockDrift():
            reason = f"{reason} server_hlc={error.server_hlc}"
        case BadDelta() if error.delta_id.isascii() and error.delta_id.isalnum():
            reason = f"{reason} delta_id={error.delta_id}"
        case Invalid(reason="unknown_tag"):
            code = Close.PROTOCOL
        case Invalid() | Denied() | NotFound():
            pass
        case _:
            code = Close.INTERNAL
    return code, reason[:CLOSE_REASON_BYTES_MAX]


def _reason(error: MainstemError) -> str:
    match error:
        case TooLarge():
            reason = "too_large"
        case Invalid() | Overloaded(reason="rate_limited"):
            reason = error.reason
        case Denied():
            reason = "denied"
        case Overloaded() | Conflict():
            reason = "overloaded"
        case NotFound():
            reason = "not_found"
        case _:
            reason = "internal"
    return reason
