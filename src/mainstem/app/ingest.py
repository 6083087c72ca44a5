"""The ingest door, wired: the same gate, with the sizes of a request instead of a frame's."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pyarrow as pa
from litestar import Router

from mainstem.admission import Gate, Intake, Limits
from mainstem.app.config import Config
from mainstem.doors.ingest.debezium import Debezium, debezium_router
from mainstem.doors.ingest.door import Ingest, ingest_router
from mainstem.doors.ingest.taking import Taking
from mainstem.feeds.tap import Tap
from mainstem.model import NotFound, Overloaded, TableName
from mainstem.model.batch import Encoding
from mainstem.model.change import SourceId
from mainstem.query.engine import QueryEngine, QueryRequest
from mainstem.wire.rows import Mode, RowsHead, pack
from mainstem.wire.rows_arrow import stream_of

# The head of a payload: names of a table and of its key columns.
_HEAD_BYTES_MAX = 64 * 1024
# CSV is written as Arrow, which takes more room for small fields.
_GROWTH = 2
# A frame of the log holds no more.
_FRAME_BYTES_MAX = 63 * 1024 * 1024
# Rows that a truncate takes away at once, how often, and how long it waits for the tables each time.
_TRUNCATED_ROWS = 100_000
_TRUNCATES_MAX = 10_000
_FLUSH_S_MAX = 50.0
_KEY = "_key"

# Seals what is durable, and waits for the tables; its answer says whether they have it all.
Flush = Callable[[float], Awaitable[Any]]


class IngestDoor(NamedTuple):
    """What the gateway mounts and asks."""

    taking: Taking
    routers: tuple[Router, ...]


def make_ingest(
    config: Config, gate: Gate, tap: Tap, backlog_bytes: Callable[[], int], flush: Flush, engine: QueryEngine
) -> IngestDoor:
    """Build everything behind `/v1/ingest` and `/v1/debezium`."""
    limits = Limits(
        payload_bytes_max=min(config.ingest.body_bytes_max * _GROWTH + _HEAD_BYTES_MAX, _FRAME_BYTES_MAX),
        event_bytes_max=config.limits.event_bytes_max,
        events_max=config.ingest.rows_max,
        backlog_bytes_max=config.log.buffer_bytes_max,
    )
    own = Gate(gate.dedup, limits, backlog_bytes, rates=gate.rates, pressure=gate.pressure)
    taking = Taking(Intake(own, tap), config.ingest.body_bytes_max)
    ingest = Ingest(taking, lambda name: config.table(name).key)
    truncating = Truncating(taking, flush, engine, min(_TRUNCATED_ROWS, config.ingest.rows_max))
    debezium = Debezium(taking, lambda name: config.table(name).key, truncating.truncate)
    return IngestDoor(taking, (ingest_router(ingest), debezium_router(debezium)))


class Truncating:
    """Takes every row of a table away, as changes of the log: each row is deleted, and its history stays."""

    def __init__(self, taking: Taking, flush: Flush, engine: QueryEngine, rows_max: int) -> None:
        self._taking = taking
        self._flush = flush
        self._engine = engine
        self._rows_max = rows_max

    async def truncate(self, table: TableName, source: str) -> int:
        """Delete the rows that all changes before this made; how many there were. Done again, it finds none."""
        count = 0
        for _ in range(_TRUNCATES_MAX):
            if not (await self._flush(_FLUSH_S_MAX)).complete:
                raise Overloaded(f"the tables are behind, and {table} is to be truncated", retry_after_s=5.0)
            keys = await self._keys(table)
            if not len(keys):
                return count
            head = RowsHead(table=str(table), mode=Mode.DELETE, key=(_KEY,))
            batch = self._taking.batch(
                SourceId(source),
                key=None,
                count=len(keys),
                encoding=Encoding.ROWS_ARROW,
                payload=pack(head, stream_of(pa.table({_KEY: keys}))),
                tables=frozenset([table]),
            )
            await self._taking.take(batch, "debezium")
            count += len(keys)
        raise Overloaded(f"{table} is too large to be truncated at once", retry_after_s=1.0)

    async def _keys(self, table: TableName) -> pa.ChunkedArray:
        name = ".".join(f'"{part.replace(chr(34), chr(34) * 2)}"' for part in (table.namespace, table.table))
        request = QueryRequest(sql=f"SELECT {_KEY} FROM {name} LIMIT {self._rows_max}", limit=self._rows_max)
        try:
            async with self._engine.open(request) as running:
                batches = [batch.column(0).cast(pa.string()) async for batch in running.batches()]
        except NotFound:
            batches = []
        return pa.chunked_array(batches, pa.string())
