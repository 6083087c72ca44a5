"""Keeps the local copy and the server in step: pushes the queue, pulls what arrived, and tries again by itself.

Every step may be cut off anywhere: a push that was not acknowledged is sent again and counts once, a page and its
cursor are stored together. The twin of the TypeScript client's coordinator.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from mainstem.client.sync.errors import ClockDrift, CursorExpired, Refused, Unreachable
from mainstem.client.sync.local_db import Changed, LocalDB, Merged
from mainstem.client.sync.replica import RowKey
from mainstem.client.sync.signal import Signal
from mainstem.client.sync.status import Phase, SyncStatus
from mainstem.client.sync.timing import SystemTiming, Timing
from mainstem.client.sync.tracker import SyncTracker
from mainstem.client.sync.transports.transport import Transport
from mainstem.model.errors import Invalid, Overloaded
from mainstem.runtime.backoff import Backoff
from mainstem.wire.sync import RowDelta, SyncPull, SyncPush, SyncResponse

RETRY_S_MIN = 1.0
RETRY_S_MAX = 30.0
# A server that asks for more patience than this is asked again anyway.
RETRY_AFTER_S_MAX = 300.0
POLL_S = 5.0
POLL_LIVE_S = 60.0
STALE_PAGES_MAX = 10
# Broadcasts that may wait to be stored. One that finds no room leaves a gap, and a pull closes it.
BROADCASTS_MAX = 256

T = TypeVar("T")


class DeadLetterEvent(msgspec.Struct, frozen=True):
    """A delta was refused for good; it waits in `db.dead_letters()`."""

    delta: RowDelta
    reason: str
    message: str


class Progress(msgspec.Struct, frozen=True):
    """Rows of the first sync that are in so far."""

    rows: int
    done: bool


class SyncCoordinator:
    """Syncs one local database with one gateway. Belongs to an event loop; `SyncThread` brings its own.

    sync = SyncCoordinator(db, HttpTransport("http://127.0.0.1:8181", "my-app"))
    sync.start_auto_sync()
    """

    def __init__(
        self,
        db: LocalDB,
        transport: Transport,
        *,
        push_max: int = 500,
        pull_max: int = 1_000,
        poll_s: float | None = None,
        timing: Timing | None = None,
    ) -> None:
        """`push_max` and `pull_max`: deltas in one push, and in one page of a pull. `poll_s`: how often to look for
        changes; 5 s by default, or 60 s where the transport tells of them."""
        self.db = db
        self.tracker = SyncTracker(db)
        self.status = SyncStatus()
        self.status_changed: Signal[SyncStatus] = Signal()
        self.merged: Signal[Merged] = Signal()
        self.dead_letter: Signal[DeadLetterEvent] = Signal()
        self.progress: Signal[Progress] = Signal()
        self._transport = transport
        self._push_max = self._batch_max = push_max
        self._pull_max = pull_max
        self._poll_s = poll_s
        self._timing = timing or SystemTiming()
        self._backoff = Backoff(wait_s_min=RETRY_S_MIN, wait_s_max=RETRY_S_MAX, rng=self._timing.rng)
        # Held during a round, so that a `sync_once` and the automatic sync take turns.
        self._round = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Ends the pause between two rounds. Writes end it only while all is well, so that they cannot hammer a server.
        self._wake = asyncio.Event()
        self._retrying = False
        db.merged.connect(self.merged.emit)
        db.changed.connect(self._note_write)

    # The app's calls.

    def start_auto_sync(self) -> None:
        """Sync from now on, until `stop`. Calling it twice changes nothing."""
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.create_task(self._lead(), name="mainstem-sync")

    async def stop(self) -> None:
        """Stop and wait until nothing is under way. What is queued stays queued."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._set_status(phase=Phase.STOPPED, retry_at_ms=None)

    async def close(self) -> None:
        """Stop, and let go of the transport."""
        await self.stop()
        await self._transport.close()

    async def sync_once(self) -> None:
        """Sync once, now. Raises what went wrong; a later try may mend it."""
        async with self._round:
            try:
                await self._run_round()
            except Exception as error:
                self._set_status(
                    phase=Phase.STOPPED if self._task is None else Phase.RETRYING,
                    online=not isinstance(error, Unreachable),
                    error=f"{type(error).__name__}: {error}",
                )
                raise

    def hurry(self) -> None:
        """End the pause between two rounds, even one after a failure: the network may be back."""
        self._retrying = False
        self._wake.set()

    # A round.

    async def push(self) -> None:
        """Send what waits, oldest first. Raises what a later try may mend; puts aside what no try can."""
        while True:
            deltas = await self._do(lambda: self.db.queued(self._batch_max))
            if not deltas:
                return
            state = await self._do(self.db.state)
            push = SyncPush(client_id=self.db.client_id, deltas=tuple(deltas), last_seen_hlc=state.cursor)
            try:
                await self._transport.push(push)
            except (Invalid, ClockDrift) as error:
                await self._after_refusal(error, deltas)
                continue
            await self._acknowledge(deltas)
            self._batch_max = min(self._push_max, self._batch_max * 2)
            await self._count()

    async def pull(self) -> None:
        """Bring in what arrived at the server since our cursor, page by page."""
        stale = 0
        while stale < STALE_PAGES_MAX:
            cursor = (await self._do(self.db.state)).cursor
            if cursor == 0 and await self._bootstrap():
                cursor = (await self._do(self.db.state)).cursor
            page = await self._pull_page(cursor)
            if page is None:
                # A server that refuses even the cursor of its own checkpoint must not be asked without end.
                stale += 1
                continue
            if page.has_more and page.server_hlc <= cursor:
                raise Unreachable("a page with more to come moves no cursor")
            if not await self._apply(replace(page, since_hlc=cursor), settles=not page.has_more):
                stale += 1
            elif not page.has_more:
                return
        raise Unreachable("the cursor moved under every page")

    async def _run_round(self) -> None:
        self._set_status(phase=Phase.SYNCING)
        await self.push()
        await self.pull()
        now_ms = self._timing.clock.now_ms()
        self._set_status(phase=Phase.IDLE, online=True, last_sync_ms=now_ms, error=None, retry_at_ms=None)
        await self._count()

    async def _pull_page(self, cursor: int) -> SyncResponse | None:
        pull = SyncPull(client_id=self.db.client_id, since_hlc=cursor, max_deltas=self._pull_max)
        try:
            return await self._transport.pull(pull)
        except CursorExpired:
            if cursor == 0:
                raise
            await self._do(self.db.reset_cursor)
            return None

    async def _bootstrap(self) -> bool:
        """First sync by checkpoint. False where the server has none."""
        pieces = await self._transport.checkpoint(self.db.client_id)
        if pieces is None:
            return False
        had = await self._do(self.db.row_keys)
        seen: set[RowKey] = set()
        async for piece in pieces:
            await self._store_piece(piece, had, seen)
            if not piece.has_more:
                await self._finish(piece.server_hlc, had - seen)
            self.progress.emit(Progress(len(seen), done=not piece.has_more))
            if not piece.has_more:
                return True
        raise Unreachable("the checkpoint ends without its last piece")

    async def _store_piece(self, piece: SyncResponse, had: set[RowKey], seen: set[RowKey]) -> None:
        keys = {(delta.table, delta.row_id) for delta in piece.deltas}
        fresh = keys - had - seen
        seen |= keys
        await self._do(lambda: self.db.apply_checkpoint_piece(piece, fresh))

    async def _finish(self, cursor: int, missing: set[RowKey]) -> None:
        await self._do(lambda: self.db.finish_checkpoint(cursor, missing))

    async def _apply(self, page: SyncResponse, *, settles: bool) -> bool:
        return await self._do(lambda: self.db.apply_page(page, settles=settles))

    async def _acknowledge(self, deltas: Sequence[RowDelta]) -> None:
        await self._do(lambda: self.db.acknowledge(deltas))

    async def _after_refusal(self, error: Invalid | ClockDrift, deltas: Sequence[RowDelta]) -> None:
        if isinstance(error, ClockDrift):
            server_hlc = error.server_hlc
            if server_hlc is None or not await self._do(lambda: self.db.restamp(server_hlc)):
                raise error
            return
        named = error.delta_id if isinstance(error, Refused) else None
        culprit = deltas[0] if len(deltas) == 1 else next((one for one in deltas if one.delta_id == named), None)
        if culprit is None:
            # One of them is bad and the server did not say which: halve until it stands alone.
            self._batch_max = math.ceil(len(deltas) / 2)
            return
        await self._do(lambda: self.db.bury(culprit, error.reason, str(error)))
        self.dead_letter.emit(DeadLetterEvent(culprit, error.reason, str(error)))
        await self._count()

    # The automatic sync.

    async def _lead(self) -> None:
        mailbox = _Mailbox(self._wake)
        unsubscribe = self._transport.subscribe(mailbox)
        poll_s = self._poll_s or (POLL_S if unsubscribe is None else POLL_LIVE_S)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._receive(mailbox))
                while True:
                    await self._pause(await self._try_round(poll_s))
        finally:
            if unsubscribe is not None:
                unsubscribe()

    async def _try_round(self, poll_s: float) -> float:
        """One round; how long to wait before the next."""
        self._wake.clear()
        try:
            await self.sync_once()
        except Exception as error:
            asked_s = error.retry_after_s if isinstance(error, Overloaded) else 0.0
            delay_s = self._backoff.next_s(min(asked_s, RETRY_AFTER_S_MAX))
            self._retrying = True
            self._set_status(retry_at_ms=self._timing.clock.now_ms() + round(delay_s * 1000))
            # Only for show; the status says already what is wrong.
            with suppress(Exception):
                await self._count()
            return delay_s
        self._backoff.reset()
        self._retrying = False
        return poll_s

    async def _receive(self, mailbox: "_Mailbox") -> None:
        while True:
            response = await mailbox.queue.get()
            # Before the first pull of a new connection there is no cursor to follow, and `apply_page` says so. Where
            # the disk fails, the round that follows fails too and says why.
            applied = False
            with suppress(Exception):
                applied = await self._apply(response, settles=False)
            if not applied:
                self._wake.set()

    async def _pause(self, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            sleep = group.create_task(self._timing.sleep(seconds))
            woken = group.create_task(self._woken())
            await asyncio.wait({sleep, woken}, return_when=asyncio.FIRST_COMPLETED)
            sleep.cancel()
            woken.cancel()

    async def _woken(self) -> None:
        while True:
            await self._wake.wait()
            if not self._retrying:
                return
            self._wake.clear()

    def _note_write(self, changed: Changed) -> None:
        """A write of the app, in whatever thread."""
        loop = self._loop
        if changed.local and self._task is not None and loop is not None:
            with suppress(RuntimeError):  # the loop is closed: there is nothing to wake
                loop.call_soon_threadsafe(self._wake.set)

    # What the app sees.

    async def _count(self) -> None:
        state = await self._do(self.db.state)
        self._set_status(pending=state.pending, dead_letters=state.dead)

    def _set_status(self, **change: Any) -> None:
        self.status = replace(self.status, **change)
        self.status_changed.emit(self.status)

    async def _do(self, work: Callable[[], T]) -> T:
        return await self._timing.offload(work)


class _Mailbox:
    """Broadcasts on their way into the database."""

    def __init__(self, wake: asyncio.Event) -> None:
        self.queue: asyncio.Queue[SyncResponse] = asyncio.Queue(BROADCASTS_MAX)
        self._wake = wake

    def broadcast(self, response: SyncResponse) -> None:
        try:
            self.queue.put_nowait(response)
        except asyncio.QueueFull:
            self._wake.set()

    def lost(self) -> None:
        self._wake.set()
