"""Where Debezium Server's `http` sink posts: one event per request, or an array of events.

    POST /v1/debezium?key=id&key=public.order_lines:order_id,line_no

The server posts no keys, so that the request says which columns are the key: of every table, or of one (`table:a,b`, or
`schema.table:a,b`); or the configuration does. An event that was sent before counts once, by its place in the source's
log. The answer is 200 once all events are durable; one that cannot be taken stops the connector, and nothing is lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from litestar import Request, Router, post
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema
from litestar.openapi.spec.enums import OpenAPIType
from litestar.params import QueryParameter

from mainstem.admission import Principal, Role
from mainstem.doors.http.access import access, principal_of
from mainstem.doors.http.refusals import ErrorAnswer, refused
from mainstem.doors.ingest.door import DeclaredKey, answered
from mainstem.doors.ingest.taking import Taking, source_of
from mainstem.model import Invalid, MainstemError, TableName, parse_table_name
from mainstem.model.batch import Batch, Encoding
from mainstem.model.checksum import crc32
from mainstem.wire.debezium_posts import Kind, PostHead, look, pack, read, split_events

AnyRequest = Request[Any, Any, Any]
# Takes every row of a table away, once all that came before is in it.

EVENTS_MAX = 10_000
_LABEL = "debezium"
_DEFAULT = ""


class Posted(msgspec.Struct, frozen=True):
    """All events are durable. `ignored` say nothing of rows: heartbeats, marks of transactions, changes of schemas."""

    events: int
    duplicates: int
    ignored: int


@dataclass
class _DebeziumOperation(Operation):
    def __post_init__(self) -> None:
        event = Schema(type=OpenAPIType.OBJECT, description="An event: an envelope, with its schema or in a CloudEvent")
        body = OpenAPIMediaType(schema=Schema(one_of=[event, Schema(type=OpenAPIType.ARRAY, items=event, min_items=1)]))
        self.request_body = RequestBody(
            required=True, content={"application/json": body, "application/cloudevents+json": body}
        )


class Debezium:
    """Events into the log."""

    def __init__(self, taking: Taking, declared_key: DeclaredKey) -> None:
        self._taking = taking
        self._declared_key = declared_key

    async def take(self, request: AnyRequest, keys: Sequence[str], namespace: str) -> Posted:
        """Take the request's events in. Raises what the poster has to do instead."""
        principal = principal_of(request.scope)
        by_table = _keys(keys)
        _, events = await self._taking.with_body(request, split_events)
        if not 1 <= len(events) <= EVENTS_MAX:
            raise Invalid(f"events. expected=1 to {EVENTS_MAX} got={len(events)}")
        # All are looked at before one is taken.
        work = [self._prepared(event, principal, by_table, namespace) for event in events]
        batches = [batch for batch in work if batch is not None]
        duplicates = await self._taken(batches)
        return Posted(events=len(events), duplicates=duplicates, ignored=len(work) - len(batches))

    async def _taken(self, batches: Sequence[Batch]) -> int:
        """One after the other: their sequences are hashes, so the log could not hold one back behind a refused one. How
        many were durable before."""
        duplicates = 0
        for batch in batches:
            ticket, begun = self._taking.begin(batch)
            duplicates += (await self._taking.end(ticket, begun, _LABEL)).duplicate
        return duplicates

    def _prepared(
        self, event: bytes, principal: Principal, keys: Mapping[str, tuple[str, ...]], namespace: str
    ) -> Batch | None:
        """The event as a batch; None where it says nothing of a row."""
        post_ = look(event, namespace)
        if post_.table is None:
            return None
        gate = self._taking.intake.gate
        gate.limits.check_event(len(event))
        tables = gate.tables([str(post_.table)], principal)
        if post_.kind is Kind.TRUNCATE:
            # Its retry would take away rows that came after it, and their own retries are known as duplicates.
            raise Invalid(f"a truncate is not taken. expected=skipped.operations=t, the default got={post_.table}")
        table = next(iter(tables))
        head = PostHead(namespace=namespace, key=self._key(table, keys))
        # As it will be read when the log is sealed: what cannot be read then is refused now.
        change = read(event, head).change
        if TableName(change.namespace, change.table) != table:
            got = f"{change.namespace}.{change.table}"
            raise Invalid(f"the event names two tables. expected={table} got={got}")
        source = source_of(principal, f"debezium/{post_.connector}")
        return self._taking.batch(
            source,
            key=post_.identity,
            count=1,
            encoding=Encoding.ENVELOPE,
            payload=pack(head, event),
            tables=tables,
            # Two sendings of one change need not be the same bytes.
            fingerprint=crc32((post_.identity or "").encode()),
        )

    def _key(self, table: TableName, keys: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        for name in (str(table), table.table):
            if name in keys:
                return keys[name]
        if declared := self._declared_key(table):
            return declared
        if _DEFAULT in keys:
            return keys[_DEFAULT]
        raise Invalid(
            f"Debezium Server posts no keys. expected=?key={table.table}:COLUMN,… in the sink's URL, or key = "
            f'["COLUMN"] under [tables."{table}"] in the configuration',
            reason="no_key",
        )


def _keys(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Key columns by table; those of every other table under the empty name."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        table, _, columns = text.rpartition(":")
        names = tuple(name.strip() for name in columns.split(",") if name.strip())
        if not names or table in found:
            raise Invalid(f"key. expected=COLUMN,… or TABLE:COLUMN,…, each table once got={text[:100]!r}")
        found[table] = names
    return found


def debezium_router(debezium: Debezium) -> Router:
    """The route that Debezium Server posts to."""

    @post(
        "/",
        status_code=200,
        responses={
            400: ResponseSpec(data_container=ErrorAnswer, description="No event", generate_examples=False),
            413: ResponseSpec(data_container=ErrorAnswer, description="Too large", generate_examples=False),
        },
        operation_class=_DebeziumOperation,
        summary="Events of Debezium Server's http sink",
        tags=["ingest"],
    )
    async def events(
        request: AnyRequest,
        key: Annotated[
            list[str] | None,
            QueryParameter(description="Key columns: a,b of every table, or table:a,b of one"),
        ] = None,
        namespace: Annotated[
            str, QueryParameter(description="Instead of the source's schema or database", max_length=1024)
        ] = "",
    ) -> Posted:
        if namespace:
            parse_table_name(f"{namespace}.any")
        return await debezium.take(request, key or (), namespace)

    return Router(
        path="/v1/debezium",
        opt=access(Role.WRITER),
        route_handlers=[events],
        exception_handlers={MainstemError: answered, HTTPException: refused},
    )
