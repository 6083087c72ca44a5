"""The sync door over WebSockets: requests answered in their order, arrivals broadcast as they come.

Broadcasts form a chain: each begins at the cursor where the last reply or broadcast on the connection ended.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mainstem.admission import Rates
from mainstem.doors.sync.access import Caller
from mainstem.doors.sync.answers import close_of, refusal
from mainstem.doors.sync.frames import Frame, writer_of
from mainstem.doors.sync.http import Receive, asked_of, viewer_of
from mainstem.doors.sync.rounds import Rounds
from mainstem.doors.sync.stream import Send
from mainstem.feeds.service import SyncService, Viewer
from mainstem.model.errors import Invalid, MainstemError, NotFound, Overloaded
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.wire.sync import Close, SyncPush, decode_request, join_response, split_push
from mainstem.wire.sync.checks import PUSH_BYTES_MAX
from mainstem.wire.sync.frames import SUBPROTOCOL

CONNECTIONS_MAX = 10_000
# A push, and its tag.
REQUEST_BYTES_MAX = PUSH_BYTES_MAX + 1
OUTBOX_BYTES_MAX = 4 * 1024 * 1024
DRAIN_S_MAX = 1.0
_RETRY_AFTER_S = 5.0

_logger = logging.getLogger(__name__)


class SyncSockets:
    """All WebSockets of the sync door."""

    def __init__(self, service: SyncService, rates: Rates, *, connections_max: int = CONNECTIONS_MAX) -> None:
        self._service = service
        self._rates = rates
        self._connections_max = connections_max
        self._rounds: dict[str, Rounds] = {}
        self._connections: set[_Connection] = set()
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    async def serve(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one connection from its handshake to its end."""
        if (await receive())["type"] != "websocket.connect":
            return
        try:
            asked = asked_of(scope)
            if asked.action != "ws":
                raise NotFound("no such route")
            asked.caller.check_gateway(asked.gateway)
        except MainstemError as error:
            await _refuse(scope, send, error)
            return
        offered = scope.get("subprotocols") or []
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if SUBPROTOCOL in offered else None})
        try:
            # Told after the handshake: a page is not told how long to wait otherwise.
            self._check_room()
            client = scope.get("client")
            meter = self._rates.connect(client[0] if client else "")
        except MainstemError as error:
            code, reason = close_of(error)
            await _close(send, code, reason)
            return
        rounds = self._rounds.get(asked.gateway)
        if rounds is None:
            rounds = self._rounds[asked.gateway] = Rounds(self._service, asked.gateway)
        connection = _Connection(self._service, asked.gateway, asked.caller, viewer_of(asked), send, rounds.arrived)
        self._connections.add(connection)
        self._empty.clear()
        rounds.add(connection)
        try:
            await connection.run(receive)
        finally:
            self._rates.leave(meter)
            self._connections.discard(connection)
            if not self._connections:
                self._empty.set()
            rounds.remove(connection)
            if rounds.is_empty:
                rounds.close()
                self._rounds.pop(asked.gateway, None)

    async def drain(self, timeout_s: float = DRAIN_S_MAX) -> None:
        """Refuse what is new, close what is open; a client that does not read is not waited for."""
        self._draining = True
        for connection in list(self._connections):
            connection.end(Close.OVERLOADED, "overloaded retry_after_s=1")
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()

    def _check_room(self) -> None:
        if self._draining or len(self._connections) >= self._connections_max:
            raise Overloaded(
                f"too many connections. expected=at most {self._connections_max}", retry_after_s=_RETRY_AFTER_S
            )


