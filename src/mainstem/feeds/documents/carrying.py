"""From a draft to the log: batches through the gate, some at a time, each on a lane of its own."""

import asyncio
from collections.abc import Callable

from bson.objectid import ObjectId

from mainstem.admission import Intake
from mainstem.feeds.documents.drafts import Draft, Held
from mainstem.feeds.documents.shapes import Shapes
from mainstem.feeds.documents.state import State
from mainstem.model.batch import Batch, Encoding
from mainstem.model.change import SourceId
from mainstem.model.checksum import crc32
from mainstem.model.errors import Overloaded
from mainstem.model.position import LogPosition
from mainstem.wire.mongo.batches import SOURCES, DocumentBatch, encode_batch, table_of

# Batches on their way to the log at once. Each lane is a source of its own, with one batch at a time.
LANES = 64
_RETRY_AFTER_S = 1.0


class DocumentsBatch(Batch, frozen=True, kw_only=True, gc=False):
    """A batch of the Mongo door with its operations at hand: listeners need not read the payload again."""

    documents: DocumentBatch
    keys: tuple[bytes, ...]
    shapes: Shapes


class Writer:
    """Puts batches through the gate into the log. Belongs to the event loop."""

    def __init__(self, intake: Intake, state: State, new_id: Callable[[], ObjectId] = ObjectId) -> None:
        self._intake = intake
        self.state = state
        self.held = Held()
        self.new_id = new_id
        self._lanes: asyncio.Queue[int] = asyncio.Queue()
        for lane in range(LANES):
            self._lanes.put_nowait(lane)
        self._under_way: set[asyncio.Task[LogPosition]] = set()
        self._closing = False

    async def carry(self, draft: Draft, batch: DocumentBatch) -> LogPosition:
        """Make a draft's batch durable, then let go of what the draft holds. Goes on when the caller goes away."""
        if self._closing:
            self.held.release(draft)
            raise Overloaded("the server is stopping", retry_after_s=_RETRY_AFTER_S, reason="shutting_down")
        draft.is_carried = True
        task = asyncio.create_task(self._carry(draft, batch, tuple(draft.keys), draft.shapes))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def _carry(self, draft: Draft, batch: DocumentBatch, keys: tuple[bytes, ...], shapes: Shapes) -> LogPosition:
        try:
            lane = await self._lanes.get()
            try:
                return await self._append(lane, batch, keys, shapes)
            finally:
                self._lanes.put_nowait(lane)
        finally:
            draft.is_carried = False
            self.held.release(draft)

    async def _append(self, lane: int, batch: DocumentBatch, keys: tuple[bytes, ...], shapes: Shapes) -> LogPosition:
        places = {(each.database, each.collection) for each in batch.operations}
        payload = encode_batch(batch)
        source = SourceId(f"{SOURCES}{lane}")
        ticket = self._intake.take(
            DocumentsBatch(
                source=source,
                sequence=self._intake.gate.dedup.highest(source) + 1,
                count=len(batch.operations),
                encoding=Encoding.DOCUMENTS,
                payload=payload,
                fingerprint=crc32(payload),
                tables=frozenset([table_of(*place) for place in places]),
                documents=batch,
                keys=keys,
                shapes=shapes,
            )
        )
        assert ticket.outcome is not None
        return (await ticket.outcome).last

    async def close(self) -> None:
        """Take nothing more, and wait for what is under way."""
        self._closing = True
        if self._under_way:
            await asyncio.wait(self._under_way)
