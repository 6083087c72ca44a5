"""Queries on Spark, as the query package asks for them: orders for the pipeline, and the rows that it brings.

Nothing of a query is stored: its answer is of no use once its client has left. Runs on the event loop.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from mainstem.model import Denied, Invalid, MainstemError, Overloaded
from mainstem.query.ports import PinnedTable
from mainstem.runtime.clock import Clock
from mainstem.wire.queries import QueryFailed, QueryOrder, ViewOrder

QUERIES_MAX = 8
# Batches that wait for the client: beyond that the pipeline waits.
BATCHES_WAITING_MAX = 4
# A pipeline that has not asked for so long is not there.
AWAY_S = 45.0
_RETRY_AFTER_S = 5.0


@dataclass(slots=True)
class _Query:
    order: QueryOrder
    batches: asyncio.Queue[pa.RecordBatch | QueryFailed | None] = field(
        default_factory=lambda: asyncio.Queue(BATCHES_WAITING_MAX)
    )
    taken: bool = False


class SparkQueries:
    """The pipeline, seen as an engine."""

    name = "spark"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queries: dict[str, _Query] = {}
        self._changed = asyncio.Condition()
        self._asked_s: float | None = None
        self._closed = False

    async def close(self) -> None:
        """Let the pipeline go: there will be no more queries."""
        self._closed = True
        async with self._changed:
            self._changed.notify_all()

    # What the query package asks

    async def query(
        self, sql: str, views: Mapping[str, PinnedTable], *, limit: int, timeout_s: float, stages: str = ""
    ) -> AsyncIterator[pa.RecordBatch]:
        """Hand the query to the pipeline, and pass on what it brings."""
        if self._asked_s is None or self._clock.monotonic_s() - self._asked_s > AWAY_S:
            raise Overloaded("Spark is not up", retry_after_s=_RETRY_AFTER_S, reason="spark_not_ready")
        if len(self._queries) >= QUERIES_MAX:
            raise Overloaded(
                f"too many queries on Spark. expected=at most {QUERIES_MAX}",
                retry_after_s=_RETRY_AFTER_S,
                reason="too_many_queries",
            )
        orders = tuple(
            ViewOrder(
                view=view,
                namespace=table.name.namespace,
                table=table.name.table,
                snapshot_id=table.snapshot_id,
                delta_location=table.delta_location,
            )
            for view, table in views.items()
        )
        order = QueryOrder(id=uuid.uuid4().hex, sql=sql, views=orders, limit=limit, timeout_s=timeout_s, stages=stages)
        query = self._queries[order.id] = _Query(order)
        try:
            async with self._changed:
                self._changed.notify_all()
            while (batch := await query.batches.get()) is not None:
                if isinstance(batch, QueryFailed):
                    raise _as_error(batch)
                yield batch
        finally:
            del self._queries[order.id]

    # What the pipeline asks

    async def take(self, wait_s: float) -> QueryOrder | None:
        """The next query that no worker has taken."""
        self._asked_s = self._clock.monotonic_s()
        try:
            async with asyncio.timeout(wait_s), self._changed:
                while (query := self._waiting()) is None and not self._closed:
                    await self._changed.wait()
        except TimeoutError:
            return None
        finally:
            self._asked_s = self._clock.monotonic_s()
        if query is None:
            return None
        query.taken = True
        return query.order

    def is_wanted(self, query_id: str) -> bool:
        """Whether somebody still waits for it."""
        return query_id in self._queries

    async def bring(self, query_id: str, batch: pa.RecordBatch | None) -> bool:
        """Take rows in, as soon as there is room."""
        while (query := self._queries.get(query_id)) is not None:
            try:
                async with asyncio.timeout(1.0):
                    await query.batches.put(batch)
                return True
            except TimeoutError:
                # The client is slow, or gone: then the query is no longer among those that are waited for.
                continue
        return False

    async def fail(self, query_id: str, failed: QueryFailed) -> None:
        """Tell the request that waits for it."""
        query = self._queries.get(query_id)
        if query is not None:
            await query.batches.put(failed)

    def _waiting(self) -> _Query | None:
        return next((query for query in self._queries.values() if not query.taken), None)


def _as_error(failed: QueryFailed) -> MainstemError:
    if failed.is_denied:
        return Denied(failed.message)
    if failed.is_wrong:
        return Invalid(f"Spark does not take the statement. got={failed.message}", reason="sql_error")
    return Overloaded(f"Spark could not run the query. got={failed.message}", retry_after_s=1.0, reason="spark_failed")
