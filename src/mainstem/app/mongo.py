"""The Mongo door, wired: its own limits at the same gate, the store of documents on the log, the tables behind it."""

import asyncio
import datetime as dt
import decimal
import logging
import ssl
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from bson.decimal128 import Decimal128

from mainstem.admission import Gate, Intake, Limits
from mainstem.admission.users import Users
from mainstem.doors.mongo.server import MongoDoor, MongoSettings
from mainstem.feeds.documents.applying import bson_value
from mainstem.feeds.documents.service import Documents
from mainstem.feeds.documents.state import State
from mainstem.feeds.documents.tables import TableRow, Told
from mainstem.log import Log
from mainstem.log.tap import Arrival, Tap
from mainstem.model import LogPosition, MainstemError, NotFound, TableName
from mainstem.model.names import DEAD_LETTERS_SUFFIX, HISTORY_SUFFIX
from mainstem.query.binding import Freshness
from mainstem.query.dispatch import Dispatcher
from mainstem.query.engine import TIMEOUT_MS_MAX, QueryEngine, QueryRequest
from mainstem.query.ports import Lake, named_tables
from mainstem.query.statements.statement import WAREHOUSE
from mainstem.query.tables import SnapshotUse, column_kinds, columns
from mainstem.runtime.clock import Clock
from mainstem.sql import duckdb_name, duckdb_text
from mainstem.tables.layout import CLOCKS, HLC, KEY, STATE_COLUMNS, column_name
from mainstem.tables.types import Kind
from mainstem.wire.mongo.batches import DOCUMENT_COLUMN
from mainstem.wire.mongo.frames import MESSAGE_BYTES_MAX

logger = logging.getLogger(__name__)

_PAGE_ROWS = 50_000
# What a table may answer for a collection: the gateway holds it.
_ANSWER_BYTES_MAX = 128 * 1024 * 1024
_OWN = frozenset(name for name, _ in STATE_COLUMNS)
_clocks = msgspec.json.Decoder(dict[str, tuple[int, str]]).decode


class LakeTables:
    """State tables as the store of documents asks for them, read by the gateway's own query engine."""

    def __init__(
        self, lake: Lake, engine: QueryEngine, dispatcher: Dispatcher, covered: Callable[[TableName], LogPosition]
    ) -> None:
        self._lake = lake
        self._engine = engine
        self._dispatcher = dispatcher
        self._covered = covered
        self._answered: Counter[str] = Counter()

    @property
    def answered(self) -> Mapping[str, int]:
        """How many times `select` answered, by the engine that did."""
        return self._answered

    async def names(self) -> list[TableName]:
        """Every state table there is."""
        return [
            name for name in await self._lake.tables() if not name.table.endswith((HISTORY_SUFFIX, DEAD_LETTERS_SUFFIX))
        ]

    async def covered(self, table: TableName) -> LogPosition:
        """How much of the log a table holds."""
        return await asyncio.to_thread(self._covered, table)

    async def rows(self, table: TableName) -> AsyncIterator[list[TableRow]]:
        """A table's rows, in pages by key."""
        after: str | None = None
        try:
            kinds = column_kinds((await self._lake.load(table)).metadata)
        except NotFound:
            return
        while True:
            where = "" if after is None else f" WHERE _key > {duckdb_text(after)}"
            sql = f"SELECT * FROM {_quoted(table)}{where} ORDER BY _key LIMIT {_PAGE_ROWS}"
            found: list[dict[str, Any]] = []
            try:
                request = QueryRequest(sql=sql, limit=_PAGE_ROWS, timeout_ms=TIMEOUT_MS_MAX)
                async with self._engine.open(request, named_tables) as running:
                    async for batch in running.batches():
                        found += batch.to_pylist()
            except NotFound:
                return
            yield [_row(each, kinds) for each in found]
            if len(found) < _PAGE_ROWS:
                return
            after = found[-1][KEY]

    async def columns(self, table: TableName) -> Mapping[str, str] | None:
        """The fields that are columns under their own names, with their SQL types."""
        try:
            metadata = (await self._lake.load(table)).metadata
        except NotFound:
            return None
        inferred = column_kinds(metadata)
        found = {name: kind for name, kind in columns(metadata).items() if name not in _OWN and name != DOCUMENT_COLUMN}
        if any(column_name(name) not in inferred for name in found):
            return None
        return {name: kind for name, kind in found.items() if column_name(name) == name}

    async def select(self, sql: str, *, latest: bool, rows_max: int, timeout_s: float) -> list[tuple[Any, ...]] | None:
        """The rows of a query, by the route that all queries have."""
        request = QueryRequest(
            sql=sql,
            limit=rows_max,
            timeout_ms=max(1, min(TIMEOUT_MS_MAX, int(timeout_s * 1000))),
            freshness=Freshness.LATEST if latest else Freshness.SNAPSHOT,
        )
        found = await self._rows(request)
        return None if found is None else found[0]

    async def is_large(self, table: TableName) -> bool:
        """Whether reading all of a table is Spark's, by the route of queries."""
        try:
            return await self._dispatcher.is_for_spark(QueryRequest(sql=_documents_sql(table)), named_tables)
        except MainstemError:
            return False

    async def run(self, table: TableName, stages: str, *, rows_max: int, timeout_s: float) -> Told | None:
        """The documents that Spark makes of a table's by an order of stages."""
        timeout_ms = max(1, min(TIMEOUT_MS_MAX, int(timeout_s * 1000)))
        request = QueryRequest(sql=_documents_sql(table), limit=rows_max, timeout_ms=timeout_ms, stages=stages)
        found = await self._rows(request)
        if found is None:
            return None
        rows, snapshots = found
        (snapshot,) = snapshots
        return Told([document for (document,) in rows], LogPosition(snapshot.position))

    async def _rows(self, request: QueryRequest) -> tuple[list[tuple[Any, ...]], tuple[SnapshotUse, ...]] | None:
        rows: list[tuple[Any, ...]] = []
        size = 0
        try:
            async with self._dispatcher.open(request, named_tables) as running:
                async for batch in running.batches():
                    size += batch.nbytes
                    if size > _ANSWER_BYTES_MAX:
                        return None
                    rows += zip(*[column.to_pylist() for column in batch.columns], strict=True)
        except MainstemError as error:
            # Whatever it is (too many queries, a table that is gone, a sum that Spark cannot hold): documents answer.
            logger.info("a table does not answer for a collection: %s", error)
            return None
        if running.truncated:
            return None
        stats = running.stats()
        self._answered[str(stats.engine)] += 1
        return rows, stats.snapshots


