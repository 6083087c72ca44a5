"""A truncate of a source's table: deletes of every row that it has now, then the truncate itself, all in the log.

Nothing behind the log knows of truncates: history, feeds, change streams, clients and both formats see deletes. The
source waits for its answer meanwhile, so that none of its later rows is among them. Sent again after a crash in the
middle, the truncate deletes what is left; sent again after its end, it is known by its place in the source's log, and
rows that came after it stay (docs/adr/0032).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import pyarrow as pa

from mainstem.admission import Seen
from mainstem.doors.ingest.taking import Taking
from mainstem.model import TableName
from mainstem.model.batch import Batch, Encoding
from mainstem.tables.layout import KEY
from mainstem.wire.rows import Mode, RowsHead, pack
from mainstem.wire.rows_arrow import stream_of

# The keys of a table's rows now, by what is durable; raises Overloaded where that cannot be told yet.
LiveKeys = Callable[[TableName], AsyncIterator[pa.Array]]
# Of one batch.
DELETES_MAX = 50_000


class Truncate(NamedTuple):
    """One truncate, and by what it is known."""

    table: TableName
    batch: Batch
    # What the history says of each delete.
    metadata: dict[str, object]


class Truncating:
    """Takes truncates in."""

    def __init__(self, taking: Taking, live_keys: LiveKeys) -> None:
        self._taking = taking
        self._live_keys = live_keys
        # One at a time: each is as much work as its table has rows, and a poster that gave up waiting sends its own
        # again while the first is still at work.
        self._turn = asyncio.Lock()

    async def take(self, truncate: Truncate, label: str) -> bool:
        """Delete the table's rows, and remember the truncate. Whether it was done before. Raises as a batch does."""
        async with self._turn:
            if self._is_done(truncate.batch):
                return True
            await self._delete(truncate, label)
            await self._taking.end(*self._taking.begin(truncate.batch), label)
            return False

    def _is_done(self, batch: Batch) -> bool:
        seen = self._taking.intake.gate.dedup.look(batch.source, batch.sequence, batch.fingerprint)
        return seen is Seen.SAME

    async def _delete(self, truncate: Truncate, label: str) -> None:
        head = RowsHead(table=str(truncate.table), mode=Mode.DELETE, key=(KEY,), metadata=truncate.metadata)
        async for keys in self._live_keys(truncate.table):
            for start in range(0, len(keys), DELETES_MAX):
                some = keys.slice(start, DELETES_MAX)
                batch = self._taking.batch(
                    truncate.batch.source,
                    key=None,
                    count=len(some),
                    encoding=Encoding.ROWS_ARROW,
                    payload=pack(head, stream_of(pa.table({KEY: some}))),
                    tables=truncate.batch.tables,
                )
                await self._taking.end(*self._taking.begin(batch), label)
