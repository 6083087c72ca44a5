"""One table in detail: its snapshots, what changed between two, its files, and a way back.

    GET  /v1/tables/{name}             schema, partitioning, latest snapshots, how fresh it is
    GET  /v1/tables/{name}/snapshots   the snapshots, the latest first
    GET  /v1/tables/{name}/diff        what changed between two snapshots: columns, rows, files, bytes
    GET  /v1/tables/{name}/files       the data files of the current snapshot
    POST /v1/tables/{name}/rollback    put the table back to an earlier snapshot

`name` is dotted, as producers write it; a history or dead-letter table is named as it is.
"""

from typing import Annotated, Any, Protocol

import msgspec
from litestar import Request, Router, get, post
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from mainstem.admission import Principal, Role
from mainstem.doors.admin.insight import SnapshotView, TableView
from mainstem.doors.admin.server import Wire
from mainstem.doors.http.access import access, principal_of
from mainstem.doors.http.refusals import ErrorAnswer, failed, refused
from mainstem.model import MainstemError

AnyRequest = Request[Any, Any, Any]

SNAPSHOTS_MAX = 500
FILES_MAX = 10_000
FILES_DEFAULT = 200


class Freshness(Wire, frozen=True, kw_only=True):
    """How much the table lags behind what is acknowledged."""

    lag_changes: int
    # 0 where nothing waits for the table; else at most so old is what it does not show yet.
    behind_s: float
    last_commit_ms: int | None


class TableDetail(Wire, frozen=True, kw_only=True):
    """A table. `history` and `deadLetters` are the names of those that go with it, where they exist."""

    view: TableView
    freshness: Freshness
    properties: dict[str, str]
    history: str | None
    dead_letters: str | None
    # Whether the caller may replay its dead letters.
    may_write: bool
    # Whether the caller may put it back to an earlier snapshot.
    may_roll_back: bool


class Snapshots(Wire, frozen=True, kw_only=True):
    """The latest first. `total` counts those that are kept."""

    snapshots: list[SnapshotView]
    total: int


class ColumnChange(Wire, frozen=True, kw_only=True):
    """A column that is not what it was. None: it is not there."""

    name: str
    before: str | None
    after: str | None


class Difference(Wire, frozen=True, kw_only=True):
    """Two snapshots of a table, and the columns that differ between them."""

    before: SnapshotView
    after: SnapshotView
    columns: list[ColumnChange]


class DataFile(Wire, frozen=True, kw_only=True):
    """A data file. `path` is below the table's location; `deletedRows` counts only deletes of this file alone."""

    path: str
    partition: str
    rows: int
    deleted_rows: int
    bytes: int
    delete_files: int


class Files(Wire, frozen=True, kw_only=True):
    """The largest first. `total` counts all."""

    files: list[DataFile]
    total: int
    delete_files: int


class Rollback(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The snapshot to put the table back to. As text: its 63 bits do not fit a number of JSON in a browser."""

    snapshot_id: Annotated[str, msgspec.Meta(pattern="^[0-9]{1,19}$")]


class RolledBack(Wire, frozen=True, kw_only=True):
    """Where the table is now, and where it was: rolling back to that undoes it."""

    snapshot_id: str
    was: str


class TablePages(Protocol):
    """What this door needs of the app."""

    async def detail(self, principal: Principal, name: str) -> TableDetail:
        """One table."""

    async def snapshots(self, principal: Principal, name: str, limit: int) -> Snapshots:
        """Its snapshots."""

    async def difference(self, principal: Principal, name: str, before: str, after: str) -> Difference:
        """What changed between two of them."""

    async def files(self, principal: Principal, name: str, limit: int) -> Files:
        """Its data files."""

    async def roll_back(self, principal: Principal, name: str, snapshot_id: str) -> RolledBack:
        """Put it back."""


_ERRORS = {
    code: ResponseSpec(data_container=ErrorAnswer, description=text, generate_examples=False)
    for code, text in (
        (400, "The request is wrong"),
        (409, "The table changed meanwhile: look again"),
    )
}
_TAGS = ["tables"]


def tables_router(pages: TablePages) -> Router:
    """The routes below `/v1/tables/{name}`."""

    @get("/", summary="One table", responses=_ERRORS, opt=access(Role.READER), tags=_TAGS)
    async def detail(request: AnyRequest, name: FromPath[str]) -> TableDetail:
        return await pages.detail(principal_of(request.scope), name)

    @get("/snapshots", summary="The snapshots of a table", responses=_ERRORS, opt=access(Role.READER), tags=_TAGS)
    async def snapshots(
        request: AnyRequest, name: FromPath[str], limit: Annotated[int, QueryParameter(ge=1, le=SNAPSHOTS_MAX)] = 50
    ) -> Snapshots:
        return await pages.snapshots(principal_of(request.scope), name, limit)

    @get("/diff", summary="What changed between snapshots", responses=_ERRORS, opt=access(Role.READER), tags=_TAGS)
    async def difference(
        request: AnyRequest, name: FromPath[str], before: FromQuery[str], after: FromQuery[str]
    ) -> Difference:
        return await pages.difference(principal_of(request.scope), name, before, after)

    @get("/files", summary="The data files of a table", responses=_ERRORS, opt=access(Role.READER), tags=_TAGS)
    async def files(
        request: AnyRequest,
        name: FromPath[str],
        limit: Annotated[int, QueryParameter(ge=1, le=FILES_MAX)] = FILES_DEFAULT,
    ) -> Files:
        return await pages.files(principal_of(request.scope), name, limit)

    @post(
        "/rollback",
        status_code=200,
        summary="Put a table back to an earlier snapshot",
        responses=_ERRORS,
        opt=access(Role.WRITER),
        tags=_TAGS,
    )
    async def rollback(request: AnyRequest, name: FromPath[str], data: JSONBody[Rollback]) -> RolledBack:
        return await pages.roll_back(principal_of(request.scope), name, data.snapshot_id)

    return Router(
        path="/v1/tables/{name:str}",
        route_handlers=[detail, snapshots, difference, files, rollback],
        exception_handlers={MainstemError: failed, HTTPException: refused},
    )
