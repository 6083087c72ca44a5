"""The ingest door, wired: the same gate, with the sizes of a request instead of a frame's."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from litestar import Router

from mainstem.admission import Gate, Intake, Limits
from mainstem.app.config import Config
from mainstem.doors.ingest.debezium import Debezium, debezium_router
from mainstem.doors.ingest.door import Ingest, ingest_router
from mainstem.doors.ingest.taking import Taking
from mainstem.log.tap import Tap
from mainstem.model import NotFound, TableName
from mainstem.query.binding import Freshness
from mainstem.query.engine import ROWS_MAX, TIMEOUT_MS_MAX, QueryEngine, QueryRequest
from mainstem.query.statements.statement import WAREHOUSE
from mainstem.sql import duckdb_name
from mainstem.tables.layout import KEY

# The head of a payload: names of a table and of its key columns.
_HEAD_BYTES_MAX = 64 * 1024
# CSV is written as Arrow, which takes more room for small fields.
_GROWTH = 2
# A frame of the log holds no more.
_FRAME_BYTES_MAX = 63 * 1024 * 1024


class IngestDoor(NamedTuple):
    """What the gateway mounts and asks."""

    taking: Taking
    routers: tuple[Router, ...]


def make_ingest(
    config: Config, gate: Gate, tap: Tap, backlog_bytes: Callable[[], int], queries: QueryEngine
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
    debezium = Debezium(taking, lambda name: config.table(name).key, partial(live_keys, queries))
    return IngestDoor(taking, (ingest_router(ingest), debezium_router(debezium)))


async def live_keys(queries: QueryEngine, table: TableName) -> AsyncIterator[pa.Array]:
    """The keys of a table's rows by everything that is durable, whether it is in the table yet or not."""
    name = ".".join(map(duckdb_name, (WAREHOUSE, table.namespace, table.table)))
    sql = f"SELECT {KEY} FROM {name}"
    request = QueryRequest(sql=sql, limit=ROWS_MAX, timeout_ms=TIMEOUT_MS_MAX, freshness=Freshness.LATEST)
    is_whole = False
    try:
        while not is_whole:
            async with queries.open(request) as running:
                async for batch in running.batches():
                    yield batch.column(0)
            # With more rows than one query may have, those that are left are found once these are deleted.
            is_whole = not running.truncated
    except NotFound:
        return
