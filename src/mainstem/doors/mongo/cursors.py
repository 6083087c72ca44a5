"""Cursors: reads that are under way over several messages. Bounded in number and in memory, and each ends when nobody
asks."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from random import SystemRandom
from typing import TypeVar

from mainstem.admission import Principal
from mainstem.doors.mongo.errors import CommandFailed
from mainstem.doors.mongo.walks import Walk

CURSORS_MAX = 100_000
# What all open cursors together may hold, as far as it is known.
BYTES_MAX = 512 * 1024 * 1024
# What one costs: a plan and a place; a listener to the log; rows that are read ahead; a snapshot with a connection.
# A filter that was read takes about so many times its bytes.
PARSED_FACTOR = 8
WALK_BYTES, STREAM_BYTES, ROWS_BYTES, SNAPSHOT_BYTES = 2_000, 16 * 1024, 64 * 1024, 2 * 1024 * 1024
RANGE_BYTES = 200
IDLE_S = 600.0
# At a bound no client loses a cursor that was used a moment ago.
IDLE_S_MIN = 1.0
FIRST_BATCH = 101
BATCH_BYTES_MAX = 16 * 1024 * 1024 - 64 * 1024
# How long a reader may keep the loop to itself.
SLICE_S = 0.004

T = TypeVar("T")

# Documents as BSON; None now and then while nothing is found.
Source = Iterator[bytes | None]


def nothing() -> None:
    """What there is to let go of by a cursor that holds nothing."""


@dataclass(slots=True)
class Cursor:
    """One read under way."""

    id: int
    namespace: str
    source: Source | None
    # Instead of a source: where it goes on is all that is kept.
    walk: Walk | None = None
    # What it holds between two requests for more.
    held_bytes: Callable[[], int] = lambda: ROWS_BYTES
    session: bytes | None = None
    # Of a change stream: waits for more, up to some seconds, and returns documents that are ready.
    wait: Callable[[float, int], Awaitable[list[bytes]]] | None = None
    close: Callable[[], None] = nothing
    # What was read and did not fit the last batch.
    left_over: list[bytes] = field(default_factory=list)
    batch_size: int | None = None
    used_s: float = 0.0
    is_busy: bool = False
    # Fields that each batch of a change stream carries.
    token: Callable[[], dict[str, object]] | None = None
    # Whose it is, with the rights that it was opened with: after those changed no client may use it.
    principal: Principal | None = None
    # What it was counted with when it was kept.
    counted_bytes: int = 0


class Cursors:
    """All cursors of the door."""

    def __init__(self, cursors_max: int = CURSORS_MAX, idle_s: float = IDLE_S, bytes_max: int = BYTES_MAX) -> None:
        self._cursors: dict[int, Cursor] = {}
        self._max = cursors_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._idle_s = idle_s
        self._random = SystemRandom()

    def __len__(self) -> int:
        return len(self._cursors)

    def make(self, namespace: str, source: Source | None) -> Cursor:
        """A cursor that is not kept yet."""
        return Cursor(self._random.getrandbits(62) | 1, namespace, source)

    def keep(self, cursor: Cursor) -> None:
        """Keep it for the next `getMore`. At a bound those that have waited longest go, if they have for a while."""
        now_s, size = time.monotonic(), cursor.held_bytes()
        # Taken out and put back: the dict's order is the order in which they were used.
        self._forget(cursor.id)
        while self._cursors and (len(self._cursors) >= self._max or self._bytes + size > self._bytes_max):
            oldest = next(iter(self._cursors.values()))
            if oldest.is_busy or now_s - oldest.used_s < IDLE_S_MIN:
                raise CommandFailed(
                    303,
                    f"too many open cursors. expected=at most {self._max} of {self._bytes_max} bytes "
                    f"got={len(self._cursors)} of {self._bytes}",
                    labels=("RetryableReadError",),
                )
            self.kill(oldest.id)
        cursor.used_s, cursor.counted_bytes = now_s, size
        self._bytes += size
        self._cursors[cursor.id] = cursor

    def _forget(self, cursor_id: int) -> Cursor | None:
        cursor = self._cursors.pop(cursor_id, None)
        if cursor is not None:
            self._bytes -= cursor.counted_bytes
        return cursor

    def get(self, cursor_id: int) -> Cursor:
        """One that is kept. Raises CursorNotFound."""
        cursor = self._cursors.get(cursor_id)
        if cursor is None:
            raise CommandFailed(43, f"cursor id {cursor_id} not found")
        return cursor

    def owner(self, cursor_id: int) -> Principal | None:
        """Whose it is; None where there is none."""
        cursor = self._cursors.get(cursor_id)
        return None if cursor is None else cursor.principal

    def kill(self, cursor_id: int) -> bool:
        """End one."""
        cursor = self._forget(cursor_id)
        if cursor is None:
            return False
        cursor.close()
        cursor.source = None
        return True

    def kill_session(self, session: bytes) -> None:
        """End those of a session."""
        for each in [cursor.id for cursor in self._cursors.values() if cursor.session == session]:
            self.kill(each)

    def expire(self) -> None:
        """End those that were not asked for a long time."""
        before_s = time.monotonic() - self._idle_s
        for cursor in list(self._cursors.values()):
            if cursor.used_s > before_s:
                break
            if not cursor.is_busy:
                self.kill(cursor.id)

    def close(self) -> None:
        """End all of them."""
        for each in list(self._cursors):
            self.kill(each)


def fitting(documents: list[bytes]) -> int:
    """How many of the documents fit a message: one at least."""
    size = 0
    for index, document in enumerate(documents):
        size += len(document) + 16
        if index and size > BATCH_BYTES_MAX:
            return index
    return len(documents)


class Pace:
    """Gives way to others, for one who has much to do."""

    def __init__(self) -> None:
        self._slice_ends_s = time.monotonic() + SLICE_S

    async def give_way(self) -> None:
        """Let others have the loop, if they have waited long enough."""
        if time.monotonic() > self._slice_ends_s:
            await asyncio.sleep(0)
            self._slice_ends_s = time.monotonic() + SLICE_S


async def take(cursor: Cursor, count: int | None, deadline_s: float | None) -> tuple[list[bytes], bool]:
    """The next documents, as many as are wanted and fit a message; and whether the cursor is at its end."""
    documents, cursor.left_over = cursor.left_over, []
    size = sum([len(each) + 16 for each in documents])
    walk = cursor.walk
    source = cursor.source if walk is None else walk.source()
    assert source is not None
    slice_ends_s = time.monotonic() + SLICE_S
    looked = 0
    while count is None or len(documents) < count:
        try:
            document = next(source)
        except StopIteration:
            return documents, True
        looked += 1
        if document is None or looked % 64 == 0:
            now_s = time.monotonic()
            if deadline_s is not None and now_s > deadline_s:
                raise CommandFailed(50, "operation exceeded time limit")
            if now_s > slice_ends_s:
                # Others have waited long enough.
                await asyncio.sleep(0)
                slice_ends_s = time.monotonic() + SLICE_S
            if document is None:
                continue
        if documents and size + len(document) > BATCH_BYTES_MAX:
            if walk is None:
                cursor.left_over.append(document)
            else:
                walk.back()
            return documents, False
        documents.append(document)
        size += len(document) + 16
    return documents, False


async def every(source: Iterator[T | None], deadline_s: float | None = None) -> AsyncIterator[T]:
    """What a source yields, without the pauses, giving way to others now and then."""
    slice_ends_s = time.monotonic() + SLICE_S
    for index, each in enumerate(source):
        if each is None or index % 64 == 0:
            now_s = time.monotonic()
            if deadline_s is not None and now_s > deadline_s:
                raise CommandFailed(50, "operation exceeded time limit")
            if now_s > slice_ends_s:
                await asyncio.sleep(0)
                slice_ends_s = time.monotonic() + SLICE_S
        if each is not None:
            yield each
