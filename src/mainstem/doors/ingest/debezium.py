"""Where Debezium Server's `http` sink posts: one event per request, or an array of events.

    POST /v1/debezium?key=id&key=public.order_lines:order_id,line_no

The server posts no keys, so that the request says which columns are the key: of every table, or of one (`table:a,b`, or
`schema.table:a,b`); or the configuration does. An event that was sent before counts once, by its place in the source's
log. The answer is 200 once all events are durable; one that cannot be taken stops the connector, and nothing is lost.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

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
from mainstem.doors.ingest.door import DeclaredKey, answered, check_parameters
from mainstem.doors.ingest.lanes import Lanes, Turn
from mainstem.doors.ingest.taking import Taking, key_number, source_of
from mainstem.doors.ingest.truncating import LiveKeys, Truncate, Truncating
from mainstem.model import Invalid, MainstemError, TableName, parse_table_name
from mainstem.model.batch import Batch, Encoding
from mainstem.model.change import SourceId
from mainstem.model.checksum import crc32
from mainstem.wire.debezium_posts import Kind, Post, PostHead, look, pack, read, split_events, unpack

AnyRequest = Request[Any, Any, Any]

EVENTS_MAX = 10_000
_PARAMETERS = frozenset(["key", "namespace"])
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

    def __init__(self, taking: Taking, declared_key: DeclaredKey, live_keys: LiveKeys) -> None:
        self._taking = taking
        self._truncating = Truncating(taking, live_keys)
        self._declared_key = declared_key
        self._lanes = Lanes()

    async def take(self, request: AnyRequest, keys: Sequence[str], namespace: str) -> Posted:
        """Take the request's events in. Raises what the poster has to do instead."""
        principal = principal_of(request.scope)
        by_table = _keys(keys)
        _, events = await self._taking.with_body(request, split_events)
        if not 1 <= len(events) <= EVENTS_MAX:
            raise Invalid(f"events. expected=1 to {EVENTS_MAX} got={len(events)}")
        try:
            # All are looked at before one is taken.
            work = [self._prepared(event, principal, by_table, namespace) for event in events]
        except MainstemError as error:
            await self._refuse_in_turn(error, events, principal, namespace)
        changes = [each for each in work if each is not None]
        return Posted(events=len(events), duplicates=await self._ordered(changes), ignored=len(work) - len(changes))

    async def _ordered(self, changes: "Sequence[Batch | Truncate]") -> int:
        """In their turn among the requests of their sources. How many were durable before."""
        async with self._in_turn([(batch.source, _mark(batch)) for batch in map(_batch_of, changes)]) as turns:
            return await self._taken(changes, turns)

    async def _refuse_in_turn(
        self, error: MainstemError, events: Sequence[bytes], principal: Principal, namespace: str
    ) -> NoReturn:
        """Refuse a request whose events cannot be taken, in its turn: none of them is in the log, and what is on its
        way behind them would overtake them, once they are sent again as they should be."""
        marks: list[tuple[str, object]] = []
        for event in events:
            # What cannot be read says of no source, and so of no turn.
            with suppress(MainstemError):
                post_ = look(event, namespace)
                if post_.table is not None:
                    source = _source(principal, post_)
                    key = _key_of(post_)
                    marks.append((source, event if key is None else key_number(source, key)))
        async with self._in_turn(marks):
            raise error

    @asynccontextmanager
    async def _in_turn(self, events: Iterable[tuple[str, object]]) -> AsyncIterator[Mapping[str, Turn]]:
        """The turns of the sources of some events, which are given with their marks."""
        by_source: dict[str, list[object]] = {}
        for source, mark in events:
            by_source.setdefault(source, []).append(mark)
        async with AsyncExitStack() as turns:
            # In the order of their names: two requests of the same sources wait for each other in one order.
            yield {
                source: await turns.enter_async_context(self._lanes.turn(source, marks))
                for source, marks in sorted(by_source.items())
            }

    async def _taken(self, changes: "Sequence[Batch | Truncate]", turns: Mapping[str, Turn]) -> int:
        """One after the other: their sequences are hashes, so the log could not hold one back behind a refused one. How
        many were durable before."""
        duplicates = 0
        for change in changes:
            if isinstance(change, Truncate):
                duplicates += await self._truncating.take(change, _LABEL)
            else:
                ticket, begun = self._taking.begin(change)
                duplicates += (await self._taking.end(ticket, begun, _LABEL)).duplicate
            turns[_batch_of(change).source].done += 1
        return duplicates

    def _prepared(
        self, event: bytes, principal: Principal, keys: Mapping[str, tuple[str, ...]], namespace: str
    ) -> "Batch | Truncate | None":
        """What the event changes; None where it says nothing of a row."""
        post_ = look(event, namespace)
        if post_.table is None:
            return None
        gate = self._taking.intake.gate
        gate.limits.check_event(len(event))
        tables = gate.tables([str(post_.table)], principal)
        table = next(iter(tables))
        if post_.kind is Kind.TRUNCATE:
            return self._truncate(event, post_, table, principal)
        head = PostHead(namespace=namespace, key=self._key(table, keys))
        # As it will be read when the log is sealed: what cannot be read then is refused now.
        change = read(event, head).change
        if TableName(change.namespace, change.table) != table:
            got = f"{change.namespace}.{change.table}"
            raise Invalid(f"the event names two tables. expected={table} got={got}")
        return self._batch(event, post_, head, table, principal)

    def _truncate(self, event: bytes, post_: Post, table: TableName, principal: Principal) -> Truncate:
        if post_.identity is None:
            # Sent again, it would take away rows that came after it.
            raise Invalid(f"a truncate does not say its place in the source's log. expected=lsn, pos, … got={table}")
        head = PostHead(is_truncate=True)
        metadata = {"source": dict(post_.source), "truncate": True}
        return Truncate(table, self._batch(event, post_, head, table, principal), metadata)

    def _batch(self, event: bytes, post_: Post, head: PostHead, table: TableName, principal: Principal) -> Batch:
        return self._taking.batch(
            _source(principal, post_),
            key=_key_of(post_),
            count=1,
            encoding=Encoding.ENVELOPE,
            payload=pack(head, event),
            tables=frozenset([table]),
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


def _batch_of(change: Batch | Truncate) -> Batch:
    return change.batch if isinstance(change, Truncate) else change


def _mark(batch: Batch) -> object:
    """By what an event is known when it comes again: its sequence is a hash of its place, or says nothing."""
    return batch.sequence if batch.sequence >= 0 else unpack(batch.payload)[1]


def _key_of(post_: Post) -> str | None:
    """By what a change is known again. One that is posted for another namespace as well is a row of each."""
    return None if post_.identity is None else f"{post_.table}\0{post_.identity}"


def _source(principal: Principal, post_: Post) -> SourceId:
    return source_of(principal, f"debezium/{post_.connector}")


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
        check_parameters(request, _PARAMETERS)
        if namespace:
            parse_table_name(f"{namespace}.any")
        return await debezium.take(request, key or (), namespace)

    return Router(
        path="/v1/debezium",
        opt=access(Role.WRITER),
        route_handlers=[events],
        exception_handlers={MainstemError: answered, HTTPException: refused},
    )
