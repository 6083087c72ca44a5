"""Requests as the catalog's door has read them, and answers as it sends them: which code an error becomes."""

from collections.abc import Mapping
from typing import NamedTuple

from mainstem.admission import ANYONE, Principal
from mainstem.catalog import (
    AlreadyExists,
    CommitFailed,
    IllegalArgument,
    NamespaceNotEmpty,
    NoSuchFunction,
    NoSuchGenericTable,
    NoSuchNamespace,
    NoSuchPlan,
    NoSuchPlanTask,
    NoSuchTable,
    NoSuchView,
    NoSuchWarehouse,
    TableIdent,
    Unsupported,
)
from mainstem.doors.http.at_hand import AtHand
from mainstem.model import Conflict, Denied, Invalid, MainstemError, NotFound, OutcomeUnknown, Overloaded
from mainstem.wire import iceberg_rest as wire
from mainstem.wire.iceberg_rest import Call


class Answer(NamedTuple):
    """What goes back to the client."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] | None = None
    # Of the table that it shows.
    metadata_location: str | None = None


class Asked(NamedTuple):
    """A request, read whole."""

    call: Call
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    principal: Principal = ANYONE

    @property
    def ident(self) -> TableIdent:
        """The table or view in the path."""
        return TableIdent(self.call.namespace, self.call.name)


def whole(answer: Answer, *, is_head: bool = False) -> AtHand:
    """The answer as it is sent. One to HEAD has no body of its own, whatever it says of it."""
    body = b"" if is_head else answer.body
    headers = [(name.lower().encode(), value.encode()) for name, value in (answer.headers or {}).items()]
    if answer.body:
        headers.append((b"content-type", b"application/json"))
    if answer.status not in (204, 304):
        headers.append((b"content-length", b"%d" % len(body)))
    return AtHand(answer.status, tuple(headers), body)


def ok(body: object) -> Answer:
    """A success with a body."""
    return Answer(200, wire.encode(body))


def failure(message: str, kind: str, code: int) -> Answer:
    """An answer that is no success."""
    return Answer(code, wire.encode_error(message, kind, code))


def failure_of(error: MainstemError) -> Answer:
    """What an error becomes."""
    for kind, (name, code) in _CODES.items():
        if isinstance(error, kind):
            answer = failure(str(error), name, code)
            if isinstance(error, Overloaded):
                return answer._replace(headers={"Retry-After": str(max(1, round(error.retry_after_s)))})
            return answer
    return failure(str(error), "InternalServerError", 500)


UNPROCESSABLE = ("UnprocessableEntityException", 422)

# The first entry that fits decides, so the special ones come before the general ones.
_CODES: dict[type[MainstemError], tuple[str, int]] = {
    NoSuchNamespace: ("NoSuchNamespaceException", 404),
    NoSuchTable: ("NoSuchTableException", 404),
    NoSuchView: ("NoSuchViewException", 404),
    NoSuchGenericTable: ("NoSuchGenericTableException", 404),
    NoSuchFunction: ("NoSuchFunctionException", 404),
    NoSuchPlan: ("NoSuchPlanIdException", 404),
    NoSuchPlanTask: ("NoSuchPlanTaskException", 404),
    NoSuchWarehouse: ("NoSuchWarehouseException", 404),
    AlreadyExists: ("AlreadyExistsException", 409),
    NamespaceNotEmpty: ("NamespaceNotEmptyException", 409),
    CommitFailed: ("CommitFailedException", 409),
    Conflict: ("CommitFailedException", 409),
    NotFound: ("NotFoundException", 404),
    IllegalArgument: ("IllegalArgumentException", 400),
    Unsupported: ("UnsupportedOperationException", 406),
    Invalid: ("BadRequestException", 400),
    Denied: ("ForbiddenException", 403),
    Overloaded: ("ServiceUnavailableException", 503),
    OutcomeUnknown: ("CommitStateUnknownException", 500),
}
