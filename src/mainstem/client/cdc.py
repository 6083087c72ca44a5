"""A producer's end of the CDC protocol.

    async with CdcClient("ws://127.0.0.1:8181/ws", "shop") as client:
        receipt = await client.send([insert("orders", 1, {"id": 1, "total": 9.5})])
        await receipt.durable()

The client numbers its batches, keeps a bounded number of them on their way, and sends again what it has no answer for
when a connection breaks, until it hears that each is durable. Sending a batch twice changes nothing: the server tells
duplicates by source and sequence.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from ssl import SSLContext
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from mainstem.client.outbox import Outbox
from mainstem.client.receipt import Durable, Receipt
from mainstem.model.errors import Denied, Invalid, MainstemError, OutcomeUnknown, Overloaded
from mainstem.runtime.backoff import Backoff
from mainstem.runtime.clock import Clock, SystemClock
from mainstem.wire import cdc
from mainstem.wire import cdc_packing as packing
from mainstem.wire.cdc_packing import Packing

_log = logging.getLogger(__name__)

_GREETING = "hello"
_REFUSED_FOR_GOOD = (401, 403)
_UNREACHABLE = (OSError, WebSocketException, TimeoutError)


class _Refused(Exception):
    """The server does not want this connection now."""

    def __init__(self, nack: cdc.Nack) -> None:
        super().__init__(nack.error_message)
        self.retry_s = (nack.retry_delay_ms or 0) / 1000


def _words(error: BaseException) -> str:
    """Why a connection was lost or not made, in a few words."""
    if isinstance(error, BaseExceptionGroup):
        return _words(error.exceptions[0])
    if isinstance(error, ConnectionRefusedError):
        return "connection refused (is the server up?)"
    return str(error) or type(error).__name__


class CdcClient:
    """Sends changes of one source. An async context manager; belongs to one event loop.

    One client at a time sends for a source: the numbers of two would collide, and the server would refuse one of them.
    """

    def __init__(
        self,
        url: str,
        source: str,
        *,
        token: str | None = None,
        ssl: SSLContext | None = None,
        encoding: Literal["json", "msgpack"] = "json",
        compression: Literal["zstd", "deflate"] | None = None,
        priority: Literal["low", "normal", "high"] = "normal",
        window_batches_max: int = 64,
        window_bytes_max: int = 16 * 1024 * 1024,
        open_timeout_s: float = 30.0,
        close_timeout_s: float = 30.0,
        backoff: Backoff | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`encoding` and `compression` are asked for when connecting; `deflate` is the WebSocket's own
        (permessage-deflate), `zstd` is usually smaller and quicker."""
        self.source = source
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._ssl = ssl
        self._packing = Packing(encoding)
        self._compression = compression
        self._priority = cdc.Priority(priority)
        self._window_batches_max = window_batches_max
        self._window_bytes_max = window_bytes_max
        self._open_timeout_s = open_timeout_s
        self._close_timeout_s = close_timeout_s
        self._backoff = backoff or Backoff()
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._outbox = Outbox()
        self._sequence_next = 1
        self._last_acked = 0
        self._pause_until_s = 0.0
        self._flushes: dict[str, asyncio.Future[int]] = {}
        self._flushes_asked = 0
        self._flushes_to_send: list[str] = []
        self._greeted = asyncio.Event()
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._runner: asyncio.Task[None] | None = None
        self._closing = False
        self._fatal: MainstemError | None = None
        # Batches without an answer at that time.
        self._abandoned = 0
        # Why there is no connection, where there is none.
        self._trouble: str | None = None
        # How often a connection was made: 1 means that none was lost.
        self.connections = 0
        self.status: cdc.Status | None = None

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._runner = self._group.create_task(self._run())
        try:
            async with asyncio.timeout(self._open_timeout_s):
                await self._greeted.wait()
        except TimeoutError:
            await self._stop()
            raise Overloaded(
                f"no connection. expected=a greeting from {self._url} got=none within {self._open_timeout_s} s"
                + (f": {self._trouble}" if self._trouble else ""),
                retry_after_s=self._backoff.next_s(),
                reason="unreachable",
            ) from None
        if self._fatal is not None:
            await self._stop()
            raise self._fatal
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        if kind is not None:
            await self._stop()
            return
        # A program that awaits no receipt still wants its changes to arrive, or to hear that they may not have.
        try:
            async with asyncio.timeout(self._close_timeout_s):
                await self._answered()
        except TimeoutError:
            raise OutcomeUnknown(
                f"closed too early. expected=an answer to every batch within {self._close_timeout_s:g} s"
                f" got=none to {len(self._outbox)}"
            ) from None
        finally:
            await self._stop()
        if self._abandoned and self._fatal is not None:
            raise self._fatal

    async def send(
        self, changes: Iterable[cdc.CdcEvent | Mapping[str, Any]], *, sequence: int | None = None
    ) -> Receipt:
        """Hand over a batch, at most once per `sequence`. Waits only while the window is full.

        Without a `sequence` the client counts on from what the server has.
        """
        events = list(changes)
        payload = packing.encode_events(events) if self._is_packed else cdc.encode_events(events)
        while self._is_full() and self._fatal is None and not self._closing:
            self._progress.clear()
            await self._progress.wait()
        self._check_open()
        receipt = Receipt(self._sequence_next if sequence is None else sequence, len(events))
        self._outbox.put(payload, receipt)
        self._sequence_next = max(self._sequence_next, receipt.sequence + 1)
        self._wake.set()
        return receipt

    async def flush(self) -> int:
        """Wait until the tables show everything sent so far; the sequence up to which that holds.

        Raises Overloaded where the server did not get there in time: the changes are durable all the same.
        """
        for receipt in self._outbox.receipts():
            with suppress(Invalid):
                await receipt.durable()
        self._check_open()
        self._flushes_asked += 1
        name = f"flush-{self._flushes_asked}"
        self._flushes[name] = asyncio.get_running_loop().create_future()
        self._flushes_to_send.append(name)
        self._wake.set()
        try:
            return await self._flushes[name]
        finally:
            del self._flushes[name]

    # The connection

    async def _run(self) -> None:
        while True:
            asked_s = 0.0
            try:
                async with connect(
                    self._url,
                    compression="deflate" if self._compression == "deflate" else None,
                    max_queue=None,
                    open_timeout=self._open_timeout_s,
                    close_timeout=1.0,
                    ssl=self._ssl,
                    additional_headers=self._headers | ({"X-Client-ID": self.source} if self.source.isascii() else {}),
                ) as socket:
                    await self._converse(socket)
            except _Refused as refusal:
                asked_s = refusal.retry_s
            except InvalidStatus as error:
                if error.response.status_code in _REFUSED_FOR_GOOD:
                    self._give_up(Denied(f"the server does not let us in. expected=a good token got={error}"))
                    return
                self._tell_trouble(f"the server answered {error.response.status_code}")
            except _UNREACHABLE as error:
                self._tell_trouble(_words(error))
            except MainstemError as error:
                self._give_up(error)
                return
            self._outbox.rewind()
            self._flushes_to_send = list(self._flushes)
            await self._sleep(self._backoff.next_s(asked_s))

    def _tell_trouble(self, trouble: str) -> None:
        """Say at once that there is no connection, and again only where it is for another reason."""
        if trouble != self._trouble:
            _log.warning("no connection to %s: %s. Trying again.", self._url, trouble)
        self._trouble = trouble

    async def _converse(self, socket: ClientConnection) -> None:
        await self._greet(socket)
        self._pause_until_s = 0.0
        self._backoff.reset()
        self.connections += 1
        if self._trouble is not None:
            _log.warning("connected to %s", self._url)
            self._trouble = None
        self._greeted.set()
        async with asyncio.TaskGroup() as group:
            sender = group.create_task(self._send_all(socket))
            # However it ends, even by the server's goodbye: to this client it is a connection that was lost.
            with suppress(Invalid, *_UNREACHABLE):
                async for data in socket:
                    self._hear(packing.decode_server(data))
            sender.cancel()

    async def _greet(self, socket: ClientConnection) -> None:
        hello = cdc.Connect(
            timestamp=self._clock.now_ms(),
            correlation_id=_GREETING,
            source_do_id=self.source,
            last_ack_sequence=self._last_acked,
            priority=self._priority,
            capabilities=cdc.Capabilities(binary_protocol=self._is_packed, compression=self._compression == "zstd"),
        )
        # A server that is full or stops closes at once; it says why before, so listen even if it no longer does.
        with suppress(*_UNREACHABLE):
            await socket.send(cdc.encode(hello))
        async with asyncio.timeout(self._open_timeout_s):
            while True:
                answer = packing.decode_server(await socket.recv())
                if isinstance(answer, cdc.Nack):
                    if answer.should_retry:
                        raise _Refused(answer)
                    raise Invalid(answer.error_message, reason=answer.reason)
                if isinstance(answer, cdc.Ack) and answer.correlation_id == _GREETING:
                    self._sequence_next = max(self._sequence_next, answer.sequence_number + 1)
                    return

    async def _send_all(self, socket: ClientConnection) -> None:
        # Where a connection breaks, the receiving side decides what follows.
        with suppress(*_UNREACHABLE):
            while True:
                await self._send_next(socket)

    async def _send_next(self, socket: ClientConnection) -> None:
        pause_s = self._pause_until_s - self._clock.monotonic_s()
        if pause_s > 0:
            await self._sleep(pause_s)
            return
        parcel = self._outbox.next()
        if parcel is not None:
            await self._send_frame(socket, self._batch(parcel.sequence, parcel.payload, parcel.attempts - 1))
        elif self._flushes_to_send:
            request = cdc.FlushRequest(
                timestamp=self._clock.now_ms(),
                correlation_id=self._flushes_to_send.pop(0),
                source_do_id=self.source,
                reason="manual",
            )
            await self._send_frame(socket, request)
        else:
            self._wake.clear()
            await self._wake.wait()

    @property
    def _is_packed(self) -> bool:
        return self._packing is Packing.MSGPACK

    async def _send_frame(self, socket: ClientConnection, message: cdc.ClientMessage) -> None:
        data = packing.encode(message) if self._is_packed else cdc.encode(message)
        if self._compression == "zstd":
            data = packing.compress(data)
        await socket.send(data)

    def _batch(self, sequence: int, payload: bytes, retries: int) -> cdc.CdcBatch:
        return cdc.CdcBatch(
            timestamp=self._clock.now_ms(),
            source_do_id=self.source,
            sequence_number=sequence,
            size_bytes=len(payload),
            is_retry=retries > 0,
            retry_count=retries,
            events=msgspec.Raw(payload),
        )

    # Answers

    def _hear(self, message: cdc.ServerMessage) -> None:
        match message:
            case cdc.Ack(status=cdc.AckStatus.PERSISTED):
                self._outbox.persisted(message.sequence_number)
                flush = self._flushes.get(message.correlation_id or "")
                if flush is not None and not flush.done():
                    flush.set_result(message.sequence_number)
            case cdc.Ack():
                self._hear_ack(message)
            case cdc.Nack():
                self._hear_nack(message)
            case cdc.Status():
                self.status = message
        self._wake.set()
        self._progress.set()

    def _hear_ack(self, ack: cdc.Ack) -> None:
        duplicate = ack.status is cdc.AckStatus.DUPLICATE
        self._outbox.acknowledge(Durable(ack.sequence_number, _positions(ack.batch_id), duplicate))
        self._last_acked = max(self._last_acked, ack.sequence_number)
        if ack.details is not None and ack.details.suggested_delay_ms:
            self._pause(ack.details.suggested_delay_ms)

    def _hear_nack(self, nack: cdc.Nack) -> None:
        error: MainstemError = Invalid(nack.error_message, reason=nack.reason)
        if nack.should_retry:
            delay_ms = nack.retry_delay_ms or 1_000
            error = Overloaded(nack.error_message, retry_after_s=delay_ms / 1000, reason=nack.reason)
        flush = self._flushes.get(nack.correlation_id or "")
        if flush is not None:
            # A server that stops is followed by another one, which is asked again.
            if not flush.done() and nack.reason is not cdc.NackReason.SHUTTING_DOWN:
                flush.set_exception(error)
        elif isinstance(error, Overloaded):
            self._outbox.postpone(nack.sequence_number)
            self._pause(round(error.retry_after_s * 1000))
        else:
            self._outbox.refuse(nack.sequence_number, error)

    def _pause(self, delay_ms: int) -> None:
        self._pause_until_s = max(self._pause_until_s, self._clock.monotonic_s() + delay_ms / 1000)

    # The end

    def _is_full(self) -> bool:
        return len(self._outbox) >= self._window_batches_max or self._outbox.size_bytes >= self._window_bytes_max

    def _check_open(self) -> None:
        if self._fatal is not None:
            raise self._fatal
        if self._closing:
            raise Invalid("the client is closed", reason="closed")

    async def _answered(self) -> None:
        while len(self._outbox) and self._fatal is None:
            self._progress.clear()
            await self._progress.wait()

    def _give_up(self, error: MainstemError) -> None:
        self._fatal = error
        self._abandoned = len(self._outbox)
        self._outbox.abandon(error)
        for flush in self._flushes.values():
            if not flush.done():
                flush.set_exception(error)
        self._greeted.set()
        self._progress.set()

    async def _stop(self) -> None:
        self._closing = True
        if self._runner is not None:
            self._runner.cancel()
        await self._group.__aexit__(None, None, None)
        if self._fatal is None:
            self._give_up(OutcomeUnknown("the client was closed before the server answered"))


def _positions(batch_id: str | None) -> tuple[int, int] | None:
    first, _, last = (batch_id or "").partition("-")
    return (int(first), int(last)) if first.isdecimal() and last.isdecimal() else None
