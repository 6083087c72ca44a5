"""Changes that did not fit their table: look at them, mend them, and send them again.

    GET  /v1/tables/{name}/dead-letters          the letters, the newest first, and how many there are of each reason
    POST /v1/tables/{name}/dead-letters/replay   send some of them again, with corrected columns where that is asked

A replay goes through admission and the log like any change, under the clock that the change had: what was written to
the row since stays. Its id is the letter's own, so that replaying a letter twice changes nothing.
"""

from typing import Annotated, Any, Protocol

import msgspec
from litestar import Request, Router, get, post
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from mainstem.admission import Principal, Role
from mainstem.doors.admin.server import Wire
from mainstem.doors.http.access import access, principal_of
from mainstem.doors.http.refusals import ErrorAnswer, failed, refused
from mainstem.model import MainstemError

AnyRequest = Request[Any, Any, Any]

LETTERS_MAX = 1_000
BODY_BYTES_MAX = 8 * 1024 * 1024

LetterId = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,19}-[0-9a-f]{1,16}$", description="As the list gives it.")]


class Letter(Wire, frozen=True, kw_only=True):
    """A change that did not fit. `columns` and `before` are as they came."""

    id: str
    position: int
    key: str
    operation: str
    columns: Any
    before: Any
    source: str
    arrived_ms: int | None
    reason: str
    replayed: bool


class Letters(Wire, frozen=True, kw_only=True):
    """Some of a table's dead letters. `reasons` counts all of them; what varies in a reason stands as …."""

    letters: list[Letter]
    truncated: bool
    total: int
    replayed: int
    reasons: dict[str, int]


class Mend(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A letter to replay. `columns` are laid over its own, those in `drop` are left out."""

    id: LetterId
    columns: dict[str, Any] = msgspec.field(default_factory=dict)
    drop: list[str] = msgspec.field(default_factory=list)


class Replay(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to replay: `letters` by id; or, with none, those of one `reason`, or `all`. With `reason` or `all` the
    `columns` and `drop` here are for each of them."""

    letters: Annotated[list[Mend], msgspec.Meta(max_length=LETTERS_MAX)] = msgspec.field(default_factory=list)
    reason: str | None = None
    all: bool = False
    columns: dict[str, Any] = msgspec.field(default_factory=dict)
    drop: list[str] = msgspec.field(default_factory=list)


class NotReplayed(Wire, frozen=True, kw_only=True):
    """A letter that could not be sent again, and why. It stays as it was."""

    id: str
    error: str


class Replayed(Wire, frozen=True, kw_only=True):
    """`replayed` are durable now, `duplicates` were so before. `remaining`: there are more than one call takes."""

    replayed: int
    duplicates: int
    failures: list[NotReplayed]
    remaining: bool


class DeadLetterOffice(Protocol):
    """What this door needs of the app."""

    async def letters(
        self, principal: Principal, name: str, *, limit: int, before: int | None, reason: str | None
    ) -> Letters:
        """Some of a table's dead letters."""

    async def replay(self, principal: Principal, name: str, asked: Replay) -> Replayed:
        """Send some of them again."""


_ERRORS = {
    code: ResponseSpec(data_container=ErrorAnswer, description=text, generate_examples=False)
    for code, text in (
        (400, "The request is wrong"),
        (404, "The table does not exist"),
        (409, "The table changed meanwhile: ask again"),
        (504, "Reading the letters took too long"),
    )
}


def letters_router(office: DeadLetterOffice) -> Router:
    """The routes below `/v1/tables/{name}/dead-letters`."""

    @get("/", summary="Changes that did not fit the table", responses=_ERRORS, opt=access(Role.READER), tags=["tables"])
    async def letters(
        request: AnyRequest,
        name: FromPath[str],
        limit: Annotated[int, QueryParameter(ge=1, le=LETTERS_MAX)] = 100,
        before: Annotated[int | None, QueryParameter(ge=0, le=(1 << 63) - 1)] = None,
        reason: FromQuery[str | None] = None,
    ) -> Letters:
        principal = principal_of(request.scope)
        return await office.letters(principal, name, limit=limit, before=before, reason=reason)

    @post(
        "/replay",
        status_code=200,
        summary="Send changes that did not fit again, mended or not",
        request_max_body_size=BODY_BYTES_MAX,
        responses=_ERRORS,
        opt=access(Role.WRITER),
        tags=["tables"],
    )
    async def replay(request: AnyRequest, name: FromPath[str], data: JSONBody[Replay]) -> Replayed:
        return await office.replay(principal_of(request.scope), name, data)

    return Router(
        path="/v1/tables/{name:str}/dead-letters",
        route_handlers=[letters, replay],
        exception_handlers={MainstemError: failed, HTTPException: refused},
    )