class _Connection:
    """One client. Requests are taken one after the other; what is to be sent leaves in order."""

    def __init__(
        self,
        service: SyncService,
        gateway: str,
        caller: Caller,
        viewer: Viewer,
        send: Send,
        on_behind: Callable[[], None],
    ) -> None:
        self._service = service
        # Called where something arrived while a pull was answered: no round told of it.
        self._on_behind = on_behind
        self._gateway = gateway
        self._caller = caller
        self._send = send
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._sending = False
        self._write_now = writer_of(send)
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended: tuple[int, str] | None = None
        self.viewer = viewer
        # The cursor that the chain has come to; None while there is no chain.
        self.told: LogPosition | None = None
        # How far arrivals were looked at: what was not for this client moves this, and not the chain.
        self.covered = NOWHERE

    @property
    def is_full(self) -> bool:
        """Whether the client reads more slowly than there is to tell."""
        return self._outbox_bytes > OUTBOX_BYTES_MAX

    def broadcast(self, frame: Frame, cursor: LogPosition | None) -> None:
        """Send a frame that continues the chain; without a cursor it ends it."""
        self.told = cursor
        self.covered = cursor or self.covered
        self._write_or_put(frame)

    def end(self, code: int, reason: str) -> None:
        """Close after what waits was sent."""
        if self._ended is None:
            self._ended = (code, reason)
        self._wake.set()

    async def run(self, receive: Receive) -> None:
        """Until the client is gone, or has to go."""
        reading = asyncio.create_task(self._read(receive))
        reading.add_done_callback(lambda _: self.end(Close.INTERNAL, "internal"))
        try:
            await self._write()
        except OSError:
            # The peer is gone.
            pass
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, receive: Receive) -> None:
        while True:
            # A client that does not read its replies is not asked for more.
            await self._room.wait()
            event = await receive()
            if event["type"] != "websocket.receive":
                self.end(0, "")
                return
            data = event.get("bytes")
            if data is None:
                self.end(Close.TEXT, "binary frames only")
                return
            try:
                if len(data) > REQUEST_BYTES_MAX:
                    raise Invalid(f"a frame is too large. expected=at most {REQUEST_BYTES_MAX}", reason="too_large")
                await self._take(data)
            except MainstemError as error:
                self.end(*close_of(error))
                return
            # The task's edge: the client is told that it was our fault, and tries again.
            except Exception:
                _logger.exception("a sync connection failed")
                self.end(Close.INTERNAL, "internal")
                return

    async def _take(self, data: bytes) -> None:
        message = decode_request(data)
        if isinstance(message, SyncPush):
            self._caller.check_push(message, self._gateway)
            arrival = await self._service.push(self._gateway, message, split_push(data[1:]))
            self._write_or_put(Frame.of(join_response([], self._service.cursors.encode(arrival))))
            return
        if message.client_id:
            self._caller.check_client(message.client_id)
            self._name(message.client_id)
        self.told = None
        cursors = self._service.cursors
        since = cursors.decode(message.since_hlc)
        reply = await self._service.pull(self._gateway, self.viewer, since, message.max_deltas)
        self._put(join_response(reply.encoded, cursors.encode(reply.cursor), reply.has_more, message.since_hlc))
        if not reply.has_more:
            self.told = self.covered = reply.cursor
            if self._service.newest > reply.cursor:
                self._on_behind()

    def _name(self, client: str) -> None:
        """Without tokens a client says who it is with its requests, not with its handshake."""
        if self._caller.client is None and client != self.viewer.client:
            self.viewer = self.viewer._replace(client=client, claims=self._caller.claims_of(client))

    def _write_or_put(self, frame: Frame) -> None:
        if self._outbox or self._sending or not self._write_now(frame.framed):
            self._put(frame.payload)

    def _put(self, frame: bytes) -> None:
        self._outbox.append(frame)
        self._outbox_bytes += len(frame)
        if self.is_full:
            self._room.clear()
        self._wake.set()

    async def _write(self) -> None:
        while True:
            while self._outbox:
                frame = self._outbox.popleft()
                self._sending = True
                await self._send({"type": "websocket.send", "bytes": frame})
                self._sending = False
                self._outbox_bytes -= len(frame)
                if not self.is_full:
                    self._room.set()
            if self._ended is not None:
                if self._ended[0]:
                    await _close(self._send, *self._ended)
                return
            self._wake.clear()
            await self._wake.wait()


async def _refuse(scope: Any, send: Send, error: MainstemError) -> None:
    """Answer the handshake itself: a client that may not connect gets no connection."""
    answer = refusal(error)
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await _close(send, *close_of(error))
        return
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
    headers.append((b"content-type", answer.media_type.encode()))
    await send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": answer.body, "more_body": False})


async def _close(send: Send, code: int, reason: str) -> None:
    try:
        await send({"type": "websocket.close", "code": int(code), "reason": reason})
    except (OSError, RuntimeError):
        # The peer was faster.
        pass
