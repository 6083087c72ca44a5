"""Plain HTTP ingest: rows of one table in one request. Reads, checks, calls admission, answers; decides nothing.

    POST /v1/ingest/{namespace}/{table}?key=id          rows by their key: new ones, or new values
    POST /v1/ingest/{namespace}/{table}?mode=append     every row is a new one
    POST /v1/ingest/{namespace}/{table}?mode=delete     rows by their key, away

The answer is 200 once the rows are durable in the log. A request is taken whole or not at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, Router, post
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema
from litestar.openapi.spec.enums import OpenAPIFormat, OpenAPIType
from litestar.params import HeaderParameter, PathParameter, QueryParameter

from mainstem.admission import Role, TooLarge
from mainstem.doors.http.access import access, principal_of
from mainstem.doors.http.refusals import ErrorAnswer, failed, refused
from mainstem.doors.ingest.taking import Taken, Taking, idempotency_key, source_of
from mainstem.model import Invalid, MainstemError, TableName
from mainstem.model.batch import Encoding
from mainstem.wire.rows import Checked, Mode, RowsHead, check_json, check_lines, pack
from mainstem.wire.rows_arrow import check_arrow, check_csv

AnyRequest = Request[Any, Any, Any]
# The key columns that a table is declared with.
DeclaredKey = Callable[[TableName], tuple[str, ...]]

_KEY_COLUMNS_MAX = 16
_PARAMETERS = frozenset(["mode", "key", "format", "times"])


class Format(StrEnum):
    """How rows come in."""

    JSON = "json"
    LINES = "jsonl"
    ARROW = "arrow"
    CSV = "csv"


MEDIA_TYPES = {
    "application/json": Format.JSON,
    "application/x-ndjson": Format.LINES,
    "application/jsonl": Format.LINES,
    "application/x-jsonlines": Format.LINES,
    "application/vnd.apache.arrow.stream": Format.ARROW,
    "text/csv": Format.CSV,
}
_ENCODINGS = {
    Format.JSON: Encoding.ROWS_JSON,
    Format.LINES: Encoding.ROWS_JSON,
    Format.ARROW: Encoding.ROWS_ARROW,
    Format.CSV: Encoding.ROWS_ARROW,
}
_ERRORS = {
    code: ResponseSpec(data_container=ErrorAnswer, description=text, generate_examples=False)
    for code, text in (
        (400, "The rows are not right: the message names the row or line"),
        (401, "No token, or none that is good"),
        (403, "The token does not allow to write this table"),
        (409, "The Idempotency-Key was used for other rows"),
        (413, "The body, or a row, is too large"),
        (415, "The format is not one of those that are read"),
        (429, "Too many requests"),
        (503, "The tables are behind: ask again after Retry-After"),
    )
}
_TOO_LARGE = ("payload_too_large", "event_too_large")
_UNREADABLE = ("unsupported_format", "unsupported_encoding")


@dataclass
class _IngestOperation(Operation):
    """Litestar knows no body that it does not read itself."""

    def __post_init__(self) -> None:
        row = Schema(type=OpenAPIType.OBJECT, description="A row: its columns by name")
        rows = Schema(one_of=[row, Schema(type=OpenAPIType.ARRAY, items=row, min_items=1)])
        self.request_body = RequestBody(
            required=True,
            content={
                "application/json": OpenAPIMediaType(schema=rows),
                **{
                    name: OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY))
                    for name in ("application/x-ndjson", "application/vnd.apache.arrow.stream", "text/csv")
                },
            },
        )


class Ingest:
    """Rows of one table into the log."""

    def __init__(self, taking: Taking, declared_key: DeclaredKey) -> None:
        self.taking = taking
        self._declared_key = declared_key

    async def take(self, request: AnyRequest, name: str, asked: "Asked") -> Taken:
        """Take the request's rows in. Raises what the caller has to do instead."""
        principal = principal_of(request.scope)
        gate = self.taking.intake.gate
        tables = gate.tables([name], principal)
        table = next(iter(tables))
        chosen = asked.format or format_of(request.headers.get("content-type", ""))
        mode, key = self._mode(table, asked)
        idempotent = idempotency_key(request.headers)
        checks = partial(_check, chosen, key, gate.limits.event_bytes_max, infers_times=asked.times)
        _, checked = await self.taking.with_body(request, checks)
        batch = self.taking.batch(
            source_of(principal, "http"),
            key=None if idempotent is None else f"{table}\0{idempotent}",
            count=checked.count,
            encoding=_ENCODINGS[chosen],
            payload=pack(RowsHead(table=str(table), mode=mode, key=key), checked.body),
            tables=tables,
        )
        return await self.taking.take(batch, chosen.value)

    def _mode(self, table: TableName, asked: "Asked") -> tuple[Mode, tuple[str, ...]]:
        """What the rows mean, and their key columns."""
        if asked.mode is Mode.APPEND:
            if asked.key:
                raise Invalid("rows that are appended have no key. expected=mode=append or key= got=both")
            return Mode.APPEND, ()
        key = asked.key or self._declared_key(table)
        if not key:
            raise Invalid(
                f"the rows of {table} have no key. expected=?key=COLUMN (several: ?key=a,b), or mode=append, or "
                f'key = ["COLUMN"] under [tables."{table}"] in the configuration',
                reason="no_key",
            )
        if len(set(key)) < len(key) or len(key) > _KEY_COLUMNS_MAX:
            raise Invalid(f"key. expected=at most {_KEY_COLUMNS_MAX} columns, each once got={list(key)[:20]}")
        return asked.mode or Mode.UPSERT, key


