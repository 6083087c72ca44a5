"""The WebSocket door: CDC connections at `/ws`. Owns the connections and what they share, not their sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from litestar import WebSocket, websocket
from litestar.exceptions import WebSocketDisconnect
from litestar.handlers import WebsocketRouteHandler

from mainstem.admission import Intake, Meter, Role
from mainstem.doors.cdc import ports as cdc_ports
from mainstem.doors.cdc import replies
from mainstem.doors.cdc.ports import CdcSettings, DoorStats, Flusher, Persisted, Room, StatusSource
from mainstem.doors.cdc.session import CdcSession
from mainstem.doors.http.access import access, principal_of
from mainstem.doors.http.ws_protocol import message_of
from mainstem.model.change import SourceId
from mainstem.model.errors import Overloaded
from mainstem.model.position import LogPosition
from mainstem.runtime.clock import Clock
from mainstem.wire import cdc
from mainstem.wire.cdc import SOURCE_LENGTH_MAX

# For those who run the server.
FRAME_BYTES_MAX = cdc_ports.FRAME_BYTES_MAX
SERVER_FRAME_BYTES_MAX = cdc_ports.SERVER_FRAME_BYTES_MAX

SUBPROTOCOL = "mainstem.cdc.v1"
CLOSE_GOING_AWAY = 1001
CLOSE_TOO_LARGE = 1009
CLOSE_TRY_AGAIN = 1013
_CONNECTION_RETRY_AFTER_S = 5.0
# When the next flush is due is asked of the log no more often than this: an ack must stay cheap.
_FLUSH_TIME_AGE_S_MAX = 0.1


class CdcDoor:
    """All CDC connections of this process."""

    def __init__(
        self,
        *,
        intake: Intake,
        persisted: Persisted,
        flusher: Flusher,
        status: StatusSource,
        clock: Clock,
        settings: CdcSettings | None = None,
    ) -> None:
        self.stats = DoorStats()
        self._intake = intake
        self._persisted = persisted
        self._flusher = flusher
        self._status = status
        self._clock = clock
        self._settings = settings or CdcSettings()
        self._sessions: set[CdcSession] = set()
        self._followers: dict[str, set[CdcSession]] = {}
        self._draining = False
        self._next_flush_ms: int | None = None
        self._next_flush_at_s = float("-inf")
        self._empty = asyncio.Event()
        self._empty.set()
        self._unsubscribe: Callable[[], None] | None = persisted.on_advance(self._on_advance)

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        return len(self._sessions)

    @property
    def source_count(self) -> int:
        """Sources that some open connection sends for."""
        return len(self._followers)

    async def serve(self, socket: WebSocket[Any, Any, Any]) -> None:
        """Serve one connection from its handshake to its end."""
        # A page hands over its token as a subprotocol; its browser wants one of those that it offered to be taken up.
        offered = socket.scope.get("subprotocols") or []
        await socket.accept(subprotocols=SUBPROTOCOL if SUBPROTOCOL in offered else None)
        rates = self._intake.gate.rates
        meter = None
        try:
            self._check_open()
            client = socket.scope.get("client")
            meter = rates.connect(client[0] if client else "")
            source = socket.headers.get("x-client-id") or socket.headers.get("x-shard-name")
            if meter is not None and source:
                rates.check_source(source, self.followers(SourceId(principal_of(socket.scope).source(source))))
        except Overloaded as refusal:
            rates.leave(meter)
            await self._turn_away(socket, refusal)
            return
        session = self._open(socket, source, meter)
        try:
            await session.run(_messages(socket))
        finally:
            rates.leave(meter)
            self._sessions.discard(session)
            if not self._sessions:
                self._empty.set()

    def retune(self, *, connections_max: int) -> None:
        """Another bound on connections; those that are open stay."""
        self._settings = replace(self._settings, connections_max=connections_max)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse what is new, answer what is under way, close every connection. Whether all closed in time.

        To be called before the server is told to stop, which would cut the connections off.
        """
        self._draining = True
        for session in list(self._sessions):
            session.drain()
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        finally:
            if self._unsubscribe is not None:
                self._unsubscribe()
                self._unsubscribe = None
        return True

    # What a session asks for

    def follow(self, session: CdcSession, source: SourceId) -> None:
        self._followers.setdefault(source, set()).add(session)

    def unfollow(self, session: CdcSession, source: SourceId) -> None:
        followers = self._followers.get(source)
        if followers is not None:
            followers.discard(session)
            if not followers:
                del self._followers[source]

    def settle(self, source: SourceId) -> None:
        if self._intake.gate.dedup.settle(source, self._persisted.watermark):
            self._tell(source)

    def followers(self, source: SourceId) -> int:
        return len(self._followers.get(source, ()))

    def room(self) -> Room:
        pressure, utilization = self._intake.gate.pressure, self._status.utilization()
        return Room(
            utilization=utilization,
            is_behind=pressure.is_behind(utilization),
            delay_ms=pressure.delay_ms(utilization),
            breaker=self._status.breaker(),
            until_flush_ms=self._until_flush_ms(),
        )

    def persisted_path(self) -> str | None:
        return self._status.persisted_path()

    def status(self) -> cdc.Status:
        view = self._status.view()
        return cdc.Status(
            timestamp=self._clock.now_ms(),
            state=view.state,
            buffer=cdc.BufferStatus(
                batch_count=view.batch_count,
                event_count=view.event_count,
                total_size_bytes=view.size_bytes,
                utilization=view.utilization,
                oldest_batch_time=view.oldest_ms,
                newest_batch_time=view.newest_ms,
            ),
            connected_sources=len(self._followers),
            last_flush_time=view.last_flush_ms,
            next_flush_time=view.next_flush_ms,
        )

    def _until_flush_ms(self) -> int | None:
        now_s = self._clock.monotonic_s()
        if now_s - self._next_flush_at_s > _FLUSH_TIME_AGE_S_MAX:
            self._next_flush_ms = self._status.view().next_flush_ms
            self._next_flush_at_s = now_s
        return None if self._next_flush_ms is None else max(0, self._next_flush_ms - self._clock.now_ms())

    def _check_open(self) -> None:
        if self._draining:
            raise replies.stopping()
        if len(self._sessions) >= self._settings.connections_max:
            raise Overloaded(
                f"too many connections. expected=at most {self._settings.connections_max}",
                retry_after_s=_CONNECTION_RETRY_AFTER_S,
                reason="connection_limit",
            )

    async def _turn_away(self, socket: WebSocket[Any, Any, Any], refusal: Overloaded) -> None:
        self.stats.connections_refused += 1
        nack = replies.nack(refusal, now_ms=self._clock.now_ms(), sequence=0, correlation_id=None)
        self.stats.nacks[nack.reason] += 1
        with suppress(OSError, WebSocketDisconnect):
            await socket.send_text(cdc.encode(nack))
            await socket.close(CLOSE_GOING_AWAY if self._draining else CLOSE_TRY_AGAIN, nack.reason)

    def _open(self, socket: WebSocket[Any, Any, Any], source: str | None, meter: Meter | None) -> CdcSession:
        async def send(data: str | bytes) -> None:
            text, binary = (data, None) if isinstance(data, str) else (None, data)
            try:
                await socket.send({"type": "websocket.send", "bytes": binary, "text": text})
            except WebSocketDisconnect as error:
                raise ConnectionError("the peer is gone") from error

        async def close(code: int, reason: str) -> None:
            with suppress(OSError, WebSocketDisconnect):
                await socket.close(code, reason)

        session = CdcSession(
            intake=self._intake,
            host=self,
            flusher=self._flusher,
            clock=self._clock,
            settings=self._settings,
            stats=self.stats,
            send=send,
            close=close,
            default_source=source,
            meter=meter,
            principal=principal_of(socket.scope),
            default_shard=(socket.headers.get("x-shard-name") or "")[:SOURCE_LENGTH_MAX] or None,
        )
        self.stats.connections_opened += 1
        self._sessions.add(session)
        self._empty.clear()
        return session

    def _on_advance(self, watermark: LogPosition) -> None:
        for source in list(self._followers):
            if self._intake.gate.dedup.settle(SourceId(source), watermark):
                self._tell(SourceId(source))

    def _tell(self, source: SourceId) -> None:
        for session in self._followers.get(source, ()):
            session.tell_persisted(source)


async def _messages(socket: WebSocket[Any, Any, Any]) -> AsyncIterator[bytes]:
    """The data of each frame, text or binary, until the peer is gone."""
    while True:
        event = cast("dict[str, Any]", await socket.receive())
        if event["type"] != "websocket.receive":
            return
        data = message_of(event)
        if len(data) > FRAME_BYTES_MAX:
            with suppress(OSError, WebSocketDisconnect):
                await socket.close(CLOSE_TOO_LARGE, "payload_too_large")
            return
        yield data


def cdc_route(door: CdcDoor, paths: tuple[str, ...] = ("/ws", "/lakehouse")) -> WebsocketRouteHandler:
    """The route to mount in a Litestar app. Producers of DoLake know it by two names."""

    @websocket(list(paths), opt=access(Role.WRITER))
    async def serve(socket: WebSocket[Any, Any, Any]) -> None:
        await door.serve(socket)

    return serve
