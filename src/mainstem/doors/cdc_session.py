"""One CDC connection: messages in, answers out in the order of the messages. Owns no socket.

Batches are handed to the intake as they come, without waiting for the disk, and their answers stand in a queue until
their outcome is known. The queue is bounded: at the bound the session stops reading, and the producer feels that as a
full socket.
"""

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from mainstem.admission import ANYONE, Intake, Principal, Ticket
from mainstem.doors import cdc_replies as replies
from mainstem.doors.cdc_ports import CdcSettings, DoorStats, Flusher, Host
from mainstem.doors.cdc_states import Action, Event, State, step
from mainstem.model.batch import Batch, Encoding
from mainstem.model.change import SourceId
from mainstem.model.errors import Invalid, MainstemError, Overloaded
from mainstem.runtime.clock import Clock
from mainstem.wire import cdc

_log = logging.getLogger(__name__)

CLOSE_NORMAL = 1000
CLOSE_GOING_AWAY = 1001

_EVENTS: dict[type[cdc.ClientMessage], Event] = {
    cdc.CdcBatch: Event.BATCH,
    cdc.Connect: Event.CONNECT,
    cdc.Heartbeat: Event.HEARTBEAT,
    cdc.FlushRequest: Event.FLUSH,
    cdc.Disconnect: Event.DISCONNECT,
}

Send = Callable[[bytes], Awaitable[None]]
Close = Callable[[int, str], Awaitable[None]]


class _Reply:
    """A place in the queue of answers. `render` is called once `ready` is done, when the answer is about to leave."""

    __slots__ = ("ready", "render", "size_bytes")

    def __init__(
        self,
        render: Callable[[], tuple[bytes, ...]],
        ready: "asyncio.Future[Any] | None" = None,
        size_bytes: int = 0,
    ) -> None:
        self.render = render
        self.ready = ready
        self.size_bytes = size_bytes


