"""One client's connection: frames in, answers out in the order of the requests, everything bounded.

Requests are begun one after the other; one that is `pipelined` lets the next begin while it waits. Reading stops while
too much is under way, so that a client that does not read its answers holds no more than its share.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from kio.schema.errors import ErrorCode

from mainstem.doors.kafka.dispatch import Answered, Context, Encoded, Entry, Table
from mainstem.doors.kafka.throttling import throttled
from mainstem.model.errors import Invalid, MainstemError
from mainstem.wire.kafka.frames import Buffer, Framer, RequestHead, framed, read_head
from mainstem.wire.kafka.messages import API_VERSIONS, answer_head, decode_request, encode_response
from mainstem.wire.passing import TOLD

logger = logging.getLogger(__name__)

# A whole frame, as the buffers of one write.
Answer = Sequence[Buffer]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """The bounds of one connection."""

    frame_bytes_max: int = 64 * 1024 * 1024
    # Requests that are begun or wait: beyond either, reading stops.
    under_way_max: int = 64
    under_way_bytes_max: int = 16 * 1024 * 1024
    # A connection on which nothing happened for so long is closed.
    idle_s: float = 600.0
    # Of one that has not said who it is, where that is asked: the largest frame, and how long it may take.
    login_frame_bytes_max: int = 512 * 1024
    login_s: float = 30.0


class ConnectionHost(Protocol):
    """What a connection asks of its door."""

    def joined(self, connection: "Connection") -> bool:
        """Whether there is room for it."""

    def left(self, connection: "Connection") -> None:
        """It is gone."""

    def now_s(self) -> float:
        """The clock that idle time is measured by."""

    def may_ask(self, context: Context) -> bool:
        """Whether it said who it is, where that is asked."""

    def charge_ms(self, entry: Entry, context: Context, in_bytes: int, out_bytes: int) -> int:
        """A request was answered: for how long nothing more is taken from its client."""


class Connection(asyncio.Protocol):
    """See above. `table` says who answers."""

    def __init__(self, table: Table, settings: ConnectionSettings, door: ConnectionHost) -> None:
        self._table = table
        self._settings = settings
        self._door = door
        self._framer = Framer(settings.frame_bytes_max)
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._under_way = 0
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._answers: asyncio.Queue[asyncio.Task[Answer | None] | None] = asyncio.Queue()
        self._transport: asyncio.Transport
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_paused = False
        self._is_closing = False
        # Past its quota: the next request is begun then.
        self._silent_until_s = 0.0
        self.context = Context(peer="")
        self.opened_s = 0.0
        self.active_s = 0.0

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no subclasses of it.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.context.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self.context.told = transport.get_extra_info(TOLD)
        if not self._door.joined(self):
            transport.close()
            return
        self._keep(asyncio.get_running_loop().create_task(self._begin_requests()))
        self._keep(asyncio.get_running_loop().create_task(self._write_answers()))

    def data_received(self, data: bytes) -> None:
        self.active_s = self._door.now_s()
        try:
            is_known = self._door.may_ask(self.context)
            frames = self._framer.feed(data, None if is_known else self._settings.login_frame_bytes_max)
        except Invalid as error:
            self._end(f"frame refused: {error}")
            return
        for frame in frames:
            self._waiting.append(frame)
            self._waiting_bytes += len(frame)
        if frames:
            self._arrived.set()
            self._check_pause()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        self._door.left(self)
        for task in self._tasks:
            task.cancel()
        for close in self.context.on_close:
            close()

    # What happens in between

    def close(self) -> None:
        """End it."""
        self._is_closing = True
        self._transport.close()

    def _keep(self, task: "asyncio.Task[object]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_pause(self) -> None:
        settings = self._settings
        is_full = (
            len(self._waiting) + self._under_way >= settings.under_way_max
            or self._waiting_bytes >= settings.under_way_bytes_max
        )
        if is_full != self._is_paused and not self._is_closing:
            self._is_paused = is_full
            if is_full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    async def _begin_requests(self) -> None:
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            while self._under_way >= self._settings.under_way_max:
                self._arrived.clear()
                await self._arrived.wait()
            if (silent_s := self._silent_until_s - self._door.now_s()) > 0:
                await asyncio.sleep(silent_s)
            frame = self._waiting.popleft()
            self._waiting_bytes -= len(frame)
            try:
                task, is_pipelined = self._begin(frame)
            except Invalid as error:
                self._end(f"request refused: {error}")
                return
            # The task's edge: without it the connection would be neither read nor closed.
            except Exception:
                logger.exception("kafka.request_failed", extra={"peer": self.context.peer})
                self._end("request failed")
                return
            self._answers.put_nowait(task)
            if not is_pipelined:
                await asyncio.wait([task])
            else:
                # Its part before the first await is done now, before the next one's.
                await asyncio.sleep(0)
            self._check_pause()

    def _begin(self, frame: bytes) -> "tuple[asyncio.Task[Answer | None], bool]":
        head = read_head(frame)
        entry = self._table.get(head.api_key)
        loop = asyncio.get_running_loop()
        if entry is None:
            raise Invalid(f"unknown API. got={head.api_key}")
        if not entry.min_version <= head.version <= entry.max_version:
            if head.api_key != API_VERSIONS:
                raise Invalid(
                    f"version of {entry.name}. expected={entry.min_version} to {entry.max_version} got={head.version}"
                )
            # The one request that a client sends without knowing our versions: answered in the oldest form.
            refusal = {"error_code": ErrorCode.unsupported_version, "api_keys": self._table.versions()}
            answer = encode_response(API_VERSIONS, 0, head.correlation_id, refusal)
            task = loop.create_task(_ready(answer))
        else:
            if not entry.is_open and not self._door.may_ask(self.context):
                raise Invalid(f"{entry.name} before the client said who it is")
            try:
                request = decode_request(head, frame)
            except KeyError as error:
                raise Invalid(f"no schema for {entry.name} version {head.version}") from error
            task = loop.create_task(self._answer(entry, head, request, len(frame)))
        self._under_way += 1
        self._keep(task)
        return task, entry.pipelined

    async def _answer(self, entry: Entry, head: RequestHead, request: object, in_bytes: int) -> Answer | None:
        context = self.context
        context.client_id, context.version, context.correlation_id = head.client_id, head.version, head.correlation_id
        answer = await entry.handler(request, context)
        encoded = _encoded(head, answer)
        silent_ms = self._door.charge_ms(entry, context, in_bytes, 0 if encoded is None else sum(map(len, encoded)))
        if silent_ms:
            self._silent_until_s = max(self._silent_until_s, self._door.now_s() + silent_ms / 1000)
            encoded = _encoded(head, throttled(entry.key, answer, silent_ms))
        return encoded

    async def _write_answers(self) -> None:
        while True:
            task = await self._answers.get()
            if task is None:
                return
            if not task.done():
                await asyncio.wait([task])
            self._under_way -= 1
            self._arrived.set()
            self._check_pause()
            if task.cancelled():
                return
            error = task.exception()
            if error is not None:
                if isinstance(error, MainstemError):
                    self._end(f"request failed: {error}")
                else:
                    logger.error("kafka.request_failed", exc_info=error, extra={"peer": self.context.peer})
                    self._end("request failed")
                return
            answer = task.result()
            if answer is not None and not self._transport.is_closing():
                # As they are: what is read from memory is not copied on its way out.
                self._transport.writelines(answer)
                self.active_s = self._door.now_s()
                await self._writable.wait()

    def _end(self, why: str) -> None:
        """Close a connection that cannot go on: Kafka has no answer for these."""
        logger.info("kafka.connection_closed", extra={"peer": self.context.peer, "why": why})
        self.close()


def _encoded(head: RequestHead, answer: Answered) -> Answer | None:
    if answer is None:
        return None
    if isinstance(answer, Encoded):
        return framed([answer_head(head.api_key, head.version, head.correlation_id), *answer.body])
    return [encode_response(head.api_key, head.version, head.correlation_id, answer)]


async def _ready(answer: bytes) -> Answer | None:
    return [answer]
