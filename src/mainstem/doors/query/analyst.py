"""The analyst's door: time travel by clock, changes between two clocks, and who wrote a column, over HTTP."""

from typing import Annotated, Any

import msgspec
from litestar import Request, Router, get
from litestar.exceptions import HTTPException
from litestar.params import FromPath, FromQuery, QueryParameter

from mainstem.admission import Role
from mainstem.doors.http.access import access
from mainstem.doors.http.refusals import failed, refused
from mainstem.doors.query.door import Scope, unbounded
from mainstem.model import MainstemError, TableName, parse_table_name
from mainstem.query.analyst import as_of_sql, blame_sql, changes_sql, read_clock
from mainstem.query.engine import ROWS_DEFAULT, ROWS_MAX, TIMEOUT_MS_DEFAULT, QueryEngine, QueryRequest

Limit = Annotated[int, QueryParameter(ge=1, le=ROWS_MAX)]
AnyRequest = Request[Any, Any, Any]


class Change(msgspec.Struct, frozen=True, rename="camel"):
    """A change as it came. `columns` has only what was written."""

    hlc: str
    source: str
    op: str
    key: str
    columns: msgspec.Raw
    position: str
    id: str | None


class Changes(msgspec.Struct, frozen=True):
    """Changes in the order of their clocks."""

    changes: list[Change]
    truncated: bool


class PastRow(msgspec.Struct, frozen=True, rename="camel"):
    """A row as it was, with the clock and source of its latest write then."""

    key: str
    hlc: str
    source: str
    row: msgspec.Raw


class Past(msgspec.Struct, frozen=True):
    """The table as it was."""

    rows: list[PastRow]
    truncated: bool


class Write(msgspec.Struct, frozen=True, rename="camel"):
    """A write to a column, or a delete of its row."""

    hlc: str
    source: str
    op: str
    value: msgspec.Raw
    position: str
    id: str | None


class Blame(msgspec.Struct, frozen=True):
    """Who wrote a column, the newest first."""

    writes: list[Write]
    truncated: bool


def analyst_router(engine: QueryEngine, *, scope: Scope = unbounded) -> Router:
    """The routes below `/v1/analyst/{table}`; the table is named as producers name it."""

    async def ask(request: AnyRequest, sql: str, limit: int) -> tuple[list[tuple[Any, ...]], bool]:
        rows: list[tuple[Any, ...]] = []
        asked = QueryRequest(sql=sql, limit=limit, timeout_ms=TIMEOUT_MS_DEFAULT)
        async with engine.open(asked, scope(request)) as running:
            async for batch in running.batches():
                rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
            return rows, running.truncated

    @get("/as-of", summary="The rows as they were at a clock or time")
    async def as_of(
        request: AnyRequest,
        table: FromPath[str],
        clock: FromQuery[str],
        key: FromQuery[str | None] = None,
        limit: Limit = ROWS_DEFAULT,
    ) -> Past:
        rows, truncated = await ask(request, as_of_sql(_table(table), read_clock(clock), key), limit)
        return Past([PastRow(row[0], str(row[1]), row[2], _raw(row[3])) for row in rows], truncated)

    @get("/changes", summary="The changes between two clocks or times")
    async def changes(
        request: AnyRequest,
        table: FromPath[str],
        after: FromQuery[str],
        through: FromQuery[str],
        limit: Limit = ROWS_DEFAULT,
    ) -> Changes:
        sql = changes_sql(_table(table), read_clock(after), read_clock(through))
        rows, truncated = await ask(request, sql, limit)
        return Changes(
            [Change(str(row[0]), row[1], row[2], row[3], _raw(row[4]), str(row[5]), row[6]) for row in rows], truncated
        )

    @get("/blame", summary="Who changed a column, and when")
    async def blame(
        request: AnyRequest,
        table: FromPath[str],
        key: FromQuery[str],
        column: FromQuery[str],
        limit: Limit = ROWS_DEFAULT,
    ) -> Blame:
        rows, truncated = await ask(request, blame_sql(_table(table), key, column), limit)
        return Blame([Write(str(row[0]), row[1], row[2], _raw(row[3]), str(row[4]), row[5]) for row in rows], truncated)

    return Router(
        path="/v1/analyst/{table:str}",
        opt=access(Role.READER),
        route_handlers=[as_of, changes, blame],
        exception_handlers={MainstemError: failed, HTTPException: refused},
        tags=["analyst"],
    )


def _table(text: str) -> TableName:
    return parse_table_name(text)


def _raw(text: str | None) -> msgspec.Raw:
    return msgspec.Raw(b"null" if text is None else text.encode())
