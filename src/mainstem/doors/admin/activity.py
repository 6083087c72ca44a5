"""Who sends, and how it went lately: what the console draws.

GET /v1/charts    positions and backlog of the last hour, sampled by the server: they outlive a reload of the page
GET /v1/clients   producers and sync clients with the numbers they have come to
"""

from typing import Annotated, Any, Protocol

from litestar import Request, Router, get
from litestar.exceptions import HTTPException
from litestar.params import QueryParameter

from mainstem.admission import Principal, Role
from mainstem.doors.admin.server import Wire
from mainstem.doors.http.access import access, principal_of
from mainstem.doors.http.refusals import failed, refused
from mainstem.model import MainstemError

AnyRequest = Request[Any, Any, Any]

CLIENTS_MAX = 1_000


class Charts(Wire, frozen=True, kw_only=True):
    """Samples, the oldest first. `durable` and `carried` are positions: their growth is the rate."""

    every_s: float
    at_ms: list[int]
    durable: list[int]
    carried: list[int]
    lag_changes: list[int]


class Client(Wire, frozen=True, kw_only=True):
    """A source of changes. Of a producer, `sequence` is the highest batch that is durable, and `persisted` the one up
    to which all are in the tables; of a sync client, how many pushes are durable. `waiting` batches are not in the
    tables yet."""

    name: str
    kind: str
    sequence: int
    persisted: int | None
    waiting: int
    last_heard_ms: int


class Clients(Wire, frozen=True, kw_only=True):
    """Those heard last, first. `total` counts all that are remembered.

    Connections are counted for callers without bounds: those of others are among them.
    """

    clients: list[Client]
    total: int
    cdc_connections: int | None
    sync_connections: int | None


class Activity(Protocol):
    """What this door needs of the app."""

    def charts(self) -> Charts:
        """The samples that are kept."""

    def clients(self, principal: Principal, limit: int) -> Clients:
        """The sources that the principal may see."""


def activity_router(activity: Activity) -> Router:
    """The routes."""

    # The growth of the log is everybody's traffic.
    @get("/v1/charts", summary="Positions and backlog of the last hour", opt=access(Role.READER, overall=True))
    async def charts() -> Charts:
        return activity.charts()

    @get("/v1/clients", summary="Producers and sync clients", opt=access(Role.READER))
    async def clients(
        request: AnyRequest, limit: Annotated[int, QueryParameter(ge=1, le=CLIENTS_MAX)] = 100
    ) -> Clients:
        return activity.clients(principal_of(request.scope), limit)

    return Router(
        path="/",
        route_handlers=[charts, clients],
        tags=["operation"],
        exception_handlers={MainstemError: failed, HTTPException: refused},
    )