class CdcSession:
    """The life of one connection. `run` is its only task; `drain` and `tell_persisted` may be called meanwhile."""

    def __init__(
        self,
        *,
        intake: Intake,
        host: Host,
        flusher: Flusher,
        clock: Clock,
        settings: CdcSettings,
        stats: DoorStats,
        send: Send,
        close: Close,
        default_source: str | None = None,
        principal: Principal = ANYONE,
    ) -> None:
        self._intake = intake
        self._host = host
        self._flusher = flusher
        self._clock = clock
        self._settings = settings
        self._stats = stats
        self._send = send
        self._close = close
        self._principal = principal
        self._source = SourceId(principal.source(default_source)) if default_source else None
        self._sources: set[str] = set()
        self._state = State.OPEN
        self._close_with: tuple[int, str] | None = None
        self._replies: deque[_Reply] = deque()
        self._replies_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._flushes: set[asyncio.Task[None]] = set()
        # Sources whose `persisted` stands in the queue, and whether it changed since.
        self._telling: dict[str, bool] = {}
        # After a refusal for now, by source: until when (monotonic), and above which sequence.
        self._held: dict[str, tuple[float, int]] = {}
        limits = intake.gate.limits
        # A message up to this size cannot break a limit on bytes, so it may be decoded in one go.
        self._small_bytes = min(limits.payload_bytes_max, limits.event_bytes_max)

    async def run(self, messages: AsyncIterator[bytes]) -> None:
        """Serve until the peer is gone or everything is said."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                writer = group.create_task(self._write())
                async for data in messages:
                    await self._receive(data)
                    if self._state in (State.LEAVING, State.CLOSED):
                        break
                else:
                    self._step(Event.GONE)
                if self._state is State.CLOSED:
                    writer.cancel()
                else:
                    await asyncio.wait([writer])
                for flush in self._flushes:
                    flush.cancel()
        finally:
            self._state = State.CLOSED
            for source in self._sources:
                self._host.unfollow(self, SourceId(source))

    def drain(self) -> None:
        """The server stops: answer what is under way, refuse the rest, close."""
        if self._step(Event.DRAIN) is Action.GO_AWAY:
            self._close_with = (CLOSE_GOING_AWAY, "shutting_down")
            for flush in self._flushes:
                flush.cancel()
                self._refuse(replies.stopping(), 0, None)
            self._wake.set()

    def tell_persisted(self, source: SourceId) -> None:
        """More of a source's batches are in the tables. The answer takes its place behind what is queued already, so
        that a producer never hears `persisted` of a batch before it hears that the batch is durable."""
        if self._state is State.CLOSED:
            return
        if source in self._telling:
            self._telling[source] = True
            return
        sequence = self._intake.persisted(source)
        if sequence is not None:
            self._telling[source] = False
            self._queue(_Reply(partial(self._render_told, source, sequence)))

    # Messages in

    async def _receive(self, data: bytes) -> None:
        while self._full and self._state is not State.CLOSED:
            self._room.clear()
            await self._room.wait()
        sequence, correlation_id = 0, None
        try:
            payload, events = None, None
            if len(data) <= self._small_bytes and (whole := cdc.decode_whole_batch(data)) is not None:
                message: cdc.ClientMessage = whole[0]
                payload, events = whole[1], whole[2]
            else:
                try:
                    message = cdc.decode_client(data)
                except Invalid as error:
                    self._refuse_unreadable(data, error)
                    return
            sequence = message.sequence_number if isinstance(message, cdc.CdcBatch) else 0
            correlation_id = message.correlation_id
            self._act(message, payload, events)
        except MainstemError as error:
            self._refuse(error, sequence, correlation_id)
        except Exception as error:
            _log.exception("a CDC message could not be served", extra={"sequence": sequence})
            self._refuse(error, sequence, correlation_id)

    def _refuse_unreadable(self, data: bytes, error: Invalid) -> None:
        if self._step(Event.UNREADABLE) is Action.REFUSE:
            known = cdc.peek(data)
            self._refuse(error, known.sequence_number, known.correlation_id)

    def _act(
        self, message: cdc.ClientMessage, payload: bytes | None = None, events: list[cdc.CdcEvent] | None = None
    ) -> None:
        action = self._step(_EVENTS[type(message)])
        match action, message:
            case Action.TAKE, cdc.CdcBatch():
                self._take(message, bytes(message.events) if payload is None else payload, events)
            case Action.GREET, cdc.Connect():
                self._greet(message)
            case Action.TELL, _:
                self._queue(_Reply(lambda: (self._host.status(),)))
            case Action.FLUSH, cdc.FlushRequest():
                source = self._source_of(message)
                self._queue(_Reply(partial(self._render_flush_begun, source, message.correlation_id)))
            case Action.LEAVE, _:
                self._close_with = (CLOSE_NORMAL, "")
                self._wake.set()
            case Action.REFUSE_STOPPING, _:
                raise replies.stopping()

    def _take(self, message: cdc.CdcBatch, payload: bytes, events: list[cdc.CdcEvent] | None) -> None:
        source = self._source_of(message)
        gate = self._intake.gate
        if events is None:
            gate.limits.check_payload(len(payload))
            if len(payload) > gate.limits.event_bytes_max:
                gate.limits.check_event(max(cdc.event_sizes(payload), default=0))
            events = cdc.decode_events(payload)
        self._check_hold(source, message.sequence_number)
        batch = Batch(
            source=source,
            sequence=message.sequence_number,
            count=len(events),
            encoding=Encoding.CDC_JSON,
            payload=payload,
            fingerprint=zlib.crc32(payload),
            tables=gate.tables({event.table for event in events}, self._principal),
        )
        self._follow(source)
        try:
            ticket = self._intake.take(batch)
        except Overloaded as error:
            self._hold(source, message.sequence_number, error)
            raise
        render = partial(self._render_outcome, ticket, source, batch.sequence, batch.count, message.correlation_id)
        if ticket.outcome is not None:
            ticket.outcome.add_done_callback(partial(self._settled, source, batch.sequence))
        self._queue(_Reply(render, ticket.outcome, len(payload)))

    def _greet(self, message: cdc.Connect) -> None:
        if message.protocol_version != cdc.PROTOCOL_VERSION:
            raise Invalid(f"protocol version. expected={cdc.PROTOCOL_VERSION} got={message.protocol_version}")
        if message.source_do_id is not None:
            self._source = SourceId(self._principal.source(message.source_do_id))
        source = self._source_of(message)
        self._follow(source)
        # What this source sent on a connection that is gone may still be on its way to the disk; only then is its
        # highest durable sequence what it stays.
        assert self._group is not None
        settled = self._group.create_task(self._intake.settled(source))
        settled.add_done_callback(lambda _: self._wake.set())
        self._queue(_Reply(partial(self._render_greeting, source, message.correlation_id), settled))

    def _source_of(self, message: cdc.ClientMessage) -> SourceId:
        if isinstance(message.source_do_id, str):
            return SourceId(self._principal.source(message.source_do_id))
        if self._source is None:
            raise replies.missing_source()
        return self._source

    def _follow(self, source: SourceId) -> None:
        if source in self._sources:
            return
        if len(self._sources) >= self._settings.sources_per_connection_max:
            raise Invalid(
                f"too many sources on one connection. expected=at most {self._settings.sources_per_connection_max}"
            )
        self._host.follow(self, source)
        self._sources.add(source)

    # A batch that is refused for now is sent again later. Those behind it that are on the wire already must not
    # overtake it, or an older value would win over a newer one: they are refused as well until its time has come.

    def _hold(self, source: SourceId, sequence: int, error: Exception) -> None:
        retry_ms = replies.retry_delay_ms(error)
        if retry_ms is None:
            return
        now_s = self._clock.monotonic_s()
        held = self._held.get(source)
        after = sequence if held is None or held[0] <= now_s else min(held[1], sequence)
        self._held[source] = (now_s + retry_ms / 1000, after)

    def _check_hold(self, source: SourceId, sequence: int) -> None:
        held = self._held.get(source)
        if held is None:
            return
        until_s, after = held
        if sequence <= after:
            return
        left_s = until_s - self._clock.monotonic_s()
        if left_s > 0:
            raise Overloaded(
                f"an earlier batch waits for its retry. expected={after} got={sequence}", retry_after_s=left_s
            )
        self._held.pop(source)

    # Answers out

    def _queue(self, reply: _Reply) -> None:
        self._replies.append(reply)
        self._replies_bytes += reply.size_bytes
        self._wake.set()

    def _refuse(self, error: Exception, sequence: int, correlation_id: str | None) -> None:
        nack = replies.nack(error, now_ms=self._clock.now_ms(), sequence=sequence, correlation_id=correlation_id)
        self._stats.nacks[nack.reason] += 1
        data = cdc.encode(nack)
        self._queue(_Reply(lambda: (data,)))

    @property
    def _full(self) -> bool:
        return (
            len(self._replies) >= self._settings.replies_max or self._replies_bytes >= self._settings.replies_bytes_max
        )

    async def _write(self) -> None:
        try:
            while True:
                if self._replies and ((ready := self._replies[0].ready) is None or ready.done()):
                    reply = self._replies.popleft()
                    self._replies_bytes -= reply.size_bytes
                    self._room.set()
                    for data in reply.render():
                        await self._send(data)
                elif not self._replies and self._close_with is not None and not self._flushes:
                    await self._close(*self._close_with)
                    return
                else:
                    self._wake.clear()
                    await self._wake.wait()
        except OSError:
            # The peer is gone; the reader hears of it too.
            pass
        finally:
            self._state = State.CLOSED
            self._room.set()

    def _settled(self, source: SourceId, sequence: int, outcome: "asyncio.Future[Any]") -> None:
        error = None if outcome.cancelled() else outcome.exception()
        if isinstance(error, Exception):
            self._hold(source, sequence, error)
        self._wake.set()

    def _render_outcome(
        self, ticket: Ticket, source: SourceId, sequence: int, count: int, correlation_id: str | None
    ) -> tuple[bytes, ...]:
        now_ms = self._clock.now_ms()
        outcome = ticket.outcome
        error = None
        if outcome is not None:
            error = asyncio.CancelledError() if outcome.cancelled() else outcome.exception()
        if error is not None:
            failure = error if isinstance(error, Exception) else replies.stopping()
            if not isinstance(failure, MainstemError):
                _log.error("an append failed", exc_info=failure, extra={"source": source, "sequence": sequence})
            nack = replies.nack(failure, now_ms=now_ms, sequence=sequence, correlation_id=correlation_id)
            self._stats.nacks[nack.reason] += 1
            # While it was under way it held back what could be said of those after it.
            self.tell_persisted(source)
            return (cdc.encode(nack),)
        if ticket.duplicate:
            self._stats.duplicates += 1
            # The tables may have it already, and then no watermark will say so again.
            persisted = self._intake.persisted(source)
            if persisted is not None and persisted >= sequence:
                self.tell_persisted(source)
        else:
            self._stats.batches += 1
            self._stats.changes += count
        appended = outcome.result() if outcome is not None else None
        data = replies.ack(
            now_ms=now_ms,
            sequence=sequence,
            count=0 if ticket.duplicate else count,
            utilization=self._host.utilization(),
            correlation_id=correlation_id,
            batch_id=f"{appended.first}-{appended.last}" if appended is not None else None,
            status=cdc.AckStatus.DUPLICATE if ticket.duplicate else None,
        )
        return (data,)

    def _render_greeting(self, source: SourceId, correlation_id: str | None) -> tuple[bytes, ...]:
        self._host.settle(source)
        if source not in self._telling:
            self.tell_persisted(source)
        greeting = replies.ack(
            now_ms=self._clock.now_ms(),
            sequence=self._intake.gate.dedup.highest(source),
            count=0,
            utilization=self._host.utilization(),
            correlation_id=correlation_id,
            status=cdc.AckStatus.OK,
        )
        return greeting, self._host.status()

    def _render_persisted(self, source: SourceId, sequence: int, correlation_id: str | None) -> bytes:
        return replies.ack(
            now_ms=self._clock.now_ms(),
            sequence=sequence,
            count=0,
            utilization=self._host.utilization(),
            correlation_id=correlation_id,
            status=cdc.AckStatus.PERSISTED,
        )

    def _render_told(self, source: SourceId, sequence: int) -> tuple[bytes, ...]:
        if self._telling.pop(source):
            self.tell_persisted(source)
        return (self._render_persisted(source, sequence, None),)

    def _render_flush_begun(self, source: SourceId, correlation_id: str | None) -> tuple[bytes, ...]:
        # Here, everything that came before the request is durable and answered.
        assert self._group is not None
        if len(self._flushes) >= self._settings.flushes_max:
            self._refuse(Overloaded("too many flushes at once", retry_after_s=1.0), 0, correlation_id)
            return ()
        flush = self._group.create_task(self._flush(source, correlation_id))
        self._flushes.add(flush)
        flush.add_done_callback(self._flushed)
        return ()

    async def _flush(self, source: SourceId, correlation_id: str | None) -> None:
        try:
            await self._flusher.flush(self._settings.flush_timeout_s)
        except MainstemError as error:
            self._refuse(error, 0, correlation_id)
            return
        except Exception as error:
            _log.exception("a flush failed", extra={"source": source})
            self._refuse(error, 0, correlation_id)
            return
        self._host.settle(source)
        sequence = self._intake.persisted(source) or 0
        self._queue(_Reply(lambda: (self._render_persisted(source, sequence, correlation_id), self._host.status())))

    def _flushed(self, flush: "asyncio.Task[None]") -> None:
        self._flushes.discard(flush)
        self._wake.set()

    def _step(self, event: Event) -> Action:
        self._state, action = step(self._state, event)
        return action