def check_parameters(request: AnyRequest, known: frozenset[str]) -> None:
    """Raise Invalid for a parameter that would be passed over: a word typed wrong would mean something else."""
    if unknown := sorted(set(request.query_params) - known):
        raise Invalid(f"unknown parameter. expected={sorted(known)} got={unknown[:10]}", reason="unknown_parameter")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says of its rows."""

    mode: Mode | None = None
    key: tuple[str, ...] = ()
    format: Format | None = None
    times: bool = False


def format_of(content_type: str) -> Format:
    """The format by the Content-Type header. Raises Invalid where it is none of ours."""
    found = MEDIA_TYPES.get(content_type.partition(";")[0].strip().lower())
    if found is None:
        raise Invalid(
            f"Content-Type. expected=one of {', '.join(MEDIA_TYPES)}, or ?format= got={content_type[:100]!r}",
            reason="unsupported_format",
        )
    return found


def _check(chosen: Format, key: tuple[str, ...], event_bytes_max: int, body: bytes, *, infers_times: bool) -> Checked:
    match chosen:
        case Format.JSON:
            return check_json(body, key, event_bytes_max)
        case Format.LINES:
            return check_lines(body, key, event_bytes_max)
        case Format.ARROW:
            return check_arrow(body, key, event_bytes_max)
        case Format.CSV:
            return check_csv(body, key, event_bytes_max, infers_times=infers_times)


def answered(request: AnyRequest, error: MainstemError) -> Response[ErrorAnswer]:
    """Our errors, with the codes that HTTP has for sizes and formats."""
    answer = failed(request, error)
    reason = getattr(error, "reason", "")
    code = 413 if isinstance(error, TooLarge) or reason in _TOO_LARGE else 415 if reason in _UNREADABLE else None
    if code is not None:
        answer.status_code = code
        answer.content = ErrorAnswer(msgspec.structs.replace(answer.content.error, code=code))
    return answer


def ingest_router(ingest: Ingest) -> Router:
    """The routes below `/v1/ingest`."""

    @post(
        "/{namespace:str}/{table:str}",
        status_code=200,
        responses=_ERRORS,
        operation_class=_IngestOperation,
        summary="Rows of a table: JSON, JSON lines, Arrow or CSV",
        tags=["ingest"],
    )
    async def rows(
        request: AnyRequest,
        namespace: Annotated[str, PathParameter(description="Levels are joined by dots", max_length=1024)],
        table: Annotated[str, PathParameter(max_length=128)],
        mode: Annotated[
            Mode | None, QueryParameter(description="upsert (the default), append (no key), or delete")
        ] = None,
        key: Annotated[list[str] | None, QueryParameter(description="The key columns: key=a,b or key=a&key=b")] = None,
        rows_format: Annotated[
            Format | None, QueryParameter(name="format", description="Instead of the Content-Type")
        ] = None,
        times: Annotated[bool, QueryParameter(description="CSV: columns of ISO times become timestamps")] = False,
        idempotency: Annotated[
            str | None,
            HeaderParameter(name="Idempotency-Key", description="Sent again under the same key, the rows count once"),
        ] = None,
    ) -> Taken:
        del idempotency
        check_parameters(request, _PARAMETERS)
        columns = tuple(each.strip() for text in key or () for each in text.split(",") if each.strip())
        asked = Asked(mode=mode, key=columns, format=rows_format, times=times)
        return await ingest.take(request, f"{namespace}.{table}", asked)

    return Router(
        path="/v1/ingest",
        opt=access(Role.WRITER),
        route_handlers=[rows],
        exception_handlers={MainstemError: answered, HTTPException: refused},
    )
