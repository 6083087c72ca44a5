"""What an error becomes over HTTP: one shape and one list of codes for every route of ours.

The shape is that of Iceberg's errors, so that a client of the catalog can read all of them.
"""

import logging
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from mainstem.model import Conflict, Denied, Invalid, MainstemError, NotFound, OutcomeUnknown, Overloaded

AnyRequest = Request[Any, Any, Any]

_logger = logging.getLogger(__name__)


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong: `reason` is a stable word that a program can act on."""

    message: str
    type: str
    code: int
    reason: str


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Every answer that is no result."""

    error: ErrorBody


def failed(request: AnyRequest, error: MainstemError) -> Response[ErrorAnswer]:
    """Litestar's handler for our own errors."""
    del request
    code, headers = 500, {}
    match error:
        case Invalid(reason="query_timeout"):
            code = 504
        case Invalid():
            code = 400
        case Denied():
            code = 403
        case NotFound():
            code = 404
        case Conflict():
            code = 409
        case Overloaded():
            code, headers = 503, {"Retry-After": str(max(1, round(error.retry_after_s)))}
        case OutcomeUnknown():
            code = 500
        case _:
            _logger.error("request failed", extra={"error": str(error)})
    reason = getattr(error, "reason", None) or type(error).__name__.lower()
    body = ErrorAnswer(ErrorBody(message=str(error), type=type(error).__name__, code=code, reason=reason))
    return Response(body, status_code=code, headers=headers, media_type="application/json")


def refused(request: AnyRequest, error: HTTPException) -> Response[ErrorAnswer]:
    """Litestar's handler for what the framework refuses before a route is reached."""
    del request
    extra = error.extra if isinstance(error.extra, list) else []
    details = "; ".join(f"{each.get('key', '')}: {each.get('message', '')}" for each in extra if isinstance(each, dict))
    message = f"{error.detail}{'. ' + details if details else ''}"
    reason = "denied" if error.status_code == 403 else "invalid_format"
    kind = "Denied" if error.status_code == 403 else "Invalid"
    body = ErrorAnswer(ErrorBody(message=message, type=kind, code=error.status_code, reason=reason))
    return Response(body, status_code=error.status_code, headers=error.headers, media_type="application/json")
