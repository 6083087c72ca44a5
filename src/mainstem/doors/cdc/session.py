"""One CDC connection: messages in, answers out in the order of the messages. Owns no socket.

Batches are handed to the intake as they come, without waiting for the disk, and their answers stand in a queue until
their outcome is known. The queue is bounded: at the bound the session stops reading, and the producer feels that as a
full socket.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from mainstem.admission import ANYONE, Intake, Meter, Principal, Ticket, TooLarge
from mainstem.doors.cdc import replies
from mainstem.doors.cdc.holding import Holding
from mainstem.doors.cdc.ports import FRAME_BYTES_MAX, CdcSettings, DoorStats, Flusher, Host
from mainstem.doors.cdc.queue import Replies, Reply
from mainstem.doors.cdc.reading import Incoming, peek, read_events, read_message
from mainstem.doors.cdc.states import Action, Event, State, step
from mainstem.model.batch import Batch, Encoding, Priority, shard_payload
from mainstem.model.change import SourceId
from mainstem.model.checksum import crc32
from mainstem.model.errors import Invalid, MainstemError, Overloaded
from mainstem.runtime.clock import Clock
from mainstem.wire import cdc
from mainstem.wire import cdc_packing as packing
from mainstem.wire.cdc_packing import Packing

_log = logging.getLogger(__name__)

CLOSE_NORMAL = 1000
CLOSE_GOING_AWAY = 1001
CLOSE_POLICY = 1008

_EVENTS: dict[type[cdc.ClientMessage], Event] = {
    cdc.CdcBatch: Event.BATCH,
    cdc.Connect: Event.CONNECT,
    cdc.Heartbeat: Event.HEARTBEAT,
    cdc.FlushRequest: Event.FLUSH,
    cdc.Disconnect: Event.DISCONNECT,
}

# Text goes out as a text frame, bytes as a binary one.
Send = Callable[[str | bytes], Awaitable[None]]
Close = Callable[[int, str], Awaitable[None]]


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
        meter: Meter | None = None,
        principal: Principal = ANYONE,
        default_shard: str | None = None,
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
        self._shard = default_shard
        # None where the connection is under no limit of rate.
        self._meter = meter
        self._packing = Packing.JSON
        self._priority = cdc.Priority.NORMAL
        self._oversized = 0
        self._refused_in_a_row = 0
        self._sources: set[str] = set()
        self._state = State.OPEN
        self._close_with: tuple[int, str] | None = None
        self._replies = Replies(settings)
        self._group: asyncio.TaskGroup | None = None
        self._flushes: set[asyncio.Task[None]] = set()
        # Sources whose `persisted` stands in the queue, and whether it changed since.
        self._telling: dict[str, bool] = {}
        self._holding = Holding(clock, settings.hold_s_max)
        # What was agreed on at `connect`; until then, what is taken from anybody.
        self._agreed = self._agree(cdc.Capabilities())

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
            self._replies.wake()

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
            self._replies.add(Reply(partial(self._render_told, source, sequence)))

    # Messages in

    async def _receive(self, data: bytes) -> None:
        while self._replies.is_full and self._state is not State.CLOSED:
            await self._replies.room()
        known = cdc.Peek()
        try:
            try:
                data = packing.decompress(data, FRAME_BYTES_MAX)
                incoming = read_message(data, self._intake.gate.limits, self._meter)
            except Invalid as error:
                self._refuse_unreadable(data, error)
                return
            message = incoming.message
            sequence = message.sequence_number if isinstance(message, cdc.CdcBatch) else 0
            known = cdc.Peek(sequence, message.correlation_id)
            self._act(incoming)
        except MainstemError as error:
            self._refuse(error, known.sequence_number, known.correlation_id)
        except Exception as error:
            _log.exception("a CDC message could not be served", extra={"sequence": known.sequence_number})
            self._refuse(error, known.sequence_number, known.correlation_id)
        if self._refused_in_a_row > self._settings.refusals_free_max:
            await asyncio.sleep(self._settings.refusal_pause_s)

    def _refuse_unreadable(self, data: bytes, error: Invalid) -> None:
        if self._step(Event.UNREADABLE) is Action.REFUSE:
            self._charge(1.0)
            known = peek(data)
            self._refuse(error, known.sequence_number, known.correlation_id)

    def _act(self, incoming: Incoming) -> None:
        message = incoming.message
        action = self._step(_EVENTS[type(message)])
        match action, message:
            case Action.TAKE, cdc.CdcBatch():
                self._take(message, incoming)
            case Action.GREET, cdc.Connect():
                self._charge(1.0)
                self._greet(message)
            case Action.TELL, _:
                self._charge(self._intake.gate.rates.settings.heartbeat_tokens)
                self._replies.add(Reply(lambda: (self._host.status(),)))
            case Action.FLUSH, cdc.FlushRequest():
                self._charge(1.0)
                source = self._source_of(message)
                self._replies.add(Reply(partial(self._render_flush_begun, source, message.correlation_id)))
            case Action.LEAVE, _:
                self._close_with = (CLOSE_NORMAL, "")
                self._replies.wake()
            case Action.REFUSE_STOPPING, _:
                raise replies.stopping()

    def _charge(self, tokens: float) -> None:
        if self._meter is not None:
            self._meter.take(tokens)

    def _take(self, message: cdc.CdcBatch, incoming: Incoming) -> None:
        source = self._source_of(message)
        self._holding.check(source, message.sequence_number)
        try:
            self._charge(1.0)
            self._follow(source)
            self._check_message_size(incoming.size_bytes)
            payload, events = read_events(message, incoming, self._intake.gate.limits)
            self._check_event_count(len(events))
            cdc.check_event_sequences(message, events)
            batch = self._batch(message, source, payload, events)
            ticket = self._intake.take(batch)
        except Overloaded as error:
            self._holding.refused(source, message.sequence_number, error)
            raise
        self._refused_in_a_row = 0
        render = partial(self._render_outcome, ticket, source, batch.sequence, batch.count, message.correlation_id)
        if ticket.outcome is not None:
            ticket.outcome.add_done_callback(partial(self._settled, source, batch.sequence))
        self._replies.add(Reply(render, ticket.outcome, len(payload)))

    def _check_message_size(self, size: int) -> None:
        most = self._agreed.max_message_size
        # What is below the server's own bound was agreed on; that one is the limits' to tell.
        if most is not None and size > most and most < self._intake.gate.limits.payload_bytes_max:
            raise TooLarge("message", "bytes", most, size, reason="payload_too_large")

    def _check_event_count(self, count: int) -> None:
        if self._agreed.max_batch_size is not None and count > self._agreed.max_batch_size:
            raise TooLarge("batch", "events", self._agreed.max_batch_size, count, reason="payload_too_large")

    def _batch(self, message: cdc.CdcBatch, source: SourceId, payload: bytes, events: cdc.Events) -> Batch:
        shard = message.source_shard_name or self._shard
        return Batch(
            source=source,
            sequence=message.sequence_number,
            count=len(events),
            encoding=Encoding.CDC_JSON_OF_SHARD if shard else Encoding.CDC_JSON,
            payload=shard_payload(shard, payload) if shard else payload,
            # Of the changes alone: a retry may come over a connection that names no shard.
            fingerprint=crc32(payload),
            tables=self._intake.gate.tables({event.table for event in events}, self._principal),
            priority=Priority[(message.priority or self._priority).name],
        )

    def _greet(self, message: cdc.Connect) -> None:
        if message.protocol_version < 1:
            raise Invalid(f"protocol version. expected=at least 1 got={message.protocol_version}")
        if message.source_do_id is not None:
            self._source = SourceId(self._principal.source(message.source_do_id))
        source = self._source_of(message)
        self._follow(source)
        self._priority = message.priority
        self._shard = message.source_shard_name or self._shard
        # At once: what comes behind it may be on the wire already.
        self._agreed = self._agree(message.capabilities or cdc.Capabilities())
        # What this source sent on a connection that is gone may still be on its way to the disk; only then is its
        # highest durable sequence what it stays.
        assert self._group is not None
        settled = self._group.create_task(self._intake.settled(source))
        settled.add_done_callback(lambda _: self._replies.wake())
        self._replies.add(Reply(partial(self._render_greeting, source, message), settled))

    def _agree(self, asked: cdc.Capabilities) -> cdc.Capabilities:
        """What both sides can do."""
        limits = self._intake.gate.limits
        return cdc.Capabilities(
            binary_protocol=asked.binary_protocol,
            compression=asked.compression,
            batching=True,
            max_batch_size=min(limits.events_max, asked.max_batch_size or limits.events_max),
            max_message_size=min(limits.payload_bytes_max, asked.max_message_size or limits.payload_bytes_max),
        )

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
        if self._meter is not None:
            self._intake.gate.rates.check_source(source, self._host.followers(source))
        self._host.follow(self, source)
        self._sources.add(source)

    # Answers out

    def _refuse(self, error: Exception, sequence: int, correlation_id: str | None) -> None:
        nack = replies.nack(error, now_ms=self._clock.now_ms(), sequence=sequence, correlation_id=correlation_id)
        self._stats.nacks[nack.reason] += 1
        self._refused_in_a_row += 1
        self._replies.add(Reply(lambda: (nack,)))
        if replies.is_oversized(error):
            self._oversized += 1
            if self._oversized >= self._intake.gate.rates.settings.oversized_max:
                self._expel()

    def _expel(self) -> None:
        if self._step(Event.OFFENCE) is Action.EXPEL:
            self._close_with = (CLOSE_POLICY, "oversized messages")
            self._replies.wake()

    async def _write(self) -> None:
        try:
            while True:
                if (reply := self._replies.take()) is not None:
                    for message in reply.render():
                        await self._send(self._encode(message))
                elif not self._replies and self._close_with is not None and not self._flushes:
                    await self._close(*self._close_with)
                    return
                else:
                    await self._replies.changed()
        except OSError:
            # The peer is gone; the reader hears of it too.
            pass
        finally:
            self._state = State.CLOSED
            self._replies.ended()

    def _encode(self, message: cdc.ServerMessage) -> str | bytes:
        return packing.encode(message) if self._packing is Packing.MSGPACK else cdc.encode(message).decode()

    def _settled(self, source: SourceId, sequence: int, outcome: "asyncio.Future[Any]") -> None:
        error = None if outcome.cancelled() else outcome.exception()
        if isinstance(error, Exception):
            self._holding.refused(source, sequence, error)
        self._replies.wake()

    def _render_outcome(
        self, ticket: Ticket, source: SourceId, sequence: int, count: int, correlation_id: str | None
    ) -> tuple[cdc.ServerMessage, ...]:
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
            return (nack,)
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
        ack = replies.ack(
            now_ms=now_ms,
            sequence=sequence,
            count=0 if ticket.duplicate else count,
            room=self._host.room(),
            meter=self._meter,
            correlation_id=correlation_id,
            batch_id=f"{appended.first}-{appended.last}" if appended is not None else None,
            status=cdc.AckStatus.DUPLICATE if ticket.duplicate else None,
        )
        return (ack,)

    def _render_greeting(self, source: SourceId, hello: cdc.Connect) -> tuple[cdc.ServerMessage, ...]:
        self._host.settle(source)
        if source not in self._telling:
            self.tell_persisted(source)
        dedup = self._intake.gate.dedup
        greeting = replies.ack(
            now_ms=self._clock.now_ms(),
            sequence=dedup.highest(source),
            count=0,
            room=self._host.room(),
            meter=self._meter,
            correlation_id=hello.correlation_id,
            status=cdc.AckStatus.OK,
        )
        capabilities = self._agree(hello.capabilities or cdc.Capabilities())
        # The answers to come are written accordingly.
        self._packing = Packing.MSGPACK if capabilities.binary_protocol else Packing.JSON
        agreed = msgspec.structs.replace(
            greeting,
            protocol_version=cdc.PROTOCOL_VERSION,
            capabilities=capabilities,
            resume_from=dedup.resume_from(source, hello.last_ack_sequence),
        )
        return agreed, self._host.status()

    def _render_persisted(self, sequence: int, correlation_id: str | None) -> cdc.Ack:
        return replies.ack(
            now_ms=self._clock.now_ms(),
            sequence=sequence,
            count=0,
            room=self._host.room(),
            meter=self._meter,
            correlation_id=correlation_id,
            status=cdc.AckStatus.PERSISTED,
            persisted_path=self._host.persisted_path(),
        )

    def _render_told(self, source: SourceId, sequence: int) -> tuple[cdc.ServerMessage, ...]:
        if self._telling.pop(source):
            self.tell_persisted(source)
        return (self._render_persisted(sequence, None),)

    def _render_flush_begun(self, source: SourceId, correlation_id: str | None) -> tuple[cdc.ServerMessage, ...]:
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
        self._replies.add(Reply(lambda: (self._render_persisted(sequence, correlation_id), self._host.status())))

    def _flushed(self, flush: "asyncio.Task[None]") -> None:
        self._flushes.discard(flush)
        self._replies.wake()

    def _step(self, event: Event) -> Action:
        self._state, action = step(self._state, event)
        return action
