"""The WebSocket door: CDC connections at `/ws`. Owns the connections and what they share, not their sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from litestar import WebSocket, websocket
from litestar.exceptions import WebSocketDisconnect
from litestar.handlers import WebsocketRouteHandler

from mainstem.admission import Intake, Role
from mainstem.doors import cdc_replies as replies
from mainstem.doors.access import access, principal_of
from mainstem.doors.cdc_ports import CdcSettings, DoorStats, Flusher, Persisted, StatusSource
from mainstem.doors.cdc_session import CdcSession
from mainstem.model.change import SourceId
from mainstem.model.errors import Overloaded
from mainstem.model.position import LogPosition
from mainstem.runtime.clock import Clock
from mainstem.wire import cdc

# Larger than any payload that is taken, so that a batch that is too large gets an answer; beyond it the socket is
# closed with 1009. To be given to the server (uvicorn: ws_max_size).
FRAME_BYTES_MAX = 16 * 1024 * 1024

CLOSE_GOING_AWAY = 1001
CLOSE_TRY_AGAIN = 1013
_CONNECTION_RETRY_AFTER_S = 5.0


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
        await socket.accept()
        refusal = self._refusal()
        if refusal is not None:
            self.stats.connections_refused += 1
            nack = replies.nack(refusal, now_ms=self._clock.now_ms(), sequence=0, correlation_id=None)
            with suppress(OSError, WebSocketDisconnect):
                await socket.send_text(cdc.encode(nack))
                await socket.close(CLOSE_GOING_AWAY if self._draining else CLOSE_TRY_AGAIN, nack.reason)
            return
        session = self._open(socket)
        try:
            await session.run(_messages(socket))
        finally:
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

    def utilization(self) -> float:
        return self._status.utilization()

    def status(self) -> bytes:
        view = self._status.view()
        return cdc.encode(
            cdc.Status(
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
        )

    def _refusal(self) -> Overloaded | None:
        if self._draining:
            return replies.stopping()
        if len(self._sessions) >= self._settings.connections_max:
            return Overloaded(
                f"too many connections. expected=at most {self._settings.connections_max}",
                retry_after_s=_CONNECTION_RETRY_AFTER_S,
                reason="connection_limit",
            )
        return None

    def _open(self, socket: WebSocket[Any, Any, Any]) -> CdcSession:
        async def send(data: bytes) -> None:
            try:
                await socket.send({"type": "websocket.send", "bytes": None, "text": data.decode()})
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
            default_source=socket.headers.get("x-client-id") or socket.headers.get("x-shard-name"),
            principal=principal_of(socket.scope),
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
        text = event.get("text")
        yield text.encode() if text is not None else event.get("bytes") or b""


def cdc_route(door: CdcDoor, path: str = "/ws") -> WebsocketRouteHandler:
    """The route to mount in a Litestar app."""

    @websocket(path, opt=access(Role.WRITER))
    async def serve(socket: WebSocket[Any, Any, Any]) -> None:
        await door.serve(socket)

    return serve