def _row(row: dict[str, Any], kinds: Mapping[str, Kind]) -> TableRow:
    columns = {
        (own := column_name(name)): _value(value, kinds.get(own))
        for name, value in row.items()
        if name not in _OWN and name != DOCUMENT_COLUMN and value is not None
    }
    newer: dict[str, tuple[int, str]] = {}
    if row[CLOCKS] is not None:
        clocks = _clocks(row[CLOCKS])
        base = clocks.get(DOCUMENT_COLUMN, (0, ""))
        newer = {name: clock for name, clock in clocks.items() if clock > base and name != DOCUMENT_COLUMN}
    document = row.get(DOCUMENT_COLUMN)
    return TableRow(row[KEY], row[HLC], None if document is None else bytes(document), columns, newer)


def _value(value: Any, kind: Kind | None) -> Any:  # noqa: PLR0911 - a closed union
    """A table's value as BSON has it. Objects and arrays are JSON in the table, and themselves in a document."""
    if kind is Kind.JSON and isinstance(value, str):
        try:
            return bson_value(msgspec.json.decode(value))
        except (msgspec.DecodeError, RecursionError):
            return value
    if isinstance(value, decimal.Decimal):
        try:
            return Decimal128(value)
        except decimal.DecimalException:
            # 38 digits, where BSON has 34.
            return str(value)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: _value(item, None) for name, item in value.items()}
    return [_value(item, None) for item in value] if isinstance(value, list) else value


def _documents_sql(table: TableName) -> str:
    return f"SELECT {KEY}, {DOCUMENT_COLUMN} FROM {_quoted(table)}"


def _quoted(name: TableName) -> str:
    # In full: DuckDB takes a database of the name `lake`, `system` or `temp` for one of its own.
    return f"{WAREHOUSE}.{duckdb_name(name.namespace)}.{duckdb_name(name.table)}"


class Mongo:
    """What the gateway starts, asks and closes."""

    def __init__(self, documents: Documents, door: MongoDoor) -> None:
        self.documents = documents
        self.door = door

    async def start(self) -> None:
        """Bring the store up to date; then it may be served."""
        await self.documents.start()

    async def close(self) -> None:
        """Answer what is under way, then let go of everything."""
        await self.door.close()
        await self.documents.close()


def make_mongo(
    *,
    data: Path,
    log: Log,
    tap: Tap,
    gate: Gate,
    backlog_bytes: Callable[[], int],
    backlog_bytes_max: int,
    lake: Lake,
    engine: QueryEngine,
    dispatcher: Dispatcher,
    covered: Callable[[TableName], LogPosition],
    users: Users,
    clock: Clock,
    settings: MongoSettings,
) -> Mongo:
    """Build the door. `await mongo.start()` before it listens."""
    # The same gate, but for the size of a batch: a message may be larger than a batch of the CDC door.
    limits = Limits(
        payload_bytes_max=MESSAGE_BYTES_MAX + (8 << 20), events_max=200_000, backlog_bytes_max=backlog_bytes_max
    )
    own = Gate(gate.dedup, limits, backlog_bytes, rates=gate.rates, pressure=gate.pressure)
    documents = Documents(
        log,
        Intake(own, tap),
        State(data / "mongo" / "documents.db"),
        LakeTables(lake, engine, dispatcher, covered),
        clock,
    )
    heard, lost = tap.on_arrival, tap.on_lost

    def on_arrival(arrival: Arrival) -> None:
        documents.on_arrival(arrival)
        heard(arrival)

    def on_lost() -> None:
        documents.on_lost()
        lost()

    tap.on_arrival, tap.on_lost = on_arrival, on_lost
    return Mongo(documents, MongoDoor(documents, users, clock, settings))


def tls_of(certificate: str, key: str) -> ssl.SSLContext | None:
    """The context for a certificate, or none."""
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key or None)
    return context
